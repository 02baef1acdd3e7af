"""Fixed activations against numpy and explicit matrices [lipschitz_activation_section]."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipspline.functional.activations import group_sort, householder, max_min, prelu
from lipspline.kernels import sort_pairs

SHAPES = [((5, 12), 1), ((5, 12), -1), ((2, 12, 4, 3), 1), ((2, 4, 3, 12), -1), ((12, 2, 3), 0), ((2, 3, 12, 4), -2)]


def unit_vectors(pairs: int) -> torch.Tensor:
    angle = 7 * torch.rand(pairs, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_prelu_is_the_larger_of_ax_and_x(shape, dim):
    """[lipschitz_activation_section] with `a` in [-1, 1]."""
    x, a = torch.randn(shape), torch.rand(12) * 2 - 1
    expanded = a.view([-1 if d == dim % x.ndim else 1 for d in range(x.ndim)])
    assert torch.equal(prelu(x, a, dim), torch.maximum(expanded * x, x))


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("size", [2, 3, 4, 6, 12])
def test_group_sort_is_numpys_sort_of_consecutive_channels(shape, dim, size):
    """[lipschitz_activation_section], ascending."""
    x = torch.randn(shape)
    groups = np.moveaxis(x.numpy(), dim, -1).reshape(-1, size)
    last = x.movedim(dim, -1).shape
    wanted = np.moveaxis(np.sort(groups, axis=-1).reshape(last), -1, dim)
    np.testing.assert_array_equal(group_sort(x, size, dim).numpy(), wanted)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_max_min_is_the_pair_sorted_downwards(shape, dim):
    """[sec:SameExp]: (max, min), while group_sort of size 2 is (min, max)."""
    x = torch.randn(shape)
    even, odd = x.movedim(dim, -1)[..., ::2], x.movedim(dim, -1)[..., 1::2]
    got = max_min(x, dim).movedim(dim, -1)
    assert torch.equal(got[..., ::2], torch.maximum(even, odd))
    assert torch.equal(got[..., 1::2], torch.minimum(even, odd))
    ascending = group_sort(x, 2, dim).movedim(dim, -1)
    assert torch.equal(got.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), ascending)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_householder_is_the_identity_or_the_reflection_matrix(shape, dim):
    """[lipschitz_activation_section]: I where vᵀx > 0 and I - 2vvᵀ elsewhere."""
    x, v = torch.randn(shape, dtype=torch.float64), unit_vectors(6)
    pairs = x.movedim(dim, -1).reshape(-1, 6, 2)
    wanted = pairs.clone()
    for j in range(6):
        reflection = torch.eye(2, dtype=torch.float64) - 2 * torch.outer(v[j], v[j])
        for n in range(len(pairs)):
            if v[j] @ pairs[n, j] <= 0:
                wanted[n, j] = reflection @ pairs[n, j]
    wanted = wanted.reshape(x.movedim(dim, -1).shape).movedim(-1, dim)
    torch.testing.assert_close(householder(x, v, dim), wanted, rtol=0, atol=1e-14)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=2), st.floats(-10, 10))
def test_householder_lands_in_the_half_plane_with_the_same_norm(pair, angle):
    x = torch.tensor([pair], dtype=torch.float64)
    v = torch.tensor([[np.cos(angle), np.sin(angle)]])
    y = householder(x, v)
    assert (y @ v[0]).item() >= -1e-12
    assert y.norm().item() == pytest.approx(x.norm().item(), abs=1e-12)


def test_householder_of_the_antidiagonal_is_max_min():
    """[sec:SameExp]: v = (1, -1)/√2."""
    x = torch.randn(20, 6, dtype=torch.float64)
    v = torch.tensor([[0.5**0.5, -(0.5**0.5)]], dtype=torch.float64).expand(3, 2)
    torch.testing.assert_close(householder(x, v), max_min(x), rtol=0, atol=1e-14)


def gradient_norm_preserving():
    v = unit_vectors(6)
    return {
        "abs": torch.abs,
        "group_sort 2": lambda x: group_sort(x, 2),
        "group_sort 4": lambda x: group_sort(x, 4),
        "max_min": max_min,
        "householder": lambda x: householder(x, v),
    }


@pytest.mark.parametrize("name", list(gradient_norm_preserving()))
def test_the_jacobian_is_an_orthogonal_matrix(name):
    """Gradient-norm preservation [lipschitz_activation_section]: JᵀJ = I at every point."""
    function = gradient_norm_preserving()[name]
    for _ in range(20):
        jacobian = torch.autograd.functional.jacobian(function, torch.randn(1, 12, dtype=torch.float64))[0, :, 0]
        torch.testing.assert_close(jacobian.T @ jacobian, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("descending", [False, True])
def test_the_jacobian_of_sort_pairs_is_a_permutation_even_at_a_tie(descending):
    jacobian = torch.autograd.functional.jacobian(
        lambda x: sort_pairs(x, 1, descending=descending), torch.ones(1, 2, dtype=torch.float64)
    )
    assert torch.equal(jacobian[0, :, 0], torch.eye(2, dtype=torch.float64))


def test_first_and_second_derivatives_are_right():
    x = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    a = (torch.rand(12, dtype=torch.float64) * 1.8 - 0.9).requires_grad_()
    v = unit_vectors(6).requires_grad_()
    for function, inputs in [
        (prelu, (x, a)),
        (householder, (x, v)),
        (max_min, (x,)),
        (lambda x: group_sort(x, 3), (x,)),
    ]:
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)
