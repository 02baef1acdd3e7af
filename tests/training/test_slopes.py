"""Learning slopes instead of coefficients."""

import pytest
import torch
from torch import nn

from lipspline.nn import LinearSpline, conv2d
from lipspline.training import Player
from lipspline.training.slopes import clip_slopes, learn_coefficients, learn_slopes, slope_parameters


def network(**options) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(conv2d(1, 6, 3), LinearSpline(6, regions=8, **options), conv2d(6, 1, 3))
    with torch.no_grad():
        model[1].coefficients.add_(0.01 * torch.randn_like(model[1].coefficients))
    return model


def test_there_and_back_nothing_changes():
    model = network()
    x, names = torch.randn(2, 1, 8, 8), list(model.state_dict())
    before = {name: value.clone() for name, value in model.state_dict().items()}, model(x)
    learn_slopes(model)
    assert (model(x) - before[1]).abs().max() < 1e-6
    learn_coefficients(model)
    assert sorted(model.state_dict()) == sorted(names)
    for name, value in model.state_dict().items():
        assert (value - before[0][name]).abs().max() < 1e-6, name


def test_asking_twice_is_asking_once():
    model = network()
    learn_slopes(model)
    learn_slopes(model)
    assert len(list(slope_parameters(model))) == 1


@pytest.mark.parametrize("constraint", ["normalize", "none"])
def test_splines_whose_slopes_are_not_clipped_keep_their_coefficients(constraint):
    model = network(constraint=constraint)
    learn_slopes(model)
    assert not list(slope_parameters(model))


def test_slopes_outside_are_clipped_to_the_interval_of_their_spline():
    """The clipped spline is SplineProj of the one before [prop:splineproj]."""
    model = network(slope=(0.0, 0.5))
    learn_slopes(model)
    spline, _, slopes = next(slope_parameters(model))
    assert slopes.max() > 0.5
    x = torch.linspace(-0.3, 0.3, 50).repeat(1, 6, 1)
    before = spline(x)
    clip_slopes(model)
    assert slopes.min() >= 0
    assert slopes.max() <= 0.5
    assert (spline(x) - before).abs().max() < 1e-6


def test_a_step_moves_slopes_by_their_own_rate_and_leaves_them_inside():
    model = network()
    learn_slopes(model)
    _, mean, slopes = next(slope_parameters(model))
    with torch.no_grad():
        slopes.fill_(0.9)
    optimizer = Player(model, lr=0.008, slopes=0.25).optimizer()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.008, 0.002, 0.0002, 0.25])
    assert [id(p) for p in optimizer.param_groups[2]["params"]] == [id(mean)]
    assert [id(p) for p in optimizer.param_groups[3]["params"]] == [id(slopes)]
    slopes.grad = torch.ones_like(slopes)
    slopes.grad[0] = -1
    optimizer.step()
    assert (slopes[1:] - 0.65).abs().max() < 1e-6
    assert (slopes[0] == 1).all()


def test_a_slope_on_the_border_comes_back():
    """Coefficients whose slopes are far outside have no gradient; clipped slopes have one."""
    model = network()
    with torch.no_grad():
        model[1].coefficients.mul_(10)
    x = torch.randn(4, 1, 12, 12)
    model(x).sum().backward()
    assert (model[1].coefficients.grad.diff(dim=-1).abs() < 1e-6).float().mean() > 0.5
    learn_slopes(model)
    clip_slopes(model)
    _, _, slopes = next(slope_parameters(model))
    model(x).sum().backward()
    assert slopes.grad is not None
    assert (slopes.grad.abs() > 0).float().mean() > 0.9
