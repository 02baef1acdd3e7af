"""Stored pixels of any kind as what a denoiser takes, and back: black is 0 and white is 1, channel by channel."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks

Array = NDArray[Any]
COLOURS = {1: 1, 2: 1, 3: 3, 4: 3}
"""How many channels of an image show it; the last of 2 or 4 is its transparency."""
NOISY = (-1.0, 2.0)
"""No noise that is worth removing carries values in [0, 1] beyond this."""


def white_level(image: Array, white: float | None = None) -> float:
    """The value that stands for white; black is 0.

    If it is not given, it is the largest value of 8 and 16 bit without sign, and 1 for floats, whose values must then
    lie in [-1, 2]: in [0, 1], and a little beyond it for the noise.

    Example:
        >>> white_level(np.zeros((2, 2), np.uint16)), white_level(np.zeros((2, 2), np.uint16), 4095)
        (65535.0, 4095.0)
    """
    if white is not None:
        return _given(image, checks.positive("white", white))
    if image.dtype in (np.uint8, np.uint16):
        return float(np.iinfo(image.dtype).max)
    low, high = float(image.min()), float(image.max())
    if not np.issubdtype(image.dtype, np.floating):
        raise ValueError(
            f"An image of {image.dtype} with values in [{low:g}, {high:g}] does not say which value is white. Give it: "
            f"--white 255, for instance."
        )
    if low < NOISY[0] or high > NOISY[1]:
        raise ValueError(
            f"The image holds {image.dtype} values in [{low:g}, {high:g}], but floats are taken to be 0 for black and "
            f"1 for white. Say which value is white: --white {_round_up(high):g}, for instance."
        )
    return 1.0


def _given(image: Array, white: float) -> float:
    if np.issubdtype(image.dtype, np.integer) and white > np.iinfo(image.dtype).max:
        largest = np.iinfo(image.dtype).max
        raise ValueError(f"white is {white:g}, but the image holds {image.dtype} values, at most {largest}.")
    return white


def _round_up(value: float) -> float:
    """A value that may well have been meant as white."""
    return next((white for white in (1, 255, 4095, 65535) if value <= white), value)


def to_planes(image: Array, white: float) -> Tensor:
    """The channels that show an image `(H, W)` or `(H, W, C)`, as `(C, 1, H, W)` in float32, without transparency."""
    channels = image[..., None] if image.ndim == 2 else image[..., : COLOURS[image.shape[-1]]]
    planes = np.moveaxis(channels, -1, 0).astype(np.float32)
    planes /= np.float32(white)
    return torch.from_numpy(planes)[:, None]


def from_planes(planes: Tensor, image: Array, white: float) -> Array:
    """An image like `image`, of its dtype and shape and with its transparency, that shows `planes` `(C, 1, H, W)`.

    Integers are rounded, and stay between 0 and white, or within what `image` has beyond.
    """
    result = image.copy()
    channels = result[..., None] if image.ndim == 2 else result
    for index, plane in enumerate(planes[:, 0]):
        channels[..., index] = _stored(plane.numpy(), channels[..., index], white)
    return result


def _stored(values: NDArray[np.float32], like: Array, white: float) -> Array:
    scaled = values.astype(np.float64) * white
    if np.issubdtype(like.dtype, np.integer):
        scaled = np.rint(scaled).clip(min(0, int(like.min())), max(white, int(like.max())))
    return scaled.astype(like.dtype)
