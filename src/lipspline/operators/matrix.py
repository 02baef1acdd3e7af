"""A dense matrix as an operator."""

from functools import cached_property
from typing import final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import LinearOperator
from lipspline.operators.space import Space


@final
class Matrix(LinearOperator):
    """`x (B, n) -> A x (B, m)` for a dense matrix `A (m, n)`, real or complex; for small problems and for tests.

    Example:
        >>> import torch
        >>> H = Matrix(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        >>> H.forward(torch.tensor([[1.0, 1.0]]))
        tensor([[3., 4.]])
        >>> [round(bound, 6) for bound in H.norm_bounds()]
        [4.0, 4.0]
    """

    def __init__(self, matrix: Tensor):
        matrix = torch.as_tensor(matrix)
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(f"Matrix needs a matrix of shape (m, n), but got shape {tuple(matrix.shape)}.")
        if not (matrix.is_floating_point() or matrix.is_complex()):
            raise ValueError(f"Matrix needs floating-point or complex entries, but got {matrix.dtype}.")
        self.matrix = checks.finite("The matrix", matrix).detach()
        field = "complex" if matrix.is_complex() else "any"
        self.domain, self.codomain = Space((matrix.shape[1],), field), Space((matrix.shape[0],), field)

    def _apply(self, x: Tensor) -> Tensor:
        return _product(x, self.matrix.mT)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return _product(y, self.matrix.conj())

    def norm_bounds(self) -> tuple[float, float]:
        """The largest singular value, with the round-off of the decomposition on either side."""
        largest = float(self._singular_values[0])
        return max(largest - self._slack, 0.0), largest + self._slack

    def smallest_singular_value(self) -> float | None:
        """The smallest singular value less round-off, if the columns are independent [eq:H_invert]."""
        rows, columns = self.matrix.shape
        bound = float(self._singular_values[-1]) - self._slack
        return bound if rows >= columns and bound > 0 else None

    @cached_property
    def _singular_values(self) -> Tensor:
        return torch.linalg.svdvals(self.matrix.to(torch.promote_types(self.matrix.dtype, torch.float64)))

    @property
    def _slack(self) -> float:
        # the computed singular values are those of A + E with |E| <= p(m, n) eps |A|, p a modest polynomial
        return 4 * sum(self.matrix.shape) * torch.finfo(torch.float64).eps * float(self._singular_values[0])


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """`x @ matrix` in the precision of x, complex if either is."""
    if x.is_complex() and not matrix.is_complex():
        return torch.complex(_product(x.real, matrix), _product(x.imag, matrix))
    if matrix.is_complex():
        x = x.to(x.dtype.to_complex())
    return x @ matrix.to(x.dtype)
