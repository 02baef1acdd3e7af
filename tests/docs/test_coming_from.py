"""What the page for users of other libraries says exists, and runs as written."""

import json
import re
from pathlib import Path

import pytest
from torch import nn

import lipspline as ls
import lipspline.adapters

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
SNIPPETS = sorted(set(re.findall(r"`(ls\.[^`]+)`", PAGE)))


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
def test_a_block_runs_as_written(block: str):
    names: dict[str, object] = {}
    exec(block, names)
    assert names["upper"] <= 1
    assert (names["radius"] >= 0).all()  # type: ignore[operator,union-attr]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_name_exists_and_a_call_is_complete(snippet: str):
    layer = nn.Linear(2, 2)
    assert eval(snippet, {"ls": ls, "model": layer, "example": layer.weight.detach()}) is not None


def test_the_race_of_optimizers_is_told_as_it_was_run():
    """Every row of the table is that of the results file."""
    runs = json.loads((Path(__file__).parents[2] / "results" / "optimizer-race.json").read_text())
    for way, trained in runs["ways"].items():
        first = min((run for run in trained if run["accuracy"] >= runs["goal"]), key=lambda run: run["seconds"])
        best = max(trained, key=lambda run: run["accuracy"])
        soon = f"{first['seconds']:.1f} s, {first['steps']} steps"
        assert f"| {way} | {soon} | {100 * best['accuracy']:.2f} % after {best['steps']} steps |" in PAGE
