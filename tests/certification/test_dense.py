"""Certificates of dense layers, against singular values [lip_linear_layers]."""

import pytest
import torch
from layer_norms import upper
from torch import nn


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 5), (20, 30), (64, 10)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_dense_layer_has_its_largest_singular_value(shape: tuple[int, int], size: float):
    """[lip_linear_layers]: equal up to outward rounding, and never below."""
    layer = nn.Linear(*shape)
    with torch.no_grad():
        layer.weight.mul_(size)
    exact = float(torch.linalg.matrix_norm(layer.weight.double(), ord=2))
    assert exact * (1 - 1e-13) <= upper(layer) <= exact * (1 + 1e-8)


def test_a_diagonal_layer_is_bounded_by_its_largest_entry():
    """A closed form: no factorization to trust."""
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([0.5, -2.0, 1.0])))
    assert 2.0 <= upper(layer) <= 2.0 * (1 + 1e-9)


def test_a_zero_layer_has_the_bound_zero():
    """Nothing passes."""
    layer = nn.Linear(3, 3)
    nn.init.zeros_(layer.weight)
    assert 0 <= upper(layer) < 1e-100
