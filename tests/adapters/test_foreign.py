"""Wrapped operators: refused if wrong, differentiable, honest about their norm, and solved by pnp.fbs."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipspline import pnp
from lipspline.adapters.foreign import Norm, wrap
from lipspline.operators import LinearOperator, Matrix, Space

A = torch.randn(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
C = torch.randn(4, 6, generator=torch.Generator().manual_seed(4), dtype=torch.complex128)


def wrapped(matrix: Tensor = A, *, factor: float = 1.0, norm: Norm = None, field: str = "real") -> LinearOperator:
    """A matrix whose adjoint is `factor` times what it should be; it computes in float64 only."""

    def apply(x: Tensor) -> Tensor:
        return x.detach().to(matrix.dtype) @ matrix.mT

    def adjoint(y: Tensor) -> Tensor:
        return factor * y.detach().to(matrix.dtype) @ matrix.conj()

    return wrap("The map", apply, adjoint, domain=Space((6,), field), norm=norm)  # type: ignore[arg-type]


@pytest.mark.parametrize(("matrix", "field"), [(A, "real"), (C, "complex"), (C, "real")])
def test_it_is_the_operator_that_was_wrapped(matrix: Tensor, field: str):
    """Values, spaces and the adjoint, with the real part where images are real [eq:pnp_fbs]."""
    H = wrapped(matrix, field=field)
    x, y = H.domain.sample(1), H.codomain.sample(2)
    torch.testing.assert_close(H.forward(x), Matrix(matrix).forward(x))
    back = Matrix(matrix).adjoint(y)
    torch.testing.assert_close(H.adjoint(y), back if field == "complex" or not back.is_complex() else back.real)
    assert H.output_shape == (4,)


@pytest.mark.parametrize(("matrix", "field"), [(A, "real"), (C, "complex"), (C, "real")])
def test_it_is_differentiable_both_ways_and_twice(matrix: Tensor, field: str):
    """Though torch cannot look inside: each map is the derivative of the other."""
    H = wrapped(matrix, field=field)
    x, y = H.domain.sample(1).requires_grad_(), H.codomain.sample(2).requires_grad_()
    assert torch.autograd.gradcheck(H.forward, x)
    assert torch.autograd.gradcheck(H.adjoint, y)
    assert torch.autograd.gradgradcheck(lambda x: H.forward(x).abs() ** 2, x)


def test_it_keeps_the_precision_of_its_input():
    """Whatever the other library computes in."""
    H = wrapped()
    assert H.forward(torch.ones(2, 6)).dtype == torch.float32
    assert H.adjoint(torch.ones(2, 4)).dtype == torch.float32
    assert wrapped(C, field="complex").forward(torch.ones(2, 6)).dtype == torch.complex64


@pytest.mark.parametrize("factor", [1.007, 0.5, -1.0, 2.0])
def test_a_wrong_adjoint_is_refused_in_one_sentence(factor: float):
    """Also one that is off by as little as some libraries' are."""
    with pytest.raises(ValueError, match=r"^The map is not wrapped: its adjoint is off by [^.]*\.[^.]*\. ?") as caught:
        wrapped(factor=factor)
    assert "gradient of the data term" in str(caught.value)


def test_a_map_to_something_else_than_a_tensor_is_refused():
    """Lists of data, and data without a batch."""
    space = Space((3,))
    with pytest.raises(ValueError, match="but returned a list"):
        wrap("Stacked", lambda x: [x, x], lambda y: y[0], domain=space, norm=None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"but returned shape \(3,\)"):
        wrap("Flat", lambda x: x[0], lambda y: y[None], domain=space, norm=None)


# Bounds on the norm


def test_without_a_bound_there_is_none_and_no_guarantee():
    """The lower bound is a Rayleigh quotient; pnp.fbs says what is missing [eq:pnp_fbs]."""
    lower, upper = wrapped().norm_bounds()
    assert upper == math.inf
    assert lower <= float(torch.linalg.matrix_norm(A, ord=2)) < lower * 1.01
    with pytest.raises(ValueError, match=r"No upper bound on ‖H‖ is known .* norm='dense'"):
        pnp.fbs(torch.ones(1, 4), wrapped(), nn.ReLU())


def test_a_dense_bound_is_the_norm():
    """From above, and equal but for round-off."""
    norm = float(torch.linalg.matrix_norm(A, ord=2))
    assert norm <= wrapped(norm="dense").norm_bounds()[1] < norm * (1 + 1e-12)


def test_a_given_bound_is_used_and_a_contradicted_one_refused():
    """The user's word, unless one of the images that were tried disproves it."""
    norm = float(torch.linalg.matrix_norm(A, ord=2))
    assert wrapped(norm=1.5 * norm).norm_bounds()[1] == 1.5 * norm
    with pytest.raises(ValueError, match=r"norm=.* was given .* stretches an image by .* lower bound"):
        wrapped(norm=0.9 * norm)
    with pytest.raises(ValueError, match="norm must be a positive finite number"):
        wrapped(norm=-1.0)


def test_plug_and_play_solves_with_it_as_with_ours():
    """[eq:pnp_fbs]: the same fixed point with a guarantee, for real, complex, and real images with complex data."""
    stacked = torch.cat([C.real, C.imag])
    for theirs, ours in [
        (wrapped(norm="dense"), Matrix(A)),
        (wrapped(C, field="complex", norm="dense"), Matrix(C)),
        (wrapped(C, norm="dense"), Matrix(stacked)),
    ]:
        y = theirs.codomain.sample(5)
        data = torch.cat([y.real, y.imag], dim=1) if ours.output_shape == (8,) else y
        one = pnp.fbs(y, theirs, nn.ReLU(), tol=1e-13, contraction=0.9)
        other = pnp.fbs(data, ours, nn.ReLU(), tol=1e-13, contraction=0.9)
        assert one.converged
        assert one.certificate.guaranteed
        torch.testing.assert_close(one.value, other.value)
