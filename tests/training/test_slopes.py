"""Learning slopes instead of coefficients."""

import pytest
import torch
from torch import nn

from lipspline.kernels.total_variation import prox_total_variation
from lipspline.nn import LinearSpline, conv2d
from lipspline.training import Player
from lipspline.training.loop import Plan, fit
from lipspline.training.schedules import cosine
from lipspline.training.slopes import clip_slopes, learn_coefficients, learn_slopes, slope_parameters
from lipspline.training.tasks import Minimize


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


# The proximal step of TV²


def test_the_proximal_step_is_the_one_in_the_metric_of_adam():
    """[eq:optim_network]: after two steps of Adam, by the formula."""
    plain, ours = network(), network()
    weight, rate = 0.03, 0.1
    for model, prox in ((plain, 0.0), (ours, weight)):
        learn_slopes(model)
        optimizer = Player(model, lr=1e-3, slopes=rate, tv2_prox=prox).optimizer()
        _, _, slopes = next(slope_parameters(model))
        with torch.no_grad():
            slopes.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(1))
        first = torch.randn(slopes.shape, generator=torch.Generator().manual_seed(2))
        slopes.grad = first.clone()
        optimizer.step()
    before, after = (next(slope_parameters(model))[2].detach() for model in (plain, ours))
    metric = first.abs() + 1e-8  # after one step the root of the bias-corrected mean square
    expected = prox_total_variation(before, rate * weight, metric).clamp(-1, 1)
    torch.testing.assert_close(after, expected, atol=1e-6, rtol=1e-5)
    assert not torch.equal(after, before)


def test_without_splines_that_learn_slopes_there_is_nothing_to_merge():
    with pytest.raises(ValueError, match="tv2_prox needs splines that learn slopes, but there are none"):
        Player(network(), lr=1e-3, tv2_prox=1e-4).optimizer()


def test_slopes_that_merge_are_not_averaged():
    model = network()
    learn_slopes(model)
    _, _, slopes = next(slope_parameters(model))
    count = len(list(model.parameters()))
    assert len(Player(model, lr=1e-3).averaged()) == count
    averaged = Player(model, lr=1e-3, tv2_prox=1e-4).averaged()
    assert len(averaged) == count - 1
    assert all(parameter is not slopes for parameter in averaged)


def fitted(*, prox: bool) -> tuple[float, int, int]:
    """A spline with 16 regions fits noisy samples of a function that has two: error, regions, and visible regions."""
    stream = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 161).unsqueeze(1)
    truth = 0.8 * x.abs()
    y = truth + 0.02 * torch.randn(x.shape, generator=stream)
    spline = LinearSpline(1, regions=16, radius=1.0, init="zero", learn_scale=False)
    learn_slopes(spline)
    with torch.no_grad():
        _, mean, _ = next(slope_parameters(spline))
        mean.fill_(0.4)

    def loss(step: int) -> torch.Tensor:
        return (spline(x) - y).square().mean()

    task = Minimize(spline, 0.1, loss, dict, tv2_weight=5e-4, slopes=0.05, tv2_prox=prox)
    fit(task, Plan(400, schedule=cosine))
    slopes = next(slope_parameters(spline))[2].detach()[0]
    regions, visible = (int((slopes.diff().abs() > tol).sum()) + 1 for tol in (0.0, 1e-3))
    return (spline(x) - truth).square().mean().item(), regions, visible


def test_the_proximal_step_merges_regions_exactly_where_the_subgradient_leaves_them_apart():
    """[eq:control_knots]: the same objective, the same error; but the regions are really fewer."""
    error, regions, visible = fitted(prox=True)
    rival_error, rival_regions, _ = fitted(prox=False)
    assert regions == visible <= 4
    assert rival_regions >= 12
    assert error == pytest.approx(rival_error, rel=0.1)
