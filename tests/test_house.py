"""One place for each concept: what the architecture promises beyond the order of imports."""

import ast
import builtins
import importlib
import pkgutil
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lipspline

SOURCE = Path(lipspline.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?![\w:-])")
"""An option of a command line; with a colon behind it, it is a variable of a style sheet."""
LONGEST = 400


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(SOURCE.rglob("*.py"))
    return tuple((path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())) for path in paths)


@cache
def nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Every node of every file, with the name of the file."""
    return tuple((name, node) for name, tree in sources() for node in ast.walk(tree))


def test_errors_have_public_names():
    """The name of its class is the first thing that a user reads of an error."""
    kinds = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    private = {}
    for name, node in nodes():
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)} if isinstance(node, ast.ClassDef) else ()
        if isinstance(node, ast.ClassDef) and node.name.startswith("_") and bases & kinds:
            private[node.name] = name
    assert private == {}


def test_no_class_name_is_used_twice():
    places = defaultdict(list)
    for name, node in nodes():
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


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """All strings of a file, but for what says how to call it: its docstring, and options of a parser of its own."""
    declared = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node_name(node.func).endswith(".add_argument")
        for argument in node.args
    }
    if tree.body and isinstance(tree.body[0], ast.Expr):
        declared.add(id(tree.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in declared:
            yield node


def test_messages_of_the_library_do_not_speak_of_flags():
    """The library names its arguments; the command line translates."""
    assert not {
        f"{name}:{node.lineno}"
        for name, tree in sources()
        if not name.startswith("cli/")
        for node in strings(tree)
        if FLAG.search(node.value)
    }


def test_the_check_of_flags_sees_what_it_should():
    """Proof that the test above can fail."""
    code = (
        """'Run it with --help.'\nparser.add_argument('--folder')\nraise ValueError(f'Give --force, not {x} --y: 1')"""
    )
    assert [FLAG.findall(node.value) for node in strings(ast.parse(code))] == [["--force"], []]


def calls(*wanted: str) -> set[str]:
    """The files that call one of these, such as `os.replace`."""
    return {name for name, node in nodes() if isinstance(node, ast.Call) and node_name(node.func) in wanted}


def imports(module: str) -> set[str]:
    """The files that import a module or something of it."""
    found = set()
    for name, node in nodes():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(found_name == module or found_name.startswith(f"{module}.") for found_name in names):
            found.add(name)
    return found


def mentions(*words: str) -> set[str]:
    """The files in which one of these words occurs, anywhere."""
    return {name for name, _ in sources() if any(word in (SOURCE / name).read_text() for word in words)}


def node_name(node: ast.expr) -> str:
    """`a.b.c` of a name with attributes; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{node_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def uses(*names: str) -> set[str]:
    """The files that name one of these, such as `native.library`."""
    return {name for name, node in nodes() if isinstance(node, ast.Attribute | ast.Name) and node_name(node) in names}


def defines(*names: str) -> set[str]:
    """The files that define a function of one of these names."""
    return {name for name, node in nodes() if isinstance(node, ast.FunctionDef) and node.name in names}


def subclasses(name: str) -> set[str]:
    """The files with a class that inherits from one of this name."""
    return {file for file, node in nodes() if isinstance(node, ast.ClassDef) and name in map(node_name, node.bases)}


def test_infrastructure_has_one_place():
    """One atomic writer, one lock, one progress display, one PNG encoder, one way to tell processes apart."""
    assert calls("os.replace") == {"_infra/files.py", "formats/output.py"}  # a file; a result of several files
    assert imports("fcntl") == {"_infra/files.py"}
    assert imports("rich.progress") == {"_infra/progress.py"}
    assert mentions("IHDR") == {"formats/png.py"}
    assert uses("torch.distributed", "dist.init_process_group", "dist.get_rank") <= {"_infra/ranks.py"}
    assert calls("mallopt", "libc.mallopt") <= {"_infra/devices.py"}
    assert imports("pickle") == set()


def test_priors_have_one_place():
    """Weights that ship are opened in one package, and what a name means is decided in one function."""
    assert all(name.startswith("priors/") for name in mentions("lipspline.weights"))
    assert defines("resolve") == {"priors/lookup.py"}
    assert defines("catalogue") == {"priors/lookup.py"}
    assert subclasses("Prior") == {"priors/denoisers.py", "priors/lookup.py"}


def test_reconstructions_have_one_place():
    """Command line and lab solve by one function; there is one PSNR, and one kind of simulated noise."""
    assert defines("solve_problem") == {"imaging/problem.py"}
    assert defines("psnr", "ssim") == {"functional/quality.py"}
    assert defines("add_kspace_noise", "add_sinogram_noise") == {"imaging/simulation.py"}
    outside = {name for name in calls("fbs", "minimize", "pnp.fbs", "pnp.minimize") if not name.startswith("pnp/")}
    trials = {"imaging/held_out.py", "paper/reconstruction.py"}  # with data held out, and of the paper's protocol
    assert outside == {"imaging/problem.py", "imaging/denoise.py"} | trials


def test_kernels_have_one_place():
    """`Kernel.in_c` decides whether C runs, `native.call` hands memory to it; two ask what the processor can do."""
    assert imports("ctypes") <= {"kernels/native.py", "_infra/devices.py"}
    assert uses("native.pointers") == {"kernels/dispatch.py"}
    assert uses("native.library") == {"kernels/dispatch.py", "kernels/ridge.py", "kernels/winograd.py"}


def test_files_are_neither_crumbs_nor_tomes():
    lengths = {name: len((SOURCE / name).read_text().splitlines()) for name, _ in sources()}
    assert not [name for name, length in lengths.items() if length > LONGEST]
    assert 100 <= statistics.median(lengths.values()) <= 200
