"""Coefficients to tables, in C and in torch, against the formulas of the paper [prop:splineproj, sec:ScalePara]."""

from math import inf

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lipspline import kernels
from lipspline.functional.spline import clipped_slopes, difference, region_tables
from lipspline.kernels import native, piecewise_affine, spline_tables

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")
RADIUS = 0.7


def coefficients(rows: int, knots: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Coefficients, about half of whose slopes are too steep, and scales."""
    torch.manual_seed(knots)
    steps = 2 * RADIUS / (knots - 1) * 1.5 * torch.randn(rows, knots, dtype=torch.float64)
    return steps.cumsum(-1).to(dtype), (0.5 + torch.rand(rows, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("knots", [2, 3, 10, 51])
@pytest.mark.parametrize("slope", [(-1.0, 1.0), (0.0, 0.5), (-inf, inf)])
def test_the_tables_are_those_of_the_formulas(implementation, knots, slope):
    c, scale = coefficients(4, knots)
    step = 2 * RADIUS / (knots - 1)
    slopes = difference(c) / step if slope[1] == inf else clipped_slopes(c, step, slope)
    with kernels.using(implementation):
        b, s = spline_tables(c, scale, RADIUS, slope)
    assert torch.equal(s, slopes)
    torch.testing.assert_close(b, region_tables(slopes, c.mean(-1), RADIUS, scale)[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("knots", [2, 3, 7])
def test_first_and_second_derivatives_are_right_backwards_and_forwards(implementation, knots):
    leaves = [t.requires_grad_() for t in coefficients(3, knots)]

    def function(c: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return spline_tables(c, scale, RADIUS)

    with kernels.using(implementation):
        assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, leaves, check_fwd_over_rev=True, check_batched_grad=True)


@needs_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 64, 700])
def test_c_and_eager_agree(dtype, rows):
    c, scale = (t.requires_grad_() for t in coefficients(rows, 51, dtype))
    found = []
    for name in ("c", "eager"):
        with kernels.using(name):
            b, s = spline_tables(c, scale, RADIUS)
            found.append((b, s, *torch.autograd.grad((b, s), (c, scale), (b.detach().sin(), s.detach().cos()))))
    for got, want in zip(*found, strict=True):
        tolerance = (1e-4 if dtype == torch.float32 else 1e-12) * want.abs().max().item()
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance)
    if dtype == torch.float64:
        assert torch.equal(found[0][0], found[1][0])


def test_a_slope_on_the_edge_of_the_interval_still_learns(implementation):
    """As torch.clamp: the derivative at the ends of the interval is 1."""
    c = torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    with kernels.using(implementation):
        _, s = spline_tables(c, torch.ones(1, dtype=torch.float64), radius=1.0)
        (gc,) = torch.autograd.grad(s.sum(), c)
    assert s.tolist() == [[1.0, 0.0]]
    assert gc.tolist() == [[-1.0, 0.0, 1.0]]


@pytest.mark.parametrize("knots", [3, 51, 501])
def test_rounding_does_not_decide_which_slopes_learn(implementation, knots):
    """In float32 the identity has slopes of 1 ± 1e-5; all of them learn. A slope of 1.001 does not."""
    c = torch.linspace(-RADIUS, RADIUS, knots).repeat(2, 1)
    c[1] *= 1.001
    c.requires_grad_()
    with kernels.using(implementation):
        _, s = spline_tables(c, torch.ones(2), RADIUS)
        (gc,) = torch.autograd.grad(s, c, (2.0 ** torch.arange(knots - 1).remainder(8)).repeat(2, 1))
    assert s.max() <= 1
    by_slope = -gc.cumsum(-1)[:, :-1] * (2 * RADIUS / (knots - 1))
    assert (by_slope[0] > 0.5).all()
    assert (by_slope[1] == 0).all()


def test_nan_coefficients_give_nan_tables(implementation):
    c = torch.tensor([[0.0, torch.nan, 1.0], [0.0, 0.5, 1.0]])
    with kernels.using(implementation):
        b, s = spline_tables(c, torch.ones(2), radius=1.0)
    assert b[0].isnan().all()
    assert s[0].isnan().all()
    assert not b[1].isnan().any()


def test_transforms_of_torch_func_work_with_constant_and_with_wrapped_coefficients(implementation):
    c, scale = coefficients(3, 6)
    x = torch.randn(4, 3, dtype=torch.float64)

    def energy(x: Tensor, c: Tensor) -> Tensor:
        tables = spline_tables(c, scale, RADIUS)
        return piecewise_affine(x, *tables, scale * 5 / (2 * RADIUS), 2.5).pow(2).sum()

    with kernels.using(implementation):
        for argument in (0, 1):
            by_func = torch.func.grad(energy, argnums=argument)(x, c)
            leaves = [t.clone().requires_grad_(i == argument) for i, t in enumerate((x, c))]
            (by_autograd,) = torch.autograd.grad(energy(*leaves), leaves[argument])
            torch.testing.assert_close(by_func, by_autograd)
        batch = torch.stack([c, 2 * c])
        together = torch.func.vmap(lambda c: spline_tables(c, scale, RADIUS))(batch)
        for i in range(2):
            for got, want in zip(together, spline_tables(batch[i], scale, RADIUS), strict=True):
                torch.testing.assert_close(got[i], want)
