r"""The proximal map of the total variation of numbers in a row, exactly.

.. math:: \mathrm{prox}(y) = \arg\min_u \sum_i \frac{d_i}{2} (u_i - y_i)^2 + w \sum_i |u_{i+1} - u_i|

In slope coordinates TV² of a linear spline is the total variation of its slopes [sec:tv2], so that this is its proximal
map. It is found by dynamic programming in a time proportional to the length; numbers that are merged are equal to the
last bit. C and Python do the same operations in the same order.
"""

import torch
from torch import Tensor

from lipspline.kernels import native
from lipspline.kernels.dispatch import Kernel


@torch.no_grad()
def prox_total_variation(y: Tensor, weight: float | Tensor, precision: Tensor | None = None) -> Tensor:
    """The proximal map of `weight` times the total variation along the last dimension.

    Args:
        y: `(..., n)`.
        weight: w >= 0, a number or one a row, `(...)`.
        precision: d > 0, `(..., n)`; all 1 if not given.

    Returns:
        A new tensor like y, computed in float64; without derivatives.

    Example:
        >>> prox_total_variation(torch.tensor([0.0, 4.0, 4.2, 1.0]), weight=0.5)
        tensor([0.5000, 3.6000, 3.6000, 1.5000])
    """
    d = torch.ones_like(y) if precision is None else precision
    if d.shape != y.shape:
        raise ValueError(f"precision must have the shape of y, {tuple(y.shape)}, but has {tuple(d.shape)}.")
    w = torch.as_tensor(weight, dtype=torch.float64, device=y.device).expand(y.shape[:-1])
    if not y.numel():
        return y.clone()
    if not bool((w >= 0).all()) or not bool((d > 0).all()):
        raise ValueError("weight must not be negative, and precision must be positive everywhere.")
    rows = y.reshape(-1, y.shape[-1])
    arguments = [t.cpu().double().contiguous() for t in (rows, d.reshape(rows.shape), w.reshape(-1))]
    evaluate = total_variation.c if total_variation.in_c(*arguments) else total_variation.eager
    return evaluate(*arguments).to(y).view(y.shape)


def _by_formula(y: Tensor, d: Tensor, w: Tensor) -> Tensor:
    rows = zip(y.tolist(), d.tolist(), w.tolist(), strict=True)
    return torch.tensor([_row(*row) for row in rows], dtype=torch.float64)


def _in_c(y: Tensor, d: Tensor, w: Tensor) -> Tensor:
    u = torch.empty_like(y)
    native.call("total_variation", (), (len(y), y.shape[1]), y, d, w, u)
    return u


def _row(y: list[float], d: list[float], w: float) -> list[float]:
    """One row, in Python; see total_variation.c for the idea. A knot is (place, change of slope, change of offset)."""
    if not w > 0:
        return y
    low, high, knots = [], [], []
    for i in range(len(y) - 1):
        edge = w if i else 0.0
        slope, offset = d[i], -edge - d[i] * y[i]
        while knots and slope * knots[0][0] + offset < -w:
            _, more, further = knots.pop(0)
            slope, offset = slope + more, offset + further
        low.append((-w - offset) / slope)
        begin = (low[i], slope, offset + w)
        slope, offset = d[i], edge - d[i] * y[i]
        while knots and slope * knots[-1][0] + offset > w:
            _, more, further = knots.pop()
            slope, offset = slope - more, offset - further
        high.append(max((w - offset) / slope, low[i]))
        knots = [begin, *knots, (high[i], -slope, w - offset)]
    slope, offset = d[-1], -(w if len(y) > 1 else 0.0) - d[-1] * y[-1]
    while knots and slope * knots[0][0] + offset < 0:
        _, more, further = knots.pop(0)
        slope, offset = slope + more, offset + further
    u = [-offset / slope]
    for bottom, top in zip(reversed(low), reversed(high), strict=True):
        u.append(bottom if u[-1] < bottom else top if u[-1] > top else u[-1])
    return u[::-1]


total_variation = Kernel(
    "total_variation(Tensor y, Tensor d, Tensor w) -> Tensor",
    eager=_by_formula,
    c=_in_c,
    c_function="total_variation",
    derivatives="none",
)
