"""Run a gallery script cell by cell and write what it says, prints and draws as Markdown.

A script is plain Python. A line `# %%` begins a cell; the comment lines right below it are its text, in Markdown, and
the rest of it is code.
"""

import base64
import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "# %%"


@dataclass(frozen=True)
class Cell:
    """Text and the code below it, which begins on the given line of its script."""

    text: str
    code: str
    line: int


@dataclass(frozen=True)
class Outcome:
    """What a cell printed, and the figures it drew, as PNG files."""

    printed: str
    figures: tuple[bytes, ...]


def cells(script: str) -> list[Cell]:
    """The cells of a script.

    Example:
        >>> cells("# %%\\n# # Title\\n# Text.\\nprint(1)\\n")
        [Cell(text='# Title\\nText.', code='print(1)', line=4)]
    """
    lines = script.splitlines()
    starts = [i for i, line in enumerate(lines) if line.rstrip() == MARK]
    if not starts or any(line.strip() for line in lines[: starts[0]]):
        raise ValueError(f"A gallery script must begin with a line {MARK!r}.")
    return [
        _cell(lines[start + 1 : end], start + 2) for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)
    ]


def _cell(lines: list[str], first: int) -> Cell:
    """A cell of these lines, the first of which has this number in its script."""
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:count])
    rest = lines[count:]
    blank = next((i for i, line in enumerate(rest) if line.strip()), len(rest))
    return Cell(text, "\n".join(rest[blank:]).rstrip(), first + count + blank)


def run(path: Path) -> Iterator[tuple[Cell, Outcome]]:
    """Run a script; an error in it keeps its line number."""
    import matplotlib

    matplotlib.use("agg")
    names = {"__name__": "__main__", "__file__": str(path)}
    for cell in cells(path.read_text()):
        program = compile("\n" * (cell.line - 1) + cell.code, str(path), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, names)
        yield cell, Outcome(printed.getvalue(), _figures())


def _figures() -> tuple[bytes, ...]:
    """All open figures, which are closed."""
    from matplotlib import pyplot

    files = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, dpi=110, bbox_inches="tight")
        files.append(file.getvalue())
    pyplot.close("all")
    return tuple(files)


def markdown(path: Path) -> str:
    """The page of a script, with its figures inside."""
    parts = []
    for cell, outcome in run(path):
        parts.append(cell.text)
        if cell.code:
            parts.append(f"```python\n{cell.code}\n```")
        if outcome.printed.strip():
            parts.append(f"```text\n{outcome.printed.rstrip()}\n```")
        parts += [
            f"![What this cell drew](data:image/png;base64,{base64.b64encode(figure).decode()})"
            for figure in outcome.figures
        ]
    return "\n\n".join(parts) + "\n"
