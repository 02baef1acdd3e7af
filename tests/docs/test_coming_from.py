"""What the page for users of other libraries says exists, and runs as written."""

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
