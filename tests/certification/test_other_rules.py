"""Rules of activations, splines and maximum pooling, against their largest slopes."""

import itertools
import math

import pytest
import torch
from layer_norms import learned, upper
from torch import nn

from lipspline.certification import certify
from lipspline.kernels import piecewise_affine
from lipspline.nn import (
    AbsoluteValue,
    FoldedSpline,
    GroupSort,
    Householder,
    LipschitzPReLU,
    MaxMin,
    Scaled,
)


@pytest.mark.parametrize("constraint", ["clip", "normalize", "none"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_spline_has_its_largest_slope(constraint, shared: bool):
    """Lip(σ̃) = ‖D c‖_∞ / T [sec:ScalePara], exactly, whatever the scale."""
    spline = learned(6, constraint=constraint, shared=shared)
    assert upper(spline) == float(spline.slopes().abs().max())
    assert (upper(spline) > 1) == (constraint == "none")


def test_the_certified_slope_is_the_steepest_ratio_of_the_function():
    """[sec:deepspline]: measured on the float64 function, in every region and outside."""
    spline = learned(3, regions=9, radius=1.0, slope=(-0.5, 0.75)).double()
    x = torch.linspace(-8, 8, 200001, dtype=torch.float64)[:, None].expand(-1, 3)
    ratio = float((spline(x).diff(dim=0) / x.diff(dim=0)).abs().max())
    assert upper(spline) == pytest.approx(ratio, rel=1e-9)
    assert upper(spline) <= 0.75


def test_large_values_in_one_channel_excuse_no_jump_in_another():
    class Jumps(nn.Module):
        def forward(self, x):
            b, s = torch.tensor([[0.0, 0.5], [1e6, 1e6]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
            return piecewise_affine(x, b, s, torch.ones(2), 1.0)

    with pytest.raises(ValueError, match=r"its splines jump, by up to 0\.5"):
        certify(Jumps(), torch.zeros(1, 2))


@pytest.mark.parametrize("name", ["slopes", "scale", "mean", "b"])
def test_a_folded_spline_that_was_changed_cannot_hide_a_jump(name: str):
    """New slopes with old intercepts would make a discontinuous function; derived again it is certified as it is."""
    spline = FoldedSpline.from_spline(learned(2, regions=4, radius=1.0).double())
    getattr(spline, name).mul_(0.25)
    with pytest.raises(ValueError, match=r"may jump\. Call refresh\(\) after changing its slopes, mean or scale\.$"):
        certify(nn.Sequential(spline))
    assert upper(spline.refresh()) == float(spline.slopes.abs().max())


def test_a_folded_spline_with_a_scale_that_is_not_positive_is_refused():
    """σ(α x)/α needs α > 0 here."""
    spline = FoldedSpline(2, regions=4, radius=1.0)
    spline.scale[1] = 0.0
    with pytest.raises(ValueError, match=r"^The scales of a FoldedSpline must be positive, but some are not\.$"):
        certify(spline)


ACTIVATIONS: list[tuple[nn.Module, float]] = [
    (nn.ReLU(), 1.0),
    (nn.Tanh(), 1.0),
    (nn.Hardtanh(-0.5, 2.0), 1.0),
    (nn.Softshrink(0.3), 1.0),
    (nn.Sigmoid(), 0.25),
    (nn.LeakyReLU(0.1), 1.0),
    (nn.LeakyReLU(-3.0), 3.0),
    (nn.PReLU(4, init=-1.5), 1.5),
    (nn.PReLU(4, init=0.25), 1.0),
    (AbsoluteValue(), 1.0),
    (LipschitzPReLU(4, init=0.3), 1.0),
    (GroupSort(2), 1.0),
    (GroupSort(4), 1.0),
    (MaxMin(), 1.0),
    (Householder(4), 1.0),
    (nn.Identity(), 1.0),
    (nn.Dropout(0.5), 1.0),
    (nn.Flatten(), 1.0),
    (nn.Unflatten(1, (2, 2)), 1.0),
    (Scaled(-2.5), 2.5),
    (Scaled(0.0), 0.0),
]


@pytest.mark.parametrize(("layer", "exact"), ACTIVATIONS, ids=lambda value: str(value))
def test_activations_have_their_constant_and_reach_it(layer: nn.Module, exact: float):
    """[lipschitz_activation_section]: the number, and inputs where it is attained."""
    assert upper(layer) == exact
    x = torch.cat([torch.zeros(1, 4), 2 * torch.randn(200, 4)]).double() + 1e-3
    model = layer.double().eval()
    jacobians = torch.stack([torch.autograd.functional.jacobian(lambda v: model(v[None]).flatten(), v) for v in x])
    assert float(torch.linalg.matrix_norm(jacobians, ord=2).max()) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("a", [1.5, 300.25, 2.0**24 + 2, -(2.0**24 + 2), 1e12])
def test_prelu_slopes_beyond_one_are_clipped_exactly(a: float):
    """max(a x, x) with a clipped to [-1, 1] [lipschitz_activation_section], also where a - 1 is not a float."""
    layer = LipschitzPReLU(2)
    with torch.no_grad():
        layer.a.fill_(a)
    ratio = float((layer(torch.tensor([[-1.0, -1.0]])) - layer(torch.zeros(1, 2))).norm() / math.sqrt(2))
    assert ratio == upper(layer) == 1.0


STEEPEST: list[tuple[nn.Module, float]] = [
    (nn.GELU(), 1e-6),
    (nn.GELU("tanh"), 1e-4),
    (nn.SiLU(), 1e-6),
    (nn.Mish(), 1e-4),
    (nn.SELU(), 1e-4),
    (nn.Hardswish(), 1e-4),
    (nn.Hardsigmoid(), 1e-6),
    (nn.ELU(), 1e-6),
    (nn.ELU(2.5), 1e-4),
    (nn.ELU(-2.5), 1e-4),
    (nn.CELU(0.3), 1e-6),
    (nn.Softplus(2.0, threshold=40), 1e-6),
    (nn.LogSigmoid(), 1e-4),
    (nn.Softsign(), 1e-4),
    (nn.Tanhshrink(), 1e-4),
    (nn.ReLU6(), 1e-6),
]


@pytest.mark.parametrize(("layer", "tightness"), STEEPEST, ids=lambda value: str(value))
def test_smooth_activations_are_bounded_by_their_steepest_place(layer: nn.Module, tightness: float):
    """Measured as differences of outputs, in float64 on a fine grid, away from rounding."""
    x = torch.linspace(-30, 30, 1_200_001, dtype=torch.float64)
    ratio = float((layer(x).diff() / x.diff()).abs().max())
    assert ratio <= upper(layer) * (1 + 1e-9)
    assert ratio >= upper(layer) * (1 - tightness)


def test_softplus_has_a_rule_only_where_it_does_not_jump():
    """torch goes over to the identity at threshold / beta: a jump by log 2 where the threshold is 0."""
    x = torch.tensor([[-1e-6], [1e-6]], dtype=torch.float64)
    assert float(nn.Softplus(threshold=0.0)(x).diff(dim=0).abs()) > 0.6
    for layer in (nn.Softplus(), nn.Softplus(threshold=36), nn.Softplus(0.0, threshold=40)):
        with pytest.raises(ValueError, match=r"jumps there.*Use nn\.Softplus\(threshold=40\)"):
            certify(layer)
    near = 40 + torch.tensor([-1e-9, 1e-9], dtype=torch.float64)
    assert float(nn.Softplus(threshold=40)(near).diff()) == float(near.diff())


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.LayerNorm(4), "divides by the spread of its own input"),
        (nn.GroupNorm(2, 4), "divides by the spread of its own input"),
        (nn.InstanceNorm2d(4), "divides by the spread of its own input"),
        (nn.Hardshrink(), "it jumps"),
        (nn.Threshold(0.1, 20.0), "it jumps"),
        (nn.Bilinear(2, 2, 2), "grows with its input"),
    ],
)
def test_layers_without_a_constant_are_refused_with_the_reason(layer: nn.Module, reason: str):
    """And with the class that was asked for."""
    with pytest.raises(ValueError, match=rf"^certify has no rule for {type(layer).__name__}: .*{reason}"):
        certify(layer)


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (nn.LeakyReLU(), "negative_slope", torch.tensor([5.0, 1.0])),
        (nn.ELU(), "alpha", math.inf),
        (Scaled(1.0), "factor", torch.tensor([1.0, 3.0])),
        (Scaled(1.0), "factor", math.nan),
        (Scaled(1.0), "factor", 3j),
        (nn.Softplus(threshold=40), "threshold", math.nan),
        (nn.CELU(), "alpha", -1.0),
        (nn.GELU(), "approximate", "cubic"),
    ],
)
def test_attributes_that_are_no_numbers_are_refused(layer: nn.Module, name: str, value):
    """Whatever was written there after construction."""
    setattr(layer, name, value)
    with pytest.raises(ValueError, match=f"{name}.*must be"):
        certify(layer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_householder_reflections_do_not_expand_by_rounding(dtype: torch.dtype):
    """The vectors that run are at most of length 1, in every precision, and those of a tamperer are measured."""
    layer = Householder(2000).to(dtype)
    with torch.no_grad():
        layer.angle.copy_(10 * torch.randn(1000))
    lengths = layer.v().double().square().sum(dim=-1)
    assert float(lengths.max()) <= 1
    assert float(lengths.min()) >= 1 - 16 * torch.finfo(dtype).eps
    assert upper(layer) == 1.0


def test_a_householder_vector_longer_than_one_counts(monkeypatch):
    """|1 - 2 |v|²|, exactly: 7 for a vector of length 2."""
    layer = Householder(2)
    monkeypatch.setattr(Householder, "v", lambda self: torch.tensor([[2.0, 0.0]]))
    assert upper(layer) == pytest.approx(7.0, rel=1e-15)
    assert float(layer(torch.tensor([[-1.0, 0.0]])).norm()) == 7.0


@pytest.mark.parametrize(("name", "value"), [("regions", 8), ("radius", 3.0), ("scale", torch.ones(2) * 3)])
def test_attributes_of_a_folded_spline_cannot_hide_a_jump(name: str, value):
    """What forward computes the region from must be what the intercepts were derived from."""
    spline = FoldedSpline.from_spline(learned(2, regions=4, radius=1.0).double())
    setattr(spline, name, value)
    with pytest.raises(ValueError, match=r"may jump|regions is 8, but the spline has 4 slopes"):
        certify(spline)


@pytest.mark.parametrize(("name", "value"), [("regions", 80), ("slope", (-3.0, 3.0)), ("constraint", "none")])
def test_attributes_of_a_learned_spline_count_as_they_run(name: str, value):
    """The largest slope of the function, measured."""
    spline = learned(2, regions=4, radius=1.0, size=3.0).double()
    setattr(spline, name, value)
    x = torch.linspace(-8, 8, 200001, dtype=torch.float64)[:, None].expand(-1, 2)
    ratio = float((spline(x).diff(dim=0) / x.diff(dim=0)).abs().max())
    assert ratio <= upper(spline) * (1 + 1e-9)
    if name != "regions":
        assert ratio == pytest.approx(upper(spline), rel=1e-9)


@pytest.mark.parametrize("log_scale", [-1e3, 1e3])
def test_a_scale_beyond_the_numbers_is_refused(log_scale: float):
    """Its exponential is 0 or infinite."""
    spline = learned(2)
    with torch.no_grad():
        spline.log_scale[0] = log_scale
    with pytest.raises(ValueError, match="scale of a LinearSpline must be a positive finite number"):
        certify(spline)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "windows"),
    [(2, 2, 1, 1), (3, 3, 1, 1), (3, 1, 1, 3), (3, 2, 1, 2), (4, 2, 1, 2), (3, 2, 2, 3), (2, 3, 2, 1), (4, 4, 2, 2)],
)
def test_max_pooling_is_bounded_by_the_windows_a_pixel_is_in_and_reaches_it(
    kernel: int, stride: int, dilation: int, windows: int
):
    """A bump on one pixel raises all the windows that see it: ratio sqrt(windows), exactly."""
    layer = nn.MaxPool1d(kernel, stride, dilation=dilation)
    assert upper(layer) == pytest.approx(math.sqrt(windows), rel=1e-14)
    assert upper(layer) >= math.sqrt(windows)
    x = torch.zeros(1, 1, 60, dtype=torch.float64)
    bumps = torch.eye(60, dtype=torch.float64)[:, None]
    assert float((layer(x + bumps) - layer(x)).flatten(1).norm(dim=1).max()) == pytest.approx(math.sqrt(windows))


def test_max_pooling_of_images_multiplies_the_axes():
    """Two windows along one axis, one along the other."""
    assert upper(nn.MaxPool2d((4, 3), (2, 3))) == pytest.approx(math.sqrt(2))
    assert upper(nn.MaxPool2d(2)) == 1.0


@pytest.mark.parametrize("output", [1, 3, (2, None)])
def test_adaptive_max_pooling_reaches_its_bound_on_an_image_of_one_pixel(output):
    """Every window sees it."""
    layer = nn.AdaptiveMaxPool2d(output)
    ratios = []
    for size in itertools.product(range(1, 5), range(1, 5)):
        x = torch.zeros(1, 1, *size)
        bumps = torch.eye(math.prod(size)).reshape(-1, 1, *size)
        ratios.append(float((layer(x + bumps) - layer(x)).flatten(1).norm(dim=1).max()))
    assert max(ratios) == pytest.approx(upper(layer), rel=1e-6)


@pytest.mark.parametrize("layer", [nn.MaxPool2d(2, return_indices=True), nn.AdaptiveMaxPool1d(2, return_indices=True)])
def test_pooling_with_two_outputs_is_refused(layer: nn.Module):
    """Indices have no distances."""
    with pytest.raises(ValueError, match="return_indices"):
        certify(layer)


@pytest.mark.parametrize(("layer", "stride"), [(nn.MaxPool2d(3, 1), None), (nn.AvgPool1d(3, 1), None)])
def test_a_stride_written_later_is_the_one_that_counts(layer: nn.Module, stride):
    """None means the size of the window."""
    layer.stride = stride
    fresh = type(layer)(3, stride)
    assert upper(layer) == upper(fresh)
