"""Write docs/notebooks/*.ipynb from the gallery's scripts: the same cells, without outputs, for Jupyter and Colab.

`--check` fails if a notebook does not have the cells of its script.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gallery_cells import cells

DOCS = Path(__file__).resolve().parent
SCRIPTS, NOTEBOOKS = DOCS / "gallery", DOCS / "notebooks"
INSTALL = """import importlib.util

if importlib.util.find_spec("lipspline") is None:  # as in Colab; or name a wheel that you uploaded
    %pip install -q "lipspline[plot,images,transport]"
"""


def notebook(script: str) -> str:
    """A notebook (format 4.5) with the cells of a script, after one that installs the package where it is missing.

    Example:
        >>> document = json.loads(notebook("# %%\\n# # Title\\nprint(1)\\n"))
        >>> [cell["cell_type"] for cell in document["cells"]]
        ['code', 'markdown', 'code']
    """
    parts: list[tuple[str, str]] = [("code", INSTALL.rstrip())]
    for cell in cells(script):
        parts += [("markdown", cell.text)] if cell.text.strip() else []
        parts += [("code", cell.code)] if cell.code else []
    document = {
        "cells": [_cell(number, kind, text) for number, (kind, text) in enumerate(parts)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    common = {"id": f"cell-{number}", "cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    return common | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def wanted() -> dict[Path, str]:
    """The notebook of every script."""
    scripts = sorted(SCRIPTS.glob("*.py"))
    return {NOTEBOOKS / f"{script.stem}.ipynb": notebook(script.read_text()) for script in scripts}


if __name__ == "__main__":
    documents = wanted()
    if "--check" in sys.argv:
        if {path: path.read_text() for path in NOTEBOOKS.glob("*.ipynb")} != documents:
            sys.exit("docs/notebooks does not follow from docs/gallery: run `python docs/notebooks.py`.")
        sys.exit()
    NOTEBOOKS.mkdir(exist_ok=True)
    for path, text in documents.items():
        path.write_text(text)
