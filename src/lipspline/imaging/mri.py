"""MRI slices as problems: measured k-space, or k-space simulated from images [sec:exp_pnp]."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from lipspline._infra.randomness import generator
from lipspline.formats.kspace import LazyKspace
from lipspline.formats.volume import Unit, Volume
from lipspline.imaging.coil_noise import Mixing, noise_in_kspace, noise_samples, without_gaps
from lipspline.imaging.coils import (
    Coils,
    Phase,
    Unknown,
    Whiten,
    check_coil_options,
    check_map_sets,
    coil_maps,
    coil_mixing,
    coil_notes,
    divided,
    folded_phase,
    given_maps,
    soft_maps,
)
from lipspline.imaging.map_errors import CALIBRATION, with_better_maps, with_map_errors
from lipspline.imaging.problem import EmptySlice, Modality, Problem, brightness, checked_brightness, middle
from lipspline.imaging.simulation import OfImages, add_kspace_noise, checked_noise, in_unit, normalized
from lipspline.operators import MRI, LinearOperator, MultiCoilMRI, SoftSenseMRI, cartesian_mask
from lipspline.operators.mri import centred_ifft, uncentred_fft

NOISY_REFERENCE = (
    "The reference was measured, and its noise counts against every image that has less of it, most of all in air. "
    "The scores within the object, where the reference has a tenth of its brightness and more, depend less on it."
)
SAME_NOISE = (
    "All of k-space was measured, so the reference holds the same noise as the data: the scores say how much the image "
    "was changed, not how good it is."
)
FEW_FREQUENCIES = 0.2
"""With this part of k-space or less artefacts are expected.

With a sixth of the columns the error within the object was 16 to 18 % of the image, with one coil (three knees) and
with four (a measured head); with a quarter it was 8 to 13 %, with a twelfth 21 to 35 % (prior `ridge`).
"""


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
        map_sets: 2 estimates two sets of coil maps, for a field of view that is smaller than the object.
        first: number of the first slice in its file, for errors.
    """

    kspace: LazyKspace
    coils: Coils | Tensor = "auto"
    undersampling: Undersampling | None = None
    phase: Phase = "auto"
    unknown: Unknown = "complex"
    whiten: Whiten = "auto"
    virtual_coils: int | None = None
    map_sets: int = 1
    first: int = 0
    modality: Modality = field(default="MR", init=False)
    direct_name: str = field(default="Zero-filled", init=False)
    unit: Unit = field(default="arbitrary", init=False)
    identity: Mapping[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self):
        shape = tuple(self.kspace.data.shape)
        check_coil_options(self.coils, shape, self.phase, self.unknown, self.whiten, self.virtual_coils)
        enough = (self.virtual_coils or self.kspace.coils) > 2
        check_map_sets(self.map_sets, enough and self._estimates and not self.kspace.real)

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
        kspace = self.kspace
        words = coil_notes(kspace.coils, kspace.noise, self.whiten, self.virtual_coils, self.coils, kspace.maps)
        sets = () if self.map_sets == 1 else ("two sets of coil maps",)
        notes = "".join(f"; {note}" for note in (*self.kspace.notes, *words, *sets))
        return f"MRI, {coils}, {kept}{thinned}{notes}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not measured, and what scores against a measured reference do not say."""
        if self.kspace.reference is not None and self.undersampling is None and bool(self.kspace.mask.all()):
            return (SAME_NOISE,)
        few = kspace_notes(self._used(self.count // 2))
        compared = self.undersampling is not None and any(self._comparable(i) for i in range(self.count))
        return (*few, NOISY_REFERENCE) if self.kspace.reference is not None or compared else few

    def _used(self, i: int) -> Tensor:
        """The mask of what is used of slice i."""
        mask = self.kspace.mask_of(i)
        plane = (self.kspace.data.shape[-2], self.kspace.data.shape[-1])
        return mask if self.undersampling is None else mask & self.undersampling.of(plane)

    def _kept(self, i: int) -> tuple[Tensor, Tensor]:
        """What is used of k-space `(1, C, H, W)` of slice i, and its mask."""
        mask, data = self.kspace.mask_of(i), self.kspace.data[i][None]
        if self.undersampling is None:
            return data, mask
        mask = self._used(i)
        return data * mask, mask

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        kspace, everything = self.kspace, self.kspace.data[i][None]
        data, mask = self._kept(i)
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
        noise, estimated = noise_in_kspace(mixed, mask), kspace.noise is None or self.whiten == "none"
        if kspace.noise is not None and not estimated:
            noise = min(noise, float(kspace.noise.diagonal().real.mean().sqrt()))
        known = {"crop": kspace.crop, "phase": phase, "estimated": estimated}
        problem = Problem(y / scale, H, direct / scale, scale, noise / scale, along=-1, **known)
        if kspace.coils > 1 and not kspace.real:
            problem = with_map_errors(problem)
            if self._estimates and self.map_sets == 1:
                problem = with_better_maps(problem, partial(self._with_maps_of, i, problem, mixing))
        truth = self._truth(i, problem, everything)
        return problem if truth is None else replace(problem, truth=truth / scale, truth_measured=True)

    @property
    def _estimates(self) -> bool:
        """Whether coil maps are estimated."""
        return not isinstance(self.coils, Tensor) and (self.coils == "espirit" or self.kspace.maps is None)

    def _with_maps_of(self, i: int, problem: Problem, mixing: Mixing | None, filled: Tensor) -> Problem:
        """The problem of slice i with maps that are estimated from k-space whose gaps were filled."""
        assert isinstance(problem.H, MultiCoilMRI)
        maps = coil_maps(filled[0], None, mixing, self._silent(i), self.first + i, calibration=CALIBRATION)
        phase = self._folded(i, problem.y[0], maps)
        H = MultiCoilMRI(
            problem.H.mask, maps if phase is None else maps * phase, convention="centred", images=self.unknown
        )
        direct = H.adjoint(problem.y) if mixing is None else divided(H.adjoint(problem.y), H)
        return replace(problem, H=H, direct=direct, phase=phase)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of k-space."""
        return image * scale

    def _blank(self, data: Tensor) -> Tensor:
        values = data.real if self.kspace.real else data
        return torch.zeros_like(middle(values[0, 0], self.kspace.crop))

    def _mixing(self, data: Tensor, mask: Tensor) -> Mixing | None:
        """How coils become others: whitened, and fewer; None if they stay as they are."""
        return coil_mixing(data, self.kspace.noise, partial(noise_samples, data, mask), self.whiten, self.virtual_coils)

    def _operator(self, i: int, mask: Tensor, y: Tensor, mixing: Mixing | None) -> tuple[LinearOperator, Tensor | None]:
        """H, and the phase that is folded into it."""
        convention = "paper" if self.kspace.real else "centred"
        images = "real" if self.kspace.real else self.unknown
        if self.map_sets == 2:
            return self._soft_sense(i, mask, y[0], mixing)
        maps = None if self.kspace.coils == 1 else self._maps(i, y, mixing)
        phase = self._folded(i, y[0], maps)
        if maps is None and phase is None:
            return MRI(mask, convention=convention, images=images), None
        if phase is not None:
            maps = phase[None] if maps is None else maps * phase
        assert maps is not None
        return MultiCoilMRI(mask, maps, convention=convention, images=images), phase

    def _soft_sense(self, i: int, mask: Tensor, y: Tensor, mixing: Mixing | None) -> tuple[LinearOperator, Tensor]:
        """H with two sets of maps, and their weights with the phases that are folded into it."""
        maps, weights = soft_maps(y, mixing, self._silent(i), self.first + i)
        phases = [self._folded(i, y, some) for some in maps]
        phase = torch.stack([torch.ones_like(maps[0, 0]) if found is None else found for found in phases])
        return SoftSenseMRI(mask, maps * phase[:, None], convention="centred", images=self.unknown), weights * phase

    def _silent(self, i: int) -> Tensor:
        return ~self.kspace.data[i].flatten(1).any(dim=1)

    def _maps(self, i: int, y: Tensor, mixing: Mixing | None) -> Tensor:
        """The maps of the coils of y, in the unit in which those of the measured coils have norm 1."""
        given = given_maps(self.coils, self.kspace.maps, i)
        convention = "paper" if self.kspace.real else "centred"
        return coil_maps(y[0], given, mixing, self._silent(i), self.first + i, convention)

    def _folded(self, i: int, y: Tensor, maps: Tensor | None) -> Tensor | None:
        """The phase `(H, W)` that H multiplies images by; None where images are real or nothing is folded."""
        return None if self.kspace.real else folded_phase(y, maps, self.phase, self.first + i)

    def _truth(self, i: int, problem: Problem, everything: Tensor) -> Tensor | None:
        """The reference of the file; or what all of the data give, if a part was thrown away."""
        if self.kspace.reference is not None:
            return self.kspace.reference[i]
        if self.undersampling is None or not self._comparable(i):
            return None
        images = centred_ifft(everything)
        return middle(torch.linalg.vector_norm(images, dim=1)[0], problem.crop)

    def _comparable(self, i: int) -> bool:
        """Whether all of the data give an image without aliasing, and something of them is thrown away."""
        assert self.undersampling is not None
        plane = (self.kspace.data.shape[-2], self.kspace.data.shape[-1])
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
    direct_name: str = field(default="Zero-filled", init=False)

    def __post_init__(self):
        check_simulation(self.volume, self.noise, self.maps)

    @property
    def summary(self) -> str:
        """How the data came about."""
        coils = "one coil" if self.maps is None else f"{self.maps.shape[1]} coils"
        return f"MRI simulated from images, {coils}, {self.undersampling}, noise {self.noise:g} added to k-space"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not measured."""
        shape = self.volume.slices.shape
        return kspace_notes(self.undersampling.of((shape[-2], shape[-1])))

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


def check_simulation(volume: Volume, noise: float, maps: Tensor | None) -> None:
    """Refuse noise that is none, and coil maps that do not fit the images."""
    checked_noise(noise)
    shape = tuple(volume.slices.shape)
    if maps is not None and (tuple(maps.shape[-2:]) != shape[-2:] or len(maps) not in (1, shape[0])):
        raise ValueError(f"The coil maps have shape {tuple(maps.shape)}, but the images {shape}.")


# What was not measured


def kspace_notes(mask: Tensor) -> tuple[str, ...]:
    """What an undersampled k-space leaves to coil maps and prior, a sentence; nothing if enough was measured.

    Args:
        mask: what was measured, `(W,)`, `(H, W)` or `(S, H, W)`.

    Example:
        >>> mask = torch.zeros(64)
        >>> mask[28:36] = 1
        >>> kspace_notes(mask)[0][:60]
        'Only 8 of 64 columns of k-space are used, 12 %. The other 88'
    """
    share = float(mask.double().mean())
    if share > FEW_FREQUENCIES:
        return ()
    used = mask.reshape(-1, mask.shape[-1]) != 0
    columns = used.any(dim=0)
    by_columns = bool((used.all(dim=0) == columns).all())
    what = f"{int(columns.sum())} of {len(columns)} columns" if by_columns else f"{100 * share:.2g} % of the points"
    part = f", {100 * share:.2g} %" if by_columns else ""
    across = "from left to right" if by_columns else "in both directions"
    return (
        f"Only {what} of k-space are used{part}. The other {100 * (1 - share):.2g} % of the frequencies were not "
        f"measured: they come from the coil maps, where there are several coils, and from the prior. Expect ghosts and "
        f"blur {across}; fine detail may be missing or made up, and no certificate says that it is right.",
    )


def trajectory_notes(points: Tensor, shape: tuple[int, int]) -> tuple[str, ...]:
    """What few samples on a trajectory leave to coil maps and prior, a sentence; nothing if enough was measured.

    Args:
        points: `(L, M, 2)` in cycles per field of view.
        shape: of the images. Its frequencies are those of the grid within the ellipse that reaches the edges of it.

    Example:
        >>> line = torch.arange(-32.0, 32.0)
        >>> cross = torch.stack([torch.stack([line, 0 * line], -1), torch.stack([0 * line, line], -1)])
        >>> trajectory_notes(cross, (64, 64))[0][:67]
        'The 2 readouts pass near 4 % of the frequencies of the image. The o'
    """
    rows, columns = (torch.arange(n) - n // 2 for n in shape)
    inside = (2 * rows / shape[0]).square().view(-1, 1) + (2 * columns / shape[1]).square() <= 1
    near = points.reshape(-1, 2).round().long() + torch.tensor([n // 2 for n in shape])
    near = near[(near >= 0).all(dim=1) & (near < torch.tensor(shape)).all(dim=1)]
    met = torch.zeros(shape, dtype=torch.bool)
    met[near[:, 0], near[:, 1]] = True
    share = int((met & inside).sum()) / int(inside.sum())
    if share > FEW_FREQUENCIES:
        return ()
    lines = f"{points.shape[0]} readouts pass" if points.shape[0] > 1 else "readout passes"
    return (
        f"The {lines} near {100 * share:.2g} % of the frequencies of the image. The other {100 * (1 - share):.2g} % "
        f"were not measured: they come from the coil maps, where there are several coils, and from the prior. Expect "
        f"streaks and blur; fine detail may be missing or made up, and no certificate says that it is right.",
    )
