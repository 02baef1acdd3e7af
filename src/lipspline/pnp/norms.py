"""Sizes and choices image by image: a batch `(B, ...)` is `B` independent problems."""

import torch
from torch import Tensor


def inner(a: Tensor, b: Tensor) -> Tensor:
    r"""Real inner products `Re⟨a_i, b_i⟩` of the images of two batches, accumulated in float64: `(B, ...) -> (B,)`.

    Complex images are pairs of real ones; with this inner product the theorems for real images apply to them.

    Example:
        >>> inner(torch.tensor([[1j, 2.0]]), torch.tensor([[1j, 1.0]]))
        tensor([3.], dtype=torch.float64)
    """
    a, b = _as_real_rows(a), _as_real_rows(b)
    return torch.linalg.vecdot(a, b)


def norms(x: Tensor) -> Tensor:
    """Euclidean norm of each image of a batch, in float64: `(B, ...) -> (B,)`.

    Example:
        >>> norms(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.], dtype=torch.float64)
    """
    return torch.linalg.vector_norm(_as_real_rows(x), dim=1)


def pick(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The images of `a` where `mask` holds and those of `b` elsewhere; `mask` is `(B,)`.

    Example:
        >>> pick(torch.tensor([True, False]), torch.ones(2, 2), torch.zeros(2, 2))
        tensor([[1., 1.],
                [0., 0.]])
    """
    return torch.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b)


def scale(factor: Tensor, x: Tensor) -> Tensor:
    """Multiply each image of a batch by its own real factor: `(B,), (B, ...) -> (B, ...)`.

    Example:
        >>> scale(torch.tensor([2.0, 0.0]), torch.ones(2, 2))
        tensor([[2., 2.],
                [0., 0.]])
    """
    return factor.to(x.real.dtype).reshape(-1, *[1] * (x.ndim - 1)) * x


def _as_real_rows(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).flatten(start_dim=1).double()
