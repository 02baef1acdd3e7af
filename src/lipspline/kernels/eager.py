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
    gb, gs = (torch.zeros_like(s, memory_format=torch.contiguous_format) for _ in range(2))
    gb.view(-1).index_add_(0, entry.flatten(), g.flatten())
    gs.view(-1).index_add_(0, entry.flatten(), (g * x).flatten())
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


def swap_pairs(g: Tensor, x: Tensor, descending: bool, channel_dim: int) -> Tensor:
    """`g` with the members of each pair of channels exchanged where those of `x` are out of order."""
    first, second = split_pairs(x, channel_dim).split(1, dim=channel_dim + 1)
    swap = first < second if descending else first > second
    pairs = split_pairs(g, channel_dim)
    return join_pairs(torch.where(swap, pairs.flip(channel_dim + 1), pairs), channel_dim)


def householder(x: Tensor, v: Tensor, channel_dim: int) -> Tensor:
    """`x - 2 min(vᵀx, 0) v` for each pair of channels."""
    pairs, v = split_pairs(x, channel_dim), align_pairs(v, x.ndim, channel_dim)
    t = (v * pairs).sum(channel_dim + 1, keepdim=True)
    return join_pairs(pairs - torch.where(t > 0, 0, 2 * t) * v, channel_dim)


def householder_backward(g: Tensor, x: Tensor, v: Tensor, channel_dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of x and v."""
    g, x, v = split_pairs(g, channel_dim), split_pairs(x, channel_dim), align_pairs(v, x.ndim, channel_dim)
    t, h = (2 * (v * pairs).sum(channel_dim + 1, keepdim=True) for pairs in (x, g))
    t, h = (torch.where(t > 0, 0, value) for value in (t, h))
    gx, gv = g - h * v, -(h * x + t * g)
    return join_pairs(gx, channel_dim), sum_to_pairs(gv, channel_dim)


def split_pairs(x: Tensor, channel_dim: int) -> Tensor:
    """The channels as (pairs, members): one dimension more."""
    return x.reshape(*x.shape[:channel_dim], x.shape[channel_dim] // 2, 2, *x.shape[channel_dim + 1 :])


def join_pairs(x: Tensor, channel_dim: int) -> Tensor:
    """The opposite of `split_pairs`."""
    return x.reshape(*x.shape[:channel_dim], 2 * x.shape[channel_dim], *x.shape[channel_dim + 2 :])


def align_pairs(v: Tensor, ndim: int, channel_dim: int) -> Tensor:
    """`v (C/2, 2)` shaped to multiply what `split_pairs` makes of a tensor with `ndim` dimensions."""
    return v.view(*v.shape, *[1] * (ndim - channel_dim - 1))


def sum_to_pairs(z: Tensor, channel_dim: int) -> Tensor:
    """Sum over all dimensions but the pairs and their members: `(C/2, 2)`."""
    others = [dim for dim in range(z.ndim) if dim not in (channel_dim, channel_dim + 1)]
    return z.sum(others) if others else z


def clip_slopes(slopes: Tensor, low: float, high: float) -> Tensor:
    """`slopes (..., R)` clipped to [low, high], with derivative 1 also where only rounding put them outside."""
    slack = clip_slack(slopes, low, high)
    near = slopes.clamp(low - slack, high + slack)
    return near + (slopes.clamp(low, high) - near).detach()


def clip_slack(slopes: Tensor, low: float, high: float) -> float:
    """How far rounding the coefficients can push a slope out of [low, high].

    Knot values of a spline with slopes up to L are at most L K T / 2. Rounding two of them moves their difference by up
    to eps L K T / 2, and the slope by half of what is returned here.
    """
    return torch.finfo(slopes.dtype).eps * (slopes.shape[-1] + 1) * max(abs(low), abs(high))


def spline_tables(c: Tensor, scale: Tensor, radius: float, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Intercepts and slopes of linear splines with coefficients c `(..., K)`, the slopes clipped.

    Sums are cumulative sums, which run from left to right as in C: float64 results are equal bit by bit.
    """
    regions = c.shape[-1] - 1
    step = 2 * radius / regions
    s = clip_slopes(c.diff(dim=-1) / step, low, high)
    risen = torch.nn.functional.pad(s.cumsum(-1), (1, 0))
    total, area = (t.cumsum(-1)[..., -1:] for t in (c, risen))
    values = (total - step * area) / (regions + 1) + step * risen[..., :-1]
    return (values - s * _left_knots(regions, radius, c)) / scale.unsqueeze(-1), s


def spline_tables_backward(
    gb: Tensor, gs: Tensor, c: Tensor, scale: Tensor, radius: float, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Gradients of c and scale, in terms that can be differentiated again."""
    regions = c.shape[-1] - 1
    step = 2 * radius / regions
    slopes, q = c.diff(dim=-1) / step, gb / scale.unsqueeze(-1)
    total = q.sum(-1, keepdim=True)
    right = total - q.cumsum(-1)  # what the value of a knot passes on to the slopes left of it
    lowered = total * torch.arange(regions, 0, -1, dtype=c.dtype, device=c.device) / (regions + 1)
    by_slope = gs - q * _left_knots(regions, radius, c) + step * (right - lowered)
    slack = clip_slack(slopes, low, high)
    by_difference = torch.where((slopes >= low - slack) & (slopes <= high + slack), by_slope / step, 0)
    pad = torch.nn.functional.pad
    gc = pad(by_difference, (1, 0)) - pad(by_difference, (0, 1)) + total / (regions + 1)
    b, _ = spline_tables(c, scale, radius, low, high)
    return gc, -(gb * b).sum(-1) / scale


def _left_knots(regions: int, radius: float, like: Tensor) -> Tensor:
    return 2 * radius / regions * torch.arange(regions, dtype=like.dtype, device=like.device) - radius
