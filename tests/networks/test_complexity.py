"""Regions counted by hand, and sparsified networks: equal where promised, never steeper [thm:spline_good1]."""

import pytest
import torch
from torch import nn

from lipspline.certification import certify
from lipspline.functional import knots as free
from lipspline.functional import spline as formulas
from lipspline.functional.knots import lipschitz
from lipspline.functional.spline import integrate
from lipspline.networks import effective_regions, tv2
from lipspline.networks.complexity import RegionCounts, free_knots, sparsify
from lipspline.nn import LinearSpline
from lipspline.nn.fold import fold
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline


def kinked(*changes: float) -> LinearSpline:
    """A spline per entry of `changes`, each with one slope change at zero."""
    slopes = torch.tensor(changes)[:, None]
    return LinearSpline(len(changes), regions=50, init=lambda t: 0.3 * t + slopes * t.clamp(min=0))


def test_tv2_sums_the_slope_changes_of_all_splines():
    """The regulariser of [eq:optim_network]: |a| = 2 for the absolute value, 1 for ReLU, 0 for the identity."""
    model = nn.Sequential(
        nn.Linear(3, 3), LinearSpline(3, init="abs"), nn.Linear(3, 5), LinearSpline(5, init="relu"), LinearSpline(5)
    )
    torch.testing.assert_close(tv2(model), torch.tensor(3 * 2.0 + 5 * 1.0), atol=2e-4, rtol=0)


def test_tv2_is_that_of_the_projected_coefficients():
    """[eq:control_knots] for the spline that is evaluated, not for its raw coefficients."""
    spline = LinearSpline(4).double()
    with torch.no_grad():
        spline.coefficients.add_(0.05 * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(torch.randn(4))
    projected = formulas.spline_proj(spline.coefficients, spline.step)
    torch.testing.assert_close(tv2(spline), formulas.tv2(projected, spline.step).sum())
    assert tv2(spline) < formulas.tv2(spline.coefficients, spline.step).sum()


def test_tv2_is_differentiable():
    """It is part of the training loss [eq:optim_network]."""
    spline = LinearSpline(2, regions=6, radius=1.0, init=lambda t: 0.4 * (t + 0.3).sin()).double()

    def penalty(c: torch.Tensor) -> torch.Tensor:
        twin = LinearSpline(2, regions=6, radius=1.0).double()
        del twin.coefficients
        twin.coefficients = c
        return tv2(twin)

    assert torch.autograd.gradcheck(penalty, (spline.coefficients.detach().clone().requires_grad_(),))


def test_a_model_without_splines_has_no_tv2():
    """Nothing to sum [eq:optim_network]."""
    assert tv2(nn.Linear(2, 2)).item() == 0


def test_effective_regions_are_averaged_by_layer_and_over_all_splines():
    """AELR [table:nbr_knots]: the overall figure averages splines, not layers."""
    model = nn.Sequential(LinearSpline(1, init="abs"), nn.Sequential(LinearSpline(3), nn.ReLU()))
    counted = effective_regions(model)
    assert counted.layers == {"0": 2.0, "1.0": 1.0}
    assert counted.overall == (2 + 3 * 1) / 4
    assert counted.largest == 2


def test_effective_regions_count_slope_changes_above_a_hundredth():
    """The threshold is on |L c| / T, so it works at the paper's T = 0.004 [table:nbr_knots]."""
    counted = effective_regions(kinked(0.0, 0.0095, 0.0105, 0.5, -0.0105))
    assert counted.layers[""] == pytest.approx((1 + 1 + 2 + 2 + 2) / 5)
    assert effective_regions(kinked(0.0, 0.0095, 0.0105), threshold=0.005).overall == pytest.approx((1 + 2 + 2) / 3)


def test_effective_regions_are_those_of_the_projected_spline():
    """A kink that the projection flattens away is no region [table:nbr_knots]."""
    steep = LinearSpline(1, init=lambda t: 2 * t + 3 * t.clamp(min=0))
    assert effective_regions(steep).overall == 1


def test_effective_regions_do_not_see_the_scale():
    """α moves the knots and keeps the slopes [sec:ScalePara]."""
    spline = kinked(0.5, 0.0105)
    before = effective_regions(spline)
    with torch.no_grad():
        spline.log_scale.fill_(3.0)
    assert effective_regions(spline) == before


def test_effective_regions_of_a_model_without_splines_is_refused():
    """One sentence, not a division by zero."""
    with pytest.raises(
        ValueError,
        match=r"^effective_regions counts the regions of LinearSpline and FoldedSpline layers, but the model has none",
    ):
        effective_regions(nn.Linear(2, 2))


def test_folded_splines_have_the_regions_of_what_they_were_folded_from():
    """[table:nbr_knots]: a network read from a file is counted like the one that was trained."""
    model = nn.Sequential(LinearSpline(3, init="abs"), LinearSpline(3, init=torch.sin, radius=3.0))
    assert effective_regions(fold(model)) == effective_regions(model)


def wild_spline(channels: int, **options) -> LinearSpline:
    """A spline with a random slope in every region and a scale that is not 1."""
    layer = LinearSpline(channels, **options)
    nn.init.normal_(layer.coefficients, std=layer.radius / 3)
    nn.init.uniform_(layer.log_scale, -1, 1)
    return layer


def tame_spline(channels: int, noise: float = 0.001, **options) -> LinearSpline:
    """Three slopes per spline, disturbed by small noise."""
    layer = LinearSpline(channels, **options)
    third = layer.regions // 3
    slopes = torch.tensor([-0.5, 0.75, 0.1]).repeat_interleave(torch.tensor([third, third, layer.regions - 2 * third]))
    slopes = slopes + noise * (2 * torch.rand(channels, layer.regions) - 1)
    with torch.no_grad():
        layer.coefficients.copy_(integrate(slopes * layer.step))
    return layer


def network(**options) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), wild_spline(16, **options), nn.Linear(16, 8), wild_spline(8, **options))


# Merging slopes


@pytest.mark.parametrize("make", [tame_spline, lambda *a, **k: FoldedSpline.from_spline(tame_spline(*a, **k))])
def test_small_changes_of_slope_are_removed_and_large_ones_stay(make):
    layer = make(5, regions=30, radius=0.6)
    sparse, report = sparsify(layer)
    assert report.overall.before > 25
    assert report.overall.after == 3.0
    assert type(sparse) is type(layer)
    kept = torch.tensor([-0.6, -0.2, 0.2, 0.6])[:, None].expand(4, 5)
    torch.testing.assert_close(sparse(kept), layer(kept), rtol=0, atol=1e-6)


@pytest.mark.parametrize("tol", [0.05, 0.5, 2.0])
def test_merged_splines_stay_within_the_stated_distance(tol):
    """`tol r / (2α)` between the outer knots, `tol (|x| - r/α)` beyond."""
    layer = wild_spline(20, regions=12, radius=0.3)
    sparse, _ = sparsify(layer, tol=tol)
    edge = layer.radius / layer.log_scale.detach().exp()
    x = torch.linspace(-4, 4, 4001)[:, None] * edge
    moved = (sparse(x) - layer(x)).abs()
    allowed = torch.where(x.abs() <= edge, tol * edge / 2, torch.maximum(tol * (x.abs() - edge), tol * edge / 2))
    assert (moved <= allowed + 1e-6).all()
    assert moved.max() > 0.02 * tol * edge.min()


def test_the_stated_distance_is_attained():
    """Half of the regions with slope 0, half with slope tol: the middle moves by `tol r / 2`."""
    layer = LinearSpline(1, regions=4, radius=0.5, init=lambda t: 0.2 * torch.relu(t), learn_scale=False)
    sparse, report = sparsify(layer, tol=0.21)
    middle = torch.zeros(1, 1)
    assert report.overall == RegionCounts(2.0, 1.0)
    assert (sparse(middle) - layer(middle)).item() == pytest.approx(0.2 * 0.5 / 2, abs=1e-7)
    far = torch.full((1, 1), 3.0)
    assert (layer(far) - sparse(far)).item() == pytest.approx(0.1 * (3.0 - 0.5), abs=1e-6)


@pytest.mark.parametrize("slope", [(-1.0, 1.0), (0.0, 1.0), (0.25, 0.5)])
def test_slopes_stay_in_their_interval_and_lipschitz_constants_do_not_grow(slope):
    layer = wild_spline(10, regions=20, radius=0.3, slope=slope)
    x = torch.randn(300, 10)
    for options in ({"tol": 0.3}, {"inputs": x}, {"tol": 0.3, "inputs": x}, {"inputs": x[:1]}, {"inputs": x[:2]}):
        sparse, _ = sparsify(layer, **options)
        slopes = free_knots(sparse).slopes
        assert slopes.min() >= slope[0] - 1e-6
        assert slopes.max() <= slope[1] + 1e-6
        assert (lipschitz(free_knots(sparse)) <= lipschitz(free_knots(layer)) + 1e-6).all()


# Interpolating what the inputs see


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"regions": 7, "radius": 1.0}])
@pytest.mark.parametrize("folded", [False, True])
def test_outputs_on_the_inputs_do_not_change(options, folded):
    """[thm:spline_good1], in its proof: only the values at the pre-activations matter [eq:var_lip_1d]."""
    if options.get("shared"):
        model = nn.Sequential(nn.Linear(3, 16), LinearSpline(16, init="abs", shared=True), nn.Linear(16, 2))
    else:
        model = network(**options)
    model = fold(model) if folded else model
    x = torch.randn(100, 3)
    sparse, report = sparsify(model, x)
    assert {type(layer) for layer in sparse if not isinstance(layer, nn.Linear)} == {FreeKnotSpline}
    torch.testing.assert_close(sparse(x), model(x), rtol=0, atol=2e-6)
    assert report.overall.after <= report.overall.before


def test_outputs_on_the_inputs_are_equal_to_rounding_in_float64():
    model = network().double()
    x = torch.randn(100, 3, dtype=torch.float64)
    sparse, _ = sparsify(model, x)
    assert next(sparse[1].buffers()).dtype == torch.float64
    torch.testing.assert_close(sparse(x), model(x), rtol=0, atol=1e-13)


def test_few_inputs_leave_few_regions():
    """[thm:spline_good1]: at most M - 2 knots for M inputs, and at most half of them where slopes keep rising."""
    model = network(regions=50, radius=1.0)
    for M in (1, 2, 3, 6):
        sparse, report = sparsify(model, torch.randn(M, 3))
        counts = [(free_knots(sparse[i]).slopes.diff(dim=1) != 0).sum(dim=1).max().item() for i in (1, 3)]
        assert max(counts) <= max(M - 2, 0)
        assert report.overall.before > 20


def test_many_inputs_give_the_spline_back():
    """Enough inputs on both sides of every knot leave no other choice than the spline itself."""
    layer = wild_spline(3, regions=6, radius=0.5).double()
    x = 4 * torch.rand(5000, 3, dtype=torch.float64) - 2
    sparse, report = sparsify(layer, x)
    torch.testing.assert_close(free_knots(sparse).knots, free_knots(layer).knots, rtol=0, atol=1e-8)
    torch.testing.assert_close(free_knots(sparse).slopes, free_knots(layer).slopes, rtol=0, atol=1e-8)
    assert report.overall == RegionCounts(6.0, 6.0)


def test_sparsified_splines_are_certified_by_their_largest_slope():
    model = wild_spline(6, regions=20, radius=0.5)
    sparse, _ = sparsify(model, torch.randn(50, 6))
    upper = certify(sparse).upper
    assert upper == sparse.slopes.abs().max().item()
    assert upper <= certify(model).upper
    x = torch.linspace(-3, 3, 20001, dtype=torch.float64)[:, None].expand(-1, 6)
    steepest = (sparse.double()(x).diff(dim=0) / x.diff(dim=0)).abs().max().item()
    assert steepest == pytest.approx(upper, rel=1e-6)


def test_a_sparse_spline_that_jumps_is_not_certified():
    sparse, _ = sparsify(wild_spline(2), torch.randn(50, 2))
    sparse.knots[0] = sparse.knots[0].flip(-1)
    with pytest.raises(ValueError, match="knots of a FreeKnotSpline must ascend"):
        certify(sparse)
    sparse.knots[0] = sparse.knots[0].flip(-1) + 1.0
    with pytest.raises(ValueError, match=r"it may jump. Call refresh\(\)"):
        certify(sparse)


def test_tv2_does_not_grow():
    """The interpolant has the least TV² [eq:var_lip_1d], the original is one candidate."""
    layer = wild_spline(20, regions=30, radius=0.5)
    for inputs in (torch.randn(5, 20), torch.randn(50, 20)):
        sparse, _ = sparsify(layer, inputs)
        assert (free.tv2(free_knots(sparse)) <= free.tv2(free_knots(layer)) + 1e-5).all()


def test_both_steps_follow_each_other():
    model = nn.Sequential(nn.Linear(3, 6), tame_spline(6, noise=0.004), nn.Linear(6, 6), tame_spline(6, noise=0.004))
    x = torch.randn(200, 3)
    merged, _ = sparsify(model, tol=0.01)
    both, report = sparsify(model, x, tol=0.01)
    torch.testing.assert_close(both(x), merged(x), rtol=0, atol=2e-6)
    assert report.overall.after <= 3.0 < 40 < report.overall.before


def test_sparsified_networks_can_be_sparsified_again():
    model = network()
    x = torch.randn(40, 3)
    once, first = sparsify(model, x)
    twice, second = sparsify(once, x)
    torch.testing.assert_close(twice(x), model(x), rtol=0, atol=4e-6)
    assert second.overall.before == first.overall.after
    assert second.overall.after <= first.overall.after


def test_convolutional_networks_and_last_channels_work():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), wild_spline(4), nn.Conv2d(4, 1, 3))
    x = torch.rand(2, 1, 10, 10)
    torch.testing.assert_close(sparsify(model, x)[0](x), model(x), rtol=0, atol=2e-6)
    last = wild_spline(4, channel_dim=-1)
    x = torch.randn(2, 7, 4)
    torch.testing.assert_close(sparsify(last, x)[0](x), last(x), rtol=0, atol=2e-6)


def test_a_layer_used_twice_interpolates_both_uses_and_stays_one_layer():
    activation = wild_spline(6)
    model = nn.Sequential(nn.Linear(3, 6), activation, nn.Linear(6, 6), activation)
    x = torch.randn(50, 3)
    sparse, report = sparsify(model, x)
    assert sparse[1] is sparse[3]
    assert list(report.layers) == ["1"]
    torch.testing.assert_close(sparse(x), model(x), rtol=0, atol=2e-6)


def test_the_model_itself_is_left_alone():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sparsify(model, torch.randn(10, 3), tol=0.1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model[1]._forward_pre_hooks
    assert model.training


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(2, 2), {}, "sparsify removes knots from .* but the model has none"),
        (LinearSpline(2), {"tol": 0.0}, "tol must be a positive finite number, but is 0.0"),
        (LinearSpline(2), {"tol": float("nan")}, "tol must be a positive finite number"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(model, options, message):
    with pytest.raises(ValueError, match=message):
        sparsify(model, **options)
