"""Sorting and reflecting pairs of channels [lipschitz_activation_section]."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lipspline import kernels
from lipspline.kernels import householder, native, sort_pairs

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")

SHAPES = [
    ((10,), 0),
    ((7, 6), 1),
    ((3, 4, 17), 1),
    ((3, 4, 5), 1),
    ((2, 3, 8), -1),
    ((2, 4, 3, 2, 2), 1),
    ((6, 3, 20), 0),
]


def vectors(pairs: int, dtype: torch.dtype = torch.float64) -> Tensor:
    angle = torch.linspace(0.3, 6, pairs, dtype=dtype)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


@pytest.mark.parametrize(("shape", "channel_dim"), SHAPES)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_pairs_is_torch_sort_on_pairs(implementation, shape, channel_dim, descending):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    dim = channel_dim % x.ndim
    sorted_pairs = x.unflatten(dim, (-1, 2)).sort(dim + 1, descending=descending).values.flatten(dim, dim + 1)
    g = torch.randn_like(x)
    with kernels.using(implementation):
        y = sort_pairs(x, channel_dim, descending)
        (gx,) = torch.autograd.grad(y, x, g)
    assert torch.equal(y, sorted_pairs)
    assert torch.equal(gx, torch.autograd.grad(sorted_pairs, x, g)[0])


@pytest.mark.parametrize(("shape", "channel_dim"), SHAPES)
def test_householder_is_the_reflection_matrix_of_each_pair(implementation, shape, channel_dim):
    """x where vᵀx > 0, else (I - 2 v vᵀ) x, as the paper writes it."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    pairs = x.movedim(channel_dim, -1).unflatten(-1, (-1, 2))
    v = vectors(pairs.shape[-2])
    matrix = torch.eye(2, dtype=torch.float64) - 2 * v.unsqueeze(2) * v.unsqueeze(1)
    reflected = torch.einsum("pij,...pj->...pi", matrix, pairs)
    kept = (v * pairs).sum(-1, keepdim=True) > 0
    wanted = torch.where(kept, pairs, reflected).flatten(-2).movedim(-1, channel_dim)
    assert kept.any()
    assert not kept.all()
    with kernels.using(implementation):
        torch.testing.assert_close(householder(x, v, channel_dim), wanted, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("shape", [(2, 4, 3), (3, 4), (1, 4, 9)])
def test_first_and_second_derivatives_are_right_backwards_and_forwards(implementation, shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    v = vectors(2).requires_grad_()
    with kernels.using(implementation):
        for function, leaves in ((sort_pairs, (x,)), (householder, (x, v))):
            assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
            assert gradgradcheck(function, leaves, check_fwd_over_rev=True, check_batched_grad=True)


@needs_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(8, 16, 40, 40), (9000, 24), (40, 24, 5, 3), (2, 6, 30000), (0, 4, 3)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_c_and_eager_agree_on_sizes_that_are_cut_into_pieces(shape, dtype, channels_last):
    torch.manual_seed(0)
    x, g = torch.randn(2, *shape, dtype=dtype)
    if channels_last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    v = vectors(shape[1] // 2, dtype)
    found = []
    for name in ("c", "eager"):
        with kernels.using(name):
            gx, gv = torch.ops.lipspline.householder_backward(g, x, v, 1)
            swapped = torch.ops.lipspline.swap_pairs(g, x, True, 1)
            found.append((sort_pairs(x), householder(x, v), swapped, gx, gv))
    (*c, c_sum), (*plain, plain_sum) = found
    for a, b in zip(c, plain, strict=True):
        assert torch.equal(a, b)
    bound = 4 * (x.abs() * g.abs()).sum() / max(1, len(v))
    assert (c_sum - plain_sum).abs().max() <= (1e-6 if dtype == torch.float32 else 1e-14) * bound


def test_ties_and_pairs_with_a_nan_stay_in_place(implementation):
    x = torch.tensor([[1.0, 1.0, math.nan, -1.0, 2.0, math.nan, math.inf, -math.inf]])
    with kernels.using(implementation):
        y = sort_pairs(x)
    assert torch.equal(y[:, :2], x[:, :2])
    assert torch.equal(y[:, 2:6].isnan(), x[:, 2:6].isnan())
    assert y[0, 6:].tolist() == [-math.inf, math.inf]


def test_vmap_over_inputs_and_vectors_is_a_loop(implementation):
    torch.manual_seed(0)
    x = torch.randn(5, 2, 4, 3, dtype=torch.float64)
    v = torch.stack([vectors(2), vectors(2).flip(0), -vectors(2), vectors(2).flip(1), vectors(2)])

    def gradient(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return torch.func.grad(lambda x, v: (householder(x, v) ** 3).sum(), argnums=(0, 1))(x, v)

    with kernels.using(implementation):
        assert torch.equal(torch.func.vmap(sort_pairs)(x), torch.stack([sort_pairs(m) for m in x]))
        for in_dims in ((0, 0), (0, None), (None, 0)):
            arguments = [t if d == 0 else t[0] for t, d in zip((x, v), in_dims, strict=True)]
            values = torch.func.vmap(householder, in_dims)(*arguments)
            gradients = torch.func.vmap(gradient, in_dims)(*arguments)
            for i in range(5):
                one = [t[i] if d == 0 else t for t, d in zip(arguments, in_dims, strict=True)]
                torch.testing.assert_close(values[i], householder(*one))
                for batch, single in zip(gradients, gradient(*one), strict=True):
                    torch.testing.assert_close(batch[i], single)


def test_backward_keeps_the_input_and_nothing_else():
    x = torch.randn(2, 4, 30, 30, requires_grad=True)
    v = vectors(2, torch.float32).requires_grad_()
    for function in (sort_pairs, lambda x: householder(x, v)):
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            function(x)
        assert [t.data_ptr() for t in kept if t.numel() > v.numel()] == [x.data_ptr()]


def test_torch_finds_the_operators_well_formed():
    x, g = (torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = vectors(2).requires_grad_()
    torch.library.opcheck(torch.ops.lipspline.swap_pairs.default, (g, x.detach(), False, 1))
    torch.library.opcheck(torch.ops.lipspline.householder.default, (x, v, 1))
    torch.library.opcheck(torch.ops.lipspline.householder_backward.default, (g, x, v, 1))


def test_compile_makes_one_graph_with_the_same_results(implementation):
    torch.manual_seed(0)
    x, v = torch.randn(2, 4, 3, 3), vectors(2, torch.float32)

    def function(x: Tensor, v: Tensor) -> Tensor:
        return sort_pairs(householder(x, v).sin()).sum()

    torch.compiler.reset()
    with kernels.using(implementation):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        found = []
        for f in (compiled, function):
            leaves = [t.clone().requires_grad_() for t in (x, v)]
            found.append(torch.autograd.grad(f(*leaves), leaves))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_odd_channels_and_vectors_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"sort_pairs needs an even number of channels, but x \(2, 3\) has 3"):
        sort_pairs(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"v \(2, 2\), but got v \(3, 2\) for x \(1, 4\)"):
        householder(torch.zeros(1, 4), torch.zeros(3, 2))


def test_hessians_agree_whichever_way_they_are_computed(implementation):
    x, angle = torch.randn(4, 6, dtype=torch.float64), torch.linspace(0, 2, 3, dtype=torch.float64)

    def energy(angle: Tensor) -> Tensor:
        return householder(x, torch.stack([angle.cos(), angle.sin()], dim=-1)).pow(3).sum()

    with kernels.using(implementation):
        ways = [torch.func.jacrev, torch.func.jacfwd]
        hessians = [outer(inner(energy))(angle) for outer in ways for inner in ways]
    assert hessians[0].diag().abs().min() > 0
    for hessian in hessians[1:]:
        torch.testing.assert_close(hessian, hessians[0])
