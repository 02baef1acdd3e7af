"""A dense matrix as an operator."""

import numpy as np
import pytest
import torch
from operator_cases import random

from lipspline.operators import Matrix


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_it_multiplies_by_the_matrix_and_its_conjugate_transpose(dtype):
    A, x, y = random(3, 5, dtype=dtype), random(2, 5, dtype=dtype), random(2, 3, dtype=dtype)
    torch.testing.assert_close(Matrix(A).forward(x), torch.einsum("ij,bj->bi", A, x))
    torch.testing.assert_close(Matrix(A).adjoint(y), torch.einsum("ij,bi->bj", A.conj(), y))


def test_singular_values_are_those_of_the_decomposition():
    """[eq:H_invert]"""
    A = random(6, 4)
    largest, *_, smallest = torch.linalg.svdvals(A).tolist()
    lower, upper = Matrix(A).norm_bounds()
    assert lower < largest < upper < largest * (1 + 1e-12)
    bound = Matrix(A).smallest_singular_value()
    assert bound is not None
    assert smallest * (1 - 1e-9) < bound < smallest


@pytest.mark.parametrize("A", [random(3, 4), torch.ones(3, 3), torch.zeros(2, 2)], ids=["wide", "singular", "zero"])
def test_a_matrix_that_is_not_injective_has_no_bound_from_below(A):
    assert Matrix(A).smallest_singular_value() is None


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"needs a matrix of shape \(m, n\), but got shape \(3,\)"):
        Matrix(torch.ones(3))
    with pytest.raises(ValueError, match=r"floating-point or complex entries, but got torch\.int64"):
        Matrix(torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="1 NaN or infinite value"):
        Matrix(torch.tensor([[1.0, float("nan")]]))


def test_an_array_is_a_matrix_too():
    assert torch.equal(Matrix(np.eye(2)).forward(torch.ones(1, 2)), torch.ones(1, 2))
