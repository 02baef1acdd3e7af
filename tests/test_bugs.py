"""The list of planted bugs is in order; `python tests/bugs/run.py` plants them."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _load_runner():
    spec = importlib.util.spec_from_file_location("planted_bugs", ROOT / "tests" / "bugs" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RUNNER = _load_runner()
BUGS = RUNNER.load()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.area}: {bug.why}")
def test_every_bug_can_be_planted_and_has_tests(bug):
    """Its text occurs exactly once in its file, the wrong one differs, and the tests that must catch it exist."""
    assert (ROOT / bug.file).read_text().count(bug.find) == 1
    assert bug.find != bug.replace
    assert bug.tests
    assert all((ROOT / test.partition("::")[0]).is_file() for test in bug.tests)
    assert bug.rebuild == (Path(bug.file).suffix in {".c", ".h"})


def test_there_are_enough_bugs():
    """At least fifteen, over all areas."""
    assert len(BUGS) >= 15


def test_a_text_that_does_not_occur_once_is_refused(tmp_path: Path):
    """A bug that is planted nowhere, or twice, proves nothing."""
    (tmp_path / "file.py").write_text("a = 1\na = 1\n")
    for find, times in (("a = 1", 2), ("b", 0)):
        bug = RUNNER.Bug("area", "why", "file.py", find, "c", ("tests/test_bugs.py",))
        with pytest.raises(ValueError, match=rf"occurs {times} times in file.py, not once\.$"):
            bug.plant(tmp_path)


def test_an_unknown_area_is_refused():
    """A misspelt area must not look like success."""
    with pytest.raises(ValueError, match=r"^There is no area \['splin'\]; there are: "):
        RUNNER.load(["splin"])
