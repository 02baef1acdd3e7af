"""A spline in one step is the spline in its parts [prop:splineproj, sec:ScalePara]."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from vmapped import assert_vmap_is_a_loop

from lipspline import kernels
from lipspline.kernels import native, piecewise_affine, scaled_spline, scaled_tables

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
