"""The program `lipspline` decides how threads wait before torch is loaded."""

import os
import subprocess
import sys
import types
from importlib.metadata import entry_points

import pytest

import lipspline_command


def started(monkeypatch, **given: str) -> dict[str, str]:
    """What the command line finds in its environment."""
    found: dict[str, str] = {}
    stub = types.ModuleType("lipspline.cli")
    stub.main = lambda: found.update(os.environ)
    monkeypatch.setitem(sys.modules, "lipspline.cli", stub)
    others = {name: value for name, value in os.environ.items() if name not in lipspline_command.WAITING}
    monkeypatch.setattr(os, "environ", others | given)
    lipspline_command.main()
    return found


def test_threads_sleep_while_they_wait(monkeypatch):
    found = started(monkeypatch)
    assert {name: found[name] for name in lipspline_command.WAITING} == lipspline_command.WAITING


@pytest.mark.parametrize("given", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "77"}])
def test_what_the_user_decided_stays(monkeypatch, given):
    found = started(monkeypatch, **given)
    assert {name: found[name] for name in lipspline_command.WAITING if name in found} == given


def test_the_decision_comes_before_torch():
    code = "import sys, lipspline_command; print('torch' in sys.modules, 'lipspline' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_installed_program_begins_here():
    (program,) = (each for each in entry_points(group="console_scripts") if each.name == "lipspline")
    assert program.value == "lipspline_command:main"
