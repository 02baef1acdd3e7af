"""Bounds of families of matrices: above every member, close to the largest, and outward in their rounding."""

import pytest
import torch

from lipspline.functional.convolutions import conv_norm_upper
from lipspline.functional.matrices import spectral_norm_upper
from lipspline.functional.norm_bounds import OUTWARD, eigenvalue_upper, norm_upper, power_of_two_above, product_error
from lipspline.functional.ridge import bank_norm_upper


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("rtol", [1.0, 1e-3, 1e-9])
def test_the_largest_norm_of_a_family_is_bounded_within_the_tolerance(dtype, rtol):
    """[lip_linear_layers]"""
    family = torch.randn(20, 6, 4, dtype=dtype) * torch.rand(20, 1, 1)
    true = float(torch.linalg.matrix_norm(family, ord=2).max())
    assert true * (1 - 1e-14) <= norm_upper(family, rtol) <= true * (1 + rtol + 1e-12)


def test_a_member_that_is_dropped_still_counts():
    """Of two equal norms one is dropped or both are kept: the bound must not fall below either."""
    family = torch.stack([torch.diag(torch.tensor([1.0, 1.0, 1.0])), torch.diag(torch.tensor([1.0, 0.0, 0.0]))])
    assert norm_upper(family.double(), 1e-12) >= 1.0


def test_zero_matrices_have_bound_zero():
    assert norm_upper(torch.zeros(3, 4, 4, dtype=torch.float64), 1e-3) == 0.0


@pytest.mark.parametrize("eigenvalues", [[1.0, 1.0, 1.0], [1.0, 0.999999, 1.000001], [0.0, 0.0, 2.0], [2.0, 2.0, 0.0]])
def test_the_shift_never_costs_tightness(eigenvalues):
    """[lip_linear_layers]"""
    q = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    gram = (q * torch.tensor(eigenvalues, dtype=torch.float64)) @ q.mT
    upper = eigenvalue_upper(lambda: [gram[None]], mean=sum(eigenvalues) / 3, error=0.0, rtol=1e-9)
    assert max(eigenvalues) * (1 - 1e-14) <= upper <= max(eigenvalues) * (1 + 1e-8)


@pytest.mark.parametrize("mean", [0.0, 0.7, 1.0, 1.3, 100.0])
def test_a_wrong_mean_costs_tightness_but_not_truth(mean):
    gram = torch.diag(torch.tensor([1.0, 0.9, 1.1], dtype=torch.float64))[None]
    assert 1.1 <= eigenvalue_upper(lambda: [gram], mean=mean, error=0.0, rtol=1e-9) <= 1.1 + 1e-7


def test_error_and_spread_enter_the_bound():
    gram = torch.tensor([[[2.0]], [[0.0]]], dtype=torch.float64)
    assert eigenvalue_upper(lambda: [gram], mean=1.0, error=0.5, rtol=1e-9) == pytest.approx(2.5, rel=1e-8)
    assert eigenvalue_upper(lambda: [gram], mean=1.0, error=0.0, rtol=1e-9, spread=1.5) == pytest.approx(3.0, rel=1e-8)


def test_a_family_in_batches_is_one_family():
    grams = torch.randn(10, 4, 4, dtype=torch.float64)
    grams = grams.mT @ grams
    whole = eigenvalue_upper(lambda: [grams], mean=4.0, error=0.0, rtol=1e-9)
    assert eigenvalue_upper(lambda: grams.split(3), mean=4.0, error=0.0, rtol=1e-9) == pytest.approx(whole, rel=1e-8)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_the_power_of_two_is_above_the_frobenius_norm_and_not_far(scale):
    x = torch.randn(7, 5, dtype=torch.float64) * scale
    power = power_of_two_above(x)
    norm = float((x / scale).norm()) * scale
    assert norm <= power <= max(2 * norm * OUTWARD, 2.0**-900)
    assert torch.frexp(torch.tensor(power, dtype=torch.float64)).mantissa == 0.5


def test_rounding_errors_of_products_stay_within_their_bound():
    """Compared with products of integers, which are exact in float64 after scaling."""
    for dtype in (torch.float64, torch.complex128):
        x = torch.randn(50, 8, dtype=dtype)
        x = x / x.norm()
        exact = x.to(torch.complex128 if x.is_complex() else torch.float64)
        reference = sum(torch.outer(row.conj(), row) for row in exact)
        error = float((x.mH @ x - reference).norm())
        assert error <= 2 * product_error(50, is_complex=x.is_complex())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_weights_are_bounded_by_their_own_norm(dtype):
    """Not by that of their real parts: 5i has the norm 5, and a random matrix its largest singular value."""
    assert spectral_norm_upper(torch.tensor([[5j]], dtype=dtype)) == pytest.approx(5, rel=1e-8)
    w = torch.randn(4, 3, dtype=dtype)
    assert 0 <= spectral_norm_upper(w) / float(torch.linalg.matrix_norm(w.to(torch.complex128), ord=2)) - 1 < 1e-8
    assert conv_norm_upper(torch.tensor([[[5j]]], dtype=dtype)) == pytest.approx(5, rel=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_complex_convolutions_are_bounded_by_the_norm_of_a_dense_matrix(stride, groups):
    kernel, size = torch.randn(4, 3, 3, dtype=torch.complex128), 12
    identity = torch.eye(3 * groups * size, dtype=torch.complex128).reshape(-1, 3 * groups, size)
    dense = torch.nn.functional.conv1d(identity, kernel, stride=stride, padding=1, groups=groups)
    norm = float(torch.linalg.matrix_norm(dense.flatten(1), ord=2))
    upper = conv_norm_upper(kernel, stride=stride, groups=groups)
    assert norm <= upper <= 1.3 * norm


def test_a_bank_of_filters_is_real_and_square_and_not_too_large():
    with pytest.raises(ValueError, match="must be real"):
        bank_norm_upper(torch.ones(1, 1, 3, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"\(C, 1, k, k\)"):
        bank_norm_upper(torch.ones(1, 1, 5, 3))  # its autocorrelation is longer along the first axis
    with pytest.raises(ValueError, match="at most 129 pixels"):
        bank_norm_upper(torch.ones(1, 1, 1301, 1301))  # cos(π 1300 / 2048) is negative
