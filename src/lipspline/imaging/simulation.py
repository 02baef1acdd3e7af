"""What scans share that are simulated from images: the images in the scale of priors, and the noise that is added."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from lipspline.formats import ct
from lipspline.formats.volume import Unit, Volume
from lipspline.imaging.problem import EmptySlice

NOISIEST = 1e6  # of simulated noise, for images in [0, 1]


@dataclass(frozen=True)
class OfImages:
    """What the scans that are simulated from images share: count, unit, place and identity are those of the images."""

    volume: Volume

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing: the images are what is measured."""
        return ()

    @property
    def count(self) -> int:
        """Number of slices."""
        return len(self.volume.slices)

    @property
    def unit(self) -> Unit:
        """Of the images."""
        return self.volume.unit

    @property
    def affine(self) -> Tensor | None:
        """Where the images lie."""
        return self.volume.affine

    @property
    def identity(self) -> Mapping[str, str]:
        """Whose images they are."""
        return self.volume.identity


def normalized(volume: Volume, i: int, number: int) -> tuple[Tensor, float]:
    """Slice i divided by its maximum, and that maximum; Hounsfield units become attenuations, 0 for air.

    Args:
        number: of the slice in its file, for errors.

    Example:
        >>> import torch
        >>> normalized(Volume(torch.tensor([[[-1000.0, 0.0, 1000.0]]]), unit="hounsfield"), 0, 0)
        (tensor([[0.0000, 0.5000, 1.0000]]), 2.0)
    """
    image = volume.slices[i]
    image = ct.attenuation(image) if volume.unit == "hounsfield" else image
    if image.min() < 0:
        raise ValueError(
            f"Slice {number} has values down to {float(image.min()):g}, but images to simulate from begin at zero. "
            f"Shift them first."
        )
    scale = float(image.max())
    if scale == 0:
        raise EmptySlice(number, image)
    return image / scale, scale


def in_unit(image: Tensor, scale: float, unit: Unit) -> Tensor:
    """Undo `normalized`."""
    return ct.hounsfield(image * scale) if unit == "hounsfield" else image * scale


def add_kspace_noise(y: Tensor, mask: Tensor, noise: float, stream: torch.Generator) -> Tensor:
    """k-space with noise of standard deviation `noise` on real and imaginary part of what was measured.

    Args:
        y: complex `(..., H, W)` with frequency zero first.
        mask: `(W,)` or `(H, W)` with frequency zero in the middle.
        stream: see `_infra.randomness.generator`.
    """
    real, imaginary = (torch.randn(y.shape, generator=stream) for _ in range(2))
    return y + noise * torch.complex(real, imaginary) * torch.fft.ifftshift(torch.atleast_2d(mask))


def add_sinogram_noise(y: Tensor, noise: float, stream: torch.Generator) -> Tensor:
    """Line integrals with noise of standard deviation `noise`."""
    return y + noise * torch.randn(y.shape, generator=stream)


def checked_noise(noise: float) -> float:
    """Return the standard deviation of simulated noise if it is one."""
    if not 0 <= noise <= NOISIEST:
        raise ValueError(f"data_noise must lie between 0 and {NOISIEST:g}, but is {noise!r}.")
    return noise


def square(image: Tensor) -> Tensor:
    """The image in the middle of a square of zeros, so that `problem.middle` finds it again."""
    size = max(image.shape)
    (above, left), (below, right) = zip(*(_margins(size, n) for n in image.shape), strict=True)
    return pad(image, (left, right, above, below))


def _margins(size: int, n: int) -> tuple[int, int]:
    before = size // 2 - n // 2
    return before, size - n - before
