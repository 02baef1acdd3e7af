"""Operators written down: the matrix is the matrix, and its norm an upper bound."""

import pytest
import torch
from operator_cases import CASES, data

from lipspline.adapters import foreign
from lipspline.adapters.foreign import dense_norm, matrix_of
from lipspline.operators import Identity, Matrix

CLOSED = [name for name in CASES if "own maps" not in name]


@pytest.mark.parametrize("name", CLOSED)
def test_the_matrix_of_the_adjoint_is_the_transpose(name: str):
    """In real coordinates, for real and complex operators: the way back seen column by column."""
    H = CASES[name]()
    x = H.domain.sample()
    y = H.forward(x)
    M = matrix_of(H)
    real = torch.view_as_real(x).flatten() if x.is_complex() else x.flatten()
    image = torch.view_as_real(y).flatten() if y.is_complex() else y.flatten()
    torch.testing.assert_close(M @ real, image)
    w = data(H, batch=1).reshape(y.shape) if None not in H.output_shape else torch.randn_like(y)
    back = H.adjoint(w)
    flat = torch.view_as_real(w).flatten() if w.is_complex() else w.flatten()
    wanted = torch.view_as_real(back).flatten() if back.is_complex() else back.flatten()
    torch.testing.assert_close(M.mT @ flat, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_dense_norm_is_the_norm(dtype: torch.dtype):
    """From above, and equal but for round-off."""
    A = torch.randn(5, 7, dtype=dtype)
    largest = float(torch.linalg.matrix_norm(A, ord=2))
    assert largest <= dense_norm(Matrix(A)) < largest * (1 + 1e-12)


def test_a_large_operator_is_not_written_down(monkeypatch: pytest.MonkeyPatch):
    """It says how large it would be, and what to do instead."""
    monkeypatch.setattr(foreign, "MOST_ENTRIES", 100)
    with pytest.raises(ValueError, match=r"matrix of 16 x 16 real numbers, too large .* as a number"):
        dense_norm(Identity((4, 4)))
