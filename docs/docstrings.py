"""A Sphinx extension: in the prose of docstrings `|x|` and `a * b` mean what they show, not reStructuredText markup."""

import re

from sphinx.application import Sphinx

CODE = re.compile(r"(`[^`]*`)")


def shown_as_written(lines: list[str]) -> list[str]:
    """Lines of a docstring with `*` and `|` escaped wherever they are prose: not in code, examples or formulas.

    Example:
        >>> shown_as_written(["The norm |c| of `a*b`.", "", ".. math:: |x|", "", ">>> 2 * 3"])
        ['The norm \\\\|c\\\\| of `a*b`.', '', '.. math:: |x|', '', '>>> 2 * 3']
    """
    found, verbatim = [], False
    for line in lines:
        stripped = line.lstrip()
        verbatim = bool(stripped) and (verbatim or stripped.startswith((".. ", ">>> ")))
        found.append(line if verbatim else _escaped(line))
    return found


def _escaped(line: str) -> str:
    parts = CODE.split(line)
    return "".join(part if i % 2 else re.sub(r"([*|])", r"\\\1", part) for i, part in enumerate(parts))


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = shown_as_written(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Do it before the sections of docstrings are read."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
