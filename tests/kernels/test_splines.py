"""Learned splines from their coefficients: tables and outputs, in C and in plain torch."""

from math import inf

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from vmapped import assert_vmap_is_a_loop

from lipspline import kernels
from lipspline.functional.spline import clipped_slopes, difference, region_tables
from lipspline.kernels import native, piecewise_affine, scaled_spline, scaled_tables, spline_tables

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")
RADIUS, SLOPE = 0.7, (-1.0, 1.0)


def parameters(rows: int, knots: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Coefficients, about half of whose slopes are too steep, and logarithms of scales."""
    torch.manual_seed(knots)
    steps = 2 * RADIUS / (knots - 1) * 1.5 * torch.randn(rows, knots, dtype=torch.float64)
    return steps.cumsum(-1).to(dtype), (0.3 * torch.randn(rows, dtype=torch.float64)).to(dtype)


def in_parts(x: Tensor, c: Tensor, log_scale: Tensor, channel_dim: int) -> Tensor:
    return piecewise_affine(x, *scaled_tables(c, log_scale, RADIUS, SLOPE), channel_dim)


def results(function, x: Tensor, c: Tensor, log_scale: Tensor, channel_dim: int) -> tuple[Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in (x, c, log_scale)]
    y = function(*leaves, channel_dim)
    return y.detach(), *torch.autograd.grad(y, leaves, y.detach().cos())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "knots"), [(6, 51), (1, 51), (6, 12)])
@pytest.mark.parametrize(
    ("shape", "channel_dim"), [((3, 6, 20, 20), 1), ((5, 6), 1), ((4, 7, 6), -1), ((9000, 6), 1), ((6,), 0)]
)
def test_one_step_and_its_parts_give_the_same_bits(implementation, dtype, rows, knots, shape, channel_dim):
    c, log_scale = parameters(rows, knots, dtype)
    x = torch.randn(shape, dtype=dtype)

    def at_once(x: Tensor, c: Tensor, log_scale: Tensor, channel_dim: int) -> Tensor:
        return scaled_spline(x, c, log_scale, RADIUS, SLOPE, channel_dim)

    with kernels.using(implementation):
        got, want = (results(f, x, c, log_scale, channel_dim % x.ndim) for f in (at_once, in_parts))
        with torch.no_grad():
            assert torch.equal(at_once(x, c, log_scale, channel_dim), want[0])
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@needs_c
@pytest.mark.parametrize("layout", ["channels last", "sliced", "gradient sliced"])
def test_any_layout_will_do(layout):
    c, log_scale = parameters(6, 11)
    x, g = torch.randn(2, 4, 6, 10, 10).unbind()
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "sliced":
        x = torch.randn(4, 6, 10, 20)[..., ::2]
    else:
        g = torch.randn(4, 6, 10, 20)[..., ::2]
    x.requires_grad_()
    c = c.T.contiguous().T
    y, parts = scaled_spline(x, c, log_scale, RADIUS, SLOPE), in_parts(x, c, log_scale, 1)
    assert torch.equal(y, parts)
    assert torch.equal(*(torch.autograd.grad(out, x, g)[0] for out in (y, parts)))


def test_first_and_second_derivatives_are_right_backwards_and_forwards(implementation):
    leaves = [t.requires_grad_() for t in (torch.randn(4, 3, dtype=torch.float64), *parameters(3, 7, torch.float64))]

    def function(x: Tensor, c: Tensor, log_scale: Tensor) -> Tensor:
        return scaled_spline(x, c, log_scale, RADIUS, SLOPE)

    with kernels.using(implementation):
        # The derivative by log α ignores that regions move; the function is continuous, so it is right all the same.
        assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, leaves, check_batched_grad=True)


@needs_c
def test_backward_keeps_the_input_and_nothing_else_of_its_size():
    c, log_scale = (t.requires_grad_() for t in parameters(4, 51))
    x = torch.randn(2, 4, 30, 30, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        scaled_spline(x, c, log_scale, RADIUS, SLOPE)
    assert [t.data_ptr() for t in kept if t.numel() > 3 * c.numel()] == [x.data_ptr()]


@needs_c
def test_autograd_sees_one_step():
    c, log_scale = (t.requires_grad_() for t in parameters(4, 51))
    y = scaled_spline(torch.randn(2, 4), c, log_scale, RADIUS, SLOPE)
    assert y.grad_fn is not None
    assert {type(node).__name__ for node, _ in y.grad_fn.next_functions if node is not None} == {"AccumulateGrad"}


def ensemble(rows: int, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Five members: inputs `(5, *shape)`, and splines of their own."""
    members = [parameters(rows, 7, torch.float64) for _ in range(5)]
    c, log_scale = (torch.stack(part) for part in zip(*members, strict=True))
    factor = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    return torch.randn(5, *shape, dtype=torch.float64), c * factor[:, None, None], log_scale + factor[:, None]


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 0, 0), (1, None, 0), (2, 1, None), (0, 2, 1)])
@pytest.mark.parametrize("rows", [3, 1])
def test_vmap_is_a_loop(implementation, in_dims, rows):
    with kernels.using(implementation):
        assert_vmap_is_a_loop(
            lambda *arguments: scaled_spline(*arguments, RADIUS, SLOPE),
            ensemble(rows, 2, 3),
            in_dims,
            learned=(0, 1, 2),
        )


def test_vmap_within_vmap_is_a_double_loop(implementation):
    x, c, log_scale = (torch.stack([t, 2 * t]) for t in ensemble(3, 2, 3))

    def function(*arguments: Tensor) -> Tensor:
        return scaled_spline(*arguments, RADIUS, SLOPE)

    with kernels.using(implementation):
        twice = torch.func.vmap(torch.func.vmap(function))(x, c, log_scale)
        shared = torch.func.vmap(torch.func.vmap(function), (0, None, None))(x, c[0], log_scale[0])
        assert torch.equal(twice[1, 3], function(x[1, 3], c[1, 3], log_scale[1, 3]))
        assert torch.equal(shared[1, 3], function(x[1, 3], c[0, 3], log_scale[0, 3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_ensemble_has_the_gradients_of_its_members(implementation, dtype):
    """The parameters belong to autograd outside of vmap, as in `training.ensemble`."""
    arguments = [t.to(dtype) for t in ensemble(3, 40, 3)]

    def function(*arguments: Tensor) -> Tensor:
        return scaled_spline(*arguments, RADIUS, SLOPE)

    with kernels.using(implementation):
        together = [t.clone().requires_grad_() for t in arguments]
        torch.func.vmap(function)(*together).cos().sum().backward()
        alone = [t.clone().requires_grad_() for t in arguments]
        for members in zip(*alone, strict=True):
            function(*members).cos().sum().backward()
    for batch, single in zip(together, alone, strict=True):
        torch.testing.assert_close(batch.grad, single.grad)


@needs_c
def test_in_an_ensemble_autograd_sees_one_step_too():
    leaves = [t.requires_grad_() for t in ensemble(3, 2, 3)]
    y = torch.func.vmap(lambda *arguments: scaled_spline(*arguments, RADIUS, SLOPE))(*leaves)
    assert y.grad_fn is not None
    assert {type(node).__name__ for node, _ in y.grad_fn.next_functions if node is not None} == {"AccumulateGrad"}


def test_hessians_agree_whichever_way_they_are_computed(implementation):
    x, c, log_scale = (t[0] for t in ensemble(3, 2, 3))

    def energy(log_scale: Tensor) -> Tensor:
        return scaled_spline(x, c, log_scale, RADIUS, SLOPE).pow(2).sum()

    with kernels.using(implementation):
        ways = [
            first(second(energy))(log_scale)
            for first in (torch.func.jacrev, torch.func.jacfwd)
            for second in (torch.func.jacrev, torch.func.jacfwd)
        ]
    for way in ways[1:]:
        torch.testing.assert_close(way, ways[0])


def test_coefficients_for_other_channels_are_refused(implementation):
    with kernels.using(implementation), pytest.raises(ValueError, match="the 5 channels"):
        scaled_spline(torch.randn(2, 5), *parameters(3, 7), RADIUS, SLOPE)


def test_scales_for_other_splines_are_refused(implementation):
    c, log_scale = parameters(3, 7)
    with kernels.using(implementation), pytest.raises(RuntimeError, match="must match the size"):
        scaled_spline(torch.randn(2, 3), c, log_scale[:2], RADIUS, SLOPE)


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
def test_first_and_second_derivatives_of_the_tables_are_right_backwards_and_forwards(implementation, knots):
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
