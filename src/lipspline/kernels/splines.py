"""Learned splines from their coefficients: to the tables of `piecewise_affine`, or all the way to their output."""

# pyright: reportIncompatibleMethodOverride=false
# (`backward` of an autograd function is declared with *args, but is meant to name them)

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lipspline.kernels import native
from lipspline.kernels.affine import arrange, piecewise_affine, piecewise_affine_backward
from lipspline.kernels.dispatch import Kernel, functorch_is_active, implementation, in_front, is_ordinary, is_traced
from lipspline.kernels.native import like


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
    if scale.shape == c.shape[:-1] and _tables.in_c(c, scale):
        return _SplineTables.apply(c, scale, radius, *slope)  # type: ignore[return-value]
    return tables_formula(c, scale, radius, *slope)


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


def tables_formula(c: Tensor, scale: Tensor, radius: float, low: float, high: float) -> tuple[Tensor, Tensor]:
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


def tables_backward_formula(
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
    b, _ = tables_formula(c, scale, radius, low, high)
    return gc, -(gb * b).sum(-1) / scale


def _left_knots(regions: int, radius: float, like: Tensor) -> Tensor:
    return 2 * radius / regions * torch.arange(regions, dtype=like.dtype, device=like.device) - radius


def _tables_in_c(c: Tensor, scale: Tensor, radius: float, low: float, high: float) -> tuple[Tensor, Tensor]:
    c, scale = c.contiguous(), scale.contiguous()
    b, s = (c.new_empty(*c.shape[:-1], c.shape[-1] - 1) for _ in range(2))
    native.call("spline_tables", (radius, low, high), (scale.numel(), s.shape[-1]), c, scale, b, s)
    return b, s


def _tables_backward_in_c(
    gb: Tensor, gs: Tensor, c: Tensor, scale: Tensor, radius: float, low: float, high: float
) -> tuple[Tensor, Tensor]:
    gb, gs, c, scale = (t.contiguous() for t in (gb, gs, c, scale))
    gc, gscale = torch.empty_like(c), torch.empty_like(scale)
    sizes = (scale.numel(), gs.shape[-1])
    native.call("spline_tables_backward", (radius, low, high), sizes, gb, gs, c, scale, gc, gscale)
    return gc, gscale


_tables = Kernel(
    "spline_tables(Tensor c, Tensor scale, float radius, float low, float high) -> (Tensor, Tensor)",
    eager=tables_formula,
    c=_tables_in_c,
    c_function="spline_tables",
    derivatives="backward",
)
_tables_backward = Kernel(
    "spline_tables_backward(Tensor gb, Tensor gs, Tensor c, Tensor scale, float radius, float low, float high)"
    " -> (Tensor, Tensor)",
    eager=tables_backward_formula,
    c=_tables_backward_in_c,
    c_function="spline_tables_backward",
    derivatives="none",
)


class _SplineTables(torch.autograd.Function):
    @staticmethod
    def forward(ctx, c, scale, radius, low, high):
        ctx.save_for_backward(c, scale)
        ctx.rest = radius, low, high
        return _tables_in_c(c, scale, radius, low, high)

    @staticmethod
    def backward(ctx, gb, gs):
        arguments = gb, gs, *ctx.saved_tensors, *ctx.rest
        if torch.is_grad_enabled() or not is_ordinary(gb, gs):
            return *tables_backward_formula(*arguments), None, None, None
        return *_tables_backward_in_c(*arguments), None, None, None


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
        return scaled_formula(x, c, log_scale, radius, *slope, channel_dim)
    if functorch_is_active() or torch.is_grad_enabled():
        return _forward(x, c, log_scale, radius, *slope, channel_dim)
    return _with_tables(x, c, log_scale, radius, *slope, channel_dim)[0]


def scaled_tables(
    c: Tensor, log_scale: Tensor, radius: float, slope: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Arguments `b, s, scale, offset` of `piecewise_affine` for splines with these coefficients and scales."""
    regions, scale = c.shape[-1] - 1, log_scale.exp()
    b, s = spline_tables(c, scale, radius, slope)
    return b, s, scale.detach() / (2 * radius / regions), regions / 2


def scaled_formula(
    x: Tensor, c: Tensor, log_scale: Tensor, radius: float, low: float, high: float, channel_dim: int
) -> Tensor:
    """The scaled splines by their tables."""
    return piecewise_affine(x, *scaled_tables(c, log_scale, radius, (low, high)), channel_dim)


def _at_once(x: Tensor, c: Tensor, log_scale: Tensor, channel_dim: int) -> bool:
    """Whether autograd may see one step. Compilers and forward derivatives get the parts, which they can take apart."""
    return (
        not is_traced()
        and forward_ad._current_level < 0
        and (implementation(x) == "c" if functorch_is_active() else _forward.in_c(x, c, log_scale))
        and c.ndim == 2
        and c.shape[0] in (1, x.shape[channel_dim])
        and log_scale.shape == c.shape[:1]
    )


def _with_tables(
    x: Tensor, c: Tensor, log_scale: Tensor, radius: float, low: float, high: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, α, and the tables in the order of the C kernels; c is `(C, K)`, or `(G, C, K)` with groups in x."""
    x, sizes = arrange(x, c, channel_dim)
    c, scale, regions = c.contiguous(), log_scale.exp().contiguous(), c.shape[-1] - 1
    y, tables = torch.empty_like(x), c.new_empty(scale.numel() * (2 * regions + 1))
    native.call("scaled_spline", (radius, low, high), (*sizes, regions), x, c, scale, tables, y)
    return y, scale, tables


def _backward_in_c(
    g: Tensor, x: Tensor, c: Tensor, scale: Tensor, tables: Tensor, radius: float, low: float, high: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    x, sizes = arrange(x, c, dim)
    g, c = like(g, x), c.contiguous()
    gx, gc, glog = torch.empty_like(x), torch.empty_like(c), torch.empty_like(scale)
    sizes = (*sizes, c.shape[-1] - 1)
    native.call("scaled_spline_backward", (radius, low, high), sizes, g, x, c, scale, tables, gx, gc, glog)
    return gx, gc, glog


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


_forward = Kernel(
    "scaled_spline(Tensor x, Tensor c, Tensor log_scale, float radius, float low, float high, int channel_dim)"
    " -> Tensor",
    eager=scaled_formula,
    c=lambda *arguments: _with_tables(*arguments)[0],
    c_function="scaled_spline",
    fake=_fake,
    batched=_batched,
)


@_forward.gradients
class _ScaledSpline(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, c, log_scale, *rest):
        ctx.rest = rest
        if not _forward.in_c(x, c, log_scale):
            ctx.save_for_backward(x, c, log_scale, None, None)
            return _forward.evaluate(x, c, log_scale, *rest)
        y, scale, tables = _with_tables(x, c, log_scale, *rest)
        ctx.save_for_backward(x, c, log_scale, scale, tables)
        return y

    @staticmethod
    def backward(ctx, g):
        x, c, log_scale, scale, tables = ctx.saved_tensors
        if torch.is_grad_enabled() or scale is None or not is_ordinary(g):
            return *_differentiable_backward(g, x, c, log_scale, *ctx.rest), None, None, None, None
        return *_backward_in_c(g, x, c, scale, tables, *ctx.rest), None, None, None, None


def _differentiable_backward(
    g: Tensor, x: Tensor, c: Tensor, log_scale: Tensor, radius: float, low: float, high: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, c and log_scale in terms that can be differentiated again."""
    scale = log_scale.exp()
    _, *tables = scaled_tables(c, log_scale, radius, (low, high))
    gx, gb, gs = piecewise_affine_backward(g, x, *tables, channel_dim)
    gc, gscale = tables_backward_formula(gb, gs, c, scale, radius, low, high)
    return gx, gc, gscale * scale


def _whole_backward_in_c(
    g: Tensor, x: Tensor, c: Tensor, log_scale: Tensor, radius: float, low: float, high: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    _, scale, tables = _with_tables(x, c, log_scale, radius, low, high, channel_dim)
    return _backward_in_c(g, x, c, scale, tables, radius, low, high, channel_dim)


_backward = Kernel(
    "scaled_spline_backward(Tensor g, Tensor x, Tensor c, Tensor log_scale, float radius, float low, float high,"
    " int channel_dim) -> (Tensor, Tensor, Tensor)",
    eager=_differentiable_backward,
    c=_whole_backward_in_c,
    c_function="scaled_spline_backward",
    derivatives="none",
)
