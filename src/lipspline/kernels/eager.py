"""The kernels in plain torch: the oracle of the tests, and what runs where there is no other implementation."""

import torch
from torch import Tensor


def piecewise_affine(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int) -> Tensor:
    """`b[c, i] + s[c, i] x` with `i = clamp(floor(scale[c] x + offset), 0, R - 1)`."""
    entry = _entries(x, scale, offset, s.shape[-1], channel_dim)
    return b.reshape(-1)[entry] + s.reshape(-1)[entry] * x


def piecewise_affine_backward(
    g: Tensor, x: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`s_i g`, and per region the sums of `g` and of `g x`."""
    entry = _entries(x, scale, offset, s.shape[-1], channel_dim)
    sums = torch.zeros(2, s.numel(), dtype=x.dtype, device=x.device)
    sums.index_add_(1, entry.flatten(), torch.stack([g, g * x]).flatten(1))
    gb, gs = sums.view(2, *s.shape)
    return s.reshape(-1)[entry] * g, gb, gs


def _entries(x: Tensor, scale: Tensor, offset: float, regions: int, channel_dim: int) -> Tensor:
    """For each element of x its entry in the flattened tables; NaN falls into region 0."""
    shape = [1] * x.ndim
    if scale.shape[-1] > 1:
        shape[channel_dim] = scale.shape[-1]
    if scale.ndim == 2:
        shape[0] = scale.shape[0]
    region = torch.floor(scale.view(shape) * x + offset).clamp(0, regions - 1).nan_to_num(0).long()
    return region + regions * torch.arange(scale.numel(), device=x.device).view(shape)
