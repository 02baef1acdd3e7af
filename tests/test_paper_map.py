"""The pages that map the paper and the packages are those that their generators write."""

import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_paper_map_is_up_to_date():
    result = subprocess.run([sys.executable, ROOT / "docs" / "paper_map.py", "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_map_of_the_house_is_up_to_date():
    result = subprocess.run([sys.executable, ROOT / "docs" / "house_map.py", "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr or "Run python docs/house_map.py."


def test_the_map_of_the_house_has_every_package_and_refuses_a_circle(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import house_map

    graph = house_map.arrows()
    assert {path.name for path in house_map.SOURCE.iterdir() if (path / "__init__.py").exists()} - {"weights"} <= set(
        graph
    )
    assert graph["_infra"] == set()
    assert "operators" in graph["pnp"]
    with pytest.raises(graphlib.CycleError):
        house_map.levels({"a": {"b"}, "b": {"a"}})


def test_every_proposition_and_theorem_has_code_and_a_test():
    rows = {}
    for line in (ROOT / "docs" / "paper-map.md").read_text().splitlines():
        if line.startswith("| `"):
            label, code, tests = (cell.strip() for cell in line.strip("|").split(" | "))
            rows[label.strip("`")] = (code, tests)
    proved = ["prop:SameExp", "prop:splineproj", "prop:stability1", "prop:stability2", "thm:spline_good1"]
    assert all("–" not in rows[label] for label in proved)
