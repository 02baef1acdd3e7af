"""The formulas of linear splines against dense matrices, quadratic programs and the textbook sums."""

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from lipspline.functional.spline import (
    clipped_slopes,
    difference,
    effective_regions,
    grid,
    integrate,
    linear_spline,
    region_tables,
    slope_normalize,
    spline_lipschitz,
    spline_proj,
    tv2,
)

STEP = 0.25
SIZES = [3, 4, 7, 8, 51, 52]  # odd and even numbers of coefficients


def coefficients(low: int = 3, high: int = 12):
    """Any coefficients `(K,)` of moderate size: the paper's "for any c"."""
    return (
        st.integers(low, high)
        .flatmap(lambda K: arrays(np.float64, K, elements=st.floats(-10, 10, allow_nan=False)))
        .map(torch.from_numpy)
    )


def first_differences(K: int) -> np.ndarray:
    """The matrix D, written out."""
    return np.eye(K - 1, K, 1) - np.eye(K - 1, K)


def second_differences(K: int) -> np.ndarray:
    """The matrix L, written out."""
    return np.eye(K - 2, K) - 2 * np.eye(K - 2, K, 1) + np.eye(K - 2, K, 2)


def random_coefficients(K: int, channels: int = 3) -> Tensor:
    return torch.randn(channels, K, dtype=torch.float64, generator=torch.Generator().manual_seed(K))


def interpolate(x: np.ndarray, knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    """numpy's interpolation, continued with the slopes of the outer regions."""
    left = (values[1] - values[0]) / (knots[1] - knots[0])
    right = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
    inside = np.interp(x, knots, values)
    return np.where(
        x < knots[0],
        values[0] + left * (x - knots[0]),
        np.where(x > knots[-1], values[-1] + right * (x - knots[-1]), inside),
    )


def b_spline_sum(x: float, c: np.ndarray, T: float) -> float:
    """The definition of σ in [sec:deepspline], term by term, for knots kT with k from k_min - 1 to k_max + 1."""
    k_min, k_max = -(len(c) - 1) // 2 + 1, (len(c) - 1) // 2 - 1
    value = dict(zip(range(k_min - 1, k_max + 2), c, strict=True))
    if x < k_min * T:
        return value[k_min] + (value[k_min] - value[k_min - 1]) / T * (x - k_min * T)
    if x > k_max * T:
        return value[k_max] + (value[k_max + 1] - value[k_max]) / T * (x - k_max * T)
    return sum(value[k] * max(0.0, 1 - abs(x / T - k)) for k in range(k_min - 1, k_max + 2))


def relu_expansion(x: np.ndarray, knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    """b1 + b2 x + Σ a_k ReLU(x - τ_k) with the slope changes a_k at the inner knots."""
    slopes = np.diff(values) / np.diff(knots)
    jumps = np.maximum(x[:, None] - knots[None, 1:-1], 0) @ np.diff(slopes)
    return values[0] - slopes[0] * knots[0] + slopes[0] * x + jumps


# D and its pseudoinverse


@pytest.mark.parametrize("K", SIZES)
def test_difference_is_the_matrix_of_first_differences(K: int):
    """D of [sec:deepspline]."""
    c = random_coefficients(K)
    np.testing.assert_allclose(difference(c), c.numpy() @ first_differences(K).T, atol=1e-13)


@pytest.mark.parametrize("K", SIZES)
def test_integrate_is_the_moore_penrose_inverse(K: int):
    """D† of [sec:SplineProj]."""
    d = random_coefficients(K)[:, :-1]
    np.testing.assert_allclose(integrate(d), d.numpy() @ np.linalg.pinv(first_differences(K)).T, atol=1e-11)


@given(coefficients())
def test_differences_of_the_integral_give_back_the_differences(d: Tensor):
    """D D† = Id and 1ᵀ D† = 0, the two identities that [sec:splineproj_app] uses."""
    torch.testing.assert_close(difference(integrate(d)), d, atol=1e-12, rtol=0)
    assert integrate(d).sum().abs() < 1e-11


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5)])
def test_formulas_act_on_the_last_dimension(shape: tuple[int, ...]):
    """Any leading shape [sec:deepspline]."""
    c = torch.randn(shape, dtype=torch.float64)
    rows = c.reshape(-1, 5)
    for formula in (difference, integrate):
        torch.testing.assert_close(formula(c).reshape(len(rows), -1), torch.stack([formula(row) for row in rows]))
    for formula in (spline_proj, slope_normalize, clipped_slopes):
        expected = torch.stack([formula(row, STEP) for row in rows])
        torch.testing.assert_close(formula(c, STEP).reshape(expected.shape), expected)
    for formula in (spline_lipschitz, tv2, effective_regions):
        assert formula(c, STEP).shape == shape[:-1]
        torch.testing.assert_close(formula(c, STEP).reshape(-1), torch.stack([formula(row, STEP) for row in rows]))


# SplineProj


@pytest.mark.parametrize("K", SIZES)
@pytest.mark.parametrize("slope", [(-1.0, 1.0), (0.0, 1.0), (-0.5, 2.0), (0.25, 0.5)])
def test_spline_proj_is_the_formula_with_dense_matrices(K: int, slope: tuple[float, float]):
    """[slope_clipping] with [eq:slope_clipping] written by hand."""
    c, D = random_coefficients(K), first_differences(K)
    clipped = np.minimum(np.maximum(c.numpy() @ D.T, slope[0] * STEP), slope[1] * STEP)
    expected = clipped @ np.linalg.pinv(D).T + c.numpy().mean(axis=1, keepdims=True)
    np.testing.assert_allclose(spline_proj(c, STEP, slope), expected, atol=1e-11)


@given(coefficients())
def test_spline_proj_reaches_the_feasible_set(c: Tensor):
    """Property 1 of [prop:splineproj]: the image lies in ‖D c‖_∞ <= T."""
    assert difference(spline_proj(c, STEP)).abs().max() <= STEP * (1 + 1e-12)


@given(coefficients())
def test_spline_proj_is_idempotent(c: Tensor):
    """Property 1 of [prop:splineproj]: a projection."""
    once = spline_proj(c, STEP)
    torch.testing.assert_close(spline_proj(once, STEP), once, atol=1e-12, rtol=0)


@given(coefficients())
def test_spline_proj_leaves_feasible_coefficients_alone(c: Tensor):
    """Property 1 of [prop:splineproj]: onto the set, so every point of it stays."""
    feasible = c * (STEP / difference(c).abs().max().clamp(min=STEP))
    torch.testing.assert_close(spline_proj(feasible, STEP), feasible, atol=1e-11, rtol=0)


@given(coefficients())
def test_spline_proj_keeps_the_mean(c: Tensor):
    """Property 3 of [prop:splineproj]."""
    torch.testing.assert_close(spline_proj(c, STEP).mean(), c.mean(), atol=1e-12, rtol=0)


@given(coefficients(high=8))
def test_spline_proj_has_the_derivative_of_the_formula(c: Tensor):
    """Property 2 of [prop:splineproj]: the Jacobian is D† diag(inside) D + 11ᵀ/K off the set S of the proof."""
    d, K = difference(c), len(c)
    if ((d.abs() - STEP).abs() < 1e-9).any():
        return
    D = first_differences(K)
    expected = np.linalg.pinv(D) @ np.diag((d.abs() < STEP).double().numpy()) @ D + np.full((K, K), 1 / K)
    jacobian = torch.autograd.functional.jacobian(lambda c: spline_proj(c, STEP), c)
    np.testing.assert_allclose(jacobian, expected, atol=1e-12)


def least_squares_projection(c: np.ndarray, T: float) -> np.ndarray:
    """min ‖y - c‖² subject to |D y| <= T, by a quadratic program in the dual: box-constrained least squares.

    With y = c - Dᵀ(p - q), p, q >= 0, the dual is min ½‖Dᵀ(p - q)‖² - (p - q)ᵀ D c + T (p + q).
    """
    D = first_differences(len(c))
    n = len(c) - 1

    def dual(z: np.ndarray) -> tuple[float, np.ndarray]:
        w = z[:n] - z[n:]
        gradient = D @ (D.T @ w) - D @ c
        return 0.5 * np.sum((D.T @ w) ** 2) - w @ D @ c + T * z.sum(), np.r_[gradient, -gradient] + T

    options = {"maxiter": 20000, "maxfun": 200000, "ftol": 1e-16, "gtol": 1e-12}
    z = scipy.optimize.minimize(
        dual, np.zeros(2 * n), jac=True, method="L-BFGS-B", bounds=[(0, None)] * 2 * n, options=options
    ).x
    return c - D.T @ (z[:n] - z[n:])


def test_least_squares_projection_keeps_the_mean_too():
    """The remark of [sec:splineproj_app], on random coefficients and a quadratic program."""
    for seed in range(10):
        c = np.random.default_rng(seed).normal(size=7)
        y = least_squares_projection(c, STEP)
        assert np.abs(np.diff(y)).max() <= STEP + 1e-5
        assert abs(y.mean() - c.mean()) < 1e-9


def test_spline_proj_is_another_projection_than_least_squares():
    """[sec:SplineProj]: SplineProj is a substitute for the least-squares projection, never nearer to c."""
    gaps = []
    for seed in range(10):
        c = np.random.default_rng(seed).normal(size=7)
        nearest = np.linalg.norm(least_squares_projection(c, STEP) - c)
        ours = np.linalg.norm(spline_proj(torch.from_numpy(c), STEP).numpy() - c)
        assert ours >= nearest - 1e-5
        gaps.append(ours - nearest)
    assert max(gaps) > 0.1


def test_spline_proj_of_a_single_steep_region_is_the_least_squares_projection_by_hand():
    """With K = 2 there is one difference, and both projections move the two values alike [sec:splineproj_app]."""
    c = torch.tensor([0.0, 3.0], dtype=torch.float64)
    np.testing.assert_allclose(spline_proj(c, 1.0), [1.0, 2.0])
    np.testing.assert_allclose(least_squares_projection(c.numpy(), 1.0), [1.0, 2.0], atol=1e-6)


@given(coefficients())
def test_clipped_slopes_are_the_slopes_of_the_projection(c: Tensor):
    """[slope_clipping], in slopes."""
    torch.testing.assert_close(clipped_slopes(c, STEP), difference(spline_proj(c, STEP)) / STEP, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e10, 1e30, 1e37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipped_slopes_never_leave_the_interval(size: float, dtype: torch.dtype):
    """[eq:slope_clipping] is exact: no rounding beyond the bounds, whatever the coefficients."""
    c = torch.randn(200, 51, dtype=dtype) * size
    for slope in [(-1.0, 1.0), (0.0, 1.0), (-0.5, 0.25)]:
        s = clipped_slopes(c, 0.004, slope)
        assert s.min() >= slope[0]
        assert s.max() <= slope[1]
        assert torch.isfinite(s).all()


# LLS Old


@given(coefficients())
def test_slope_normalize_divides_by_the_largest_slope(c: Tensor):
    """LLS Old [sec:methods]: the largest slope becomes the bound if it was above, and nothing changes otherwise."""
    steepest = np.abs(first_differences(len(c)) @ c.numpy()).max() / STEP
    for bound in (0.5, 1.0):
        expected = c.numpy() / steepest * bound if steepest > bound else c.numpy()
        np.testing.assert_allclose(slope_normalize(c, STEP, bound), expected, atol=1e-12)


def test_slope_normalize_treats_each_spline_alone():
    """A steep neighbour does not flatten a spline [sec:methods]."""
    c = torch.tensor([[0.0, 10.0, 0.0], [0.0, 0.1, 0.0]])
    torch.testing.assert_close(slope_normalize(c, 1.0)[1], c[1])
    torch.testing.assert_close(spline_lipschitz(slope_normalize(c, 1.0), 1.0), torch.tensor([1.0, 0.1]))


# Lipschitz constant, TV², regions


@given(coefficients())
def test_spline_lipschitz_is_the_steepest_ratio_of_the_spline(c: Tensor):
    """Lip(σ) = ‖D c‖_∞ / T [sec:deepspline], seen on a grid that holds a pair in every region."""
    radius = STEP * (len(c) - 1) / 2
    x = torch.linspace(-1.5 * radius, 1.5 * radius, 30 * (len(c) - 1) + 1, dtype=torch.float64)
    y = linear_spline(x[:, None], c[None], radius)[:, 0]
    ratio = (y.diff() / x.diff()).abs().max()
    torch.testing.assert_close(spline_lipschitz(c, STEP), ratio, atol=1e-9, rtol=1e-9)


@given(coefficients())
def test_tv2_is_the_norm_of_second_differences(c: Tensor):
    """TV² = ‖L c‖₁ / T [sec:deepspline]."""
    expected = np.abs(second_differences(len(c)) @ c.numpy()).sum() / STEP
    np.testing.assert_allclose(tv2(c, STEP), expected, atol=1e-10, rtol=1e-12)


@given(coefficients())
def test_tv2_is_the_sum_of_the_weights_of_the_relu_expansion(c: Tensor):
    """TV² = ‖a‖₁ [eq:control_knots] with a the slope changes of [eq:LearnSpline]."""
    slopes = np.diff(c.numpy()) / STEP
    np.testing.assert_allclose(tv2(c, STEP), np.abs(np.diff(slopes)).sum(), atol=1e-10, rtol=1e-12)


@given(coefficients(), st.floats(-2, 2), st.floats(-2, 2))
def test_tv2_does_not_see_affine_parts(c: Tensor, a: float, b: float):
    """TV² is a seminorm that vanishes on affine functions [sec:tv2]."""
    t = torch.arange(len(c), dtype=torch.float64) * STEP
    torch.testing.assert_close(tv2(c + a + b * t, STEP), tv2(c, STEP), atol=1e-9, rtol=0)
    assert tv2(a + b * t, STEP) < 1e-10


@given(coefficients(), st.floats(0.05, 20))
def test_tv2_does_not_see_the_scale(c: Tensor, scale: float):
    """Scale invariance of TV² [sec:tv2]: σ(α x)/α has values c/α on a grid of step T/α."""
    torch.testing.assert_close(tv2(c / scale, STEP / scale), tv2(c, STEP), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("scale", [0.2, 1.0, 7.0])
def test_tv2_is_the_total_variation_of_the_evaluated_slopes(scale: float):
    """[sec:tv2], [sec:ScalePara]: measured on the evaluated, scaled spline by second differences."""
    c = random_coefficients(8)
    radius = STEP * 7 / 2
    x = torch.linspace(-1.5 * radius / scale, 1.5 * radius / scale, 4001, dtype=torch.float64)
    y = linear_spline(x[:, None].expand(-1, 3), c, radius, torch.full((3,), scale, dtype=torch.float64))
    slopes = y.diff(dim=0) / x.diff()[:, None]
    torch.testing.assert_close(slopes.diff(dim=0).abs().sum(dim=0), tv2(c, STEP), atol=1e-8, rtol=1e-8)


def test_the_number_of_regions_is_counted_by_hand():
    """The example of [fig:spline_activation]: a zero second difference removes a region [table:nbr_knots]."""
    c = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0])
    assert effective_regions(c, step=1.0).item() == 5
    assert effective_regions(torch.arange(7.0), step=1.0).item() == 1
    assert effective_regions(torch.arange(-3.0, 4.0).abs(), step=1.0).item() == 2


@pytest.mark.parametrize(("change", "regions"), [(0.0099, 1), (0.0101, 2), (-0.0099, 1), (-0.0101, 2)])
@pytest.mark.parametrize("step", [0.004, 1.0])
def test_a_region_counts_from_a_slope_change_of_a_hundredth(change: float, regions: int, step: float):
    """The threshold is on |L c| / T, whatever T is [table:nbr_knots]."""
    t = torch.arange(-5, 6, dtype=torch.float64) * step
    c = 0.3 * t + change * t.clamp(min=0)
    assert effective_regions(c, step).item() == regions


def test_the_threshold_of_regions_is_an_argument():
    """[table:nbr_knots] with another threshold."""
    c = torch.tensor([0.0, 1.0, 2.25, 3.75], dtype=torch.float64)
    assert [effective_regions(c, 1.0, threshold).item() for threshold in (0.2, 0.3)] == [3, 1]


# Evaluation


@pytest.mark.parametrize("regions", [2, 3, 50, 51])
def test_grid_has_equal_steps_and_is_symmetric(regions: int):
    """K = regions + 1 knots on [-radius, radius], for both parities [sec:deepspline]."""
    like = torch.empty(0, dtype=torch.float64)
    knots = grid(regions, 0.1, like)
    assert knots.dtype == like.dtype
    np.testing.assert_allclose(knots, -0.1 + 0.2 / regions * np.arange(regions + 1), atol=1e-15)
    assert knots[0] == -0.1
    assert knots[-1] == 0.1


@pytest.mark.parametrize("K", SIZES)
def test_linear_spline_interpolates_and_goes_on_with_the_outer_slopes(K: int):
    """σ of [sec:deepspline] against numpy's interpolation, at knots, inside and far outside."""
    c, radius = random_coefficients(K), 0.7
    knots = np.linspace(-radius, radius, K)
    x = np.concatenate([np.linspace(-3, 3, 1001), knots, [-1e4, 1e4]])
    y = linear_spline(torch.from_numpy(x)[:, None].expand(-1, 3), c, radius)
    for channel in range(3):
        np.testing.assert_allclose(y[:, channel], interpolate(x, knots, c[channel].numpy()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("K", [5, 7, 11])
def test_linear_spline_is_the_sum_of_b_splines(K: int):
    """The definition of [sec:deepspline], with knots at whole multiples of T."""
    c, T = random_coefficients(K, channels=1), 0.3
    x = np.linspace(-4, 4, 401)
    expected = [b_spline_sum(value, c[0].numpy(), T) for value in x]
    y = linear_spline(torch.from_numpy(x)[:, None], c, radius=T * (K - 1) / 2)
    np.testing.assert_allclose(y[:, 0], expected, atol=1e-11)


@pytest.mark.parametrize("K", SIZES)
def test_linear_spline_is_the_relu_expansion(K: int):
    """[eq:LearnSpline] with the slope changes as weights."""
    c, radius = random_coefficients(K, channels=1), 0.7
    x = np.linspace(-3, 3, 401)
    expected = relu_expansion(x, np.linspace(-radius, radius, K), c[0].numpy())
    np.testing.assert_allclose(linear_spline(torch.from_numpy(x)[:, None], c, radius)[:, 0], expected, atol=1e-10)


def test_each_channel_has_its_own_spline_in_the_dimension_asked_for():
    """[sec:deepspline]: one activation per channel; `channel_dim` says where the channels are."""
    c = random_coefficients(6)
    x = torch.randn(2, 3, 4, 3, dtype=torch.float64)
    knots = np.linspace(-1, 1, 6)
    for dim in (1, -1):
        y = linear_spline(x, c, 1.0, channel_dim=dim)
        for channel in range(3):
            got, given_x = y.select(dim, channel), x.select(dim, channel)
            np.testing.assert_allclose(got, interpolate(given_x.numpy(), knots, c[channel].numpy()), atol=1e-12)


def test_one_row_of_coefficients_is_shared_by_all_channels():
    """[sec:deepspline]: the splines can be shared."""
    c = random_coefficients(6, channels=1)
    x = torch.randn(4, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(linear_spline(x, c, 1.0), linear_spline(x, c.expand(5, -1), 1.0))


@pytest.mark.parametrize("K", [6, 7])
@given(scale=st.floats(0.05, 20))
def test_scaled_spline_is_the_spline_of_the_scaled_input(K: int, scale: float):
    """σ̃(x) = σ(α x)/α [sec:ScalePara]."""
    c = random_coefficients(K)
    x = torch.linspace(-3, 3, 101, dtype=torch.float64)[:, None].expand(-1, 3)
    alpha = torch.full((3,), scale, dtype=torch.float64)
    torch.testing.assert_close(
        linear_spline(x, c, 0.5, alpha), linear_spline(scale * x, c, 0.5) / scale, atol=1e-9, rtol=1e-9
    )


@given(coefficients(), st.floats(0.05, 20))
def test_the_scale_leaves_the_lipschitz_constant_unchanged(c: Tensor, scale: float):
    """Lip(σ̃) = Lip(σ) [sec:ScalePara], on the tables that are evaluated."""
    alpha = torch.tensor([scale], dtype=torch.float64)
    radius = STEP * (len(c) - 1) / 2
    _, s = region_tables(difference(c)[None] / STEP, c.mean()[None], radius, alpha)
    torch.testing.assert_close(s.abs().max(), spline_lipschitz(c, STEP))
    x = torch.linspace(-1.5 * radius / scale, 1.5 * radius / scale, 30 * (len(c) - 1) + 1, dtype=torch.float64)
    y = linear_spline(x[:, None], c[None], radius, alpha)[:, 0]
    torch.testing.assert_close((y.diff() / x.diff()).abs().max(), spline_lipschitz(c, STEP), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_derivative_by_the_scale_is_that_of_finite_differences(scale: float):
    """∂/∂α of σ(α x)/α [sec:ScalePara], away from the knots."""
    c, h = random_coefficients(8), 1e-6
    x = torch.linspace(-2.01, 2.03, 57, dtype=torch.float64)[:, None].expand(-1, 3) / scale

    def evaluate(alpha: Tensor) -> Tensor:
        return linear_spline(x, c, 1.0, alpha)

    alpha = torch.full((3,), scale, dtype=torch.float64)
    numeric = (evaluate(alpha + h) - evaluate(alpha - h)) / (2 * h)
    analytic = torch.func.jvp(evaluate, (alpha,), (torch.ones_like(alpha),))[1]
    torch.testing.assert_close(analytic, numeric, atol=1e-7, rtol=1e-6)
    assert numeric.abs().max() > 0.1


def test_region_tables_give_intercepts_and_slopes_of_lines_through_the_knots():
    """b_i + s_i x passes through both ends of region i, scaled [sec:ScalePara]."""
    c, radius = random_coefficients(9), 0.5
    alpha = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    b, s = region_tables(difference(c) / (2 * radius / 8), c.mean(dim=-1), radius, alpha)
    knots = torch.linspace(-radius, radius, 9, dtype=torch.float64) / alpha[:, None]
    values = c / alpha[:, None]
    torch.testing.assert_close(b + s * knots[:, :-1], values[:, :-1])
    torch.testing.assert_close(b + s * knots[:, 1:], values[:, 1:])


def test_linear_spline_has_exact_gradients():
    """By input, coefficients and scale, first and second order [prop:splineproj]."""
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    c = random_coefficients(6).requires_grad_()
    alpha = torch.tensor([0.6, 1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def evaluate(x: Tensor, c: Tensor, alpha: Tensor) -> Tensor:
        return linear_spline(x, spline_proj(c, 0.2), 0.5, alpha)

    assert torch.autograd.gradcheck(evaluate, (x, c, alpha))
    assert torch.autograd.gradgradcheck(evaluate, (x, c, alpha))
