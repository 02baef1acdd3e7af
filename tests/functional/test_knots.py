"""Free-knot splines against sums of ReLUs, linear programs and exhaustive search [thm:spline_good1]."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipspline.functional import spline as uniform
from lipspline.functional.knots import (
    FreeKnots,
    ReluExpansion,
    free_knot_spline,
    from_grid,
    from_relu_expansion,
    intercepts,
    lipschitz,
    merge_slopes,
    relu_expansion,
    sparsest_interpolant,
    to_grid,
    tv2,
)

optimize = pytest.importorskip("scipy.optimize")


def random_splines(*leading: int, knots: int = 5) -> FreeKnots:
    return FreeKnots(
        torch.randn(*leading, knots, dtype=torch.float64).sort(dim=-1).values,
        torch.rand(*leading, knots + 1, dtype=torch.float64) * 2 - 1,
        torch.randn(leading, dtype=torch.float64),
    )


def sum_of_relus(x: torch.Tensor, e: ReluExpansion) -> torch.Tensor:
    """[eq:LearnSpline] as it is printed, for one spline."""
    return e.b1 + e.b2 * x + (e.a * torch.relu(x[..., None] - e.knots)).sum(dim=-1)


def points(*pairs: float) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.tensor(pairs, dtype=torch.float64).T
    return x, y


def through(spline: FreeKnots, x: torch.Tensor) -> torch.Tensor:
    return free_knot_spline(x, spline)


# Evaluation and conversions


def test_a_spline_is_its_relu_expansion():
    """[eq:LearnSpline]"""
    spline = random_splines()
    x = 4 * torch.randn(300, dtype=torch.float64)
    torch.testing.assert_close(through(spline, x), sum_of_relus(x, relu_expansion(spline)))


def test_a_relu_expansion_comes_back_from_any_order_of_its_knots():
    """[eq:LearnSpline]"""
    spline = random_splines(3)
    e = relu_expansion(spline)
    order = torch.randperm(5)
    back = from_relu_expansion(ReluExpansion(e.b1, e.b2, e.a[:, order], e.knots[:, order]))
    for got, wanted in zip(back, spline, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("shape", "dim"), [((9, 4), 1), ((2, 4, 3, 5), 1), ((2, 3, 4), -1), ((4, 7), 0)])
def test_each_channel_has_its_own_spline(shape, dim):
    splines = random_splines(4)
    x = torch.randn(shape, dtype=torch.float64)
    got = free_knot_spline(x, splines, dim).movedim(dim, 0)
    for channel in range(4):
        alone = FreeKnots(*(part[channel] for part in splines))
        torch.testing.assert_close(got[channel], free_knot_spline(x.movedim(dim, 0)[channel], alone))


def test_neighbouring_regions_meet_at_the_knots():
    spline = random_splines(6)
    b = intercepts(spline)
    left = b[:, :-1] + spline.slopes[:, :-1] * spline.knots
    right = b[:, 1:] + spline.slopes[:, 1:] * spline.knots
    torch.testing.assert_close(left, right)


def test_derivatives_by_input_knots_slopes_and_intercept_are_right():
    spline = random_splines(2, knots=3)
    x = torch.randn(4, 2, dtype=torch.float64)
    inputs = tuple(part.requires_grad_() for part in (x, *spline))
    assert torch.autograd.gradcheck(lambda x, *parts: free_knot_spline(x, FreeKnots(*parts)), inputs)
    assert torch.autograd.gradgradcheck(lambda x, *parts: free_knot_spline(x, FreeKnots(*parts)), inputs)


@pytest.mark.parametrize("regions", [2, 5, 8])
def test_a_grid_spline_is_the_same_with_free_knots(regions):
    """[sec:deepspline]: values, Lipschitz constant, TV², and back."""
    c = torch.randn(3, regions + 1, dtype=torch.float64)
    splines = from_grid(c, radius=0.7)
    x = 2 * torch.randn(50, 3, dtype=torch.float64)
    step = 1.4 / regions
    torch.testing.assert_close(free_knot_spline(x, splines), uniform.linear_spline(x, c, radius=0.7))
    torch.testing.assert_close(lipschitz(splines), uniform.spline_lipschitz(c, step))
    torch.testing.assert_close(tv2(splines), uniform.tv2(c, step))
    torch.testing.assert_close(to_grid(splines, regions, 0.7), c)
    torch.testing.assert_close(to_grid(from_relu_expansion(relu_expansion(splines)), regions, 0.7), c)


def test_a_grid_must_hold_all_knots():
    spline = from_grid(torch.tensor([1.0, 0.0, 0.0, 1.0]), radius=1.0)
    with pytest.raises(ValueError, match=r"grid with 4 regions .* 2 are not, -0.333333 for one"):
        to_grid(spline, regions=4, radius=1.0)
    with pytest.raises(ValueError, match="Use a finer or a larger grid"):
        to_grid(spline, regions=2, radius=1 / 3)


# The sparsest interpolant


def canonical_tv2(x: torch.Tensor, y: torch.Tensor) -> float:
    slopes = np.diff(y.numpy()) / np.diff(x.numpy())
    return float(np.abs(np.diff(slopes)).sum())


def least_tv2_by_linear_program(x: np.ndarray, y: np.ndarray, candidates: np.ndarray) -> float:
    """min ‖a‖₁ over all splines with knots among the candidates that go through the points [eq:var_lip_1d_2]."""
    ramps = np.maximum(x[:, None] - candidates, 0)
    equal = np.hstack([np.ones((len(x), 1)), x[:, None], ramps, -ramps])
    cost = np.r_[0, 0, np.ones(2 * len(candidates))]
    free = [(None, None)] * 2 + [(0, None)] * (2 * len(candidates))
    return optimize.linprog(cost, A_eq=equal, b_eq=y, bounds=free, method="highs").fun


def candidate_knots(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The points, where lines through two points meet, and a grid."""
    lines = [((y[j] - y[i]) / (x[j] - x[i]), x[i], y[i]) for i, j in itertools.combinations(range(len(x)), 2)]
    meet = [
        (v - t + s * u - r * w) / (s - r)
        for (s, u, t), (r, w, v) in itertools.combinations(lines, 2)
        if abs(s - r) > 1e-9
    ]
    inside = [m for m in meet if x[0] < m < x[-1]]
    return np.unique(np.round(np.r_[x, inside, np.linspace(x[0], x[-1], 21)], 9))


def interpolates_with_least_tv2(x: np.ndarray, y: np.ndarray, knots: tuple[float, ...]) -> bool:
    columns = [np.ones_like(x), x] + [np.maximum(x - knot, 0) for knot in knots]
    weights = np.linalg.lstsq(np.stack(columns, axis=1), y, rcond=None)[0]
    residual = np.abs(np.stack(columns, axis=1) @ weights - y).max()
    return residual < 1e-7 and abs(np.abs(weights[2:]).sum() - canonical_tv2(torch.tensor(x), torch.tensor(y))) < 1e-6


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8), st.integers(0, 1000))
def test_the_sparsest_interpolant_goes_through_the_points_with_the_least_tv2(values, shuffle):
    """[eq:var_lip_1d_2]: a linear program over splines with many knots finds nothing with less TV²."""
    x = torch.arange(len(values), dtype=torch.float64) + 0.25 * torch.rand(len(values), dtype=torch.float64)
    y = torch.tensor(values, dtype=torch.float64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(shuffle))
    spline = sparsest_interpolant(x[order], y[order])
    torch.testing.assert_close(through(spline, x), y, rtol=0, atol=1e-12)
    assert tv2(spline).item() == pytest.approx(canonical_tv2(x, y), abs=1e-12)
    candidates = np.union1d(x.numpy(), np.linspace(x[0].item() - 1, x[-1].item() + 1, 40))
    assert tv2(spline).item() == pytest.approx(least_tv2_by_linear_program(x.numpy(), y.numpy(), candidates), abs=1e-8)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3, width=16), min_size=2, max_size=9))
def test_its_lipschitz_constant_is_the_largest_slope_between_two_points(values):
    """The canonical solution of [eq:var_lip_1d] is as Lipschitz as the data."""
    x = torch.arange(len(values), dtype=torch.float64)
    y = torch.tensor(values, dtype=torch.float64)
    largest = max(abs((y[j] - y[i]) / (x[j] - x[i])).item() for i, j in itertools.combinations(range(len(x)), 2))
    assert lipschitz(sparsest_interpolant(x, y)).item() == pytest.approx(largest, abs=1e-12)


@pytest.mark.parametrize("values", list(itertools.product([-1, 0, 1, 3], repeat=5))[::9])
def test_no_spline_of_least_tv2_has_fewer_knots(values):
    """[eq:var_lip_1d_2], by exhaustive search over sets of candidate knots."""
    x, y = np.arange(5.0), np.array(values, dtype=float)
    spline = sparsest_interpolant(torch.tensor(x), torch.tensor(y))
    found = spline.knots.numel()
    assert interpolates_with_least_tv2(x, y, tuple(spline.knots.tolist()))
    fewer = itertools.combinations(candidate_knots(x, y), max(found - 1, 0))
    assert found == 0 or not any(interpolates_with_least_tv2(x, y, knots) for knots in fewer)


@pytest.mark.parametrize("changes", range(1, 9))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_convex_stretch_needs_half_as_many_knots(changes, sign):
    """n successive changes of slope of one sign become ⌈n/2⌉ knots."""
    x = torch.arange(changes + 2, dtype=torch.float64)
    spline = sparsest_interpolant(x, sign * x.square())
    assert spline.knots.numel() == math.ceil(changes / 2)
    assert tv2(spline).item() == pytest.approx(2 * changes)


def test_a_segment_through_three_points_is_kept():
    """Convex, but the middle line is forced: its knots must stay where they are."""
    x, y = points((0, 1), (1, 0), (2, 0), (3, 0), (4, 1))
    spline = sparsest_interpolant(x, y)
    torch.testing.assert_close(spline.knots, torch.tensor([1.0, 3.0], dtype=torch.float64))
    x, y = points((0, 1), (1, 0), (3, 0), (4, 1))
    assert sparsest_interpolant(x, y).knots.tolist() == [2.0]


def test_the_knots_of_a_spline_are_found_again_from_samples():
    """Samples on both sides of each knot, three or more a region, leave only one sparsest spline."""
    spline = FreeKnots(
        torch.tensor([-0.5, 0.1, 0.4], dtype=torch.float64),
        torch.tensor([-1.0, 0.5, 0.7, -0.3], dtype=torch.float64),
        torch.tensor(0.2, dtype=torch.float64),
    )
    x = torch.rand(400, dtype=torch.float64) * 4 - 2
    found = sparsest_interpolant(x, through(spline, x))
    for got, wanted in zip(found, spline, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_the_data_makes_no_knots(dtype):
    x = torch.rand(1000, dtype=dtype)
    assert sparsest_interpolant(x, 0.3 * x + 0.1).knots.numel() == 0
    assert sparsest_interpolant(x, (x - 0.5).abs()).knots.numel() == 1


def test_tolerance_allows_that_much_deviation_and_no_more():
    x = torch.linspace(0, 1, 200, dtype=torch.float64)
    y = x.square()
    knots = []
    for tol in (1e-4, 1e-3, 1e-2):
        spline = sparsest_interpolant(x, y, tol=tol)
        deviation = (through(spline, x) - y).abs().max().item()
        assert 0.1 * tol < deviation <= tol * (1 + 1e-9)
        knots.append(spline.knots.numel())
    assert knots == sorted(knots, reverse=True)
    assert knots[-1] < 6


def test_one_point_gives_a_constant_and_repeated_points_count_once():
    single = sparsest_interpolant(*points((2, 3)))
    assert (single.slopes.tolist(), single.intercept.item(), single.knots.numel()) == ([0.0], 3.0, 0)
    spline = sparsest_interpolant(*points((0, 0), (1, 1), (1, 1), (2, 0)))
    assert spline.knots.tolist() == [1.0]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([0.0, 1.0], [0.0], r"equal shape \(M,\).* got shapes \(2,\) and \(1,\)"),
        ([], [], "M >= 1"),
        ([0.0, 0.0], [0.0, 1.0], "x = 0 comes with different values of y"),
        ([0.0, float("nan")], [0.0, 1.0], "x has 1 NaN"),
        ([0.0, 1.0], [float("inf"), 1.0], "y has 1 NaN or infinite"),
    ],
)
def test_bad_points_are_refused_with_a_reason(x, y, message):
    with pytest.raises(ValueError, match=message):
        sparsest_interpolant(torch.tensor(x), torch.tensor(y))


# Merging slopes


@pytest.mark.parametrize("tol", [0.05, 0.3, 1.0])
def test_merge_slopes_uses_the_fewest_groups_of_that_span(tol):
    slopes = torch.rand(30, 7, dtype=torch.float64)
    merged = merge_slopes(slopes, tol)
    for row, got in zip(slopes.tolist(), merged.tolist(), strict=True):
        used = 1 + sum(a != b for a, b in itertools.pairwise(got))
        fewest = min(
            len(cuts) + 1
            for size in range(7)
            for cuts in itertools.combinations(range(1, 7), size)
            if all(max(row[i:j]) - min(row[i:j]) <= tol for i, j in itertools.pairwise([0, *cuts, 7]))
        )
        assert used == fewest


def test_merge_slopes_gives_each_group_its_mean():
    merged = merge_slopes(torch.tensor([[0.0, 0.1, 0.2, 1.0, 0.9], [0.5, 0.5, -0.5, -0.5, -0.4]]), tol=0.2)
    torch.testing.assert_close(
        merged, torch.tensor([[0.1, 0.1, 0.1, 0.95, 0.95], [0.5, 0.5, -1.4 / 3, -1.4 / 3, -1.4 / 3]])
    )
