"""How kernels see tensors: memory as (groups, outer, channels, inner), numbers as float32 or float64."""

from math import prod

import torch
from torch import Tensor

Sizes = tuple[int, int, int, int]


def densely(x: Tensor, channel_dim: int, *, grouped: bool = False) -> tuple[Tensor, Sizes]:
    """`x` without gaps in memory, copied only if it has some, and its sizes (groups, outer, channels, inner).

    Any order of the dimensions in memory will do (contiguous, channels last, a transposed matrix): those outside the
    channel dimension make up `outer`, those inside it `inner`.

    Args:
        channel_dim: not negative.
        grouped: whether dimension 0 numbers groups with tables of their own; x is then made contiguous.

    Example:
        >>> x = torch.zeros(2, 3, 4, 5)
        >>> densely(x, 1)[1], densely(x.to(memory_format=torch.channels_last), 1)[1]
        ((1, 2, 3, 20), (1, 40, 3, 1))
    """
    if grouped:
        x = x.contiguous()
    if x.is_contiguous():
        shape = x.shape
        inner = prod(shape[channel_dim + 1 :])
        if grouped:
            return x, (shape[0], prod(shape[1:channel_dim]), shape[channel_dim], inner)
        return x, (1, prod(shape[:channel_dim]), shape[channel_dim], inner)
    inner = _inner_size(x, channel_dim)
    if inner is None:
        x = torch.empty_like(x).copy_(x)
        return densely(x, channel_dim)
    channels = x.shape[channel_dim]
    return x, (1, x.numel() // (channels * inner), channels, inner)


def like(g: Tensor, x: Tensor) -> Tensor:
    """`g` in the memory layout of `x` (of a copy without gaps, if x has some), copied only if it has another."""
    if g.stride() == x.stride() or (g.is_contiguous() and x.is_contiguous()):
        return g
    dense = torch.empty_like(x, dtype=g.dtype)
    return g if g.stride() == dense.stride() else dense.copy_(g)


def working_dtype(x: Tensor, *others: Tensor) -> torch.dtype | None:
    """The dtype to compute in: float64 if `x` has it, else float32. None if all tensors have it already."""
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    return None if x.dtype == dtype and all(t.dtype == dtype for t in others) else dtype


def _inner_size(x: Tensor, channel_dim: int) -> int | None:
    """Number of elements between neighbours along `channel_dim`, or None if memory has gaps or overlaps."""
    if x.numel() == 0:
        return None
    size, inner = 1, 1
    for stride, dim in sorted((x.stride(dim), dim) for dim in range(x.ndim) if x.shape[dim] > 1):
        if stride != size:
            return None
        if dim == channel_dim:
            inner = size
        size *= x.shape[dim]
    return inner
