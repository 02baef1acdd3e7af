"""`piecewise_affine` for GPUs, in Triton. Import it only where it runs: the import needs the package triton.

Memory is seen as (groups, outer, channels, inner), dense, as by the C kernels. Backward gives each program one channel
and a piece of its elements. The program keeps the sums of all regions in registers, adding up a tile of elements at a
time by comparing their regions with all regions, and stores them once: no atomic operations, and the same result at
every run.
"""

# pyright: reportArgumentType=false
# (constants are passed as numbers, though declared as tl.constexpr)

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipspline.kernels.native import Sizes

TILE = 8192  # elements times regions that a program compares at a time: 64 numbers a thread
SEPARATELY = {"enable_fp_fusion": False}  # round products and sums one by one, as torch does: the same regions
PIECE = 16384  # elements of a channel that a program of backward adds up


@triton.jit
def _region(x, scale, offset: tl.constexpr, R):
    """clamp(floor(scale x + offset), 0, R - 1); NaN falls into region 0."""
    t = scale * x + offset
    t = tl.where(t > 0, t, 0.0)  # false for NaN
    return tl.where(t < R - 1, t, R - 1.0).to(tl.int32)


@triton.jit
def _forward(
    x_ptr, b_ptr, s_ptr, scale_ptr, y_ptr, n, outer, channels, inner, R, OFFSET: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    row = at // (outer * channels * inner) * channels + at // inner % channels
    x = tl.load(x_ptr + at, inside, 0.0)
    scale = tl.load(scale_ptr + row, inside, 0.0)
    entry = row * R + _region(x, scale, OFFSET, R)
    y = tl.load(b_ptr + entry, inside, 0.0) + tl.load(s_ptr + entry, inside, 0.0) * x
    tl.store(y_ptr + at, y, inside)


@triton.jit
def _backward(
    g_ptr, x_ptr, s_ptr, scale_ptr, gx_ptr, sums_ptr, outer, channels, inner, R, pieces,
    OFFSET: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1).to(tl.int64)
    start = (row // channels * outer * channels + row % channels) * inner
    scale = tl.load(scale_ptr + row)
    regions = tl.arange(0, WIDTH)
    sum_g = tl.zeros([WIDTH], dtype=scale.dtype)
    sum_gx = tl.zeros([WIDTH], dtype=scale.dtype)
    end = tl.minimum((piece + 1) * PIECE, outer * inner)
    for tile in range(piece * PIECE, end, BLOCK):
        e = tile + tl.arange(0, BLOCK)
        inside = e < end
        at = start + e // inner * channels * inner + e % inner
        x = tl.load(x_ptr + at, inside, 0.0)
        g = tl.load(g_ptr + at, inside, 0.0)
        region = _region(x, scale, OFFSET, R)
        s = tl.load(s_ptr + row * R + region, inside, 0.0)
        tl.store(gx_ptr + at, s * g, inside)
        here = (region[:, None] == regions[None, :]) & inside[:, None]
        sum_g += tl.sum(tl.where(here, g[:, None], 0.0), 0)
        sum_gx += tl.sum(tl.where(here, (g * x)[:, None], 0.0), 0)
    place = sums_ptr + (row * pieces + piece) * R + regions
    tl.store(place, sum_g, regions < R)
    tl.store(place + tl.num_programs(0) * pieces * R, sum_gx, regions < R)


def forward(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, sizes: Sizes, y: Tensor) -> None:
    """Write b + s x into `y`; all tensors dense and not empty."""
    _, outer, channels, inner = sizes
    block = 1024
    _forward[(triton.cdiv(x.numel(), block),)](
        x, b, s, scale, y, x.numel(), outer, channels, inner, s.shape[-1], OFFSET=offset, BLOCK=block, **SEPARATELY
    )


def backward(
    g: Tensor, x: Tensor, s: Tensor, scale: Tensor, offset: float, sizes: Sizes, gx: Tensor
) -> tuple[Tensor, Tensor]:
    """Write s g into `gx` and return the sums of g and of g x, shaped like `s`."""
    groups, outer, channels, inner = sizes
    rows, R = groups * channels, s.shape[-1]
    width = triton.next_power_of_2(R)
    pieces = triton.cdiv(outer * inner, PIECE)
    sums = torch.empty(2, *s.shape[:-1], pieces, R, dtype=x.dtype, device=x.device)
    _backward[(rows, pieces)](
        g, x, s, scale, gx, sums, outer, channels, inner, R, pieces,
        OFFSET=offset, WIDTH=width, BLOCK=max(16, TILE // width), PIECE=PIECE, **SEPARATELY,
    )  # fmt: skip
    return sums[0].sum(-2), sums[1].sum(-2)
