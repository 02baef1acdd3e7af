r"""The fixed 1-Lipschitz activations the splines are compared with [lipschitz_activation_section].

The absolute value is `torch.abs` and ReLU is `torch.relu`; the others are here. Channels sit in dimension
`channel_dim`. Pairs are neighbouring channels (2j, 2j+1), groups are consecutive channels.
"""

import torch
from torch import Tensor

from lipspline import kernels

SHARP = 2.0**60  # grid points per unit that put every x a float can tell from zero on its own side of the knot at zero


def prelu(x: Tensor, a: Tensor, channel_dim: int = 1) -> Tensor:
    r"""Parametric ReLU `max(a x, x)` with one slope `a` in [-1, 1] per channel [lipschitz_activation_section].

    Example:
        >>> prelu(torch.tensor([[-2.0, -2.0, -2.0]]), torch.tensor([-1.0, 0.0, 1.0]))
        tensor([[ 2., 0., -2.]])
    """
    slopes = torch.stack([a, torch.ones_like(a)], dim=-1).to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.full_like(slopes[..., 0], SHARP)
    return kernels.piecewise_affine(x, torch.zeros_like(slopes), slopes, scale, 1.0, channel_dim)


def group_sort(x: Tensor, size: int, channel_dim: int = 1) -> Tensor:
    r"""Sort each group of `size` consecutive channels in ascending order [lipschitz_activation_section].

    Example:
        >>> group_sort(torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0, -2.0]]), size=3)
        tensor([[ 1.,  2.,  3., -2., -1.,  0.]])
    """
    if size == 2:
        return kernels.sort_pairs(x, channel_dim)
    groups = x.unflatten(channel_dim, (-1, size))
    return groups.sort(dim=_after(channel_dim)).values.flatten(*_group_dims(channel_dim))


def max_min(x: Tensor, channel_dim: int = 1) -> Tensor:
    r"""Replace each pair of channels by its larger and its smaller value, in this order [sec:SameExp].

    It is `group_sort` of size 2 with the pair turned round.

    Example:
        >>> max_min(torch.tensor([[1.0, 2.0, 4.0, 3.0]]))
        tensor([[2., 1., 4., 3.]])
    """
    return kernels.sort_pairs(x, channel_dim, descending=True)


def householder(x: Tensor, v: Tensor, channel_dim: int = 1) -> Tensor:
    r"""Reflect each pair of channels into the half plane `vᵀx > 0` [lipschitz_activation_section].

    .. math:: \mathrm{HH}_v(x) = x - 2 \min(v^T x, 0)\, v, \qquad \|v\| = 1

    Args:
        x: input with C channels, C even.
        v: `(C/2, 2)`, unit vectors.
        channel_dim: the dimension of x that holds the channels.

    Example:
        >>> v = torch.tensor([[1.0, 0.0]])
        >>> householder(torch.tensor([[-2.0, -3.0], [2.0, -3.0]]), v)
        tensor([[ 2., -3.],
                [ 2., -3.]])
    """
    return kernels.householder(x, v.to(x.dtype), channel_dim)


def _after(channel_dim: int) -> int:
    """Dimension of the members of a group once the channels are split into (groups, members)."""
    return channel_dim if channel_dim < 0 else channel_dim + 1


def _group_dims(channel_dim: int) -> tuple[int, int]:
    """Dimensions of groups and members once the channels are split."""
    after = _after(channel_dim)
    return after - 1, after
