"""One multiply-add per element, its slope and intercept picked from a small table by region."""

import torch
from torch import Tensor


def piecewise_affine(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int = 1) -> Tensor:
    """Evaluate `b[c, i] + s[c, i] x` with `i = clamp(floor(scale[c] x + offset), 0, R - 1)`, elementwise.

    Args:
        x: input of any rank >= 1.
        b: intercepts `(C, R)`; `C` is the size of dimension `channel_dim` of x, or 1 for one table shared by all.
        s: slopes `(C, R)`.
        scale: `(C,)`, grid points per unit of x.
        offset: position of x = 0 on the grid.
        channel_dim: the dimension of x that selects the row of the tables.
    """
    C, R = b.shape
    shape = [1] * x.ndim
    if C > 1:
        shape[channel_dim] = C
    i = torch.floor(scale.detach().view(shape) * x.detach() + offset).clamp(0, R - 1).nan_to_num(0).long()
    flat = i + R * torch.arange(C, device=x.device).view(shape)
    return b.reshape(-1)[flat] + s.reshape(-1)[flat] * x
