"""From the coefficients of linear splines to the tables of `piecewise_affine`, in one step instead of twenty."""

# pyright: reportIncompatibleMethodOverride=false
# (`backward` and `jvp` of an autograd function are declared with *args, but are meant to name them)

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lipspline.kernels import eager, native
from lipspline.kernels.choice import implementation
from lipspline.kernels.torch_operator import functorch_is_active, is_ordinary


def spline_tables(
    c: Tensor, scale: Tensor, radius: float, slope: tuple[float, float] = (-1.0, 1.0)
) -> tuple[Tensor, Tensor]:
    r"""Intercepts and slopes of the scaled splines `σ(α x) / α`, slopes clipped [prop:splineproj, sec:ScalePara].

    .. math:: s = \mathrm{Clip}(D c / T), \qquad b_i = (v_i - s_i t_i) / \alpha,
              \qquad v = T D^\dagger s + \bar c

    Args:
        c: coefficients `(..., K)` at equidistant knots of [-radius, radius].
        scale: the α of each spline, `(...)`, positive.
        radius: the outer knots are at ±radius, before scaling.
        slope: the interval of the slopes; infinite ends clip nothing.

    Returns:
        b, s: `(..., K - 1)` each.

    Example:
        >>> b, s = spline_tables(torch.tensor([[1.0, 0.0, 3.0]]), torch.ones(1), radius=1.0)
        >>> s
        tensor([[-1.,  1.]])
    """
    if _in_c(c, scale):
        return _SplineTables.apply(c, scale, radius, *slope)  # type: ignore[return-value]
    return eager.spline_tables(c, scale, radius, *slope)


def _in_c(c: Tensor, scale: Tensor) -> bool:
    """Whether the C kernels can do it. Compilers and transforms get plain torch, which they can take apart."""
    return (
        is_ordinary(c, scale)
        and not functorch_is_active()
        and implementation(c) == "c"
        and c.dtype == scale.dtype
        and c.dtype in (torch.float32, torch.float64)
        and c.numel() > 0
        and scale.shape == c.shape[:-1]
        and forward_ad._current_level < 0
    )


class _SplineTables(torch.autograd.Function):
    @staticmethod
    def forward(ctx, c, scale, radius, low, high):
        ctx.save_for_backward(c, scale)
        ctx.rest = radius, low, high
        c, scale = c.contiguous(), scale.contiguous()
        b, s = (c.new_empty(*c.shape[:-1], c.shape[-1] - 1) for _ in range(2))
        native.run(
            "lipspline_spline_tables",
            8 * c.itemsize, c.data_ptr(), scale.data_ptr(), radius, low, high, scale.numel(), s.shape[-1],
            b.data_ptr(), s.data_ptr(), native.threads(),
        )  # fmt: skip
        return b, s

    @staticmethod
    def backward(ctx, gb, gs):
        c, scale = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_ordinary(gb, gs):
            return *eager.spline_tables_backward(gb, gs, c, scale, *ctx.rest), None, None, None
        c, scale, gb, gs = (t.contiguous() for t in (c, scale, gb, gs))
        gc, gscale = torch.empty_like(c), torch.empty_like(scale)
        native.run(
            "lipspline_spline_tables_backward",
            8 * c.itemsize, gb.data_ptr(), gs.data_ptr(), c.data_ptr(), scale.data_ptr(), *ctx.rest, scale.numel(),
            gs.shape[-1], gc.data_ptr(), gscale.data_ptr(), native.threads(),
        )  # fmt: skip
        return gc, gscale, None, None, None
