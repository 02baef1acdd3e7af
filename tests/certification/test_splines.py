"""Certificates of splines and other activations, against their largest slopes."""

import math

import pytest
import torch
from layer_norms import learned, upper
from torch import nn

from lipspline.certification.proof import certify
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


def test_softplus_has_no_rule_because_it_jumps():
    """torch goes over to the identity at threshold / beta: a jump by log 2 where the threshold is 0."""
    x = torch.tensor([[-1e-6], [1e-6]], dtype=torch.float64)
    assert float(nn.Softplus(threshold=0.0)(x).diff(dim=0).abs()) > 0.6
    with pytest.raises(ValueError, match=r"no rule for Softplus"):
        certify(nn.Softplus())
