"""Every operator in the list meets the same laws."""

import pytest
import torch
from operator_cases import CASES, PAPER_SIZES, as_real, data, dense, image, inner, norm

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}

every_operator = pytest.mark.parametrize("name", CASES)
every_precision = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@every_operator
@every_precision
def test_the_adjoint_moves_to_the_other_side_of_the_inner_product(name, dtype):
    H = CASES[name]()
    for seed in range(5):
        x, y = image(H, dtype, seed), data(H, dtype, seed + 10)
        Hx, Hty = H.forward(x), H.adjoint(y)
        assert abs(inner(Hx, y) - inner(x, Hty)) <= TOLERANCE[dtype] * norm(Hx) * norm(y)


@every_operator
@every_precision
def test_the_adjoint_has_the_scale_of_the_operator(name, dtype):
    H = CASES[name]()
    x = image(H, dtype)
    Hx = H.forward(x)
    assert norm(Hx) > 0
    assert abs(norm(Hx) ** 2 - inner(x, H.adjoint(Hx))) <= TOLERANCE[dtype] * norm(Hx) ** 2


@pytest.mark.parametrize("name", PAPER_SIZES)
def test_both_adjoint_tests_hold_in_float32_at_the_sizes_of_the_paper(name):
    """[sec:exp_pnp]"""
    H = PAPER_SIZES[name]()
    x, y = image(H, torch.float32, batch=1), data(H, torch.float32, batch=1)
    Hx = H.forward(x)
    assert abs(inner(Hx, y) - inner(x, H.adjoint(y))) <= 1e-6 * norm(Hx) * norm(y)
    assert abs(norm(Hx) ** 2 - inner(x, H.adjoint(Hx))) <= 1e-6 * norm(Hx) ** 2


@every_operator
def test_the_matrix_of_the_adjoint_is_the_transpose(name):
    H = CASES[name]()
    forward, adjoint = dense(H.forward, image(H)), dense(H.adjoint, data(H))
    torch.testing.assert_close(adjoint, forward.mT, rtol=0, atol=1e-12)


@every_operator
def test_the_norm_lies_between_its_bounds(name):
    """[eq:pnp_fbs]: the step of the iteration comes from the upper bound."""
    H = CASES[name]()
    singular_values = torch.linalg.svdvals(dense(H.forward, image(H)))
    lower, upper = H.norm_bounds()
    if H.domain.batch is None:
        assert lower <= float(singular_values[0]) * (1 + 1e-12)
        assert lower >= 0.9 * float(singular_values[0])
    assert float(singular_values[0]) <= upper * (1 + 1e-12)


@every_operator
def test_the_smallest_singular_value_is_bounded_from_below_or_unknown(name):
    """[eq:H_invert]"""
    H = CASES[name]()
    matrix = dense(H.forward, image(H))
    smallest = float(torch.linalg.svdvals(matrix)[-1]) if matrix.shape[0] >= matrix.shape[1] else 0.0
    bound = H.smallest_singular_value()
    assert bound is None or 0 < bound <= smallest + 1e-12


@every_operator
def test_forward_and_adjoint_are_linear(name):
    H = CASES[name]()
    for apply, one, other in (
        (H.forward, image(H, seed=3), image(H, seed=4)),
        (H.adjoint, data(H, seed=3), data(H, seed=4)),
    ):
        torch.testing.assert_close(
            apply(2.0 * one - 3.0 * other), 2.0 * apply(one) - 3.0 * apply(other), rtol=0, atol=1e-11
        )


@every_operator
def test_the_images_of_a_batch_do_not_mix(name):
    H = CASES[name]()
    if H.domain.batch is not None:
        pytest.skip("each image has maps of its own; see test_coils")
    x, y = image(H, batch=3), data(H, batch=3)
    for k in range(3):
        torch.testing.assert_close(H.forward(x)[k], H.forward(x[k : k + 1])[0], rtol=0, atol=1e-13)
        torch.testing.assert_close(H.adjoint(y)[k], H.adjoint(y[k : k + 1])[0], rtol=0, atol=1e-13)


@every_operator
def test_the_gradient_of_forward_is_the_adjoint_and_the_other_way_round(name):
    H = CASES[name]()
    x, y = image(H).requires_grad_(), data(H).requires_grad_()
    (by_x,) = torch.autograd.grad(_pairing(H.forward(x), y.detach()), x)
    (by_y,) = torch.autograd.grad(_pairing(H.adjoint(y), x.detach()), y)
    torch.testing.assert_close(by_x, H.adjoint(y.detach()), rtol=0, atol=1e-12)
    torch.testing.assert_close(by_y, H.forward(x.detach()).to(by_y.dtype), rtol=0, atol=1e-12)


@every_operator
@every_precision
def test_the_result_has_the_precision_of_the_input_and_the_shape_promised(name, dtype):
    H = CASES[name]()
    x, y = image(H, dtype), data(H, dtype)
    for result, like in ((H.forward(x), y), (H.adjoint(y), x)):
        assert result.shape == like.shape
        assert result.abs().dtype == dtype
        assert result.is_complex() == like.is_complex()


@every_operator
def test_float32_and_float64_are_the_same_operator(name):
    H = CASES[name]()
    x = image(H)
    single = H.forward(x.to(torch.complex64 if x.is_complex() else torch.float32))
    torch.testing.assert_close(as_real(single).double(), as_real(H.forward(x)), rtol=0, atol=2e-5)


@every_operator
def test_a_wrong_shape_or_type_is_refused_with_the_shape_wanted(name):
    H = CASES[name]()
    x = image(H)
    sizes = ", ".join("any" if n is None else str(n) for n in H.input_shape)
    with pytest.raises(ValueError, match=rf"needs shape \(\w+, {sizes}\), but got"):
        H.forward(torch.cat([x, x], dim=-1))
    with pytest.raises(ValueError, match=r"Add the batch dimension with \.unsqueeze\(0\)"):
        H.forward(x[0])
    with pytest.raises(ValueError, match=r"needs floating-point or complex numbers, but got torch\.int64"):
        H.forward(torch.zeros(x.shape, dtype=torch.int64))
    if H.domain.field == "real":
        with pytest.raises(ValueError, match=r"needs real numbers, but got torch\.complex128"):
            H.forward(x.to(torch.complex128))


@every_operator
def test_an_operator_moves_to_a_device_and_stays_the_same(name):
    H = CASES[name]()
    x = image(H)
    torch.testing.assert_close(H.to("cpu").forward(x), H.forward(x), rtol=0, atol=0)
    assert H.to("meta").domain == H.domain


def _pairing(a, b):
    return (a * b.conj()).sum().real if a.is_complex() or b.is_complex() else (a * b).sum()
