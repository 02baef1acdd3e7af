"""Circular convolution."""

import pytest
import torch
from operator_cases import random

from lipspline.operators import Blur


def by_definition(x, kernel):
    """(k * x)[p] = Σ_q k[q] x[p - (q - middle)], with indices around the corner."""
    height, width = kernel.shape
    return sum(
        kernel[i, j] * x.roll((i - height // 2, j - width // 2), dims=(-2, -1))
        for i in range(height)
        for j in range(width)
    )


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 5), (6, 7)])
def test_it_is_the_convolution_of_the_definition(kernel):
    k, x = random(*kernel), random(2, 3, 6, 7)
    torch.testing.assert_close(Blur(k, (3, 6, 7)).forward(x), by_definition(x, k), rtol=0, atol=1e-12)


def test_singular_values_are_the_moduli_of_the_transform():
    """[eq:H_invert]"""
    H = Blur(torch.tensor([[0.0, 0.25, 0.0], [0.25, 1.0, 0.25], [0.0, 0.25, 0.0]]), (1, 8, 8))
    assert H.norm_bounds() == pytest.approx((2.0, 2.0), rel=1e-10)  # 1 + cos(u)/2 + cos(v)/2
    assert H.smallest_singular_value() is None
    assert Blur(torch.tensor([[0.2, 0.5, 0.2]]), (1, 4, 8)).smallest_singular_value() == pytest.approx(0.1, rel=1e-5)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"real kernel \(h, w\), but got shape \(1, 3, 3\)"):
        Blur(torch.ones(1, 3, 3), (1, 8, 8))
    with pytest.raises(ValueError, match=r"that holds the kernel \(9, 9\), but got \(1, 8, 8\)"):
        Blur(torch.ones(9, 9), (1, 8, 8))
    with pytest.raises(ValueError, match="blur kernel has 9 NaN"):
        Blur(torch.full((3, 3), float("nan")), (1, 8, 8))
