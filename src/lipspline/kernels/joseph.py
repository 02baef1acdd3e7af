# pyright: reportIncompatibleMethodOverride=false
# torch spells out the arguments of `backward` and `jvp` in subclasses of its autograd function
"""Sums of linear interpolations along lines and their exact transpose: the inner loop of the Joseph projector.

    out[b, i, j, :] = Σ_k (1 - f) src[b, k, n, :] + f src[b, k, n + 1, :],        0 <= f <= 1,

where positions `n + f` outside `[0, L - 1]` add nothing. In `line_sums` they are `start[i, k] + j step[i, k]`: rays of
one direction, from one to the next. In `ray_sums` they are `start[i, j] + k step[i, j]`: any straight rays, from row to
row. The last dimension holds four lanes: images that share positions.
"""

from collections.abc import Callable, Iterable

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
    return _line_sums(src, start, step, count)


def line_spread(y: Tensor, start: Tensor, step: Tensor, length: int) -> Tensor:
    """The transpose of `line_sums`: `y (B, I, J, 4) -> (B, K, length, 4)`, linear in `y`."""
    return _line_spread(y, start, step, length)


def ray_sums(src: Tensor, start: Tensor, step: Tensor) -> Tensor:
    """Interpolate along rays and add up: `src (B, K, L, 4) -> (B, I, J, 4)`, linear in `src`.

    Args:
        src: zeros at both ends of dimension 2 make the sums continuous in `start`.
        start: `(I, J)` float64, position in row 0, in entries of dimension 2 of `src`.
        step: `(I, J)` float64, from one row to the next, of either sign.
    """
    return _ray_sums(src, start, step, start.shape[1])


def ray_spread(y: Tensor, start: Tensor, step: Tensor, rows: int, length: int) -> Tensor:
    """The transpose of `ray_sums`: `y (B, I, J, 4) -> (B, rows, length, 4)`, linear in `y`."""
    return _ray_spread(y, start, step, rows, length)


# In plain torch: for devices without a kernel, and the oracle of the tests


def eager_line_sums(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
    """`line_sums` in plain torch."""
    j = torch.arange(count, device=start.device, dtype=start.dtype)
    return _sums(src, (first.unsqueeze(1) + each.unsqueeze(1) * j for first, each in zip(start, step, strict=True)))


def eager_line_spread(y: Tensor, start: Tensor, step: Tensor, length: int) -> Tensor:
    """`line_spread` in plain torch."""
    j = torch.arange(y.shape[2], device=start.device, dtype=start.dtype)
    positions = (first.unsqueeze(1) + each.unsqueeze(1) * j for first, each in zip(start, step, strict=True))
    return _spread(y, positions, start.shape[1], length)


def eager_ray_sums(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
    """`ray_sums` in plain torch; `count` is the number of rays in a group."""
    k = torch.arange(src.shape[1], device=start.device, dtype=start.dtype).unsqueeze(1)
    return _sums(src, (first + k * each for first, each in zip(start, step, strict=True)))


def eager_ray_spread(y: Tensor, start: Tensor, step: Tensor, rows: int, length: int) -> Tensor:
    """`ray_spread` in plain torch."""
    k = torch.arange(rows, device=start.device, dtype=start.dtype).unsqueeze(1)
    return _spread(y, (first + k * each for first, each in zip(start, step, strict=True)), rows, length)


def _sums(src: Tensor, positions: Iterable[Tensor]) -> Tensor:
    """For the positions `(K, J)` of each i."""
    K, L = src.shape[1:3]
    flat, sums = src.flatten(1, 2), []
    for position in positions:
        below, left, right = _neighbours(position, L, src.dtype)
        values = left * flat.index_select(1, below) + right * flat.index_select(1, below + 1)
        sums.append(values.unflatten(1, (K, position.shape[1])).sum(dim=1))
    return torch.stack(sums, dim=1)


def _spread(y: Tensor, positions: Iterable[Tensor], rows: int, length: int) -> Tensor:
    flat = y.new_zeros(y.shape[0], rows * length, LANES)
    for i, position in enumerate(positions):
        below, left, right = _neighbours(position, length, y.dtype)
        values = y[:, i].repeat(1, rows, 1)
        flat.index_add_(1, below, left * values)
        flat.index_add_(1, below + 1, right * values)
    return flat.unflatten(1, (rows, length))


def _neighbours(position: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """For the positions `(K, J)`: the entry below among all K·length `(K·J,)`, its weight and that of the next one."""
    inside = (position >= 0) & (position <= length - 1)
    below = position.floor().clamp(0, length - 2)
    right = torch.where(inside, position - below, 0).to(dtype)
    first = torch.arange(len(position), device=position.device).unsqueeze(1) * length
    return (first + below.long()).flatten(), (inside.to(dtype) - right).view(-1, 1), right.view(-1, 1)


# In C


def _sums_in_c(name: str) -> Callable[..., Tensor]:
    def sums(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
        out = src.new_empty(src.shape[0], start.shape[0], count, LANES)
        sizes = (*out.shape[:3], *src.shape[1:3])
        native.call(name, (), sizes, src.contiguous(), start.contiguous(), step.contiguous(), out)
        return out

    return sums


def _spread_in_c(name: str, y: Tensor, start: Tensor, step: Tensor, rows: int, length: int) -> Tensor:
    out = y.new_empty(y.shape[0], rows, length, LANES)
    sizes = (*y.shape[:3], *out.shape[1:3])
    native.call(name, (), sizes, y.contiguous(), start.contiguous(), step.contiguous(), out)
    return out


def _fake_sums(src, start, step, count):
    return src.new_empty(src.shape[0], start.shape[0], count, LANES)


def _kernel(schema: str, name: str, eager: Callable[..., Tensor], c: Callable[..., Tensor], fake: Callable) -> Kernel:
    """A kernel that is linear in its first tensor, whose first dimension is a batch."""

    def batched(info, in_dims, values, start, step, *sizes):
        values = values.movedim(in_dims[0], 0)
        return kernel(values.flatten(0, 1), start, step, *sizes).unflatten(0, values.shape[:2]), 0

    kernel = Kernel(schema, eager=eager, c=c, c_function=name, alike=False, fake=fake, batched=batched)
    return kernel


_line_sums = _kernel(
    "line_sums(Tensor src, Tensor start, Tensor step, int count) -> Tensor",
    "line_sums",
    eager_line_sums,
    _sums_in_c("line_sums"),
    _fake_sums,
)
_line_spread = _kernel(
    "line_spread(Tensor y, Tensor start, Tensor step, int length) -> Tensor",
    "line_spread",
    eager_line_spread,
    lambda y, start, step, length: _spread_in_c("line_spread", y, start, step, start.shape[1], length),
    lambda y, start, step, length: y.new_empty(y.shape[0], start.shape[1], length, LANES),
)
_ray_sums = _kernel(
    "ray_sums(Tensor src, Tensor start, Tensor step, int count) -> Tensor",
    "ray_sums",
    eager_ray_sums,
    _sums_in_c("ray_sums"),
    _fake_sums,
)
_ray_spread = _kernel(
    "ray_spread(Tensor y, Tensor start, Tensor step, int rows, int length) -> Tensor",
    "ray_spread",
    eager_ray_spread,
    lambda y, start, step, rows, length: _spread_in_c("ray_spread", y, start, step, rows, length),
    lambda y, start, step, rows, length: y.new_empty(y.shape[0], rows, length, LANES),
)


# Derivatives: each of a pair is the gradient of the other


def _differentiate(kernel: Kernel, transpose: Callable[..., Tensor], sizes: int) -> None:
    """Give a linear kernel its derivatives.

    Args:
        transpose: `(gradient, start, step, shape)` with the shape of what the kernel was applied to.
        sizes: how many integers the kernel takes at its end.
    """

    @kernel.gradients
    class _Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, start, step, *given):
            ctx.save_for_backward(start, step)
            ctx.save_for_forward(start, step)
            ctx.given, ctx.shape = given, values.shape
            return kernel.evaluate(values, start, step, *given)

        @staticmethod
        def backward(ctx, *gradients):
            return transpose(gradients[0], *ctx.saved_tensors, ctx.shape), *[None] * (2 + sizes)

        @staticmethod
        def jvp(ctx, *tangents):
            return kernel(tangents[0], *ctx.saved_tensors, *ctx.given)


_differentiate(_line_sums, lambda y, start, step, shape: _line_spread(y, start, step, shape[2]), 1)
_differentiate(_line_spread, lambda x, start, step, shape: _line_sums(x, start, step, shape[2]), 1)
_differentiate(_ray_sums, lambda y, start, step, shape: _ray_spread(y, start, step, shape[1], shape[2]), 1)
_differentiate(_ray_spread, lambda x, start, step, shape: _ray_sums(x, start, step, shape[2]), 2)
