"""MRI slices as problems: measured k-space, or k-space simulated from images [sec:exp_pnp]."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.randomness import generator
from lipspline.formats.kspace import Kspace
from lipspline.formats.volume import Unit
from lipspline.imaging.problem import (
    EmptySlice,
    Modality,
    OfImages,
    Problem,
    add_kspace_noise,
    brightness,
    checked_brightness,
    checked_noise,
    in_unit,
    middle,
    normalized,
)
from lipspline.operators import MRI, LinearOperator, MultiCoilMRI, cartesian_mask, espirit
from lipspline.operators.espirit import UNCROPPED
from lipspline.operators.mri import centred_ifft, uncentred_fft

Coils = Literal["auto", "espirit"]
COILS = ("auto", "espirit")
BLIND = 1e-3  # of the largest root sum of squares: below it a pixel is seen by no coil
DETERMINED = 0.95  # of 1: the eigenvalue of ESPIRiT that well determined maps reach somewhere
FILTERED = 0.2
"""Ends of the field of view with less noise than this, over that of high frequencies, were set to zero by a filter."""
GAUSSIAN_MEDIAN = 0.6745  # of the modulus of a standard normal number


@dataclass(frozen=True)
class Undersampling:
    """Which columns of k-space are kept: those of `mask`, or random ones [sec:exp_pnp]."""

    mask: Tensor | None = None
    acceleration: float = 4.0
    center: float = 0.08
    seed: int = 0

    def of(self, plane: tuple[int, int]) -> Tensor:
        """The mask for k-space of this height and width."""
        if self.mask is None:
            return cartesian_mask(plane[1], self.acceleration, self.center, self.seed)
        if tuple(self.mask.shape) not in (plane, plane[1:]):
            raise ValueError(f"The mask has shape {tuple(self.mask.shape)}, but k-space has {plane}.")
        return self.mask

    def __str__(self) -> str:
        if self.mask is not None:
            return f"undersampled by a mask that keeps {100 * self.mask.double().mean():.0f} %"
        return f"undersampled {self.acceleration:g} times, {100 * self.center:g} % of the columns in the middle"


@dataclass(frozen=True)
class MeasuredMRI:
    """Slices of measured k-space.

    Args:
        coils: "auto" takes the sensitivities of the file, and without them estimates them by ESPIRiT, as "espirit"
            does; or the maps themselves, `(S, C, H, W)` or `(1, C, H, W)`.
        undersampling: throw away a part of what was measured, and take what all of it gives for the truth.
        first: number of the first slice in its file, for errors.
    """

    kspace: Kspace
    coils: Coils | Tensor = "auto"
    undersampling: Undersampling | None = None
    first: int = 0
    modality: Modality = field(default="MR", init=False)
    unit: Unit = field(default="arbitrary", init=False)
    identity: Mapping[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self):
        if isinstance(self.coils, Tensor):
            maps, data = self.coils.shape, self.kspace.data.shape
            if maps[1:] != data[1:] or maps[0] not in (1, data[0]):
                raise ValueError(f"The coil maps have shape {tuple(maps)}, but k-space has {tuple(data)}.")
        else:
            checks.one_of("coils", self.coils, COILS)

    @property
    def count(self) -> int:
        """Number of slices."""
        return len(self.kspace.data)

    @property
    def affine(self) -> Tensor | None:
        """Where the images lie."""
        return self.kspace.affine

    @property
    def summary(self) -> str:
        """How the data came about."""
        coils = "one coil" if self.kspace.coils == 1 else f"{self.kspace.coils} coils"
        kept = f"{100 * self.kspace.mask.double().mean():.0f} % of k-space measured"
        thinned = "" if self.undersampling is None else f", then {self.undersampling}"
        notes = "".join(f"; {note}" for note in self.kspace.notes)
        return f"MRI, {coils}, {kept}{thinned}{notes}"

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        kspace, mask = self.kspace, self.kspace.mask_of(i)
        everything = kspace.data[i : i + 1]
        data = everything
        if self.undersampling is not None:
            mask = mask & self.undersampling.of((data.shape[-2], data.shape[-1]))
            data = data * mask
        if not data.any():
            raise EmptySlice(self.first + i, self._blank(data))
        y = uncentred_fft(centred_ifft(data)) if kspace.real else data
        H = self._operator(i, mask, y)
        direct = H.adjoint(y)
        scale = brightness(direct)
        if scale == 0:
            raise EmptySlice(self.first + i, self._blank(data))
        checked_brightness(scale, self.first + i)
        problem = Problem(y / scale, H, direct / scale, scale, noise_in_kspace(data, mask) / scale, kspace.crop)
        truth = self._truth(i, problem, everything)
        return problem if truth is None else Problem(**{**vars(problem), "truth": truth / scale})

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of k-space."""
        return image * scale

    def _blank(self, data: Tensor) -> Tensor:
        values = data.real if self.kspace.real else data
        return torch.zeros_like(middle(values[0, 0], self.kspace.crop))

    def _operator(self, i: int, mask: Tensor, y: Tensor) -> LinearOperator:
        convention = "paper" if self.kspace.real else "centred"
        if self.kspace.coils == 1:
            return MRI(mask, convention=convention)
        if isinstance(self.coils, Tensor):
            maps = self.coils[i if len(self.coils) > 1 else 0]
        elif self.coils == "auto" and self.kspace.maps is not None:
            maps = self.kspace.maps[i]
        else:
            try:
                maps = espirit(y[0], crop=UNCROPPED, required=DETERMINED, convention=convention)
            except ValueError as error:
                raise ValueError(
                    f"ESPIRiT finds no coil maps for slice {self.first + i}: too few low frequencies are measured, "
                    f"or there is only noise ({str(error).rstrip('.')}). Give the maps with coils=FILE."
                ) from error
        silent = ~y[0].flatten(1).any(dim=1)  # coils that were switched off see nothing, whatever their maps say
        return MultiCoilMRI(mask, normalized_maps(maps.masked_fill(silent[:, None, None], 0)), convention=convention)

    def _truth(self, i: int, problem: Problem, everything: Tensor) -> Tensor | None:
        """The reference of the file; or what all of the data give, if a part was thrown away."""
        if self.kspace.reference is not None:
            return self.kspace.reference[i]
        if self.undersampling is None:
            return None
        images = centred_ifft(everything)
        return problem.image(torch.linalg.vector_norm(images, dim=1, keepdim=True))


@dataclass(frozen=True)
class SimulatedMRI(OfImages):
    """k-space simulated from real images, each divided by its own maximum [table:reconstruction_performance].

    Args:
        noise: standard deviation of the real and the imaginary part of the noise added to k-space.
        maps: coil sensitivities `(1, C, H, W)` or `(S, C, H, W)`; one coil if not given.
        first: number of the first slice; the noise of a slice depends on its number and the seed alone.
    """

    undersampling: Undersampling
    noise: float = 0.01
    maps: Tensor | None = None
    seed: int = 0
    first: int = 0
    modality: Modality = field(default="MR", init=False)

    def __post_init__(self):
        checked_noise(self.noise)
        if self.maps is not None and (
            self.maps.shape[-2:] != self.volume.slices.shape[-2:] or len(self.maps) not in (1, self.count)
        ):
            raise ValueError(
                f"The coil maps have shape {tuple(self.maps.shape)}, but the images {tuple(self.volume.slices.shape)}."
            )

    @property
    def summary(self) -> str:
        """How the data came about."""
        coils = "one coil" if self.maps is None else f"{self.maps.shape[1]} coils"
        return f"MRI simulated from images, {coils}, {self.undersampling}, noise {self.noise:g} added to k-space"

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        image, scale = normalized(self.volume, i, self.first + i)
        truth = image[None, None]
        mask = self.undersampling.of((image.shape[0], image.shape[1]))
        H: LinearOperator = MRI(mask)
        if self.maps is not None:
            H = MultiCoilMRI(mask, self.maps[i if len(self.maps) > 1 else 0])
        clean = H.forward(truth)
        stream = generator(self.seed, "k-space", self.first + i)
        y = add_kspace_noise(clean, mask, self.noise, stream)
        return Problem(y, H, H.adjoint(y), scale, self.noise, truth=image)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of the images it was simulated from."""
        return in_unit(image, scale, self.unit)


def normalized_maps(maps: Tensor) -> Tensor:
    """Coil maps `(C, H, W)` with Σ|S_c|² = 1, or 0 where no coil sees anything.

    Images are then as bright as the root sum of squares of the coil images, whatever the unit of the maps.
    """
    sums = torch.linalg.vector_norm(maps, dim=0)
    return torch.where(sums > BLIND * sums.max(), maps / sums, 0)


def noise_in_kspace(data: Tensor, mask: Tensor) -> float:
    """An estimate of the noise of real and imaginary parts of centred k-space `(B, C, H, W)`.

    The median of the moduli in places where images have little to say: the highest frequencies along the readout, and,
    where whole readouts were measured, the positions at the two ends of the field of view. Images can only add to a
    median, so the smallest is taken.
    """
    height, width = data.shape[-2:]
    outer = (torch.arange(height) - height // 2).abs() >= height // 2 - max(1, height // 16)
    estimates = [_deviation(data[..., (torch.atleast_2d(mask) & outer.unsqueeze(1)).expand(height, width)])]
    whole = torch.atleast_2d(mask).expand(height, width).all(dim=0)
    if whole.any():
        readouts = torch.fft.fftshift(
            torch.fft.ifft(torch.fft.ifftshift(data[..., whole], dim=-2), dim=-2, norm="ortho"), dim=-2
        )
        ends = _deviation(readouts[..., outer, :])
        if ends > FILTERED * estimates[0]:
            estimates.append(ends)
    return min(estimates)


def _deviation(samples: Tensor) -> float:
    """Standard deviation of noise from the median of the moduli of real and imaginary parts; 0 without samples."""
    parts = torch.view_as_real(samples.contiguous()).abs().flatten()
    return float(parts.median()) / GAUSSIAN_MEDIAN if len(parts) else 0.0
