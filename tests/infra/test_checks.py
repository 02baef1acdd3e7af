"""The wording of argument errors: what was given, what is wanted, what to do."""

import re
import sys

import pytest
import torch

from lipspline._infra import checks

NAN, INF = float("nan"), float("inf")


def test_good_values_come_back():
    """Each check returns what it checked, so that it can stand in an assignment."""
    x = torch.randn(2, 3)
    assert checks.at_least("size", 3, 3) == 3
    assert checks.positive("radius", 2) == 2.0
    assert isinstance(checks.positive("radius", 2), float)
    assert checks.within("beta", 0.5, 0, 1) == 0.5
    assert checks.one_of("mode", "a", ("a", "b")) == "a"
    assert checks.interval("slope", [-1, 2]) == (-1.0, 2.0)
    assert checks.divides("group", 3, "the channels", 9) is None
    assert checks.finite("x", x) is x
    assert checks.floating("f", x) is x
    assert checks.channels("f", x, 3, 1) is x
    assert checks.channels("f", x, 3, -1) is x
    assert checks.require("json", "plot", "Testing") is sys.modules["json"]


BAD = [
    (lambda: checks.at_least("size", 1, 2), "size must be at least 2, but is 1."),
    (lambda: checks.at_least("size", 1, 2, "Use two."), "size must be at least 2, but is 1. Use two."),
    (lambda: checks.at_least("size", 2.0, 2), "size must be an integer, but is 2.0."),
    (lambda: checks.at_least("size", True, 0), "size must be an integer, but is True."),
    (lambda: checks.at_least("size", "3", 2, "Use two."), "size must be an integer, but is '3'. Use two."),
    (lambda: checks.positive("radius", 0), "radius must be a positive finite number, but is 0."),
    (lambda: checks.positive("radius", NAN), "radius must be a positive finite number, but is nan."),
    (
        lambda: checks.positive("radius", INF, "Cut it."),
        "radius must be a positive finite number, but is inf. Cut it.",
    ),
    (lambda: checks.positive("radius", "1"), "radius must be a positive finite number, but is '1'."),
    (lambda: checks.within("beta", 1.0, 0, 1), "beta must lie strictly between 0 and 1, but is 1.0."),
    (lambda: checks.within("beta", 0.0, 0, 1), "beta must lie strictly between 0 and 1, but is 0.0."),
    (lambda: checks.within("beta", NAN, 0, 1, "Why?"), "beta must lie strictly between 0 and 1, but is nan. Why?"),
    (lambda: checks.one_of("mode", "c", ("a", "b")), "mode must be one of 'a', 'b', but is 'c'."),
    (lambda: checks.one_of("mode", None, iter("ab")), "mode must be one of 'a', 'b', but is None."),
    (
        lambda: checks.interval("slope", (1.0, 1.0)),
        "slope must be an interval (low, high) with low < high, but is (1.0, 1.0): it is empty.",
    ),
    (
        lambda: checks.divides("group size", 4, "the number of channels", 6, "Use 2."),
        "group size 4 must divide the number of channels, but 6 is not a multiple of 4. Use 2.",
    ),
    (
        lambda: checks.finite("The weight", torch.tensor([1.0, NAN, INF])),
        "The weight has 2 NaN or infinite value(s) of 3.",
    ),
    (
        lambda: checks.floating("Layer", torch.ones(2, dtype=torch.bool)),
        "Layer needs a floating-point input, but got torch.bool. Convert it with x.float().",
    ),
    (
        lambda: checks.channels("Layer", torch.ones(4), 4, 1),
        "Layer needs an input of rank 2 or more, (batch, channels, ...), but got shape (4,). "
        "Add a batch dimension with x.unsqueeze(0).",
    ),
    (
        lambda: checks.channels("Layer", torch.ones(2, 3, 5), 5, 1),
        "Layer has 5 channels but the input has 3 (shape (2, 3, 5)). Dimension 1 must be the channel dimension.",
    ),
]


@pytest.mark.parametrize(("check", "message"), BAD)
def test_bad_values_are_refused_in_these_words(check, message: str):
    """The whole text."""
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        check()


def test_a_missing_package_names_the_extra():
    """The user learns what to install."""
    wanted = "Drawing needs no_such_package, which is not installed. Install it with: pip install 'lipspline[plot]'"
    with pytest.raises(ImportError, match="^" + re.escape(wanted) + "$"):
        checks.require("no_such_package.pyplot", "plot", "Drawing")


@pytest.mark.parametrize("error", ["RuntimeError('operator x::nms does not exist')", "OSError('libx.so: not found')"])
def test_a_dependency_that_is_there_but_broken_is_not_called_missing(tmp_path, monkeypatch, error):
    (tmp_path / "broken_package.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    name, _, message = error.rstrip("')").partition("('")
    wanted = f"Drawing needs broken_package, which is installed but cannot be imported: {name}: {message}"
    with pytest.raises(ImportError, match="^" + re.escape(wanted) + "$"):
        checks.require("broken_package", "plot", "Drawing")
