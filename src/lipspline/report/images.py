"""Images for a page: the window of grey values and the colours of errors."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]
BRIGHTEST = 200  # one pixel in so many is brighter than the window that is shown first
# From black over violet and orange to pale yellow, even in lightness: also readable in grey and by the colour-blind.
ANCHORS = ("#03040c", "#2b0b57", "#65156e", "#9f2a63", "#d44842", "#f57d15", "#fac228", "#fcffa4")


@dataclass(frozen=True)
class Window:
    """The range of values shown, from black to white."""

    low: float
    high: float

    def bytes(self, pixels: Tensor) -> Bytes:
        """Pixels `(H, W)` as shades 0 to 255; what lies outside the window is clipped.

        Example:
            >>> Window(0.0, 2.0).bytes(torch.tensor([[-1.0, 1.0, 3.0]]))
            array([[  0, 128, 255]], dtype=uint8)
        """
        share = (pixels.double() - self.low) / (self.high - self.low)
        return (255 * share.clamp(0, 1)).round().to(torch.uint8).cpu().numpy()


def spanning(pixels: Tensor) -> Window:
    """The window from 0, or the least value if that is negative, to the greatest value.

    Example:
        >>> spanning(torch.tensor([0.5, 2.0])), spanning(torch.zeros(2))
        (Window(low=0.0, high=2.0), Window(low=0.0, high=1.0))
    """
    low, high = min(0.0, float(pixels.min())), float(pixels.max())
    return Window(low, high if high > low else low + 1.0)


def robust_window(pixels: Tensor) -> Window:
    """The window that all but the brightest pixels fill: a few bright ones do not turn the rest black.

    It ends at the value that one pixel in 200 exceeds, and begins at 0, or where one in 200 lies below if that is less.

    Example:
        >>> robust_window(torch.cat([torch.full((600,), 0.5), torch.tensor([50.0])]))
        Window(low=0.0, high=0.5)
    """
    values = pixels.double().flatten()
    count = max(1, len(values) // BRIGHTEST)
    high, low = float(values.topk(count).values[-1]), float(values.topk(count, largest=False).values[-1])
    low = min(0.0, low)
    return Window(low, high) if high > low else spanning(pixels)


def magnitude(image: Tensor) -> Tensor:
    """What is shown of an image `(..., H, W)` of which all but the last sizes are 1: itself, or its modulus.

    Example:
        >>> magnitude(torch.tensor([[[3 + 4j]]]))
        tensor([[5.]])
    """
    if image.ndim < 2 or image.numel() != image.shape[-1] * image.shape[-2]:
        raise ValueError(
            f"A page shows one image (H, W), but got shape {tuple(image.shape)}. Pick one of the batch or the volume."
        )
    plane = image.detach().reshape(image.shape[-2:])
    return plane.abs() if plane.is_complex() else plane


def palette() -> Bytes:
    """256 colours `(256, 3)` from the anchors, from no error to the largest."""
    anchors = np.array([[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in ANCHORS])
    where, places = np.linspace(0, len(anchors) - 1, 256), np.arange(len(anchors))
    return np.stack([np.interp(where, places, column) for column in anchors.T], axis=1).round().astype(np.uint8)
