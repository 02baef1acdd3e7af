"""Activations that act on pairs of neighbouring channels (2j, 2j + 1): sorting and reflecting."""

# pyright: reportIncompatibleMethodOverride=false
# (`backward` and `jvp` of an autograd function are declared with *args, but are meant to name them)

import torch
from torch import Tensor

from lipspline.kernels import eager, native
from lipspline.kernels.choice import implementation
from lipspline.kernels.layout import densely, like, working_dtype
from lipspline.kernels.torch_operator import Operator, in_front


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


def _evaluate_swap(g: Tensor, x: Tensor, descending: bool, channel_dim: int) -> Tensor:
    if dtype := working_dtype(g, x):
        return _evaluate_swap(g.to(dtype), x.to(dtype), descending, channel_dim).to(g.dtype)
    if implementation(x) != "c":
        return like(eager.swap_pairs(g, x, descending, channel_dim), x)
    x, (_, outer, channels, inner) = densely(x, channel_dim)
    g, y = like(g, x), torch.empty_like(x)
    if x.numel():
        native.run(
            "lipspline_swap_pairs",
            8 * x.itemsize, g.data_ptr(), x.data_ptr(), outer, channels // 2, inner, descending, y.data_ptr(),
            native.threads(),
        )  # fmt: skip
    return y


def _evaluate_reflect(x: Tensor, v: Tensor, channel_dim: int) -> Tensor:
    if dtype := working_dtype(x, v):
        return _evaluate_reflect(x.to(dtype), v.to(dtype), channel_dim).to(x.dtype)
    if implementation(x) != "c":
        return like(eager.householder(x, v, channel_dim), x)
    x, (_, outer, channels, inner) = densely(x, channel_dim)
    v, y = v.contiguous(), torch.empty_like(x)
    if x.numel():
        native.run(
            "lipspline_householder",
            8 * x.itemsize, x.data_ptr(), v.data_ptr(), outer, channels // 2, inner, y.data_ptr(), native.threads(),
        )  # fmt: skip
    return y


def _evaluate_reflect_backward(g: Tensor, x: Tensor, v: Tensor, channel_dim: int) -> tuple[Tensor, Tensor]:
    if dtype := working_dtype(x, g, v):
        gx, gv = _evaluate_reflect_backward(g.to(dtype), x.to(dtype), v.to(dtype), channel_dim)
        return gx.to(x.dtype), gv.to(v.dtype)
    if implementation(x) != "c":
        gx, gv = eager.householder_backward(g, x, v, channel_dim)
        return like(gx, x), gv
    x, (_, outer, channels, inner) = densely(x, channel_dim)
    g, v, gx = like(g, x), v.contiguous(), torch.empty_like(x)
    if not x.numel():
        return gx, torch.zeros_like(v)
    gv = torch.empty_like(v)
    native.run(
        "lipspline_householder_backward",
        8 * x.itemsize, g.data_ptr(), x.data_ptr(), v.data_ptr(), outer, channels // 2, inner, gx.data_ptr(),
        gv.data_ptr(), native.threads(),
    )  # fmt: skip
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


_swap = Operator(
    "swap_pairs(Tensor g, Tensor x, bool descending, int channel_dim) -> Tensor",
    kernel=_evaluate_swap,
    fake=lambda g, x, descending, channel_dim: torch.empty_like(x, dtype=g.dtype),
    batched=_batched_swap,
)
_reflect = Operator(
    "householder(Tensor x, Tensor v, int channel_dim) -> Tensor",
    kernel=_evaluate_reflect,
    fake=lambda x, v, channel_dim: torch.empty_like(x),
    batched=_batched_reflect,
)
_reflect_backward = Operator(
    "householder_backward(Tensor g, Tensor x, Tensor v, int channel_dim) -> (Tensor, Tensor)",
    kernel=_evaluate_reflect_backward,
    fake=lambda g, x, v, channel_dim: (
        torch.empty_like(x),
        torch.empty_like(v, memory_format=torch.contiguous_format),
    ),
    batched=_batched_reflect_backward,
)


@_swap.derivatives
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


@_reflect.derivatives
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


@_reflect_backward.derivatives
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
        return z - self._join(2 * self.mask * self._dot(z, self.v) * self._align(self.v, z))

    def turn(self, z: Tensor, w: Tensor) -> Tensor:
        """`-2 m ((w·z) v + (v·z) w)`, the derivative of `reflection(z)` by v in the direction w."""
        v, along = self._align(self.v, z), self._align(w, z)
        return self._join(-2 * self.mask * (self._dot(z, w) * v + self._dot(z, self.v) * along))

    def gradient(self, z: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """`-2 Σ m ((w·z) y + (w·y) z)`, the transpose of `turn` in w."""
        z2, y2 = self._split(z), self._split(y)
        terms = -2 * self.mask * (self._dot(z, w) * y2 + self._dot(y, w) * z2)
        return eager.sum_to_pairs(terms, self.channel_dim)

    def _split(self, z: Tensor) -> Tensor:
        return eager.split_pairs(z, self.channel_dim)

    def _join(self, z: Tensor) -> Tensor:
        return eager.join_pairs(z, self.channel_dim)

    def _align(self, w: Tensor, z: Tensor) -> Tensor:
        return eager.align_pairs(w, z.ndim, self.channel_dim)

    def _dot(self, z: Tensor, w: Tensor) -> Tensor:
        return (self._split(z) * self._align(w, z)).sum(self.channel_dim + 1, keepdim=True)
