"""One place for each concept: what the architecture promises beyond the order of imports."""

import ast
import importlib
import pkgutil
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import lipspline

SOURCE = Path(lipspline.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
SPEAKS_OF_FLAGS = {
    "_infra/ranks.py",
    "paper/denoiser_training.py",
    "report/case.py",
    "training/adaptive.py",
    "training/energies.py",
    "training/ridge.py",
}
"""Files with flags of other programs, style sheets, or a command line of their own."""
LONGEST = 400
LONGER = {"training/ridge.py"}
"""Still to be shortened; no other may join it."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def test_no_class_name_is_used_twice():
    places = defaultdict(list)
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert not {name: found for name, found in places.items() if len(found) > 1 and not name.startswith("_")}


def test_no_module_is_hidden_by_a_function_of_its_name():
    hidden = set()
    for _, package, is_package in pkgutil.iter_modules(lipspline.__path__):
        if not is_package or package == "weights":
            continue
        room = importlib.import_module(f"lipspline.{package}")
        for _, name, _ in pkgutil.iter_modules(room.__path__):
            if callable(vars(room).get(name)):
                hidden.add(f"{package}.{name}")
    assert not hidden


def test_messages_of_the_library_do_not_speak_of_flags():
    """The library names its arguments; the command line translates."""
    found = {
        f"{name}:{node.lineno}"
        for name, tree in sources()
        if not name.startswith("cli/") and name not in SPEAKS_OF_FLAGS
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.search(node.value)
    }
    assert not found


def calls(*wanted: str) -> set[str]:
    """The files that call one of these, such as `os.replace`."""
    return {
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in wanted
    }


def imports(module: str) -> set[str]:
    """The files that import a module or something of it."""
    found = set()
    for name, tree in sources():
        for node in ast.walk(tree):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            if any(found_name == module or found_name.startswith(f"{module}.") for found_name in names):
                found.add(name)
    return found


def test_each_concept_has_one_place():
    assert imports("rich.progress") == {"_infra/progress.py"}
    assert [name for name, _ in sources() if "IHDR" in (SOURCE / name).read_text()] == ["formats/png.py"]
    assert calls("mallopt") <= {"_infra/memory.py"}
    assert imports("fcntl") <= {"_infra/files.py"}


def test_files_are_neither_crumbs_nor_tomes():
    lengths = {name: len((SOURCE / name).read_text().splitlines()) for name, _ in sources()}
    assert not [name for name, length in lengths.items() if length > LONGEST and name not in LONGER]
    assert 100 <= statistics.median(lengths.values()) <= 200
