"""MRI slices as problems: measured k-space, or k-space simulated from images [sec:exp_pnp]."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.randomness import generator
from lipspline.formats.kspace import Kspace
from lipspline.formats.volume import Unit
from lipspline.imaging.coil_noise import Mixing, noise_covariance, noise_in_kspace, virtual_coils, whitening
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
from lipspline.operators._espirit import UNCROPPED, calibration_region, region_images
from lipspline.operators.mri import centred_ifft, uncentred_fft

Coils = Literal["auto", "espirit"]
COILS = ("auto", "espirit")
Phase = Literal["auto", "fold", "none"]
PHASES = ("auto", "fold", "none")
Whiten = Literal["auto", "none"]
WHITENS = ("auto", "none")
Unknown = Literal["complex", "real"]
UNKNOWNS = ("complex", "real")
LOW_RESOLUTION = 24
"""Columns and rows, at most, of the middle of k-space that the phase of an image is taken from."""
FAINT = 1e-3  # of the largest modulus: below it the phase of an image of low resolution is taken for 0
SHORTEST = 6  # columns and rows of it, at least
BLIND = 1e-3  # of the largest root sum of squares: below it a pixel is seen by no coil
DETERMINED = 0.95  # of 1: the eigenvalue of ESPIRiT that well determined maps reach somewhere


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
        phase: "fold" multiplies the coil maps by the phase of an image of low resolution, so that the image is nearly
            real; "auto" does so where the middle of k-space is measured, "none" never.
        unknown: "real" takes the image, after folding, for real: what is lost by half of k-space is then regained, and
            fine details of the phase are not.
        whiten: "auto" makes the noise of several coils white: by the noise measurement of the file, and without one
            by an estimate from places where there is no signal; "none" does not.
        virtual_coils: so many combinations of the coils are used, those that carry most signal; all if None.
        first: number of the first slice in its file, for errors.
    """

    kspace: Kspace
    coils: Coils | Tensor = "auto"
    undersampling: Undersampling | None = None
    phase: Phase = "auto"
    unknown: Unknown = "complex"
    whiten: Whiten = "auto"
    virtual_coils: int | None = None
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
        checks.one_of("phase", self.phase, PHASES)
        checks.one_of("unknown", self.unknown, UNKNOWNS)
        checks.one_of("whiten", self.whiten, WHITENS)
        if (
            self.virtual_coils is not None
            and checks.at_least("virtual_coils", self.virtual_coils, 1) > self.kspace.coils
        ):
            raise ValueError(f"virtual_coils is {self.virtual_coils}, but there are {self.kspace.coils} coils.")

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
        notes = "".join(f"; {note}" for note in (*self.kspace.notes, *self._coil_notes()))
        return f"MRI, {coils}, {kept}{thinned}{notes}"

    def _coil_notes(self) -> Iterator[str]:
        if self.kspace.coils > 1 and self.whiten == "auto":
            source = (
                "a measurement of noise" if self.kspace.noise is not None else "an estimate from where no signal is"
            )
            yield f"coils whitened with {source}"
        if self.virtual_coils is not None:
            yield f"{self.virtual_coils} virtual coils"

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
        mixing = self._mixing(data, mask)
        mixed = data if mixing is None else mixing.data(data)
        y = uncentred_fft(centred_ifft(mixed)) if kspace.real else mixed
        H, phase = self._operator(i, mask, y, mixing)
        direct = H.adjoint(y) if mixing is None else divided(H.adjoint(y), H)
        scale = brightness(direct)
        if scale == 0:
            raise EmptySlice(self.first + i, self._blank(data))
        checked_brightness(scale, self.first + i)
        noise = noise_in_kspace(mixed, mask)
        if kspace.noise is not None and self.whiten == "auto":
            noise = min(noise, float(kspace.noise.diagonal().real.mean().sqrt()))
        problem = Problem(y / scale, H, direct / scale, scale, noise / scale, kspace.crop, along=-1, phase=phase)
        truth = self._truth(i, problem, everything)
        return problem if truth is None else Problem(**{**vars(problem), "truth": truth / scale})

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of k-space."""
        return image * scale

    def _blank(self, data: Tensor) -> Tensor:
        values = data.real if self.kspace.real else data
        return torch.zeros_like(middle(values[0, 0], self.kspace.crop))

    def _mixing(self, data: Tensor, mask: Tensor) -> Mixing | None:
        """How coils become others: whitened, and fewer; None if they stay as they are."""
        if self.kspace.coils == 1:
            return None
        found = None
        if self.whiten == "auto":
            covariance = noise_covariance(data, mask) if self.kspace.noise is None else self.kspace.noise
            found = None if covariance is None else whitening(covariance)
        if self.virtual_coils is None:
            return found
        fewer = virtual_coils((data if found is None else found.data(data))[0], self.virtual_coils)
        return fewer if found is None else found.then(fewer)

    def _operator(self, i: int, mask: Tensor, y: Tensor, mixing: Mixing | None) -> tuple[LinearOperator, Tensor | None]:
        """H, and the phase that is folded into it."""
        convention = "paper" if self.kspace.real else "centred"
        images = "real" if self.kspace.real else self.unknown
        maps = None if self.kspace.coils == 1 else self._maps(i, y, mixing)
        phase = self._folded(i, y[0], maps)
        if maps is None and phase is None:
            return MRI(mask, convention=convention, images=images), None
        if phase is not None:
            maps = phase[None] if maps is None else maps * phase
        assert maps is not None
        return MultiCoilMRI(mask, maps, convention=convention, images=images), phase

    def _maps(self, i: int, y: Tensor, mixing: Mixing | None) -> Tensor:
        """The maps of the coils of y, in the unit in which those of the measured coils have norm 1."""
        convention = "paper" if self.kspace.real else "centred"
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
            if mixing is not None:
                maps = mixing.restored(maps)
        silent = ~self.kspace.data[i].flatten(1).any(dim=1)  # what is switched off sees nothing, whatever its maps say
        maps = normalized_maps(maps.masked_fill(silent[:, None, None], 0))
        return maps if mixing is None else mixing.data(maps)

    def _folded(self, i: int, y: Tensor, maps: Tensor | None) -> Tensor | None:
        """The phase `(H, W)` that H multiplies images by; None where images are real or nothing is folded."""
        if self.kspace.real or self.phase == "none":
            return None
        try:
            return low_resolution_phase(y, maps)
        except ValueError as error:
            if self.phase == "auto":
                return None
            raise ValueError(
                f"The phase of slice {self.first + i} is not known: too few low frequencies are measured "
                f"({str(error).rstrip('.')}). Give phase=none."
            ) from error

    def _truth(self, i: int, problem: Problem, everything: Tensor) -> Tensor | None:
        """The reference of the file; or what all of the data give, if a part was thrown away."""
        if self.kspace.reference is not None:
            return self.kspace.reference[i]
        if self.undersampling is None or not self._comparable(i, everything):
            return None
        images = centred_ifft(everything)
        return middle(torch.linalg.vector_norm(images, dim=1)[0], problem.crop)

    def _comparable(self, i: int, everything: Tensor) -> bool:
        """Whether all of the data give an image without aliasing, and something of them is thrown away."""
        assert self.undersampling is not None
        plane = (everything.shape[-2], everything.shape[-1])
        mask, kept = self.kspace.mask_of(i).expand(plane), self.undersampling.of(plane)
        return without_gaps(mask) and not torch.equal(mask & kept, mask)


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
        return Problem(y, H, H.adjoint(y), scale, self.noise, truth=image, along=-1)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of the images it was simulated from."""
        return in_unit(image, scale, self.unit)


def without_gaps(mask: Tensor) -> bool:
    """Whether what a mask `(H, W)` keeps of each row and each column is one piece: then nothing is aliased.

    Example:
        >>> without_gaps(torch.tensor([[False, True, True]])), without_gaps(torch.tensor([[True, False, True]]))
        (True, False)
    """
    return all(
        bool((mask.int().diff(dim=dim).clamp_min(0).sum(dim) + mask.select(dim, 0) <= 1).all()) for dim in (0, 1)
    )


def normalized_maps(maps: Tensor) -> Tensor:
    """Coil maps `(C, H, W)` with Σ|S_c|² = 1, or 0 where no coil sees anything.

    Images are then as bright as the root sum of squares of the coil images, whatever the unit of the maps.
    """
    sums = torch.linalg.vector_norm(maps, dim=0)
    return torch.where(sums > BLIND * sums.max(), maps / sums, 0)


def divided(image: Tensor, H: LinearOperator) -> Tensor:
    """What the adjoint gives, `(1, 1, H, W)`, over Σ|S_c|² of the coil maps of H."""
    assert isinstance(H, MultiCoilMRI)
    sums = H.maps.abs().square().sum(dim=0)
    return torch.where(sums > BLIND**2 * sums.max(), image / sums, 0)


def low_resolution_phase(kspace: Tensor, maps: Tensor | None = None) -> Tensor:
    """The phase of an image of low resolution, complex `(H, W)` of modulus 1, from the middle of centred k-space.

    Args:
        kspace: `(C, H, W)`; the middle must be fully measured.
        maps: of its coils, `(C, H, W)`; the phase is that of Σ conj(S_c) x_c. None for one coil.

    Example:
        >>> from lipspline.operators.mri import centred_fft
        >>> phase = torch.linspace(0, 3, 32) + torch.linspace(0, 0.5, 32)[:, None]
        >>> image = torch.polar(torch.ones(32, 32), phase)
        >>> found = low_resolution_phase(centred_fft(image)[None])
        >>> bool((found - image).abs()[4:-4, 4:-4].max() < 0.1)
        True
    """
    region = calibration_region(kspace, LOW_RESOLUTION, SHORTEST)
    images = region_images(region, tuple(kspace.shape[-2:]))
    image = images.sum(dim=0) if maps is None else (maps.conj() * images).sum(dim=0)
    moduli = image.abs()
    return torch.where(moduli > FAINT * moduli.max(), torch.sgn(image), 1)
