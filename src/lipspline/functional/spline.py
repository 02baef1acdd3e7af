r"""Linear splines on a uniform grid: slopes, SplineProj, TV², evaluation [sec:deepspline, sec:methods].

A spline has `K` coefficients, its values at the knots `linspace(-radius, radius, K)`; `T = 2 radius / (K - 1)` is the
step. Beyond the outer knots it goes on with the slope of the outer region. Everything acts on the last dimension,
so `c` may be `(K,)`, `(C, K)` or have any leading shape.
"""

import torch
from torch import Tensor

from lipspline.kernels import piecewise_affine


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
