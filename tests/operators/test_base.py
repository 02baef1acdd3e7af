"""Sums, products and multiples of operators."""

import pytest
import torch
from operator_cases import CASES, dense, image, random

from lipspline.operators import MRI, Blur, Identity, Inpainting, Matrix, MultiCoilMRI, cartesian_mask, simulated_maps
from lipspline.operators.base import _device, rayleigh_lower_bound


def test_algebra_of_operators_is_the_algebra_of_matrices():
    A, B, C = random(3, 4), random(3, 4, seed=1), random(4, 5, seed=2)
    H = (2.0 * Matrix(A) + Matrix(B) * -3.0) @ Matrix(C)
    torch.testing.assert_close(dense(H.forward, image(H)), (2 * A - 3 * B) @ C)
    assert H.input_shape == (5,)
    assert H.output_shape == (3,)
    assert repr(H) == "ProductOperator(5 -> 3)"


def test_bounds_of_sums_and_products_are_tight_where_they_can_be():
    A = Matrix(torch.diag(torch.tensor([3.0, 1.0])))
    for H, norm in ((A + A, 6.0), (A @ A, 9.0), (-2 * A, 6.0)):
        assert H.norm_bounds() == pytest.approx((norm, norm), rel=1e-6)


def test_the_smallest_singular_value_of_a_product_needs_both():
    """[eq:H_invert]"""
    A, wide = Matrix(torch.diag(torch.tensor([3.0, 0.5]))), Matrix(torch.ones(2, 3))
    assert (A @ A).smallest_singular_value() == pytest.approx(0.25)
    assert (-4 * A).smallest_singular_value() == pytest.approx(2.0)
    assert (A @ wide).smallest_singular_value() is None
    assert (A + A).smallest_singular_value() is None
    assert (0 * A).smallest_singular_value() is None


def test_a_rayleigh_quotient_reaches_the_norm_of_a_matrix_with_a_gap():
    matrix = torch.diag(torch.tensor([5.0, 2.0, 1.0], dtype=torch.float64))
    assert rayleigh_lower_bound(Matrix(matrix)) == pytest.approx(5.0, rel=1e-5)


def test_a_rayleigh_quotient_of_the_zero_operator_is_zero():
    assert rayleigh_lower_bound(0.0 * Identity((3,))) == 0.0


def test_a_rayleigh_quotient_finds_the_strongest_image_of_a_batch():
    maps = torch.stack([simulated_maps(2, (4, 4)), 3 * simulated_maps(2, (4, 4))])
    H = MultiCoilMRI(torch.ones(4, dtype=torch.bool), maps, convention="centred")
    assert H.norm_bounds() == pytest.approx((3.0, 3.0), rel=1e-5)


def test_operators_between_different_spaces_are_not_added():
    with pytest.raises(ValueError, match="both must map between the same spaces"):
        Matrix(random(3, 4)) + Matrix(random(3, 5))
    with pytest.raises(ValueError, match="both must map between the same spaces"):
        MRI(cartesian_mask(8)) + MRI(cartesian_mask(8), convention="centred")


def test_operators_that_do_not_fit_are_not_multiplied():
    with pytest.raises(ValueError, match=r"what the second returns .* must be what the first takes"):
        Matrix(random(3, 4)) @ Matrix(random(3, 4))
    with pytest.raises(ValueError, match="what the second returns"):
        MRI(cartesian_mask(8)) @ MRI(cartesian_mask(8))
    with pytest.raises(ValueError, match="can be fixed by a two-dimensional mask"):
        Inpainting(torch.ones(1, 8, 8, dtype=torch.bool)) @ MRI(cartesian_mask(8))


@pytest.mark.parametrize("factor", [float("nan"), 1j, "2", True])
def test_an_operator_is_scaled_by_real_numbers_only(factor):
    with pytest.raises(ValueError, match="scaled by a finite real number"):
        factor * Identity((3,))


def test_moving_a_composite_operator_moves_its_parts():
    H = CASES["product, complex after real"]().to("meta")
    assert H.inner._start.device.type == "meta"
    assert H.outer.mask.device.type == "meta"
    assert CASES["scaled"]().to("meta").operator.kernel.device.type == "meta"
    assert _device(H) == torch.device("meta")
    assert _device(Identity((3,))) is None


def test_real_operators_take_complex_images_part_by_part():
    z = random(2, 1, 5, 6, dtype=torch.complex128)
    for H in (Identity((1, 5, 6)), Blur(random(3, 3), (1, 5, 6)), Inpainting(random(1, 5, 6) > 0)):
        torch.testing.assert_close(H.forward(z), torch.complex(H.forward(z.real), H.forward(z.imag)))
    A, x = Matrix(random(3, 4)), random(2, 4, dtype=torch.complex128)
    torch.testing.assert_close(A.forward(x), torch.complex(A.forward(x.real), A.forward(x.imag)))


def test_the_adjoint_of_a_sum_with_an_operator_on_real_images_is_real():
    """Identity keeps complex data complex; on real images the adjoint of the sum ends with the real part."""
    H = MRI(torch.ones(8, 8, dtype=torch.bool)) + Identity((1, 8, 8))
    x, y = torch.randn(1, 1, 8, 8).double(), torch.randn(1, 1, 8, 8, dtype=torch.complex128)
    assert H.adjoint(y).dtype == torch.float64
    left = float((H.forward(x).conj() * y).sum().real)
    assert left == pytest.approx(float((x * H.adjoint(y)).sum()), rel=1e-12)
    lower, upper = H.norm_bounds()
    assert 1 < lower <= upper == 2


@pytest.mark.parametrize(
    "combine", [lambda H: H @ torch.ones(1, 4), lambda H: H + 5], ids=["applied to an image", "and a number"]
)
def test_only_operators_are_combined(combine):
    with pytest.raises(TypeError, match=r"combines two operators, but got a .*H\.forward"):
        combine(Identity((4,)))


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match=r"at least one image, but the batch is empty \(shape \(0, 1, 8, 8\)\)"):
        MRI(torch.ones(8, dtype=torch.bool)).forward(torch.zeros(0, 1, 8, 8))
