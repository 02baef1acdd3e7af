"""The shape of the code: imports point downwards, cited labels exist, public names are documented."""

import ast
import difflib
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import lipspline

TESTS = Path(__file__).parent
SOURCE = Path(lipspline.__file__).parent
LABELS = set((TESTS / "paper_labels.txt").read_text().split())
LEVELS = {
    "_infra": -1,
    "kernels": 0,
    "functional": 1,
    "nn": 2,
    "certification": 3,
    "operators": 3,
    "networks": 4,
    "priors": 5,
    "formats": 5,
    "models": 6,
    "pnp": 6,
    "training": 6,
    "robust": 4,
    "optim": 7,
    "report": 7,
    "adapters": 7,
    "imaging": 8,
    "paper": 9,
    "benchmarks": 9,
    "lab": 10,
    "cli": 11,
    "__main__": 12,
}
HEAVY = (
    "matplotlib",
    "scipy",
    "h5py",
    "skimage",
    "nibabel",
    "pydicom",
    "onnx",
    "onnxruntime",
    "ot",
    "sigpy",
    "PIL",
    "starlette",
    "uvicorn",
    "deepinv",
)


def sources() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def part(path: Path) -> str:
    """The part of the library a source file belongs to: its folder, or its own name at the top."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Full names of the lipspline modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("lipspline"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports from the top, not relative ones"
            if node.module == "lipspline":
                yield from (f"lipspline.{alias.name}" for alias in node.names)
            elif node.module is not None and node.module.startswith("lipspline."):
                yield node.module


def imported_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if "." in name and not name.endswith(".__version__")}


@pytest.mark.parametrize(
    "path", [p for p in sources() if part(p) != "__init__"], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_point_downwards(path: Path):
    """A file imports its own part and parts on lower levels; parts on one level do not know each other."""
    here = part(path)
    if here == "weights":
        assert not imported_parts(path)
        return
    assert here in LEVELS, f"{path.name}: give the new part {here!r} a level in this test and in the design"
    for other in imported_parts(path) - {here}:
        assert LEVELS.get(other, 0) < LEVELS[here], f"{path.relative_to(SOURCE)} imports {other}"


def test_reconstruction_knows_no_network():
    """`pnp` takes any callable denoiser and any energy; `operators` need only formulas and kernels."""
    for path in sources():
        if part(path) == "pnp":
            known = {"pnp", "operators", "certification", "functional", "kernels", "_infra"}
            assert imported_parts(path) <= known | {"priors"}, path
            priors = {name for name in imports(path) if name.startswith("lipspline.priors")}
            assert priors <= {"lipspline.priors.energy"}, path
        if part(path) == "operators":
            assert imported_parts(path) <= {"operators", "functional", "kernels", "_infra"}, path


def test_no_file_is_a_drawer():
    """Names say what is inside."""
    drawers = re.compile(r"(utils?|helpers?|misc|common|base_model|managers?|stuff)", re.IGNORECASE)
    for root in (SOURCE, TESTS):
        assert not [path for path in root.rglob("*.py") if drawers.fullmatch(path.stem)]


def test_no_file_is_unreadably_long():
    """A concept has one file, and a file one concept."""
    assert not [str(path) for path in sources() if len(path.read_text().splitlines()) > 600]


# Citations

CITATION = re.compile(r"\[((?:[A-Za-z]+:)?[A-Za-z0-9_\-]+(?:,\s*(?:[A-Za-z]+:)?[A-Za-z0-9_\-]+)*)\]")
PREFIXES = {label.partition(":")[0] for label in LABELS if ":" in label}


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def cited(text: str) -> set[str]:
    """Labels in [brackets]: those with a prefix of the paper, and bare ones that are or nearly are the paper's."""
    found = {name.strip() for group in CITATION.findall(text) for name in group.split(",")}
    return {name for name in found if (name.partition(":")[0] in PREFIXES if ":" in name else is_nearly_bare(name))}


@cache
def is_nearly_bare(name: str) -> bool:
    bare = [label for label in LABELS if ":" not in label]
    return bool(difflib.get_close_matches(name, bare, cutoff=0.85))


@cache
def all_citations(root: Path) -> dict[str, set[str]]:
    return {str(path): set().union(*map(cited, docstrings(path))) for path in root.rglob("*.py")}


@pytest.mark.parametrize("root", [SOURCE, TESTS], ids=["src", "tests"])
def test_cited_labels_exist_in_the_paper(root: Path):
    """A label in [brackets] in a docstring leads somewhere."""
    for path, labels in all_citations(root).items():
        assert labels <= LABELS, f"{path} cites {sorted(labels - LABELS)}"


def test_the_citation_check_sees_what_it_should():
    """Proof that the tests around it can fail."""
    text = "of [prop:splineproj] and [sec:tv2, eq:no_such], [-1, 1], [0], [x:y], [slope_clipping], [lip_linear_layer]"
    assert cited(text) == {"prop:splineproj", "sec:tv2", "eq:no_such", "slope_clipping", "lip_linear_layer"}


CORE_LABELS = {
    "eq:architecture",
    "lip_linear_layers",
    "lipschitz_activation_section",
    "prop:SameExp",
    "eq:optim_network",
    "thm:spline_good1",
    "eq:LearnSpline",
    "eq:control_knots",
    "sec:deepspline",
    "sec:methods",
    "sec:SplineProj",
    "eq:slope_clipping",
    "prop:splineproj",
    "slope_clipping",
    "sec:ScalePara",
    "sec:SameExp",
    "eq:var_lip_1d",
    "eq:var_lip_1d_2",
    "sec:splineproj_app",
    "sec:tv2",
}


@pytest.mark.parametrize("label", sorted(CORE_LABELS))
def test_every_formula_of_the_core_is_cited_by_a_function_and_by_a_test(label: str):
    """Sections 2 and 3 and the appendices: label -> function -> test."""
    own = str(Path(__file__))
    for root in (SOURCE, TESTS):
        assert any(label in labels for path, labels in all_citations(root).items() if path != own), f"{label}: {root}"


# Public names


def public_modules() -> list[str]:
    names = [
        name
        for _, name, package in pkgutil.iter_modules(lipspline.__path__, "lipspline.")
        if package and not name.endswith(".weights")
    ]
    return ["lipspline", *names]


@pytest.mark.parametrize("module_name", public_modules())
def test_public_names_exist_and_have_docstrings(module_name: str):
    """Whatever `__all__` offers is there and says what it is for, and so do the public methods of classes."""
    module = importlib.import_module(module_name)
    assert module.__doc__
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.isfunction(thing) or inspect.isclass(thing) or inspect.ismodule(thing):
            assert inspect.getdoc(thing), f"{module_name}.{name} has no docstring"
        if inspect.isclass(thing):
            undocumented = [
                method
                for method, value in vars(thing).items()
                if inspect.isfunction(value)
                and not method.startswith("_")
                and not inspect.getdoc(getattr(thing, method))
            ]
            assert set(undocumented) <= {"forward", "extra_repr"}, f"{module_name}.{name}: {undocumented}"


def test_every_source_file_says_what_it_is_for():
    """A docstring at the top of each file."""
    assert not [str(path) for path in sources() if not ast.get_docstring(ast.parse(path.read_text()))]


STABLE_NAMES = [
    *(
        f"nn.{name}"
        for name in ("LinearSpline", "AbsoluteValue", "LipschitzPReLU", "GroupSort", "MaxMin", "Householder")
    ),
    *("nn.linear", "nn.conv2d", "certify", "plain", "param_groups", "tv2", "effective_regions", "sparsify", "rewrite"),
    *("plot_activations", "models.denoiser", "models.mlp", "models.zoo"),
    *("operators.cartesian_mask", "operators.MRI", "operators.MultiCoilMRI", "operators.ParallelBeamCT"),
    *("operators.espirit", "pnp.fbs"),
]


@pytest.mark.parametrize("name", STABLE_NAMES)
def test_the_names_users_rely_on_exist(name: str):
    """The stable surface: users, docs and outside checks rely on it."""
    thing: object = lipspline
    for step in name.split("."):
        thing = getattr(thing, step)
    assert callable(thing)


# Importing


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_pulls_in_nothing_heavy():
    """Optional packages are imported where they are used."""
    heavy = f"set({HEAVY!r})"
    loaded = run(
        f"import torch, sys; before = set(sys.modules); import lipspline; print(*({heavy} & set(sys.modules)) - before)"
    )
    assert loaded.split() == []


def test_importing_is_quick_beside_importing_torch():
    """At most half of what torch itself needs, in the best of three."""

    def seconds(code: str) -> float:
        start = time.perf_counter()
        run(code)
        return time.perf_counter() - start

    assert any(seconds("import lipspline") < 1.5 * seconds("import torch") for _ in range(3))
