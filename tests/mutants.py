"""Mutants: small changes of the source that the tests of a module should notice, and bugs that they must notice.

    python tests/mutants.py                          some mutants of the modules in MODULES, then the planted bugs
    python tests/mutants.py pnp.guarantee --count 20 --seed 3
    python tests/mutants.py --planted [--match RE]   the bugs of tests/planted.toml only

A mutant is one change of the syntax tree: a comparison, a sign, a dropped term, a constant, an `and`, a `max`. Which
ones are tried is drawn at random from the seed. Each runs in a process of its own that imports the changed module
instead of the file, and then the tests that mirror the module: `tests/PACKAGE/test_NAME.py`, and the tests of the
package that import it. A mutant that survives is either no change of behaviour or a gap in the tests: read it.

A planted bug is written by hand: a module, the function it is in, a snippet and what it becomes. Spaces and line breaks
do not count, and the function may move; a snippet that is not there exactly once is an error. The exit code is 1 if a
planted bug is missed or cannot be planted.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = ROOT / "src" / "lipspline", ROOT / "tests"
FOLDERS = {"_infra": "infra"}  # tests of a package that are not in a folder of its name
MODULES = (
    *("functional.spline", "functional.matrices", "functional.norm_bounds", "nn.spline"),
    *("certification.linear_rules", "certification.other_rules", "certification.round_off"),
    *("operators.base", "operators.mri", "pnp.guarantee", "pnp.certificate", "pnp.iterate", "pnp.descent"),
    *("priors.lookup", "imaging.strength", "imaging.verify", "formats.validation"),
)
"""What a wrong line does most harm in."""
SLOWER, PATIENCE = (
    5.0,
    30.0,
)  # a mutant may take so many times as long as the tests take without it, and so many seconds
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPPOSITES = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
TWINS = (("max", "min"), ("maximum", "minimum"), ("amax", "amin"), ("floor", "ceil"), ("clamp_min", "clamp_max"))
SWAPPED = {a: b for pair in TWINS for a, b in (pair, pair[::-1])}
NO_FIELDS = {"annotation", "returns", "decorator_list", "type_params"}


@dataclass(frozen=True)
class Mutant:
    """One changed module: its code, and how the change reads."""

    module: str
    line: int
    text: str
    code: CodeType


def path_of(module: str) -> Path:
    path = SOURCE / f"{module.replace('.', '/')}.py"
    return path if path.exists() else SOURCE / module.replace(".", "/") / "__init__.py"


def tests_of(module: str) -> list[str]:
    """The tests that mirror a module and those of its package that import it; else those of modules that use it."""
    package, _, name = module.rpartition(".")
    folder = TESTS / FOLDERS.get(package, package)
    mentions = re.compile(rf"\blipspline\.{re.escape(module)}\b|from lipspline\.{package} import .*\b{name}\b")
    found = [
        path
        for path in sorted(folder.glob("test_*.py"))
        if path.stem == f"test_{name.lstrip('_')}" or mentions.search(path.read_text())
    ]
    if found:
        return [str(path.relative_to(ROOT)) for path in found]
    users = [path.stem.lstrip("_") for path in (SOURCE / package).glob("*.py") if mentions.search(path.read_text())]
    tests = [folder / f"test_{user}.py" for user in sorted(users)]
    return [str(path.relative_to(ROOT)) for path in tests if path.exists()]


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression may become."""
    match node:
        case ast.Compare(ops=[op], left=left, comparators=comparators):
            for table in (COMPARISONS, OPPOSITES):
                if type(op) in table:
                    yield ast.Compare(left, [table[type(op)]()], comparators)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not isinstance(left, ast.JoinedStr | ast.Constant) or not isinstance(getattr(left, "value", 0), str):
                yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
            yield left
            if isinstance(op, ast.Add | ast.Mult):
                yield right
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            yield values[0]
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(2 * value if value else 1.0)
        case ast.Attribute(value=value, attr=name, ctx=ast.Load()) if name in SWAPPED:
            yield ast.Attribute(value, SWAPPED[name], ast.Load())
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in SWAPPED:
            yield ast.Call(ast.Name(SWAPPED[name], ast.Load()), args, keywords)
        case ast.IfExp(body=body, orelse=other):
            yield body
            yield other


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Where expressions stand that are worth a change: not in messages, annotations and text."""
    for name, value in ast.iter_fields(tree):
        if name in NO_FIELDS:
            continue
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert) or not isinstance(child, ast.AST):
                continue
            yield tree, name, i
            yield from places(child)


def mutants(module: str) -> list[tuple[int, int]]:
    """All changes of a module, as the number of the place and of the change there."""
    tree = ast.parse(path_of(module).read_text())
    return [(n, k) for n, place in enumerate(places(tree)) for k, _ in enumerate(changes(_at(*place)))]


def mutant(module: str, which: tuple[int, int]) -> Mutant:
    """Make one change."""
    tree = copy.deepcopy(ast.parse(path_of(module).read_text()))
    owner, name, i = list(places(tree))[which[0]]
    old = _at(owner, name, i)
    new = ast.copy_location(list(changes(old))[which[1]], old)
    text = f"{ast.unparse(old)}  ->  {ast.unparse(new)}"
    if i is None:
        setattr(owner, name, new)
    else:
        getattr(owner, name)[i] = new
    code = compile(ast.fix_missing_locations(tree), str(path_of(module)), "exec")
    return Mutant(module, getattr(old, "lineno", 0), text, code)


def _at(owner: ast.AST, name: str, i: int | None) -> ast.AST:
    return getattr(owner, name) if i is None else getattr(owner, name)[i]


@dataclass(frozen=True)
class Planted:
    """A bug written by hand: `find`, once in a function (or class) of a module, becomes `replace`."""

    why: str
    module: str
    function: str
    find: str
    replace: str
    tests: tuple[str, ...] = ()

    def mutant(self) -> Mutant:
        """The changed module; an error if the snippet is not there exactly once."""
        text = path_of(self.module).read_text()
        begin, end = self._span(text)
        pattern = r"\s*".join(re.escape(token) for token in re.findall(r"\w+|[^\w\s]", self.find))
        found = list(re.finditer(pattern, text[begin:end]))
        if len(found) != 1:
            raise LookupError(f"{self.why!r}: the snippet is {len(found)} times in {self.module}, {self.function}.")
        first, last = (begin + place for place in found[0].span())
        changed = text[:first] + self.replace + text[last:]
        code = compile(changed, str(path_of(self.module)), "exec")
        return Mutant(self.module, text.count("\n", 0, first) + 1, self.why, code)

    def _span(self, text: str) -> tuple[int, int]:
        scope: ast.AST = ast.parse(text)
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        if not self.function:
            return 0, len(text)
        for name in self.function.split("."):
            inside = [node for node in ast.walk(scope) if getattr(node, "name", None) == name]
            if not inside:
                raise LookupError(f"{self.why!r}: {self.module} has no {self.function}.")
            scope = inside[0]
        first = min([scope.lineno, *(d.lineno for d in getattr(scope, "decorator_list", []))])  # type: ignore[attr-defined]
        return starts[first - 1], starts[scope.end_lineno]  # type: ignore[attr-defined]


def planted(match: str = "") -> list[Planted]:
    """The bugs of tests/planted.toml whose description has a match."""
    entries = tomllib.loads((TESTS / "planted.toml").read_text())["bug"]
    bugs = [Planted(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in entries]
    return [bug for bug in bugs if re.search(match, bug.why)]


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed code instead of its file."""

    def __init__(self, mutant: Mutant):
        self.name, self.code, self.path = f"lipspline.{mutant.module}", mutant.code, path_of(mutant.module)

    def find_spec(self, fullname, path=None, target=None):
        if fullname == self.name:
            return importlib.util.spec_from_file_location(fullname, self.path, loader=self)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(self.code, module.__dict__)


def run(mutant: Mutant | None, tests: Sequence[str], limit: float) -> str:
    """Run tests in a child process: "passed", "failed", "timeout" or "broken" (no test could run)."""
    child = os.fork()
    if child == 0:
        os._exit(_run_here(mutant, tests))
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: "passed", 1: "failed", 2: "failed"}.get(code, "broken" if mutant is None else "failed")
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "timeout"


def _run_here(mutant: Mutant | None, tests: Sequence[str]) -> int:
    import pytest

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    if mutant is not None:
        sys.meta_path.insert(0, _Changed(mutant))
    os.chdir(ROOT)
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", *tests]))


def baseline(tests: Sequence[str]) -> float:
    """The seconds that tests take without a change; they must pass."""
    begin = time.monotonic()
    if (outcome := run(None, tests, 3600.0)) != "passed":
        raise SystemExit(f"Without any change the tests {' '.join(tests)} end as: {outcome}.")
    return time.monotonic() - begin


def hunt(modules: Sequence[str], count: int, seed: int, until: float) -> None:
    """Try some mutants of each module, and print how many were killed and which survived."""
    table: dict[str, Counter[str]] = {}
    for module in modules:
        tests, every = tests_of(module), mutants(module)
        if not tests or time.monotonic() > until:
            print(f"{module}: {'no time left' if tests else 'no tests mirror it'}", flush=True)
            continue
        limit = SLOWER * baseline(tests) + PATIENCE
        table[module] = Counter()
        for which in random.Random(f"{seed} {module}").sample(every, min(count, len(every))):
            if time.monotonic() > until:
                break
            changed = mutant(module, which)
            survived = run(changed, tests, limit) == "passed"
            table[module]["survived" if survived else "killed"] += 1
            if survived:
                print(f"  SURVIVED  {module}:{changed.line}  {changed.text}", flush=True)
        print(f"{module:32} {dict(table[module])} of {len(every)} possible", flush=True)
    total = sum(table.values(), Counter())
    print(f"mutants: {total['killed']} killed, {total['survived']} survived")


def check_planted(bugs: Sequence[Planted], until: float) -> bool:
    """Plant each bug; whether all that there was time for were found and caught."""
    good, tried = True, 0
    passed: dict[tuple[str, ...], float] = {}
    for bug in bugs:
        try:
            changed = bug.mutant()
        except (LookupError, SyntaxError) as error:
            print(f"  NOT PLANTED  {error}", flush=True)
            good = False
            continue
        if time.monotonic() > until:
            continue
        tests = bug.tests or tuple(tests_of(bug.module))
        if tests not in passed:
            passed[tests] = baseline(tests)
        tried += 1
        if run(changed, tests, SLOWER * passed[tests] + PATIENCE) == "passed":
            print(f"  MISSED  {bug.module}:{changed.line}  {bug.why}  ({' '.join(tests)})", flush=True)
            good = False
    print(f"planted bugs: {tried} tried of {len(bugs)}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description="Change the source and see that the tests notice.")
    parser.add_argument("modules", nargs="*", help="such as pnp.guarantee; those of MODULES if none is given")
    parser.add_argument("--count", type=int, default=5, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="an end to it")
    parser.add_argument("--planted", action="store_true", help="the planted bugs only")
    parser.add_argument("--match", default="", help="only the planted bugs whose description has this")
    arguments = parser.parse_args()
    import hypothesis  # noqa: F401  what tests import, once for all children
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)  # a child of a process with threads cannot use them
    sys.path.insert(0, str(ROOT / "src"))
    until = time.monotonic() + 60 * arguments.minutes
    if not arguments.planted:
        hunt(arguments.modules or MODULES, arguments.count, arguments.seed, until)
    if arguments.modules and not arguments.planted:
        return 0
    return 0 if check_planted(planted(arguments.match), until) else 1


if __name__ == "__main__":
    sys.exit(main())
