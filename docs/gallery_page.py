"""A Sphinx extension: a script of the gallery is a page, and building the page runs the script."""

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from gallery_cells import markdown
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class GalleryParser(MystParser):
    """Reads a script as the Markdown page that running it gives."""

    supported: ClassVar[tuple[str, ...]] = ("gallery",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Run the script, and read what it says, prints and draws."""
        super().parse(markdown(Path(document["source"])), document)


def setup(app: Sphinx) -> dict[str, bool]:
    """Take files that end in .py for scripts of the gallery."""
    app.add_source_suffix(".py", "gallery")
    app.add_source_parser(GalleryParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
