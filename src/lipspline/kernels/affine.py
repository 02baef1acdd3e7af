"""One multiply-add per element, its slope and intercept picked from a small table by region."""

# pyright: reportIncompatibleMethodOverride=false
# (`backward` and `jvp` of an autograd function are declared with *args, but are meant to name them)

from importlib import import_module

import torch
from torch import Tensor

from lipspline.kernels import native
from lipspline.kernels.dispatch import Kernel, in_front, is_transformed
from lipspline.kernels.native import Sizes, densely, like


def piecewise_affine(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int = 1) -> Tensor:
    r"""Evaluate one piecewise-affine function per channel, elementwise; every spline ends here [sec:deepspline].

    .. math:: y = b_{c,i} + s_{c,i}\, x, \qquad
              i = \min(\max(\lfloor \mathtt{scale}_c\, x + \mathtt{offset} \rfloor, 0), R - 1)

    Differentiable in x, b and s, any number of times, forwards and backwards; `scale` and `offset` only select the
    region, so their derivative is zero. Backward keeps x and the tables, nothing else. NaN gives NaN; an infinite x
    falls into the first or last region and gives b ± s ∞ (NaN where that slope is 0).

    Args:
        x: input of any rank >= 1, of any memory layout.
        b: intercepts `(C, R)`; C is the size of dimension `channel_dim` of x, or 1 for one table shared by all. With
            `(G, C, R)`, dimension 0 of x has size G and each of its slices has tables of its own.
        s: slopes, of the same shape.
        scale: `(C,)` or `(G, C)`, regions per unit of x.
        offset: position of x = 0 on the grid of regions.
        channel_dim: the dimension of x that selects the row of the tables.

    Returns:
        A tensor of the shape and dtype of x. Half precision is computed in float32.

    Example:
        >>> relu = dict(b=torch.zeros(1, 2), s=torch.tensor([[0.0, 1.0]]), scale=torch.ones(1), offset=1.0)
        >>> piecewise_affine(torch.tensor([[-2.0, 3.0]]), **relu)
        tensor([[0., 3.]])
    """
    if channel_dim < 0:
        channel_dim += x.ndim
    return _forward(x, b, s, scale, offset, channel_dim)


@torch.no_grad()
def overwrite_piecewise_affine(
    x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int = 1
) -> Tensor:
    """`piecewise_affine` without derivatives, in the memory of `x` where the C kernels can do that.

    Use the result, not x: compilers, transforms, other devices, mixed dtypes and layouts with gaps get a new tensor.
    """
    if channel_dim < 0:
        channel_dim += x.ndim
    if is_transformed() or not _forward.in_c(x, b, s, scale):
        return piecewise_affine(x, b, s, scale, offset, channel_dim)
    _check(x, b, s, scale, offset, channel_dim)
    block, sizes = arrange(x, s, channel_dim)
    if block is not x or x.data_ptr() % x.itemsize:
        return piecewise_affine(x, b, s, scale, offset, channel_dim)
    _write(x, b, s, scale, offset, sizes, x)
    return x


def formula(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int) -> Tensor:
    """`b[c, i] + s[c, i] x` with `i = clamp(floor(scale[c] x + offset), 0, R - 1)`, in plain torch."""
    entry = _entries(x, scale, offset, s.shape[-1], channel_dim)
    return b.reshape(-1)[entry] + s.reshape(-1)[entry] * x


def backward_formula(
    g: Tensor, x: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`s_i g`, and per region the sums of `g` and of `g x`, in plain torch."""
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


def _check(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int) -> None:
    """Refuse shapes with which the tables would be read out of bounds."""
    _check_tables(x, s, scale, channel_dim)
    if b.shape != s.shape:
        raise ValueError(f"Intercepts and slopes must have one shape, but got {tuple(b.shape)} and {tuple(s.shape)}.")


def _check_backward(g: Tensor, x: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int) -> None:
    _check_tables(x, s, scale, channel_dim)
    if g.shape != x.shape:
        raise ValueError(f"The gradient must have the shape of x, {tuple(x.shape)}, but has {tuple(g.shape)}.")


def _check_tables(x: Tensor, s: Tensor, scale: Tensor, channel_dim: int) -> None:
    rows = s.shape[:-1]
    if s.ndim not in (2, 3) or scale.shape != rows or rows[-1] not in (1, x.shape[channel_dim]):
        raise ValueError(
            f"piecewise_affine needs slopes (C, R) and scale (C,) with C = 1 or the {x.shape[channel_dim]} channels of "
            f"x, but got slopes {tuple(s.shape)}, scale {tuple(scale.shape)} and x {tuple(x.shape)}, channels in "
            f"dimension {channel_dim}."
        )
    if s.ndim == 3 and (channel_dim == 0 or x.shape[0] != rows[0]):
        raise ValueError(
            f"Slopes {tuple(s.shape)} are {rows[0]} groups of tables, so dimension 0 of x must have size {rows[0]} and "
            f"the channels another dimension, but x is {tuple(x.shape)} with channels in dimension {channel_dim}."
        )


def arrange(x: Tensor, s: Tensor, channel_dim: int) -> tuple[Tensor, Sizes]:
    """`x` without gaps, and its sizes (groups, outer, channels, inner) as the tables see them."""
    grouped = s.ndim == 3
    x, sizes = densely(x, channel_dim, grouped=grouped)
    if s.shape[-2] == 1:  # one table for all channels: only the number of elements matters
        return x, (sizes[0], 1, 1, sizes[1] * sizes[2] * sizes[3])
    return x, sizes


def _in_c(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int) -> Tensor:
    x, sizes = arrange(x, s, channel_dim)
    y = torch.empty_like(x)
    _write(x, b, s, scale, offset, sizes, y)
    return y


def _write(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, sizes: Sizes, y: Tensor) -> None:
    tables = b.contiguous(), s.contiguous(), scale.contiguous()
    native.call("piecewise_affine", (offset,), (*sizes, s.shape[-1]), x, *tables, y)


def _backward_in_c(
    g: Tensor, x: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    x, sizes = arrange(x, s, channel_dim)
    s = s.contiguous()
    gx, gb, gs = torch.empty_like(x), torch.empty_like(s), torch.empty_like(s)
    sizes = (*sizes, s.shape[-1])
    native.call("piecewise_affine_backward", (offset,), sizes, like(g, x), x, s, scale.contiguous(), gx, gb, gs)
    return gx, gb, gs


def _in_triton(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int) -> Tensor:
    x, sizes = arrange(x, s, channel_dim)
    y = torch.empty_like(x)
    kernels = import_module("lipspline.kernels.triton_kernels")  # when a GPU first needs it
    kernels.forward(x, b.contiguous(), s.contiguous(), scale.contiguous(), offset, sizes, y)
    return y


def _backward_in_triton(
    g: Tensor, x: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    x, sizes = arrange(x, s, channel_dim)
    gx = torch.empty_like(x)
    kernels = import_module("lipspline.kernels.triton_kernels")
    return gx, *kernels.backward(like(g, x), x, s.contiguous(), scale.contiguous(), offset, sizes, gx)


def _fake_like(x: Tensor, s: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format if s.ndim == 3 else torch.preserve_format)


def _fake(x, b, s, scale, offset, channel_dim):
    _check(x, b, s, scale, offset, channel_dim)
    return _fake_like(x, s)


def _fake_backward(g, x, s, scale, offset, channel_dim):
    _check_backward(g, x, s, scale, offset, channel_dim)
    tables = torch.empty_like(s, memory_format=torch.contiguous_format)
    return _fake_like(x, s), tables, torch.empty_like(tables)


def _batched(info, in_dims, x, b, s, scale, offset, channel_dim):
    if in_dims[1:4] == (None, None, None):  # more elements for the same tables
        at = s.ndim - 2
        return _forward(x.movedim(in_dims[0], at), b, s, scale, offset, channel_dim + 1), at
    x, b, s, scale = (in_front(t, d, info.batch_size) for t, d in zip((x, b, s, scale), in_dims[:4], strict=True))
    if scale.ndim == 2:
        return _forward(x, b, s, scale, offset, channel_dim + 1), 0
    y = _forward(*(t.flatten(0, 1) for t in (x, b, s, scale)), offset, channel_dim)
    return y.unflatten(0, x.shape[:2]), 0


def _batched_backward(info, in_dims, g, x, s, scale, offset, channel_dim):
    g, x, s, scale = (in_front(t, d, info.batch_size) for t, d in zip((g, x, s, scale), in_dims[:4], strict=True))
    if scale.ndim == 2:
        return piecewise_affine_backward(g, x, s, scale, offset, channel_dim + 1), (0, 0, 0)
    results = piecewise_affine_backward(*(t.flatten(0, 1) for t in (g, x, s, scale)), offset, channel_dim)
    return tuple(t.unflatten(0, x.shape[:2]) for t in results), (0, 0, 0)


_forward = Kernel(
    "piecewise_affine(Tensor x, Tensor b, Tensor s, Tensor scale, float offset, int channel_dim) -> Tensor",
    eager=formula,
    c=_in_c,
    c_function="piecewise_affine",
    triton=_in_triton,
    check=_check,
    casts=(0,),
    fake=_fake,
    batched=_batched,
)
piecewise_affine_backward = Kernel(
    "piecewise_affine_backward(Tensor g, Tensor x, Tensor s, Tensor scale, float offset, int channel_dim)"
    " -> (Tensor, Tensor, Tensor)",
    eager=backward_formula,
    c=_backward_in_c,
    c_function="piecewise_affine_backward",
    triton=_backward_in_triton,
    check=_check_backward,
    casts=(1, 2, 2),
    fake=_fake_backward,
    batched=_batched_backward,
)


@_forward.gradients
class _PiecewiseAffine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b, s, scale, offset, channel_dim):
        ctx.save_for_backward(x, s, scale)
        ctx.save_for_forward(x, s, scale)
        ctx.offset, ctx.channel_dim = offset, channel_dim
        return _forward.evaluate(x, b, s, scale, offset, channel_dim)

    @staticmethod
    def backward(ctx, g):
        x, s, scale = ctx.saved_tensors
        return *piecewise_affine_backward(g, x, s, scale, ctx.offset, ctx.channel_dim), None, None, None

    @staticmethod
    def jvp(ctx, x_t, b_t, s_t, *_):
        x, s, scale = ctx.saved_tensors
        rest = scale, ctx.offset, ctx.channel_dim
        tangent = torch.zeros_like(x)
        if x_t is not None:
            tangent = tangent + x_t * _constant(x, s, *rest)
        if b_t is not None or s_t is not None:
            b_t, s_t = (torch.zeros_like(s) if t is None else t for t in (b_t, s_t))
            tangent = tangent + _forward(x, b_t, s_t, *rest)
        return tangent


@piecewise_affine_backward.gradients
class _PiecewiseAffineBackward(torch.autograd.Function):
    """Derivatives of gx = s_i g, gb = Σ g, gs = Σ g x, in terms of the two operators themselves."""

    @staticmethod
    def forward(ctx, g, x, s, scale, offset, channel_dim):
        ctx.save_for_backward(g, x, s, scale)
        ctx.save_for_forward(g, x, s, scale)
        ctx.offset, ctx.channel_dim = offset, channel_dim
        return piecewise_affine_backward.evaluate(g, x, s, scale, offset, channel_dim)

    @staticmethod
    def backward(ctx, h, hb, hs):
        g, x, s, scale = ctx.saved_tensors
        rest = scale, ctx.offset, ctx.channel_dim
        to_g = h * _constant(x, s, *rest) + _forward(x, hb, hs, *rest)
        to_x = g * _constant(x, hs, *rest)
        to_s = piecewise_affine_backward(h * g, x, s, *rest)[1]
        return to_g, to_x, to_s, None, None, None

    @staticmethod
    def jvp(ctx, g_t, x_t, s_t, *_):
        g, x, s, scale = ctx.saved_tensors
        rest = scale, ctx.offset, ctx.channel_dim
        g_t, x_t, s_t = (torch.zeros_like(v) if t is None else t for t, v in ((g_t, g), (x_t, x), (s_t, s)))
        gx_t, gb_t, gs_t = piecewise_affine_backward(g_t, x, s, *rest)
        return gx_t + g * _constant(x, s_t, *rest), gb_t, gs_t + piecewise_affine_backward(g * x_t, x, s, *rest)[1]


def _constant(x: Tensor, values: Tensor, scale: Tensor, offset: float, channel_dim: int) -> Tensor:
    """The entry of `values` for the region of each element of x."""
    return _forward(x, values, torch.zeros_like(values), scale, offset, channel_dim)
