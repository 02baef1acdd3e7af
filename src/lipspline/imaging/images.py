"""Images to simulate measurements from: brought to values in [0, 1], and back into their unit."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lipspline.formats import ct
from lipspline.formats.volume import Unit, Volume
from lipspline.imaging.problem import EmptySlice


@dataclass(frozen=True)
class OfImages:
    """A scan simulated from images: what it says of its slices is what they say."""

    volume: Volume

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
