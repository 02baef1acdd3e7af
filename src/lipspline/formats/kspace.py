"""Measured k-space in one convention, whatever file it came from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lipspline.formats.validation import FileError


@dataclass(frozen=True)
class Kspace:
    """Cartesian k-space of a stack of slices: frequency zero in the middle, zero where nothing was measured."""

    data: Tensor
    """Complex `(S, C, H, W)`; one coil is C = 1. Readout runs along H, phase encoding along W."""
    mask: Tensor
    """Bool `(W,)`, or `(H, W)` where columns are measured in part: what was measured, the same in all slices."""
    maps: Tensor | None = None
    """Coil sensitivities `(S, C, H, W)`, if the file has some."""
    reference: Tensor | None = None
    """Real images `(S, h, w)` that the file gives as the truth."""
    crop: tuple[int, int] | None = None
    """Size of the middle part of the images that matters: readouts are mostly measured over twice the field of view."""
    affine: Tensor | None = None
    """As in `Volume`, for the cropped images."""
    real: bool = False
    """Whether the images are known to be real."""

    @property
    def coils(self) -> int:
        """C."""
        return self.data.shape[1]


def measured(data: Tensor) -> Tensor:
    """Which points of k-space `(..., H, W)` hold a number other than zero, as `(W,)` if whole columns do.

    Example:
        >>> measured(torch.tensor([[[0j, 1j, 0j], [0j, 2j, 0j]]]))
        tensor([False,  True, False])
    """
    points = (data != 0).flatten(end_dim=-3).any(dim=0)
    columns = points.any(dim=0)
    return columns if (points == columns).all() else points


def with_mask(data: Tensor, mask: Tensor | None, source: object) -> tuple[Tensor, Tensor]:
    """k-space that is zero off the mask, and the mask of what was measured: claimed by `mask` and not zero."""
    found = measured(data)
    if not found.any():
        raise FileError(f"The k-space in {source} is zero everywhere: nothing was measured.")
    if mask is None:
        return data, found
    plane = tuple(data.shape[-2:])
    if tuple(mask.shape) not in (plane, plane[-1:]):
        raise FileError(f"The mask {tuple(mask.shape)} does not fit the k-space {plane} in {source}.")
    both = mask & found
    if not both.any():
        raise FileError(f"The k-space in {source} is zero everywhere on its mask.")
    return data * both, both


def transform_partitions(data: Tensor, source: object) -> Tensor:
    """Slices `(S, C, H, W)` of a three-dimensional k-space `(partitions, C, H, W)` that is fully measured in depth."""
    points = (data != 0).any(dim=1)
    if not (points == points.any(dim=0)).all():
        raise FileError(f"The k-space in {source} is undersampled in depth too; only its columns may be.")
    shifted = torch.fft.ifftshift(data, dim=0)
    return torch.fft.fftshift(torch.fft.ifft(shifted, dim=0, norm="ortho"), dim=0)


def from_uncentred(data: Tensor) -> Tensor:
    """k-space with zero in the middle, of image and frequencies, from k-space with zero first, on `(..., H, W)`.

    Example:
        >>> spike = torch.zeros(4, 4)
        >>> spike[2, 2] = 1
        >>> from_uncentred(torch.fft.fft2(spike, norm="ortho")).real.unique()
        tensor([0.2500])
    """
    plane = (-2, -1)
    image = torch.fft.ifftshift(torch.fft.ifft2(data, norm="ortho"), dim=plane)
    return torch.fft.fftshift(torch.fft.fft2(image, norm="ortho"), dim=plane)
