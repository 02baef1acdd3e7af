"""A learned spline from its coefficients to its output, in one step: what `LinearSpline` computes."""

# pyright: reportIncompatibleMethodOverride=false
# (`backward` of an autograd function is declared with *args, but is meant to name them)

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lipspline.kernels import eager, native
from lipspline.kernels.choice import implementation
from lipspline.kernels.layout import like
from lipspline.kernels.piecewise_affine import arrange, piecewise_affine, piecewise_affine_backward
from lipspline.kernels.spline_tables import spline_tables
from lipspline.kernels.torch_operator import Operator, functorch_is_active, in_front, is_ordinary, is_traced


def scaled_spline(
    x: Tensor, c: Tensor, log_scale: Tensor, radius: float, slope: tuple[float, float], channel_dim: int = 1
) -> Tensor:
    r"""Evaluate the scaled splines `σ(α x) / α` with clipped slopes, one per channel [prop:splineproj, sec:ScalePara].

    It is `piecewise_affine` on the tables of `scaled_tables`. Where the C kernels can do all of it at once, autograd
    sees one step instead of five: in a network, where Python finds its caches cold, five cost as much as the spline.

    Args:
        x: input of any rank >= 1.
        c: coefficients `(C, K)`, or `(1, K)` for one spline shared by all channels.
        log_scale: log α of each spline, `(C,)` or `(1,)`.
        radius: the outer knots are at ±radius, before scaling.
        slope: the interval of the slopes; infinite ends clip nothing.
        channel_dim: the dimension of x that selects the spline.

    Example:
        >>> c, x = torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([[-2.0, 3.0]])
        >>> scaled_spline(x, c, torch.zeros(1), radius=1.0, slope=(-1.0, 1.0))
        tensor([[2., 3.]])
    """
    if channel_dim < 0:
        channel_dim += x.ndim
    if not _at_once(x, c, log_scale, channel_dim):
        return piecewise_affine(x, *scaled_tables(c, log_scale, radius, slope), channel_dim)
    return _forward(x, c, log_scale, radius, *slope, channel_dim)


def scaled_tables(
    c: Tensor, log_scale: Tensor, radius: float, slope: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Arguments `b, s, scale, offset` of `piecewise_affine` for splines with these coefficients and scales."""
    regions, scale = c.shape[-1] - 1, log_scale.exp()
    b, s = spline_tables(c, scale, radius, slope)
    return b, s, scale.detach() / (2 * radius / regions), regions / 2


def _at_once(x: Tensor, c: Tensor, log_scale: Tensor, channel_dim: int) -> bool:
    """Whether the C kernels can do it. Compilers and forward derivatives get the parts, which they can take apart."""
    return (
        not is_traced()
        and (functorch_is_active() or is_ordinary(x, c, log_scale))
        and forward_ad._current_level < 0
        and implementation(x) == "c"
        and x.dtype == c.dtype == log_scale.dtype
        and x.dtype in (torch.float32, torch.float64)
        and x.numel() > 0
        and c.ndim == 2
        and c.shape[0] in (1, x.shape[channel_dim])
        and log_scale.shape == c.shape[:1]
    )


def _evaluate(
    x: Tensor, c: Tensor, log_scale: Tensor, radius: float, low: float, high: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, α, and the tables in the order of the C kernels; c is `(C, K)`, or `(G, C, K)` with groups in x."""
    dense, sizes = arrange(x, c, channel_dim)
    c, scale = c.contiguous(), log_scale.exp().contiguous()
    regions = c.shape[-1] - 1
    y, tables = torch.empty_like(dense), c.new_empty(scale.numel() * (2 * regions + 1))
    native.run(
        "lipspline_scaled_spline",
        8 * x.itemsize, dense.data_ptr(), c.data_ptr(), scale.data_ptr(), radius, low, high, *sizes, regions,
        tables.data_ptr(), y.data_ptr(), native.threads(),
    )  # fmt: skip
    return y, scale, tables


def _fake(x, c, log_scale, radius, low, high, channel_dim):
    return torch.empty_like(x, memory_format=torch.contiguous_format if c.ndim == 3 else torch.preserve_format)


def _batched(info, in_dims, x, c, log_scale, *rest):
    *rest, channel_dim = rest
    if in_dims[1:3] == (None, None):  # more elements for the same splines
        at = c.ndim - 2
        return _forward(x.movedim(in_dims[0], at), c, log_scale, *rest, channel_dim + 1), at
    x, c, log_scale = (in_front(t, d, info.batch_size) for t, d in zip((x, c, log_scale), in_dims[:3], strict=True))
    if c.ndim == 3:
        return _forward(x, c, log_scale, *rest, channel_dim + 1), 0
    y = _forward(*(t.flatten(0, 1) for t in (x, c, log_scale)), *rest, channel_dim)
    return y.unflatten(0, x.shape[:2]), 0


_forward = Operator(
    "scaled_spline(Tensor x, Tensor c, Tensor log_scale, float radius, float low, float high, int channel_dim)"
    " -> Tensor",
    kernel=lambda *arguments: _evaluate(*arguments)[0],
    fake=_fake,
    batched=_batched,
)


@_forward.derivatives
class _ScaledSpline(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, c, log_scale, *rest):
        ctx.rest = rest
        if not is_ordinary(x, c, log_scale):
            ctx.save_for_backward(x, c, log_scale, None, None)
            return _forward.evaluate(x, c, log_scale, *rest)
        y, scale, tables = _evaluate(x, c, log_scale, *rest)
        ctx.save_for_backward(x, c, log_scale, scale, tables)
        return y

    @staticmethod
    def backward(ctx, g):
        x, c, log_scale, scale, tables = ctx.saved_tensors
        if torch.is_grad_enabled() or scale is None or not is_ordinary(g):
            return *_differentiable_backward(g, x, c, log_scale, *ctx.rest), None, None, None, None
        radius, low, high, channel_dim = ctx.rest
        dense, sizes = arrange(x, c, channel_dim)
        g, c = like(g, dense), c.contiguous()
        gx, gc, glog = torch.empty_like(dense), torch.empty_like(c), torch.empty_like(scale)
        native.run(
            "lipspline_scaled_spline_backward",
            8 * x.itemsize, g.data_ptr(), dense.data_ptr(), c.data_ptr(), scale.data_ptr(), radius, low, high, *sizes,
            c.shape[-1] - 1, tables.data_ptr(), gx.data_ptr(), gc.data_ptr(), glog.data_ptr(), native.threads(),
        )  # fmt: skip
        return gx, gc, glog, None, None, None, None


def _differentiable_backward(
    g: Tensor, x: Tensor, c: Tensor, log_scale: Tensor, radius: float, low: float, high: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, c and log_scale in terms that can be differentiated again."""
    scale = log_scale.exp()
    _, *tables = scaled_tables(c, log_scale, radius, (low, high))
    gx, gb, gs = piecewise_affine_backward(g, x, *tables, channel_dim)
    gc, gscale = eager.spline_tables_backward(gb, gs, c, scale, radius, low, high)
    return gx, gc, gscale * scale
