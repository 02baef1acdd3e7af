"""Activations that act on pairs of neighbouring channels (2j, 2j + 1): sorting and reflecting."""

# pyright: reportIncompatibleMethodOverride=false
# (`backward` and `jvp` of an autograd function are declared with *args, but are meant to name them)

import torch
from torch import Tensor

from lipspline.kernels import native
from lipspline.kernels.dispatch import Kernel, in_front
from lipspline.kernels.native import densely, like


def sort_pairs(x: Tensor, channel_dim: int = 1, descending: bool = False) -> Tensor:
    """Sort each pair of channels; ties and pairs with a NaN stay as they are [lipschitz_activation_section].

    The Jacobian is a permutation everywhere. Backward keeps x, nothing else.

    Example:
        >>> sort_pairs(torch.tensor([[3.0, 1.0, 0.0, 2.0]]))
        tensor([[1., 3., 0., 2.]])
    """
    channel_dim = _check_channels("sort_pairs", x, channel_dim)
    return _swap(x, x.detach(), descending, channel_dim)


def householder(x: Tensor, v: Tensor, channel_dim: int = 1) -> Tensor:
    r"""Reflect each pair of channels into the half plane `vᵀx > 0` [lipschitz_activation_section].

    .. math:: y = x - 2 \min(v^T x, 0)\, v

    Args:
        x: input with C channels, C even.
        v: `(C/2, 2)`; unit vectors make it a reflection.
        channel_dim: the dimension of x that holds the channels.

    Example:
        >>> householder(torch.tensor([[-2.0, -3.0], [2.0, -3.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([[ 2., -3.],
                [ 2., -3.]])
    """
    channel_dim = _check_channels("householder", x, channel_dim)
    if v.shape != (x.shape[channel_dim] // 2, 2):
        raise ValueError(
            f"householder needs one vector a pair of channels, v {(x.shape[channel_dim] // 2, 2)}, "
            f"but got v {tuple(v.shape)} for x {tuple(x.shape)}."
        )
    return _reflect(x, v, channel_dim)


def _check_channels(owner: str, x: Tensor, channel_dim: int) -> int:
    """`channel_dim` counted from the front, if it holds pairs."""
    if x.shape[channel_dim] % 2:
        raise ValueError(
            f"{owner} needs an even number of channels, but x {tuple(x.shape)} has {x.shape[channel_dim]} in dimension "
            f"{channel_dim}."
        )
    return channel_dim % x.ndim


def swap_formula(g: Tensor, x: Tensor, descending: bool, channel_dim: int) -> Tensor:
    """`g` with the members of each pair of channels exchanged where those of `x` are out of order."""
    first, second = _split(x, channel_dim).split(1, dim=channel_dim + 1)
    swap = first < second if descending else first > second
    pairs = _split(g, channel_dim)
    return _join(torch.where(swap, pairs.flip(channel_dim + 1), pairs), channel_dim)


def householder_formula(x: Tensor, v: Tensor, channel_dim: int) -> Tensor:
    """`x - 2 min(vᵀx, 0) v` for each pair of channels."""
    pairs, v = _split(x, channel_dim), _align(v, x.ndim, channel_dim)
    t = (v * pairs).sum(channel_dim + 1, keepdim=True)
    return _join(pairs - torch.where(t > 0, 0, 2 * t) * v, channel_dim)


def householder_backward_formula(g: Tensor, x: Tensor, v: Tensor, channel_dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of x and v."""
    g, x, v = _split(g, channel_dim), _split(x, channel_dim), _align(v, x.ndim, channel_dim)
    t, h = (2 * (v * pairs).sum(channel_dim + 1, keepdim=True) for pairs in (x, g))
    t, h = (torch.where(t > 0, 0, value) for value in (t, h))
    gx, gv = g - h * v, -(h * x + t * g)
    return _join(gx, channel_dim), _sum_to_pairs(gv, channel_dim)


def _split(x: Tensor, channel_dim: int) -> Tensor:
    """The channels as (pairs, members): one dimension more."""
    return x.reshape(*x.shape[:channel_dim], x.shape[channel_dim] // 2, 2, *x.shape[channel_dim + 1 :])


def _join(x: Tensor, channel_dim: int) -> Tensor:
    """The opposite of `_split`."""
    return x.reshape(*x.shape[:channel_dim], 2 * x.shape[channel_dim], *x.shape[channel_dim + 2 :])


def _align(v: Tensor, ndim: int, channel_dim: int) -> Tensor:
    """`v (C/2, 2)` shaped to multiply what `_split` makes of a tensor with `ndim` dimensions."""
    return v.view(*v.shape, *[1] * (ndim - channel_dim - 1))


def _sum_to_pairs(z: Tensor, channel_dim: int) -> Tensor:
    """Sum over all dimensions but the pairs and their members: `(C/2, 2)`."""
    others = [dim for dim in range(z.ndim) if dim not in (channel_dim, channel_dim + 1)]
    return z.sum(others) if others else z


def _swap_in_c(g: Tensor, x: Tensor, descending: bool, channel_dim: int) -> Tensor:
    x, (_, outer, channels, inner) = densely(x, channel_dim)
    y = torch.empty_like(x)
    native.call("swap_pairs", (), (outer, channels // 2, inner, int(descending)), like(g, x), x, y)
    return y


def _reflect_in_c(x: Tensor, v: Tensor, channel_dim: int) -> Tensor:
    x, (_, outer, channels, inner) = densely(x, channel_dim)
    y = torch.empty_like(x)
    native.call("householder", (), (outer, channels // 2, inner), x, v.contiguous(), y)
    return y


def _reflect_backward_in_c(g: Tensor, x: Tensor, v: Tensor, channel_dim: int) -> tuple[Tensor, Tensor]:
    x, (_, outer, channels, inner) = densely(x, channel_dim)
    v = v.contiguous()
    gx, gv = torch.empty_like(x), torch.empty_like(v)
    native.call("householder_backward", (), (outer, channels // 2, inner), like(g, x), x, v, gx, gv)
    return gx, gv


def _batched_swap(info, in_dims, g, x, descending, channel_dim):
    g, x = (in_front(t, dim, info.batch_size) for t, dim in zip((g, x), in_dims[:2], strict=True))
    return _swap(g, x, descending, channel_dim + 1), 0


def _fold(t: Tensor, dim: int | None, size: int, channel_dim: int) -> Tensor:
    """`t` with its batch dimension made part of the channels."""
    return in_front(t, dim, size).movedim(0, channel_dim).flatten(channel_dim, channel_dim + 1)


def _unfold(t: Tensor, size: int, channel_dim: int) -> Tensor:
    """The opposite of `_fold`, the batch dimension in front."""
    return t.unflatten(channel_dim, (size, t.shape[channel_dim] // size)).movedim(channel_dim, 0)


def _batched_reflect(info, in_dims, x, v, channel_dim):
    if in_dims[1] is None:
        return _reflect(x.movedim(in_dims[0], 0), v, channel_dim + 1), 0
    size = info.batch_size
    y = _reflect(_fold(x, in_dims[0], size, channel_dim), _fold(v, in_dims[1], size, 0), channel_dim)
    return _unfold(y, size, channel_dim), 0


def _batched_reflect_backward(info, in_dims, g, x, v, channel_dim):
    size = info.batch_size
    g, x = (_fold(t, dim, size, channel_dim) for t, dim in zip((g, x), in_dims[:2], strict=True))
    gx, gv = _reflect_backward(g, x, _fold(v, in_dims[2], size, 0), channel_dim)
    return (_unfold(gx, size, channel_dim), _unfold(gv, size, 0)), (0, 0)


_swap = Kernel(
    "swap_pairs(Tensor g, Tensor x, bool descending, int channel_dim) -> Tensor",
    eager=swap_formula,
    c=_swap_in_c,
    c_function="swap_pairs",
    casts=(0,),
    fake=lambda g, x, descending, channel_dim: torch.empty_like(x, dtype=g.dtype),
    batched=_batched_swap,
)
_reflect = Kernel(
    "householder(Tensor x, Tensor v, int channel_dim) -> Tensor",
    eager=householder_formula,
    c=_reflect_in_c,
    c_function="householder",
    casts=(0,),
    fake=lambda x, v, channel_dim: torch.empty_like(x),
    batched=_batched_reflect,
)
_reflect_backward = Kernel(
    "householder_backward(Tensor g, Tensor x, Tensor v, int channel_dim) -> (Tensor, Tensor)",
    eager=householder_backward_formula,
    c=_reflect_backward_in_c,
    c_function="householder_backward",
    casts=(1, 2),
    fake=lambda g, x, v, channel_dim: (
        torch.empty_like(x),
        torch.empty_like(v, memory_format=torch.contiguous_format),
    ),
    batched=_batched_reflect_backward,
)


@_swap.gradients
class _SwapPairs(torch.autograd.Function):
    """Linear in g, and its own transpose."""

    @staticmethod
    def forward(ctx, g, x, descending, channel_dim):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.rest = descending, channel_dim
        return _swap.evaluate(g, x, descending, channel_dim)

    @staticmethod
    def backward(ctx, h):
        return _swap(h, *ctx.saved_tensors, *ctx.rest), None, None, None

    @staticmethod
    def jvp(ctx, g_t, *_):
        return _swap(g_t, *ctx.saved_tensors, *ctx.rest)


@_reflect.gradients
class _Householder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, v, channel_dim):
        ctx.save_for_backward(x, v)
        ctx.save_for_forward(x, v)
        ctx.channel_dim = channel_dim
        return _reflect.evaluate(x, v, channel_dim)

    @staticmethod
    def backward(ctx, g):
        return *_reflect_backward(g, *ctx.saved_tensors, ctx.channel_dim), None

    @staticmethod
    def jvp(ctx, x_t, v_t, _):
        x, v = ctx.saved_tensors
        pairs = _Reflected(x, v, ctx.channel_dim)
        tangent = torch.zeros_like(x)
        if x_t is not None:
            tangent = tangent + pairs.reflection(x_t)
        if v_t is not None:
            tangent = tangent + pairs.turn(x, v_t)
        return tangent


@_reflect_backward.gradients
class _HouseholderBackward(torch.autograd.Function):
    """Derivatives of gx = g - 2 m (v·g) v and gv = -2 Σ m ((v·g) x + (v·x) g), with m = 1 if x is reflected, else 0."""

    @staticmethod
    def forward(ctx, g, x, v, channel_dim):
        ctx.save_for_backward(g, x, v)
        ctx.save_for_forward(g, x, v)
        ctx.channel_dim = channel_dim
        return _reflect_backward.evaluate(g, x, v, channel_dim)

    @staticmethod
    def backward(ctx, h, hv):
        g, x, v = ctx.saved_tensors
        pairs = _Reflected(x, v, ctx.channel_dim)
        to_g = pairs.reflection(h) + pairs.turn(x, hv)
        return to_g, pairs.turn(g, hv), pairs.gradient(g, h, v) + pairs.gradient(g, x, hv), None

    @staticmethod
    def jvp(ctx, g_t, x_t, v_t, _):
        g, x, v = ctx.saved_tensors
        g_t, x_t, v_t = (torch.zeros_like(w) if t is None else t for t, w in ((g_t, g), (x_t, x), (v_t, v)))
        pairs = _Reflected(x, v, ctx.channel_dim)
        gv_t = pairs.gradient(g_t, x, v) + pairs.gradient(g, x_t, v) + pairs.gradient(g, x, v_t)
        return pairs.reflection(g_t) + pairs.turn(g, v_t), gv_t


class _Reflected:
    """The pairs of `x` that are reflected by `v`, and the bilinear maps of their derivatives, in plain torch."""

    def __init__(self, x: Tensor, v: Tensor, channel_dim: int):
        self.v, self.channel_dim = v, channel_dim
        self.mask = torch.where(self._dot(x, v).detach() > 0, 0, 1).to(x.dtype)

    def reflection(self, z: Tensor) -> Tensor:
        """`z - 2 m (v·z) v`"""
        return z - _join(2 * self.mask * self._dot(z, self.v) * self._along(self.v, z), self.channel_dim)

    def turn(self, z: Tensor, w: Tensor) -> Tensor:
        """`-2 m ((w·z) v + (v·z) w)`, the derivative of `reflection(z)` by v in the direction w."""
        v, along = self._along(self.v, z), self._along(w, z)
        return _join(-2 * self.mask * (self._dot(z, w) * v + self._dot(z, self.v) * along), self.channel_dim)

    def gradient(self, z: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """`-2 Σ m ((w·z) y + (w·y) z)`, the transpose of `turn` in w."""
        z2, y2 = _split(z, self.channel_dim), _split(y, self.channel_dim)
        terms = -2 * self.mask * (self._dot(z, w) * y2 + self._dot(y, w) * z2)
        return _sum_to_pairs(terms, self.channel_dim)

    def _along(self, w: Tensor, z: Tensor) -> Tensor:
        return _align(w, z.ndim, self.channel_dim)

    def _dot(self, z: Tensor, w: Tensor) -> Tensor:
        return (_split(z, self.channel_dim) * self._along(w, z)).sum(self.channel_dim + 1, keepdim=True)
