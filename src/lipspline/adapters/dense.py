"""The norm of an operator that is small enough to be written down."""

import torch
from torch import Tensor

from lipspline.operators.base import LinearOperator
from lipspline.operators.matrix import Matrix

MOST_ENTRIES = 2**23
AT_ONCE = 64


def dense_norm(H: LinearOperator) -> float:
    """A proven upper bound on ‖H‖, but for the round-off of H itself: the largest singular value of its matrix.

    Example:
        >>> print(round(dense_norm(Matrix(torch.tensor([[3.0, 4.0]]))), 9))
        5.0
    """
    return Matrix(matrix_of(H)).norm_bounds()[1]


def matrix_of(H: LinearOperator) -> Tensor:
    """The matrix of an operator in real coordinates, `(m, n)` in float64: a complex number is a pair.

    Example:
        >>> matrix_of(Matrix(torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
        tensor([[1., 2.],
                [3., 4.]], dtype=torch.float64)
    """
    x = H.domain.sample()
    columns, rows = _as_real(x).shape[1], _as_real(H.forward(x)).shape[1]
    if rows * columns > MOST_ENTRIES:
        raise ValueError(
            f"{H!r} has a matrix of {rows} x {columns} real numbers, too large to be written down "
            f"(at most {MOST_ENTRIES} entries). Give an upper bound on its norm as a number."
        )
    batches = torch.eye(columns, dtype=torch.float64).split(AT_ONCE)
    return torch.cat([_as_real(H.forward(_from_real(units, x))) for units in batches]).mT.contiguous()


def _as_real(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).flatten(1)


def _from_real(rows: Tensor, like: Tensor) -> Tensor:
    shape = (len(rows), *like.shape[1:])
    return torch.view_as_complex(rows.reshape(*shape, 2)) if like.is_complex() else rows.reshape(shape)
