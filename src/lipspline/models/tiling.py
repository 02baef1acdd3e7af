"""Large images in pieces: each tile is cut with the margin the network looks at, so that the seams are exact."""

import math

import torch
from torch import Tensor, nn

from lipspline import _checks


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
def apply_tiled(model: nn.Module, image: Tensor, tile: int = 256) -> Tensor:
    """Apply a network of stride-1 convolutions to an image `(B, C, H, W)` tile by tile, with memory that stays flat.

    The result is that of the untiled call: a tile is cut with a margin of the receptive radius, and the margin of the
    result, which is where the artificial border can be felt, is thrown away. Circular networks see the image wrap
    around, as they do untiled.

    Args:
        model: keeps the size of its input.
        image: the whole image.
        tile: side of the part of each tile that is kept.
    """
    _checks.at_least("tile", tile, 1)
    height, width = image.shape[-2:]
    if max(height, width) <= tile:
        return model(image)
    margin, wraps = receptive_radius(model), _wraps(model)
    out: Tensor | None = None
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            bottom, right = min(top + tile, height), min(left + tile, width)
            rows, y = _span(top, bottom, height, margin, wraps)
            columns, x = _span(left, right, width, margin, wraps)
            result: Tensor = model(image[..., rows, :][..., columns].contiguous())
            out = result.new_empty(*result.shape[:-2], height, width) if out is None else out
            out[..., top:bottom, left:right] = result[..., y : y + bottom - top, x : x + right - left]
    assert out is not None
    return out


def _span(start: int, stop: int, size: int, margin: int, wraps: bool) -> tuple[slice | Tensor, int]:
    """Indices of a tile with its margin along one axis, and where the tile begins among them."""
    if wraps:
        return torch.arange(start - margin, stop + margin) % size, margin
    first = max(start - margin, 0)
    return slice(first, min(stop + margin, size)), start - first
