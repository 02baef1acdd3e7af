"""Write docs/house.md: the packages, what each is for, and which of them each may use.

Run `python docs/house_map.py` after a package, or an import between packages, is new; `--check` fails if the page is
not up to date.
"""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PAGE = ROOT / "src" / "lipspline", ROOT / "docs" / "house.md"
HEADER = """# The house

The packages of lipspline, from the bottom up; made by `python docs/house_map.py` from their docstrings and imports. A
package imports only packages above it in this table, and a test checks it. One with an underscore is private. The words
are those of the [glossary](glossary.md).

| package | what it is for | imports |
|---|---|---|
"""
FOOTER = """
Where to begin: a command is a function of `cli`; it fills in a request of `imaging`, which reads files by `formats`,
takes a prior from `priors` and lets `pnp` solve each slice with an operator of `operators`; what is proven about a
network comes from `certification`, about a reconstruction from `pnp`. Nothing but `cli` imports `paper`, `lab` and
`benchmarks`.

```
{picture}
```
"""


def packages() -> dict[str, Path]:
    """The packages, and modules at the top, with the file that says what they are for."""
    found = {path.parent.name: path for path in SOURCE.glob("*/__init__.py") if path.parent.name != "weights"}
    return {**found, **{path.stem: path for path in SOURCE.glob("*.py") if not path.stem.startswith("__")}}


def sentence(path: Path) -> str:
    """The first line of a docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]


def imported(name: str, known: set[str]) -> set[str]:
    """The other packages that a package imports, anywhere in its files."""
    files = (SOURCE / name).rglob("*.py") if (SOURCE / name).is_dir() else [SOURCE / f"{name}.py"]
    names = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "lipspline":
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lipspline."):
                names.add((node.module or "").split(".")[1])
            elif isinstance(node, ast.Import):
                names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("lipspline.")}
    return (names & known) - {name}


def arrows() -> dict[str, set[str]]:
    """What each package imports."""
    known = set(packages())
    return {name: imported(name, known) for name in known}


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """How many packages stand below each, one on another; a circle of imports is an error."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        height[name] = max((height[below] + 1 for below in graph[name]), default=0)
    return height


def page() -> str:
    """The text of docs/house.md."""
    where, graph = packages(), arrows()
    height = levels(graph)
    order = sorted(where, key=lambda name: (height[name], name))
    rows = [
        f"| `{name}` | {sentence(where[name])} | {', '.join(other for other in order if other in graph[name]) or '–'} |"
        for name in order
    ]
    picture = "\n".join(
        f"{level:2}  " + "   ".join(name for name in order if height[name] == level)
        for level in sorted(set(height.values()), reverse=True)
    )
    return HEADER + "\n".join(rows) + "\n" + FOOTER.replace("{picture}", picture)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
