"""Sums of linear interpolations along sheared lines and their exact transpose: the inner loop of the Joseph projector.

With positions `n + f = start[i, k] + j step[i, k]`, `0 <= f < 1`,

    out[b, i, j, :] = Σ_k (1 - f) src[b, k, n, :] + f src[b, k, n + 1, :],

where positions outside `[0, L - 1]` add nothing. The last dimension holds four lanes: images that share positions.
"""

import torch
from torch import Tensor

from lipspline.kernels import native
from lipspline.kernels.choice import implementation

LANES = 4


@torch.library.custom_op("lipspline::line_sums", mutates_args=())
def line_sums(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
    """Interpolate along lines and add up: `src (B, K, L, 4) -> (B, I, count, 4)`.

    Args:
        src: floating point, contiguous or not; zeros at both ends of dimension 2 make the sums continuous in `start`.
        start: `(I, K)` float64, position of `j = 0`, in entries of dimension 2 of `src`.
        step: `(I, K)` float64 > 0, from one `j` to the next.
        count: J, how many positions a line has.
    """
    if not _in_c(src):
        return eager_line_sums(src, start, step, count)
    out = src.new_empty(src.shape[0], start.shape[0], count, LANES)
    _run("lipspline_line_sums", src, start, step, out, lines=out, rows=src)
    return out


@torch.library.custom_op("lipspline::line_spread", mutates_args=())
def line_spread(y: Tensor, start: Tensor, step: Tensor, length: int) -> Tensor:
    """The transpose of `line_sums`: `y (B, I, J, 4) -> (B, K, length, 4)`."""
    if not _in_c(y):
        return eager_line_spread(y, start, step, length)
    out = y.new_empty(y.shape[0], start.shape[1], length, LANES)
    _run("lipspline_line_spread", y, start, step, out, lines=y, rows=out)
    return out


def eager_line_sums(src: Tensor, start: Tensor, step: Tensor, count: int) -> Tensor:
    """`line_sums` in plain torch: for devices without a kernel, and the oracle of the tests."""
    K, L = src.shape[1:3]
    rows = torch.arange(K, device=src.device).unsqueeze(1)
    out = src.new_empty(src.shape[0], len(start), count, LANES)
    for i in range(len(start)):
        n, f, inside = _neighbours(start[i], step[i], count, L, src.dtype)
        out[:, i] = ((inside - f) * src[:, rows, n] + f * src[:, rows, n + 1]).sum(dim=1)
    return out


def eager_line_spread(y: Tensor, start: Tensor, step: Tensor, length: int) -> Tensor:
    """`line_spread` in plain torch."""
    K = start.shape[1]
    rows = torch.arange(K, device=y.device).unsqueeze(1)
    flat = y.new_zeros(y.shape[0], K * length, LANES)
    for i in range(len(start)):
        n, f, inside = _neighbours(start[i], step[i], y.shape[2], length, y.dtype)
        where, value = (rows * length + n).flatten(), y[:, i].unsqueeze(1)
        flat.index_add_(1, where, ((inside - f) * value).flatten(1, 2))
        flat.index_add_(1, where + 1, (f * value).flatten(1, 2))
    return flat.unflatten(1, (K, length))


def _in_c(values: Tensor) -> bool:
    return implementation(values) == "c" and values.dtype in (torch.float32, torch.float64)


def _run(name: str, values: Tensor, start: Tensor, step: Tensor, out: Tensor, *, lines: Tensor, rows: Tensor) -> None:
    """Call the C function `name`, which writes `out`; `lines (B, I, J, 4)` and `rows (B, K, L, 4)` say the sizes."""
    dense = [values.contiguous(), start.contiguous(), step.contiguous()]
    sizes = (*lines.shape[:3], *rows.shape[1:3])
    native.run(name, 8 * values.itemsize, *(t.data_ptr() for t in (*dense, out)), *sizes, native.threads())


def _neighbours(
    start: Tensor, step: Tensor, count: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Entry below each position `(K, J)`, the fraction beyond it and 1 inside `[0, length - 1]`, else 0 `(K, J, 1)`."""
    j = torch.arange(count, device=start.device, dtype=start.dtype)
    position = start.unsqueeze(1) + step.unsqueeze(1) * j
    inside = (position >= 0) & (position <= length - 1)
    n = position.floor().clamp(0, length - 2)
    f = torch.where(inside, position - n, 0)
    return n.long(), f.to(dtype).unsqueeze(-1), inside.to(dtype).unsqueeze(-1)


def _sums_backward(ctx, grad: Tensor):
    start, step = ctx.saved_tensors
    return line_spread(grad, start, step, ctx.size), None, None, None


def _spread_backward(ctx, grad: Tensor):
    start, step = ctx.saved_tensors
    return line_sums(grad, start, step, ctx.size), None, None, None


def _remember_lines(ctx, inputs, output):
    values, start, step, _ = inputs
    ctx.save_for_backward(start, step)
    ctx.size = values.shape[2]


@line_sums.register_fake
def _(src, start, step, count):
    return src.new_empty(src.shape[0], start.shape[0], count, LANES)


@line_spread.register_fake
def _(y, start, step, length):
    return y.new_empty(y.shape[0], start.shape[1], length, LANES)


line_sums.register_autograd(_sums_backward, setup_context=_remember_lines)
line_spread.register_autograd(_spread_backward, setup_context=_remember_lines)
