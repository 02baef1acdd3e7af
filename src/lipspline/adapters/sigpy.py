"""Operators to and from `sigpy.linop.Linop`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.adapters.foreign import Norm, sides, wrap
from lipspline.operators.base import Field, LinearOperator, Space

PURPOSE = "Exchanging operators with sigpy"


def to_sigpy(H: LinearOperator, input_shape: tuple[int, ...] | None = None) -> Any:
    """One of our operators as a `sigpy.linop.Linop` on single images, with its exact adjoint as `.H`.

    For real images and complex data the adjoint takes the real part, as ours does.

    Args:
        H: ours.
        input_shape: sizes of an image without batch, where H leaves one open.

    Example:
        >>> from lipspline.operators import Matrix
        >>> A = to_sigpy(Matrix(torch.tensor([[1.0, 2.0]])))
        >>> print(A.oshape, A.ishape, A(np.array([1.0, 1.0])), A.H(np.array([3.0])))
        [1] [2] [3.] [3. 6.]
    """
    linop = checks.require("sigpy.linop", "sigpy", PURPOSE)
    images, data = sides(H, input_shape)

    class Ours(linop.Linop):
        """One direction of an operator; the other one is its adjoint."""

        def __init__(self, direction: Any, back: Any, oshape: tuple[int, ...], ishape: tuple[int, ...]):
            super().__init__(oshape, ishape, repr_str=repr(H))
            self.direction, self.back = direction, back

        def _apply(self, input: np.ndarray) -> np.ndarray:
            return self.direction(torch.from_numpy(np.ascontiguousarray(input))[None])[0].resolve_conj().numpy()

        def _adjoint_linop(self) -> Any:
            return Ours(self.back, self.direction, tuple(self.ishape), tuple(self.oshape))

    return Ours(H.forward, H.adjoint, data.shape, images.shape)


def from_sigpy(A: Any, *, field: Field = "complex", norm: Norm = None) -> LinearOperator:
    """A `sigpy.linop.Linop` as an operator `(B, *A.ishape) -> (B, *A.oshape)`; its adjoint `A.H` is tried.

    Args:
        A: from sigpy, for arrays on the CPU.
        field: "complex" images, or "real" ones, for which the adjoint takes the real part.
        norm: an upper bound on the norm of A that you vouch for, or "dense" (see `adapters.foreign.wrap`).
            `sigpy.app.MaxEig` is an estimate from below.

    Example:
        >>> import sigpy
        >>> H = from_sigpy(sigpy.linop.FFT((4, 4)), norm=1.0)
        >>> H
        FFT(4x4 -> 4x4)
        >>> float(H.forward(torch.ones(1, 4, 4)).abs().max())
        4.0
    """
    linop = checks.require("sigpy.linop", "sigpy", PURPOSE)
    if not isinstance(A, linop.Linop):
        raise ValueError(f"from_sigpy needs a sigpy.linop.Linop, but got a {type(A).__name__}.")
    return wrap(
        A.repr_str, lambda x: _each(A, x), lambda y: _each(A.H, y), domain=Space(tuple(A.ishape), field), norm=norm
    )


def _each(A: Any, batch: Tensor) -> Tensor:
    """Image by image: sigpy's operators have fixed shapes."""
    images = batch.detach().cpu().resolve_conj().numpy()
    return torch.stack([torch.from_numpy(np.ascontiguousarray(A(image))) for image in images])
