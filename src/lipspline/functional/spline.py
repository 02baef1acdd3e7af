r"""Linear splines on a uniform grid: slopes, SplineProj, TV², evaluation [sec:deepspline, sec:methods].

A spline has `K` coefficients, its values at the knots `linspace(-radius, radius, K)`; `T = 2 radius / (K - 1)` is the
step. Beyond the outer knots it goes on with the slope of the outer region. Everything acts on the last dimension,
so `c` may be `(K,)`, `(C, K)` or have any leading shape.
"""

import torch
from torch import Tensor

from lipspline.kernels import piecewise_affine
from lipspline.kernels.splines import clip_slopes


def difference(c: Tensor) -> Tensor:
    r"""First-order finite differences `D c` of the coefficients [sec:deepspline], `(..., K) -> (..., K-1)`.

    Example:
        >>> difference(torch.tensor([0.0, 1.0, 4.0]))
        tensor([1., 3.])
    """
    return c[..., 1:] - c[..., :-1]


def integrate(d: Tensor) -> Tensor:
    r"""Moore-Penrose inverse `D† d` of the finite differences by a cumulative sum [sec:SplineProj].

    The result is the only vector of mean zero whose differences are `d`: `D D† = Id` and `1ᵀ D† = 0`.

    Example:
        >>> integrate(torch.tensor([1.0, 1.0]))
        tensor([-1.,  0.,  1.])
    """
    primitive = torch.cat([torch.zeros_like(d[..., :1]), d.cumsum(dim=-1)], dim=-1)
    return primitive - primitive.mean(dim=-1, keepdim=True)


def spline_proj(c: Tensor, step: float, slope: tuple[float, float] = (-1.0, 1.0)) -> Tensor:
    r"""Project coefficients onto the splines whose slopes lie in `slope`, keeping their mean [prop:splineproj].

    .. math:: \mathrm{SplineProj}(c) = D^\dagger \mathrm{Clip}_T(D c) + \bar c

    It is not the least-squares projection, which also keeps the mean but needs a quadratic program
    [sec:splineproj_app].

    Example:
        >>> spline_proj(torch.tensor([0.0, 3.0, 3.0]), step=1.0)
        tensor([1.3333, 2.3333, 2.3333])
    """
    return integrate(difference(c).clamp(slope[0] * step, slope[1] * step)) + c.mean(dim=-1, keepdim=True)


def slope_normalize(c: Tensor, step: float, bound: float = 1.0) -> Tensor:
    r"""Divide coefficients by their largest slope where it exceeds `bound`: the scheme "LLS Old" [sec:methods].

    .. math:: c \mapsto c \,/ \max\bigl(1, \|D c\|_\infty / (T \cdot \mathrm{bound})\bigr)

    One steep region flattens the whole spline, which is why SplineProj replaced it.

    Example:
        >>> slope_normalize(torch.tensor([0.0, 2.0, 3.0]), step=1.0)
        tensor([0.0000, 1.0000, 1.5000])
    """
    return c / (spline_lipschitz(c, step) / bound).clamp(min=1.0).unsqueeze(-1)


def spline_lipschitz(c: Tensor, step: float) -> Tensor:
    r"""Lipschitz constant `‖D c‖_∞ / T` of each spline [sec:deepspline], `(..., K) -> (...)`.

    Example:
        >>> spline_lipschitz(torch.tensor([0.0, 0.5, -1.0]), step=0.5)
        tensor(3.)
    """
    return difference(c).abs().amax(dim=-1) / step


def tv2(c: Tensor, step: float) -> Tensor:
    r"""Second-order total variation `‖L c‖₁ / T` of each spline [eq:control_knots], `(..., K) -> (...)`.

    It is the sum of the slope changes at the knots, and invariant to the scale α [sec:tv2].

    Example:
        >>> tv2(torch.tensor([1.0, 0.0, 1.0]), step=1.0)
        tensor(2.)
    """
    return difference(difference(c)).abs().sum(dim=-1) / step


def effective_regions(c: Tensor, step: float, threshold: float = 0.01) -> Tensor:
    r"""Number of linear regions whose slopes differ by more than `threshold`, of each spline [table:nbr_knots].

    The paper counts `|L c| > 0.01`; with its own grid, `T = 0.004`, that could never exceed 0.008 for a 1-Lipschitz
    spline. The threshold here is on the change of slope, `|L c| / T`.

    Example:
        >>> effective_regions(torch.tensor([1.0, 0.0, 1.0, 2.0]), step=1.0)
        tensor(2)
    """
    return (difference(difference(c)).abs() > threshold * step).sum(dim=-1) + 1


def grid(regions: int, radius: float, like: Tensor) -> Tensor:
    """Knots `linspace(-radius, radius, regions + 1)` in the dtype and on the device of `like` [sec:deepspline]."""
    return torch.linspace(-radius, radius, regions + 1, dtype=like.dtype, device=like.device)


def clipped_slopes(c: Tensor, step: float, slope: tuple[float, float] = (-1.0, 1.0)) -> Tensor:
    r"""Slopes `Clip(D c / T)` of the projected spline [slope_clipping, eq:slope_clipping], `(..., K) -> (..., K-1)`.

    They are the slopes of `spline_proj(c)`, but clipped last: no rounding can push one out of the interval. And a slope
    on its border, as of every initial spline, keeps its gradient whichever way it was rounded.

    Example:
        >>> clipped_slopes(torch.tensor([0.0, 3.0, 3.5]), step=1.0)
        tensor([1.0000, 0.5000])
    """
    return clip_slopes(difference(c) / step, *slope)


def region_tables(slopes: Tensor, mean: Tensor, radius: float, scale: Tensor) -> tuple[Tensor, Tensor]:
    r"""Intercept and slope of each region of the scaled spline `σ(α x) / α` [sec:ScalePara].

    .. math:: \tfrac1\alpha\sigma(\alpha x) = b_i + s_i x, \qquad b_i = (c_i - s_i t_i) / \alpha

    The slope does not depend on α, and the derivative of `b_i` by α is the whole derivative of the spline by α.

    Args:
        slopes: `(..., R)`, one for each region.
        mean: `(...)`, mean of the K = R + 1 knot values.
        radius: the outer knots are at ±radius, before scaling.
        scale: `(...)`, the α of each spline, positive.

    Returns:
        b, s: `(..., R)` each.

    Example:
        >>> relu = torch.tensor([[0.0, 1.0]])
        >>> b, s = region_tables(relu, torch.tensor([1 / 3]), radius=1.0, scale=torch.ones(1))
        >>> print(b.abs().round(decimals=6), s)
        tensor([[0., 0.]]) tensor([[0., 1.]])
    """
    regions = slopes.shape[-1]
    values = integrate(slopes * (2 * radius / regions)) + mean.unsqueeze(-1)
    left = grid(regions, radius, slopes)[:-1]
    return (values[..., :-1] - slopes * left) / scale.unsqueeze(-1), slopes


def linear_spline(x: Tensor, c: Tensor, radius: float, scale: Tensor | None = None, channel_dim: int = 1) -> Tensor:
    r"""Evaluate `σ(α x) / α` for the spline with knot values `c`, one spline per channel [sec:deepspline].

    Args:
        x: input with C channels in dimension `channel_dim`.
        c: `(C, K)`, or `(1, K)` for one spline shared by all channels.
        radius: the outer knots are at ±radius.
        scale: α, `(C,)` or `(1,)`; one if not given.
        channel_dim: the dimension of x that selects the spline.

    Example:
        >>> absolute = torch.tensor([[1.0, 0.0, 1.0]])
        >>> linear_spline(torch.tensor([[-3.0, 0.25]]), absolute, radius=1.0)
        tensor([[3.0000, 0.2500]])
    """
    regions = c.shape[-1] - 1
    step = 2 * radius / regions
    scale = torch.ones_like(c[:, 0]) if scale is None else scale
    b, s = region_tables(difference(c) / step, c.mean(dim=-1), radius, scale)
    return piecewise_affine(x, b, s, scale.detach() / step, regions / 2, channel_dim)
