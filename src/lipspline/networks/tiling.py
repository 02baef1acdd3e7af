"""Large images in pieces: each tile is cut with a margin so wide that the seams are exact."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.nn.inference import InferenceConv2d
from lipspline.nn.ridge import UnrolledRidge

SMALL = 20480  # numbers up to which torch convolves a single image without oneDNN, with other rounding
ALIGNED = 4  # pixels between places where Winograd's algorithm rounds alike


def receptive_radius(model: nn.Module) -> int:
    """How many pixels beyond a pixel a row of stride-1 convolutions looks at, on each side."""
    radius = 0
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            if layer.stride != (1, 1):
                raise ValueError("Tiling needs convolutions of stride 1; apply the network to the whole image instead.")
            radius += max(d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return math.ceil(radius / 2)


def _wraps(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) and layer.padding_mode == "circular" for layer in model.modules())


@torch.no_grad()
def apply_tiled(
    model: nn.Module, image: Tensor, tile: int = 256, watch: Callable[[int, int], None] | None = None
) -> Tensor:
    """Apply a network of stride-1 convolutions to an image `(B, C, H, W)` tile by tile, with memory that stays flat.

    The result is that of the untiled call: a tile is cut with a margin, and the margin of the result, which is where
    the artificial border can be felt (`reach_of_a_border`), is thrown away. Circular networks see the image wrap
    around, as they do untiled.

    In float32 on the CPU it is equal bit by bit: torch picks the algorithm of a convolution by its size, so all windows
    have one size, and one that torch does not count as small unless the image itself is; and as Winograd's algorithm
    works in squares of 4 x 4 pixels, windows begin where such a square of the whole image does. Elsewhere it is equal
    up to the round-off of the algorithms that were picked.

    Args:
        model: keeps the size of its input.
        image: the whole image.
        tile: side of the part of each tile that is kept, at least: it becomes a multiple of 4, and more where windows
            would be small.
        watch: called with the tiles done and their number after each of them.
    """
    checks.at_least("tile", tile, 1)
    if any(isinstance(layer, UnrolledRidge) for layer in model.modules()):  # it sees far, and its memory is flat anyway
        return model(image)
    tile, margin, wraps = _aligned(tile), _aligned(reach_of_a_border(model)), _wraps(model)
    height, width = image.shape[-2:]
    while _pixels(height, tile, margin) * _pixels(width, tile, margin) <= SMALL and tile < max(height, width):
        tile *= 2
    if max(height, width) <= tile:
        return model(image)
    out: Tensor | None = None
    windows = [_windows(size, tile, margin, wraps) for size in (height, width)]
    pairs = list(itertools.product(*windows))
    for number, ((y, rows), (x, columns)) in enumerate(pairs, start=1):
        part: Tensor = model(image[..., rows, :][..., columns].contiguous())
        out = part.new_empty(*part.shape[:-2], height, width) if out is None else out
        out[..., y.kept, x.kept] = part[..., y.within, x.within]
        if watch is not None:
            watch(number, len(pairs))
    assert out is not None
    return out


def reach_of_a_border(model: nn.Module) -> int:
    """How many pixels from the border of a window results may differ from those of the whole image, if only by a bit.

    This is the receptive radius, and more with Winograd's algorithm: all results of a square are sums over all its
    inputs, of which some cancel, but for round-off.
    """
    return max(_reach(model, first) for first in range(1, ALIGNED + 1))


def _reach(model: nn.Module, first: int) -> int:
    """The same for a window whose border cuts squares so that `first` of their pixels are left."""
    reach = 0
    for layer in model.modules():
        if isinstance(layer, InferenceConv2d) and layer.has_algorithm:
            reach = max(first + _aligned(reach - first), reach + 1)
        elif isinstance(layer, nn.Conv2d):
            reach += receptive_radius(layer)
    return reach


def _aligned(pixels: int) -> int:
    return max(-(-pixels // ALIGNED) * ALIGNED, 0)


@dataclass(frozen=True)
class _Cut:
    """Along one axis: the pixels of the image that a window is responsible for, and where they are within it."""

    kept: slice
    within: slice


def _pixels(size: int, tile: int, margin: int) -> int:
    """Length of a window along an axis of the image; a short axis is taken whole.

    It leaves a multiple of `ALIGNED`, so that a window at the end of the axis begins at one too.
    """
    length = tile + 2 * margin
    return size if size <= tile else min(length + (size - length) % ALIGNED, size)


def _windows(size: int, tile: int, margin: int, wraps: bool) -> Iterator[tuple[_Cut, slice | Tensor]]:
    """Windows of one length that together are responsible for a whole axis, and the pixels each of them shows."""
    if size <= tile:
        yield _Cut(slice(0, size), slice(0, size)), slice(0, size)
        return
    length = tile + 2 * margin if wraps else _pixels(size, tile, margin)
    for start in range(0, size, tile):
        first = start - margin if wraps else min(max(start - margin, 0), size - length)
        stop = min(start + tile, size)
        shown = torch.arange(first, first + length) % size if wraps else slice(first, first + length)
        yield _Cut(slice(start, stop), slice(start - first, stop - first)), shown
