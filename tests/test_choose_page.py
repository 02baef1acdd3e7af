"""The page on what to choose shows what was measured, and what was measured speaks for the choice."""

import json
import runpy
from pathlib import Path

from lipspline.imaging.strength import PRIOR

ROOT = Path(__file__).resolve().parent.parent


def test_the_table_of_the_page_is_that_of_the_results():
    script = runpy.run_path(str(ROOT / "docs" / "strength_table.py"))
    assert script["PAGE"].read_text() == script["filled"](), "Run python docs/strength_table.py."


def test_the_automatic_strength_is_the_best_of_those_measured():
    """In the mean over the scans; and on each it is better than the direct reconstruction."""
    rows = json.loads((ROOT / "results" / "strength.json").read_text())["psnr"].values()
    priors = next(iter(rows)).keys() - {"direct"}
    means = {float(prior): sum(row[prior]["psnr"] for row in rows) / len(rows) for prior in priors}
    assert max(means, key=means.__getitem__) == PRIOR
    assert all(row[f"{PRIOR:g}"]["psnr"] > row["direct"]["psnr"] for row in rows)
