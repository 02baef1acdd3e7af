"""The page that maps labels of the paper to code and tests is the one its generator writes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_paper_map_is_up_to_date():
    result = subprocess.run([sys.executable, ROOT / "docs" / "paper_map.py", "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_proposition_and_theorem_has_code_and_a_test():
    rows = {}
    for line in (ROOT / "docs" / "paper-map.md").read_text().splitlines():
        if line.startswith("| `"):
            label, code, tests = (cell.strip() for cell in line.strip("|").split(" | "))
            rows[label.strip("`")] = (code, tests)
    proved = ["prop:SameExp", "prop:splineproj", "prop:stability1", "prop:stability2", "thm:spline_good1"]
    assert all("–" not in rows[label] for label in proved)
