"""Write docs/paper-map.md: which function implements a label of the paper, and which test checks it.

Run `python docs/paper_map.py` after citing a label; `--check` fails if the page is not up to date.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "paper-map.md"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
HEADER = """# Paper map

Which code implements a label of the paper, and which test checks it; made by `python docs/paper_map.py`. A place
is listed where its docstring cites the label.

| label | code | tests |
|---|---|---|
"""


def labels() -> list[str]:
    """All labels of the paper."""
    return (ROOT / "tests" / "paper_labels.txt").read_text().split()


def cited(docstring: str, known: set[str]) -> set[str]:
    """The labels cited in square brackets in a docstring."""
    brackets = re.findall(r"\[([^\[\]]+)\]", docstring)
    return {label for bracket in brackets for label in re.split(r",\s*", bracket)} & known


def citations(folder: Path, known: set[str]) -> Iterator[tuple[str, str, str]]:
    """Triples (label, file, name of what cites it) of a folder; the name of a file itself is empty."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, DEFINITIONS):
                name = "" if isinstance(node, ast.Module) else node.name
                for label in cited(ast.get_docstring(node) or "", known):
                    yield label, path.relative_to(ROOT).as_posix(), name


def by_label(folder: str, known: set[str]) -> dict[str, list[str]]:
    """For each label, the places in a folder that cite it; a file is listed only where nothing inside it is."""
    places: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for label, path, name in citations(ROOT / folder, known):
        places[label][path].add(name)
    return {
        label: [_place(path, name) for path, names in files.items() for name in sorted(names - {""}) or [""]]
        for label, files in places.items()
    }


def _place(path: str, name: str) -> str:
    short = path.removeprefix("src/lipspline/").removeprefix("tests/")
    return f"`{short}`" + (f" `{name}`" if name else "")


def page() -> str:
    """The text of the page."""
    known = set(labels())
    code, tests = by_label("src", known), by_label("tests", known)
    rows = [
        f"| `{label}` | {'<br>'.join(code.get(label, [])) or '–'} | {'<br>'.join(tests.get(label, [])) or '–'} |"
        for label in labels()
        if label in code or label in tests
    ]
    return HEADER + "\n".join(rows) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv and (not PAGE.exists() or PAGE.read_text() != page()):
        sys.exit("docs/paper-map.md is not up to date: run `python docs/paper_map.py`.")
    PAGE.write_text(page())
