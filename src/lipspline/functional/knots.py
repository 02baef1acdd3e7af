r"""Linear splines with knots anywhere: evaluation, the ReLU expansion, the sparsest interpolant [thm:spline_good1].

A spline is given by what makes it continuous by construction: K ascending knots, the K + 1 slopes between them, and
the intercept of its first region. Leading dimensions hold one spline each.
"""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.functional.spline import difference, grid


class FreeKnots(NamedTuple):
    """The spline with slope `slopes[i]` between knots i-1 and i that is `intercept + slopes[0] x` before the first."""

    knots: Tensor  # (..., K)
    slopes: Tensor  # (..., K + 1)
    intercept: Tensor  # (...)


class ReluExpansion(NamedTuple):
    r"""`b₁ + b₂ x + Σ_k a_k ReLU(x - τ_k)` [eq:LearnSpline]."""

    b1: Tensor  # (...)
    b2: Tensor  # (...)
    a: Tensor  # (..., K)
    knots: Tensor  # (..., K)


def intercepts(spline: FreeKnots) -> Tensor:
    """Intercepts `(..., K + 1)` of the regions, which continuity implies.

    Example:
        >>> intercepts(FreeKnots(torch.tensor([1.0]), torch.tensor([0.0, 1.0]), torch.tensor(2.0)))
        tensor([2., 1.])
    """
    jumps = -difference(spline.slopes) * spline.knots
    first = spline.intercept.unsqueeze(-1)
    return torch.cat([first, first + jumps.cumsum(dim=-1)], dim=-1)


def free_knot_spline(x: Tensor, spline: FreeKnots, channel_dim: int = 1) -> Tensor:
    """Evaluate one free-knot spline per channel, or one for all, beyond the outer knots with the outer slopes.

    Args:
        x: input with C channels in dimension `channel_dim`.
        spline: leading shape `(C,)`, or `(1,)` or `()` for one spline shared by all channels.
        channel_dim: the dimension of x that selects the spline.

    Example:
        >>> relu = FreeKnots(torch.tensor([0.0]), torch.tensor([0.0, 1.0]), torch.tensor(0.0))
        >>> free_knot_spline(torch.tensor([[-1.0, 2.0]]), relu)
        tensor([[0., 2.]])
    """
    return region_lookup(x, spline.knots, intercepts(spline), spline.slopes, channel_dim)


def region_lookup(x: Tensor, knots: Tensor, b: Tensor, s: Tensor, channel_dim: int = 1) -> Tensor:
    """`b_i + s_i x` with i the number of knots not above x, by binary search; tables `(C, ·)`, `(1, ·)` or `(·)`."""
    rows = s.shape[:-1].numel()
    knots, b, s = (table.reshape(rows, table.shape[-1]) for table in (knots, b, s))
    moved = x.movedim(channel_dim, 0) if rows > 1 else x
    flat = moved.reshape(rows, -1)
    i = torch.searchsorted(knots.detach().contiguous(), flat.detach().to(knots.dtype).contiguous(), right=True)
    y = (b.gather(1, i) + s.gather(1, i) * flat).to(x.dtype).view(moved.shape)
    return y.movedim(0, channel_dim) if rows > 1 else y


def lipschitz(spline: FreeKnots) -> Tensor:
    """Lipschitz constant of each spline: its largest absolute slope.

    Example:
        >>> lipschitz(FreeKnots(torch.tensor([0.0]), torch.tensor([-0.5, 0.25]), torch.tensor(0.0)))
        tensor(0.5000)
    """
    return spline.slopes.abs().amax(dim=-1)


def tv2(spline: FreeKnots) -> Tensor:
    r"""Second-order total variation `‖a‖₁` of each spline: the sum of its slope changes [eq:control_knots].

    Example:
        >>> tv2(FreeKnots(torch.tensor([0.0]), torch.tensor([-1.0, 1.0]), torch.tensor(0.0)))
        tensor(2.)
    """
    return difference(spline.slopes).abs().sum(dim=-1)


def relu_expansion(spline: FreeKnots) -> ReluExpansion:
    r"""Write a spline as an affine map and one ReLU per knot [eq:LearnSpline].

    Example:
        >>> relu_expansion(FreeKnots(torch.tensor([0.0]), torch.tensor([-1.0, 1.0]), torch.tensor(0.0))).a
        tensor([2.])
    """
    return ReluExpansion(spline.intercept, spline.slopes[..., 0], difference(spline.slopes), spline.knots)


def from_relu_expansion(expansion: ReluExpansion) -> FreeKnots:
    r"""The spline that a sum of ReLUs is, whatever the order of its knots [eq:LearnSpline].

    Example:
        >>> zero, one = torch.zeros(()), torch.ones(())
        >>> from_relu_expansion(ReluExpansion(zero, one, torch.tensor([-1.0, -0.5]), torch.tensor([2.0, 0.0]))).slopes
        tensor([ 1.0000,  0.5000, -0.5000])
    """
    knots, order = expansion.knots.sort(dim=-1)
    first = expansion.b2.unsqueeze(-1)
    changes = expansion.a.gather(-1, order)
    return FreeKnots(knots, torch.cat([first, first + changes.cumsum(dim=-1)], dim=-1), expansion.b1)


def from_grid(c: Tensor, radius: float) -> FreeKnots:
    """The free-knot form of splines given by their values on a uniform grid [sec:deepspline], `c (..., K)`.

    The outer grid points are no knots: the spline goes on there with the same slope.

    Example:
        >>> from_grid(torch.tensor([1.0, 0.0, 1.0]), radius=2.0)
        FreeKnots(knots=tensor([0.]), slopes=tensor([-0.5000,  0.5000]), intercept=tensor(0.))
    """
    t = grid(c.shape[-1] - 1, radius, c)
    slopes = difference(c) * (c.shape[-1] - 1) / (2 * radius)
    knots = t[1:-1].expand(*c.shape[:-1], -1)
    return FreeKnots(knots, slopes, c[..., 0] - slopes[..., 0] * t[0])


def to_grid(spline: FreeKnots, regions: int, radius: float) -> Tensor:
    """Values `(..., regions + 1)` of splines on a uniform grid that holds all their knots [sec:deepspline].

    Example:
        >>> to_grid(from_grid(torch.tensor([1.0, 0.0, 1.0]), radius=2.0), regions=4, radius=2.0)
        tensor([1.0000, 0.5000, 0.0000, 0.5000, 1.0000])
    """
    t = grid(regions, radius, spline.slopes)
    position = (spline.knots + radius) * regions / (2 * radius)
    tolerance = 100 * regions * torch.finfo(spline.knots.dtype).eps
    inside = (position > 1 - tolerance) & (position < regions - 1 + tolerance)
    off_grid = ~(inside & ((position - position.round()).abs() < tolerance)) & (difference(spline.slopes) != 0)
    if off_grid.any():
        raise ValueError(
            f"All knots must be inner points of the grid with {regions} regions on [-{radius:g}, {radius:g}], but "
            f"{int(off_grid.sum())} are not, {spline.knots[off_grid][0]:g} for one. Use a finer or a larger grid."
        )
    leading = spline.intercept.shape
    points = t.expand(max(1, leading.numel()), -1)
    return free_knot_spline(points, spline, channel_dim=0).view(*leading, -1)


@torch.no_grad()
def sparsest_interpolant(x: Tensor, y: Tensor, tol: float | None = None) -> FreeKnots:
    r"""The linear spline of least TV² through points, with the fewest knots among these [eq:var_lip_1d_2].

    Joining the points by segments attains the least TV². So does everything that, where slopes keep rising (or keep
    falling), stays convex (or concave). In such a stretch every other segment can be left out: its neighbours meet
    over it, and still go through all points. n successive changes of slope of one sign thus become ⌈n/2⌉ knots. A
    segment through three or more points cannot be left out. All slopes are slopes between data points, so the Lipschitz
    constant is the smallest possible, and a solution of [eq:var_lip_1d] too.

    Args:
        x: `(M,)`, in any order; equal points must have equal values.
        y: `(M,)`.
        tol: a point this near to a segment counts as a point of it; the rounding of y by default.

    Returns:
        One spline without leading dimensions; constant if there is one point.

    Example:
        >>> x = torch.tensor([0.0, 1.0, 2.0, 3.0])
        >>> sparsest_interpolant(x, (x - 1.5).abs())
        FreeKnots(knots=tensor([1.5000]), slopes=tensor([-1.,  1.]), intercept=tensor(1.5000))
    """
    _check_points(x, y)
    if tol is None:
        tol = 4 * torch.finfo(y.dtype).eps * float(y.abs().max())
    px, py = _distinct(x.double(), y.double(), tol)
    vertices = _segments(px, py, tol)
    vx, vy = [px[i] for i in vertices], [py[i] for i in vertices]
    slopes = [(vy[k + 1] - vy[k]) / (vx[k + 1] - vx[k]) for k in range(len(vx) - 1)] or [0.0]
    rigid = [vertices[k + 1] - vertices[k] > 1 for k in range(len(vx) - 1)]
    kept = _kept_segments(slopes, rigid)
    knots = [_meeting_point(vx, slopes, p, q) for p, q in itertools.pairwise(kept)]
    return FreeKnots(
        y.new_tensor(knots), y.new_tensor([slopes[k] for k in kept]), y.new_tensor(vy[0] - slopes[0] * vx[0])
    )


def _check_points(x: Tensor, y: Tensor) -> None:
    if x.ndim != 1 or x.shape != y.shape or len(x) == 0:
        raise ValueError(
            f"sparsest_interpolant needs points x and y of equal shape (M,), M >= 1, but got shapes {tuple(x.shape)} "
            f"and {tuple(y.shape)}."
        )
    checks.floating("sparsest_interpolant", y)
    checks.finite("x", x)
    checks.finite("y", y)


def _distinct(x: Tensor, y: Tensor, tol: float) -> tuple[list[float], list[float]]:
    """Points in ascending order, each once."""
    x, order = x.sort(stable=True)
    y = y[order]
    repeated = x[1:] == x[:-1]
    if (clash := repeated & ((y[1:] - y[:-1]).abs() > tol)).any():
        raise ValueError(
            f"A function has one value at each point, but x = {x[1:][clash][0]:g} comes with different values of y. "
            f"Average them first."
        )
    first = torch.cat([repeated.new_ones(1), ~repeated])
    return x[first].tolist(), y[first].tolist()


def _segments(x: list[float], y: list[float], tol: float) -> list[int]:
    """Ends of the longest segments, from the left, that pass within `tol` of all points between their ends."""
    ends = [0]
    low, high = -float("inf"), float("inf")
    for j in range(1, len(x)):
        slope = (y[j] - y[ends[-1]]) / (x[j] - x[ends[-1]])
        if not low <= slope <= high:
            ends.append(j - 1)
            low, high = -float("inf"), float("inf")
        start, run = ends[-1], x[j] - x[ends[-1]]
        low = max(low, (y[j] - tol - y[start]) / run)
        high = min(high, (y[j] + tol - y[start]) / run)
    return [*ends, len(x) - 1] if len(x) > 1 else ends


def _kept_segments(slopes: list[float], rigid: list[bool]) -> list[int]:
    """Segments that remain when every other one in a convex or concave stretch is left out."""
    kept = [0]
    for k in range(1, len(slopes)):
        last = k == len(slopes) - 1
        monotone = not last and (slopes[k] - slopes[k - 1]) * (slopes[k + 1] - slopes[k]) > 0
        if not (monotone and not rigid[k] and kept[-1] == k - 1):
            kept.append(k)
    return kept


def _meeting_point(x: list[float], slopes: list[float], p: int, q: int) -> float:
    """Where segment p and the next kept segment q meet: in their common vertex, or over the one left out between."""
    if q == p + 1:
        return x[q]
    return x[p + 1] + (x[q] - x[p + 1]) * (slopes[p + 1] - slopes[q]) / (slopes[p] - slopes[q])


@torch.no_grad()
def merge_slopes(slopes: Tensor, tol: float) -> Tensor:
    r"""Give neighbouring regions of equal length one common slope where their slopes differ by at most `tol`.

    The regions are cut, from the left, into the fewest groups whose slopes span at most `tol`, and each group gets its
    mean slope. A knot where the slope changes by more than `tol` stays, the values at all knots that stay are kept, and
    no slope leaves the interval it was in. With R regions of length T the spline moves by at most `tol R T / 4` between
    the outer knots.

    Args:
        slopes: `(..., R)` of regions of equal length.
        tol: the largest difference of slopes within a group.

    Example:
        >>> merge_slopes(torch.tensor([0.25, 0.5, 0.25, 1.0]), tol=0.25)
        tensor([0.3333, 0.3333, 0.3333, 1.0000])
    """
    low, high = slopes[..., 0], slopes[..., 0]
    group, groups = torch.zeros_like(low, dtype=torch.long), []
    for s in slopes.unbind(dim=-1):
        low, high = torch.minimum(low, s), torch.maximum(high, s)
        cut = high - low > tol
        low, high = torch.where(cut, s, low), torch.where(cut, s, high)
        group = group + cut
        groups.append(group)
    member = torch.stack(groups, dim=-1)
    total = torch.zeros_like(slopes).scatter_add(-1, member, slopes)
    count = torch.zeros_like(slopes).scatter_add(-1, member, torch.ones_like(slopes))
    mean = (total / count.clamp(min=1)).gather(-1, member)
    return mean.clamp(slopes.amin(dim=-1, keepdim=True), slopes.amax(dim=-1, keepdim=True))
