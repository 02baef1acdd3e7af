# pyright: reportIncompatibleMethodOverride=false
# torch spells out the arguments of `backward` and `jvp` in subclasses of its autograd function
"""Sums of linear interpolations along sheared lines and their exact transpose: the inner loop of the Joseph projector.

With positions `n + f = start[i, k] + j step[i, k]`, `0 <= f <= 1`,

    out[b, i, j, :] = Σ_k (1 - f) src[b, k, n, :] + f src[b, k, n + 1, :],

where positions outside `[0, L - 1]` add nothing. The last dimension holds four lanes: images that share positions.
"""

import torch
from torch import Tensor

from lipspline.kernels import native
from lipspline.kernels.dispatch import Kernel

LANES = 4


def line_sums(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
    """Interpolate along lines and add up: `src (B, K, L, 4) -> (B, I, count, 4)`, linear in `src`.

    Args:
        src: zeros at both ends of dimension 2 make the sums continuous in `start`.
        start: `(I, K)` float64, position of `j = 0`, in entries of dimension 2 of `src`.
        step: `(I, K)` float64 > 0, from one `j` to the next.
        count: J, how many positions a line has.
    """
    return _sums(src, start, step, count)


def line_spread(y: Tensor, start: Tensor, step: Tensor, length: int) -> Tensor:
    """The transpose of `line_sums`: `y (B, I, J, 4) -> (B, K, length, 4)`, linear in `y`."""
    return _spread(y, start, step, length)


def eager_line_sums(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
    """`line_sums` in plain torch: for devices without a kernel, and the oracle of the tests."""
    K, L = src.shape[1:3]
    flat = src.flatten(1, 2)
    out = src.new_empty(src.shape[0], len(start), count, LANES)
    for i in range(len(start)):
        below, left, right = _neighbours(start[i], step[i], count, L, src.dtype)
        values = left * flat.index_select(1, below) + right * flat.index_select(1, below + 1)
        out[:, i] = values.unflatten(1, (K, count)).sum(dim=1)
    return out


def eager_line_spread(y: Tensor, start: Tensor, step: Tensor, length: int) -> Tensor:
    """`line_spread` in plain torch."""
    K = start.shape[1]
    flat = y.new_zeros(y.shape[0], K * length, LANES)
    for i in range(len(start)):
        below, left, right = _neighbours(start[i], step[i], y.shape[2], length, y.dtype)
        values = y[:, i].repeat(1, K, 1)
        flat.index_add_(1, below, left * values)
        flat.index_add_(1, below + 1, right * values)
    return flat.unflatten(1, (K, length))


def _neighbours(
    start: Tensor, step: Tensor, count: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """For the positions on line i: the entry below among all K·length `(K·J,)`, its weight and that of the next one."""
    j = torch.arange(count, device=start.device, dtype=start.dtype)
    position = start.unsqueeze(1) + step.unsqueeze(1) * j
    inside = (position >= 0) & (position <= length - 1)
    below = position.floor().clamp(0, length - 2)
    right = torch.where(inside, position - below, 0).to(dtype)
    first = torch.arange(len(start), device=start.device).unsqueeze(1) * length
    return (first + below.long()).flatten(), (inside.to(dtype) - right).view(-1, 1), right.view(-1, 1)


def _sums_in_c(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
    out = src.new_empty(src.shape[0], start.shape[0], count, LANES)
    sizes = (*out.shape[:3], *src.shape[1:3])
    native.call("line_sums", (), sizes, src.contiguous(), start.contiguous(), step.contiguous(), out)
    return out


def _spread_in_c(y: Tensor, start: Tensor, step: Tensor, length: int) -> Tensor:
    out = y.new_empty(y.shape[0], start.shape[1], length, LANES)
    sizes = (*y.shape[:3], *out.shape[1:3])
    native.call("line_spread", (), sizes, y.contiguous(), start.contiguous(), step.contiguous(), out)
    return out


def _fake_sums(src, start, step, count):
    return src.new_empty(src.shape[0], start.shape[0], count, LANES)


def _fake_spread(y, start, step, length):
    return y.new_empty(y.shape[0], start.shape[1], length, LANES)


def _batched_sums(info, in_dims, src, start, step, count):
    src = src.movedim(in_dims[0], 0)
    return _sums(src.flatten(0, 1), start, step, count).unflatten(0, src.shape[:2]), 0


def _batched_spread(info, in_dims, y, start, step, length):
    y = y.movedim(in_dims[0], 0)
    return _spread(y.flatten(0, 1), start, step, length).unflatten(0, y.shape[:2]), 0


_sums = Kernel(
    "line_sums(Tensor src, Tensor start, Tensor step, int count) -> Tensor",
    eager=eager_line_sums,
    c=_sums_in_c,
    c_function="line_sums",
    alike=False,
    fake=_fake_sums,
    batched=_batched_sums,
)
_spread = Kernel(
    "line_spread(Tensor y, Tensor start, Tensor step, int length) -> Tensor",
    eager=eager_line_spread,
    c=_spread_in_c,
    c_function="line_spread",
    alike=False,
    fake=_fake_spread,
    batched=_batched_spread,
)


def _remember_lines(ctx, values: Tensor, start: Tensor, step: Tensor, size: int) -> None:
    ctx.save_for_backward(start, step)
    ctx.save_for_forward(start, step)
    ctx.size, ctx.transposed_size = size, values.shape[2]


@_sums.gradients
class _LineSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, src, start, step, count):
        _remember_lines(ctx, src, start, step, count)
        return _sums.evaluate(src, start, step, count)

    @staticmethod
    def backward(ctx, *gradients):
        return _spread(gradients[0], *ctx.saved_tensors, ctx.transposed_size), None, None, None

    @staticmethod
    def jvp(ctx, *tangents):
        return _sums(tangents[0], *ctx.saved_tensors, ctx.size)


@_spread.gradients
class _LineSpread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, start, step, length):
        _remember_lines(ctx, y, start, step, length)
        return _spread.evaluate(y, start, step, length)

    @staticmethod
    def backward(ctx, *gradients):
        return _sums(gradients[0], *ctx.saved_tensors, ctx.transposed_size), None, None, None

    @staticmethod
    def jvp(ctx, *tangents):
        return _spread(tangents[0], *ctx.saved_tensors, ctx.size)
