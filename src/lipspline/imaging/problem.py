"""One slice as a problem to be solved, in the scale that denoisers are trained for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lipspline.formats.volume import Unit
from lipspline.functional.quality import psnr, ssim
from lipspline.operators import LinearOperator
from lipspline.report import DataMisfit

Modality = Literal["MR", "CT"]
BRIGHTEST = 1000
"""The scale of a slice is the value that one pixel in so many exceeds."""
SMALLEST = 7  # pixels: the window of SSIM
SMALLEST_SCALE = 1e-30  # squares of what is divided by it must be finite and not zero in float32, with some room
NOISIEST = 1e6  # of simulated noise, for images in [0, 1]


@dataclass(frozen=True)
class Problem:
    """Data `y = H x + n` of one slice, divided by `scale` so that x lies in about [0, 1].

    The noise level of a denoiser is meant for images in [0, 1], so data are divided by the brightness of a direct
    reconstruction of them (`brightness`), and the result is multiplied by it.
    """

    y: Tensor
    """`(1, *H.output_shape)`."""
    H: LinearOperator
    direct: Tensor
    """Zero-filled reconstruction or filtered backprojection, `(1, 1, H, W)`, in the scale of x."""
    scale: float
    noise: float
    """Standard deviation of the noise in `y`: added in a simulation, estimated in a measurement."""
    crop: tuple[int, int] | None = None
    """Size of the middle part of x that is wanted."""
    truth: Tensor | None = None
    """What x should be, `(h, w)`, cropped, real, with values up to about 1."""
    start: Tensor | None = None
    """Where to start from; `α Hᵀ y` if not given."""

    def image(self, x: Tensor) -> Tensor:
        """The wanted part `(h, w)` of an x, still in its scale."""
        return middle(x[0, 0], self.crop)

    def misfit(self, x: Tensor) -> DataMisfit:
        """How far the data that x predicts are from y, and how far noise would put them."""
        size = float(self.y.norm()) or 1.0
        values = float((self.y != 0).sum()) * (2 if self.y.is_complex() else 1)
        with torch.no_grad():
            return DataMisfit(float((self.H.forward(x) - self.y).norm()) / size, self.noise * math.sqrt(values) / size)

    def quality(self, x: Tensor) -> dict[str, float]:
        """PSNR and SSIM of the modulus, profile `paper`, with the maximum of the truth as 1.

        Empty without truth, and without what is not finite.
        """
        if self.truth is None or min(self.truth.shape) < SMALLEST:
            return {}
        image, peak = self.image(x), self.truth.max().clamp_min(torch.finfo(self.truth.dtype).tiny)
        image = image.abs() if image.is_complex() else image
        pair = (image[None, None] / peak, self.truth[None, None] / peak)
        scores = {"psnr": float(psnr(*pair)), "ssim": float(ssim(*pair))}
        return {name: score for name, score in scores.items() if math.isfinite(score)}


class EmptySlice(ValueError):
    """There is nothing in a slice to be reconstructed: its data are zero everywhere.

    Args:
        number: of the slice in its file.
        image: what it shows, zeros `(h, w)`, in the scale of x.
    """

    def __init__(self, number: int, image: Tensor):
        super().__init__(f"Slice {number} is empty: its data are zero everywhere.")
        self.number, self.image = number, image


class Scan(Protocol):
    """A stack of slices to be reconstructed one by one, and what their images will be."""

    @property
    def count(self) -> int:
        """Number of slices."""
        ...

    @property
    def modality(self) -> Modality:
        """What was measured."""
        ...

    @property
    def unit(self) -> Unit:
        """Of the images."""
        ...

    @property
    def affine(self) -> Tensor | None:
        """Where the images lie; as in `data.volume.Volume`."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """Whose images they are; as in `data.volume.Volume`."""
        ...

    @property
    def summary(self) -> str:
        """How the data came about, in a sentence."""
        ...

    def problem(self, i: int) -> Problem:
        """Slice number i; raises `EmptySlice` if its data are zero everywhere."""
        ...

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image `(h, w)` in the scale of x, in the unit of the images."""
        ...


def central_problem(scan: Scan) -> Problem:
    """The slice nearest to the middle that is not empty, from which the strength of regularisation is chosen."""
    middle_slice = scan.count // 2
    for i in sorted(range(scan.count), key=lambda i: (abs(i - middle_slice), i)):
        try:
            return scan.problem(i)
        except EmptySlice:
            continue
    raise ValueError("All slices are empty: the data are zero everywhere, and there is nothing to reconstruct.")


def checked_noise(noise: float) -> float:
    """Return the standard deviation of simulated noise if it is one."""
    if not 0 <= noise <= NOISIEST:
        raise ValueError(f"data_noise must lie between 0 and {NOISIEST:g}, but is {noise!r}.")
    return noise


def checked_brightness(scale: float, number: int) -> float:
    """Return the brightness of a slice if data can be divided by it."""
    if not SMALLEST_SCALE < scale < 1 / SMALLEST_SCALE:
        raise ValueError(
            f"Slice {number} has brightness {scale:g}, beyond what float32 can compute with. Scale the data."
        )
    return scale


def brightness(image: Tensor) -> float:
    """The modulus that one pixel in a thousand exceeds: a maximum that a few odd pixels cannot move.

    Example:
        >>> brightness(torch.arange(2001.0))
        1999.0
    """
    moduli = image.abs().flatten()
    return float(moduli.topk(max(1, len(moduli) // BRIGHTEST)).values[-1])


def middle(image: Tensor, size: tuple[int, int] | None) -> Tensor:
    """The middle part of the last two dimensions; index n // 2 is the middle of n.

    Example:
        >>> middle(torch.arange(5), None), middle(torch.arange(20).view(4, 5), (1, 3))
        (tensor([0, 1, 2, 3, 4]), tensor([[11, 12, 13]]))
    """
    if size is None:
        return image
    (height, width), (h, w) = image.shape[-2:], size
    top, left = height // 2 - h // 2, width // 2 - w // 2
    return image[..., top : top + h, left : left + w]
