"""Adam with the paper's three learning rates [sec:EvalExp]."""

import pytest
import torch
from torch import nn

from lipspline.functional.spline import spline_lipschitz
from lipspline.nn import LinearSpline
from lipspline.training import Player, param_groups
from lipspline.training.optim import set_rate


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), LinearSpline(3), nn.Linear(3, 3), LinearSpline(3, learn_scale=False))


def test_weights_scales_and_coefficients_have_the_rates_of_the_paper():
    """[sec:EvalExp]"""
    model = network()
    weights, scales, coefficients = param_groups(model, lr=0.8)
    assert (weights["lr"], scales["lr"], coefficients["lr"]) == (0.8, 0.8 / 4, 0.8 / 40)
    expected = [model[0].weight, model[0].bias, model[2].weight, model[2].bias]
    assert [id(p) for p in weights["params"]] == [id(p) for p in expected]
    assert [id(p) for p in scales["params"]] == [id(model[1].log_scale)]
    assert [id(p) for p in coefficients["params"]] == [id(model[1].coefficients), id(model[3].coefficients)]


def test_the_divisor_of_the_coefficients_can_be_chosen():
    groups = Player(network(), lr=0.8, coefficients=400).optimizer().param_groups
    assert [group["lr"] for group in groups] == pytest.approx([0.8, 0.2, 0.002])


def test_a_network_without_splines_has_one_group():
    assert len(param_groups(nn.Linear(2, 2), lr=1e-3)) == 1


def test_the_rate_must_be_positive():
    with pytest.raises(ValueError, match="lr must be a positive finite number, but is 0"):
        param_groups(nn.Linear(2, 2), lr=0)


def test_the_schedule_scales_every_rate_from_where_it_started():
    optimizer = Player(network(), lr=0.8).optimizer()
    for factor in (0.5, 0.25):
        set_rate(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [factor * rate for rate in (0.8, 0.2, 0.02)]


def test_the_optimizer_is_adam_with_its_default_settings():
    """[sec:EvalExp]"""
    model = nn.Linear(3, 1)
    ours = Player(model, lr=0.01).optimizer()
    default = torch.optim.Adam(model.parameters(), lr=0.01)
    differing = {k for k, v in default.defaults.items() if ours.defaults[k] != v}
    assert differing <= {"fused"}  # which kernel runs, not what it computes


def test_projected_coefficients_are_those_of_the_same_splines():
    """[prop:splineproj]: projecting after a step does not move the splines, and leaves every slope a gradient."""
    models = [network().double(), network().double()]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(50, 2, dtype=torch.float64)
    for model, project in zip(models, (False, True), strict=True):
        optimizer = Player(model, lr=4.0, project=project).optimizer()
        model(x).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(models[0](x), models[1](x))
    left, kept = (spline_lipschitz(model[1].coefficients, model[1].step) for model in models)
    assert left.max() > 2
    assert kept.max() < 1 + 1e-5
    models[1].zero_grad()
    models[1][1].slopes().square().sum().backward()
    by_slope = models[1][1].coefficients.grad.cumsum(-1)[:, :-1]
    assert (by_slope[models[1][1].slopes().abs() > 0.01].abs() > 1e-3).all()


def test_splines_without_the_clip_are_not_projected():
    """LLS Old is projected by dividing, and unconstrained splines not at all."""
    spline = LinearSpline(3, constraint="none")
    optimizer = Player(spline, lr=40.0, project=True).optimizer()
    spline(torch.randn(50, 3)).square().sum().backward()
    optimizer.step()
    assert spline_lipschitz(spline.coefficients, spline.step).max() > 2
