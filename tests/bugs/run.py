"""Plant the bugs of `tests/bugs/*.toml` one at a time in a copy of the repository, and see that the tests catch each.

    python tests/bugs/run.py [area ...] [--match RE]     (an area is the name of a .toml file; all if none is given)

First the tests must pass without a bug. Then, for each entry, `find` is replaced by `replace` in `file` and `tests` are
run on the copy: they must fail. A table says which bugs were caught; the exit code is 1 if one was missed. Entries in
C sources carry `rebuild = true`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
AT_ONCE = 2
SECONDS = 1200
COPIED = ("src", "tests", "pyproject.toml", "setup.py", "README.md", "LICENSE")
PASSED, FAILED = 0, 1  # pytest's exit codes for "all passed" and "some failed"; others mean that tests could not run


@dataclass(frozen=True)
class Bug:
    """One wrong line, and the tests that must notice it."""

    area: str
    why: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    rebuild: bool = False

    def plant(self, root: Path) -> None:
        """Replace the right text, which must occur exactly once, by the wrong one."""
        path = root / self.file
        text = path.read_text()
        if (times := text.count(self.find)) != 1:
            raise ValueError(
                f"{self.area}: {self.why!r}: the text to find occurs {times} times in {self.file}, not once."
            )
        path.write_text(text.replace(self.find, self.replace))


def load(areas: list[str] | None = None) -> list[Bug]:
    """The bugs of some areas, or of all."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
    if unknown := set(areas or ()) - set(known):
        raise ValueError(f"There is no area {sorted(unknown)}; there are: {', '.join(known)}.")
    return [
        Bug(area, **{**entry, "tests": tuple(entry["tests"])})
        for area in areas or known
        for entry in tomllib.loads(known[area].read_text())["bug"]
    ]


def environment(root: Path) -> dict[str, str]:
    """Import the package from the copy at `root`, not from where it is installed."""
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def in_copy(work: Callable[[Path], str]) -> str:
    """Do some work in a fresh copy of the repository, which is then removed."""
    with tempfile.TemporaryDirectory(prefix="planted-bug-") as folder:
        root = Path(folder).resolve()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            elif source.exists():
                shutil.copy(source, root / name)
        return work(root)


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def check_import(root: Path) -> None:
    """Make sure that the copy is what the tests will see."""
    found = Path(python(root, "-c", "import lipspline; print(lipspline.__file__)").stdout.strip() or ".")
    if not found.resolve().is_relative_to(root):
        raise RuntimeError(f"The tests would import {found}, not the copy in {root}.")


def run_tests(root: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return python(root, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)


def verdict(bug: Bug) -> str:
    """`caught` if the tests fail on the bug, `MISSED` if they pass, `BROKEN` if they cannot even run."""

    def work(root: Path) -> str:
        bug.plant(root)
        if bug.rebuild and python(root, "setup.py", "build_ext", "--inplace").returncode != 0:
            return "BROKEN: does not build"
        check_import(root)
        try:
            code = run_tests(root, bug.tests).returncode
        except subprocess.TimeoutExpired:
            return "caught (the tests never end)"
        return {PASSED: "MISSED", FAILED: "caught"}.get(code, f"BROKEN: pytest exit code {code}")

    return in_copy(work)


def without_bugs(tests: tuple[str, ...]) -> str:
    """The last lines of the tests' output if they fail without any bug, or nothing."""

    def work(root: Path) -> str:
        check_import(root)
        result = run_tests(root, tests)
        return "" if result.returncode == PASSED else result.stdout[-3000:] + result.stderr[-1000:]

    return in_copy(work)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant bugs and see that the tests catch each.")
    parser.add_argument("area", nargs="*", help="name of a .toml file beside this script")
    parser.add_argument("--match", default="", help="a regular expression: only the bugs whose description has it")
    arguments = parser.parse_args()
    bugs = [bug for bug in load(arguments.area) if re.search(arguments.match, bug.why)]
    if not bugs:
        print(f"No planted bug has {arguments.match!r} in its description.", file=sys.stderr)
        return 2
    tests = tuple(dict.fromkeys(test for bug in bugs for test in bug.tests))
    if complaint := without_bugs(tests):
        print(complaint, "The tests fail without a bug, so they cannot tell anything about bugs.", sep="\n")
        return 1
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = []
        for bug, outcome in zip(bugs, pool.map(verdict, bugs), strict=True):
            print(f"{outcome:8} {bug.area:16} {bug.why}  ({bug.file})", flush=True)
            verdicts.append(outcome)
    caught = sum(outcome.startswith("caught") for outcome in verdicts)
    print(f"\n{caught} of {len(bugs)} planted bugs caught")
    return 0 if caught == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
