"""The folded spline is the same function as the learned one, and cannot be stored with a jump."""

import copy
import io
import pickle
import re

import pytest
import torch
from torch import Tensor

from lipspline.nn import FoldedSpline, LinearSpline


def learned(channels: int = 4, **options) -> LinearSpline:
    """A spline with random coefficients and scales, in float64."""
    spline = LinearSpline(channels, **options).double()
    with torch.no_grad():
        spline.coefficients.add_(spline.radius * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(0.5 * torch.randn_like(spline.log_scale))
    return spline


def largest_jump(spline: FoldedSpline) -> float:
    """Largest gap at the inner knots, between the lines of neighbouring regions."""
    inner = torch.linspace(-spline.radius, spline.radius, spline.regions + 1, dtype=torch.float64)[1:-1]
    knots = inner / spline.scale.double()[:, None]
    b, s = spline.b.double(), spline.slopes.double()
    return float(((b + s * torch.nn.functional.pad(knots, (0, 1)))[:, :-1] - (b[:, 1:] + s[:, 1:] * knots)).abs().max())


@pytest.mark.parametrize("constraint", ["clip", "normalize", "none"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("channel_dim", "shape"), [(1, (5, 4, 3)), (-1, (5, 3, 4))])
@pytest.mark.parametrize("regions", [5, 50])
def test_it_is_the_function_it_was_made_from(constraint, shared: bool, channel_dim: int, shape, regions: int):
    """[prop:splineproj] and [sec:ScalePara], evaluated once."""
    spline = learned(constraint=constraint, shared=shared, channel_dim=channel_dim, regions=regions, radius=0.7)
    x = 2 * torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(FoldedSpline.from_spline(spline)(x), spline(x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_accepts_splines_of_any_dtype_and_keeps_the_dtype_of_the_input(dtype: torch.dtype):
    """Half-precision parameters are folded in float32."""
    spline = LinearSpline(4, init="abs", radius=1.0).to(dtype)
    x = torch.randn(6, 4).to(dtype)
    folded = FoldedSpline.from_spline(spline)
    assert folded.slopes.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert folded(x).dtype == dtype
    torch.testing.assert_close(folded(x), spline(x))


def test_it_has_nothing_to_train_and_does_not_follow_its_origin():
    """Buffers only, and its own."""
    spline = learned()
    folded = FoldedSpline.from_spline(spline)
    x = torch.randn(3, 4, dtype=torch.float64)
    before = folded(x)
    with torch.no_grad():
        spline.coefficients.mul_(0.1)
        spline.log_scale.add_(1.0)
    assert list(folded.parameters()) == []
    assert not before.requires_grad
    assert torch.equal(folded(x), before)


def test_a_new_one_is_the_identity():
    """Slopes one, mean zero, scale one."""
    x = torch.randn(5, 3)
    torch.testing.assert_close(FoldedSpline(3, regions=4, radius=1.0)(x), x)


def test_the_intercepts_are_not_stored():
    """A file holds slopes, one level and one scale per spline: no numbers that could make a jump."""
    folded = FoldedSpline.from_spline(learned())
    assert set(folded.state_dict()) == {"slopes", "mean", "scale"}
    assert largest_jump(folded) < 1e-15


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_equal(duplicate):
    """deepcopy and pickle of the module."""
    folded = FoldedSpline.from_spline(learned())
    x = torch.randn(9, 4, dtype=torch.float64)
    assert torch.equal(duplicate(folded)(x), folded(x))


@pytest.mark.parametrize("assign", [False, True])
def test_loading_derives_the_intercepts_again(assign: bool):
    """Through bytes, into a fresh module: same function, no jump."""
    folded = FoldedSpline.from_spline(learned(radius=0.7))
    buffer = io.BytesIO()
    torch.save(folded.state_dict(), buffer)
    other = FoldedSpline(4, regions=50, radius=0.7).double()
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True), assign=assign)
    x = torch.randn(9, 4, dtype=torch.float64)
    assert torch.equal(other(x), folded(x))
    assert largest_jump(other) < 1e-14


def test_loading_inside_a_model_derives_the_intercepts_again():
    """The hook runs for children too."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), FoldedSpline.from_spline(learned(radius=0.7)))
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), FoldedSpline(4, regions=50, radius=0.7).double())
    other.load_state_dict(model.state_dict())
    x = torch.randn(9, 4, dtype=torch.float64)
    assert torch.equal(other[1](x), model[1](x))


def test_a_change_of_dtype_leaves_no_jump():
    """In float64 the folded spline of float32 tables is continuous to float64 accuracy."""
    folded = FoldedSpline.from_spline(learned(radius=10.0).float()).double()
    assert largest_jump(folded) < 1e-13


def test_export_gives_the_same_function():
    """torch.export of the inference module."""
    folded = FoldedSpline.from_spline(learned())
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.export.export(folded, (x,)).module()(x), folded(x))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channels": 0}, "channels must be at least 1, but is 0."),
        ({"regions": 1}, "regions must be at least 2, but is 1."),
        ({"radius": 0}, "radius must be a positive finite number, but is 0."),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments: dict, message: str):
    """Got, wanted."""
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        FoldedSpline(**{"channels": 3, "regions": 5, "radius": 1.0, **arguments})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, 5), "FoldedSpline has 4 channels but the input has 5"),
        (torch.randn(4), "FoldedSpline needs an input of rank 2 or more"),
        (
            torch.ones(2, 4, dtype=torch.int64),
            "FoldedSpline needs a floating-point input, but got torch.int64. Convert it with x.float().",
        ),
    ],
)
def test_bad_inputs_are_refused_in_one_sentence(x: Tensor, message: str):
    """Wrong channel count, rank or dtype."""
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        FoldedSpline(4, regions=5, radius=1.0)(x)


def test_repr_says_what_it_is():
    """What print(model) shows."""
    assert repr(FoldedSpline(3, regions=5, radius=0.5)) == "FoldedSpline(3, regions=5, radius=0.5)"
    assert repr(FoldedSpline(3, regions=5, radius=0.5, shared=True)).endswith(", shared=True)")
