"""TV² and effective regions of whole models, counted by hand."""

import pytest
import torch
from torch import nn

from lipspline.functional import spline as formulas
from lipspline.networks import effective_regions, tv2
from lipspline.nn import LinearSpline
from lipspline.nn.fold import fold


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
