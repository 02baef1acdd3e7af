r"""MRI on radial lines, spirals and other trajectories as problems, measured or simulated [sec:exp_pnp].

The data term is weighted: each sample counts with the root of what it stands for in k-space (`density_compensation`),
so that the crowded middle does not drown the rest. Full compensation brings up the noise of the edge; without any,
steps are many and more is aliased. On a head with 64 radial lines the root and full compensation were equal
within 0.03 dB, 0.7 dB above none; with the root the norm is bounded more tightly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt

import torch
from torch import Tensor

from lipspline._infra.randomness import generator
from lipspline.formats.kspace import Kspace
from lipspline.formats.trajectories import NonCartesianKspace
from lipspline.formats.volume import Unit
from lipspline.imaging.coil_noise import deviation, without_gaps
from lipspline.imaging.coils import (
    Coils,
    Phase,
    Unknown,
    Whiten,
    check_coil_options,
    coil_maps,
    coil_mixing,
    coil_notes,
    divided,
    folded_phase,
    given_maps,
)
from lipspline.imaging.mri import NOISY_REFERENCE, check_simulation, trajectory_notes
from lipspline.imaging.problem import EmptySlice, Modality, Problem, brightness, checked_brightness, middle
from lipspline.imaging.simulation import OfImages, in_unit, normalized
from lipspline.operators import NonCartesianMRI, density_compensation, radial_trajectory
from lipspline.operators.mri import centred_fft, centred_ifft

CALIBRATION, SHORTEST = 24, 6
"""Rows and columns of the middle of k-space that is put on a grid, at most and at least."""
FITTED = 6  # steps of conjugate gradients
NEAR = 0.8  # of a step of the grid: a point of it with a sample so near is measured
OUTER = 0.9  # of the farthest frequency: beyond it there is hardly anything but noise
TRIALS = (1e-5, 150)  # of `Problem`: the middle of k-space, measured by all readouts, makes the norm of H large
PIECES = 48  # readouts, or pieces of them, at least, of which some are held out


@dataclass(frozen=True)
class TrajectoryMRI:
    """Slices of k-space that was measured on a trajectory.

    Args:
        coils, phase, unknown, whiten, virtual_coils, first: as for `MeasuredMRI`; maps and phase are estimated from the
            middle of k-space, put on a grid.
    """

    kspace: NonCartesianKspace
    coils: Coils | Tensor = "auto"
    phase: Phase = "auto"
    unknown: Unknown = "complex"
    whiten: Whiten = "auto"
    virtual_coils: int | None = None
    first: int = 0
    modality: Modality = field(default="MR", init=False)
    direct_name: str = field(default="Gridding", init=False)
    unit: Unit = field(default="arbitrary", init=False)
    identity: Mapping[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self):
        shape = (self.count, self.kspace.coils, *self.kspace.shape)
        check_coil_options(self.coils, shape, self.phase, self.unknown, self.whiten, self.virtual_coils)

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
        kspace = self.kspace
        coils = "one coil" if kspace.coils == 1 else f"{kspace.coils} coils"
        lines, samples = kspace.data.shape[2:]
        words = coil_notes(kspace.coils, kspace.noise, self.whiten, self.virtual_coils, self.coils, kspace.maps)
        notes = "".join(f"; {note}" for note in (*kspace.notes, *words))
        return f"MRI on a trajectory, {coils}, {lines} readouts of {samples} samples{notes}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What few readouts leave to the prior, and what scores against a measured reference do not say."""
        few = trajectory_notes(self.kspace.trajectory_of(self.count // 2), self.kspace.shape)
        return few if self.kspace.reference is None else (*few, NOISY_REFERENCE)

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        kspace, number, points = self.kspace, self.first + i, self.kspace.trajectory_of(i)
        data = kspace.data[i : i + 1]
        if not data.any():
            raise EmptySlice(number, self._blank(data))
        outer = outermost(points)
        mixing = coil_mixing(data, kspace.noise, lambda: data[..., outer], self.whiten, self.virtual_coils)
        mixed = data if mixing is None else mixing.data(data)
        density = density_compensation(points, kspace.shape)
        maps = phase = None
        if kspace.coils > 1 or self.phase != "none":
            grid = gridded_middle(mixed[0], points, kspace.shape, density)
            silent = ~data[0].flatten(1).any(dim=1)
            given = given_maps(self.coils, kspace.maps, i)
            maps = None if kspace.coils == 1 else coil_maps(grid, given, mixing, silent, number)
            phase = folded_phase(grid, maps, self.phase, number)
        if phase is not None:
            maps = phase[None] if maps is None else maps * phase
        noise, estimated = deviation(mixed[..., outer]), kspace.noise is None or self.whiten == "none"
        if kspace.noise is not None and not estimated:
            noise = min(noise, float(kspace.noise.diagonal().real.mean().sqrt()))
        found = weighted_problem(mixed, points, kspace.shape, density, maps, self.unknown)
        scale = brightness(found.direct)
        if scale == 0:
            raise EmptySlice(number, self._blank(data))
        checked_brightness(scale, number)
        truth = None if kspace.reference is None else kspace.reference[i] / scale
        return replace(
            found,
            y=found.y / scale,
            direct=found.direct / scale,
            scale=scale,
            noise=noise * found.noise / scale,
            crop=kspace.crop,
            truth=truth,
            phase=phase,
            estimated=estimated,
            truth_measured=truth is not None,
        )

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of k-space."""
        return image * scale

    def _blank(self, data: Tensor) -> Tensor:
        return torch.zeros_like(middle(data.new_zeros(self.kspace.shape), self.kspace.crop))


@dataclass(frozen=True)
class RadialMRI(OfImages):
    """k-space simulated on radial lines from real images, each divided by its own maximum.

    Args:
        spokes: how many lines, each turned by the golden angle from the last.
        noise, maps, seed, first: as for `SimulatedMRI`.
    """

    spokes: int
    noise: float = 0.01
    maps: Tensor | None = None
    seed: int = 0
    first: int = 0
    modality: Modality = field(default="MR", init=False)
    direct_name: str = field(default="Gridding", init=False)

    def __post_init__(self):
        check_simulation(self.volume, self.noise, self.maps)

    @property
    def summary(self) -> str:
        """How the data came about."""
        coils = "one coil" if self.maps is None else f"{self.maps.shape[1]} coils"
        return f"MRI simulated from images, {coils}, {self.spokes} radial lines, noise {self.noise:g} added to k-space"

    @property
    def notes(self) -> tuple[str, ...]:
        """What few lines leave to the prior."""
        height, width = self.volume.slices.shape[-2:]
        return trajectory_notes(radial_points(self.spokes, (height, width)), (height, width))

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        image, scale = normalized(self.volume, i, self.first + i)
        shape = (image.shape[0], image.shape[1])
        points = radial_points(self.spokes, shape)
        maps = None if self.maps is None else self.maps[i if len(self.maps) > 1 else 0]
        clean = NonCartesianMRI(points, shape, maps, images="real").forward(image[None, None])
        stream = generator(self.seed, "k-space", self.first + i)
        real, imaginary = (torch.randn(clean.shape, generator=stream) for _ in range(2))
        data = (clean + self.noise * torch.complex(real, imaginary)).unflatten(-1, points.shape[:-1])
        found = weighted_problem(data, points, shape, density_compensation(points, shape), maps, "real")
        return replace(found, scale=scale, noise=self.noise * found.noise, truth=image)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of the images it was simulated from."""
        return in_unit(image, scale, self.unit)


def weighted_problem(
    data: Tensor, points: Tensor, shape: tuple[int, int], density: Tensor, maps: Tensor | None, images: Unknown
) -> Problem:
    """Data `(1, C, L, M)` as a problem, its direct image gridded; `noise` is what noise 1 in the data becomes."""
    weights = density.sqrt()
    H = NonCartesianMRI(points, shape, maps, weights=weights, images=images)
    roots, flat = weights.sqrt().float(), data.flatten(2)
    y = flat * roots.flatten()
    direct = divided(H.adjoint(flat * (density.float() / roots).flatten()), H)
    noise, samples = sqrt(float(weights.mean())), piece(data.shape[2], data.shape[3])
    return Problem(y, H, direct, 1.0, noise, along=-1, samples=samples, trials=TRIALS)


def piece(lines: int, samples: int) -> int:
    """How many samples in a row are held out together: a readout, or a part of it where there are few readouts.

    Example:
        >>> piece(64, 256), piece(4, 256), piece(1, 7)
        (256, 16, 1)
    """
    if lines >= PIECES // 2:
        return samples
    return next((n for n in range(samples // 2, 0, -1) if samples % n == 0 and lines * samples // n >= PIECES), 1)


def radial_points(spokes: int, shape: tuple[int, int]) -> Tensor:
    """Radial lines `(L, M, 2)` that reach the edge of k-space of square pixels, two samples for a step of the grid.

    As scanners have it: with one sample, what lies a field of view apart along a line would fold onto itself.
    """
    samples = 2 * max(shape)
    return radial_trajectory(spokes, samples) * torch.tensor([n / samples for n in shape], dtype=torch.float64)


def along_spokes(kspace: Kspace, spokes: int) -> NonCartesianKspace:
    """Fully measured Cartesian k-space at the points of radial lines, as its images have it, and these as the truth."""
    slices, coils, height, width = kspace.data.shape
    if not all(without_gaps(kspace.mask_of(i).expand(height, width)) for i in range(slices)):
        raise ValueError("Only k-space without gaps can be measured again on radial lines: leave out spokes=.")
    points, images = radial_points(spokes, (height, width)), centred_ifft(kspace.data)
    transform = NonCartesianMRI(points, (height, width))
    data = transform.forward(images.flatten(0, 1).unsqueeze(1)).view(slices, coils, *points.shape[:-1])
    truth = middle(torch.linalg.vector_norm(images, dim=1), kspace.crop)
    return NonCartesianKspace(
        data,
        points,
        (height, width),
        kspace.maps,
        truth if kspace.reference is None else kspace.reference,
        kspace.crop,
        kspace.affine,
        kspace.noise,
        (*kspace.notes, f"measured again on {spokes} radial lines"),
    )


# The middle of k-space on a grid


def outermost(points: Tensor) -> Tensor:
    """Which points `(L, M)` of a trajectory lie so far out that there is hardly anything but noise."""
    radius = torch.linalg.vector_norm(points / points.abs().flatten(0, -2).amax(dim=0).clamp_min(1), dim=-1)
    return radius >= OUTER * radius.max()


def gridded_middle(data: Tensor, points: Tensor, shape: tuple[int, int], density: Tensor) -> Tensor:
    """k-space `(C, H, W)` on a Cartesian grid, zero but for the middle, from samples `(C, L, M)`.

    That of the images that explain the samples, by a few conjugate gradients; only as far as samples lie near the
    points of the grid. Zero everywhere where that is less than a window of ESPIRiT.
    """
    height, width = shape
    side = covered(points, min(CALIBRATION, height, width))
    grid = data.new_zeros(len(data), height, width)
    if side < SHORTEST:
        return grid
    images = _fitted(
        NonCartesianMRI(points, shape, weights=density), (data * density.sqrt().float()).flatten(1).unsqueeze(1)
    )
    middle(grid, (side, side)).copy_(middle(centred_fft(images)[:, 0], (side, side)))
    return grid


def covered(points: Tensor, limit: int) -> int:
    """The side of the largest square in the middle of the grid, at most `limit`, with samples near all its points."""
    near = points.reshape(-1, 2)
    near = near[(near.abs() <= limit / 2 + 1).all(dim=1)]
    if not len(near):
        return 0
    axis = torch.arange(limit, dtype=torch.float64) - limit // 2
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
    measured = (torch.cdist(grid.view(-1, 2), near).amin(dim=1) <= NEAR).view(limit, limit)
    return next((n for n in range(limit, 0, -1) if middle(measured, (n, n)).all()), 0)


def _fitted(transform: NonCartesianMRI, y: Tensor) -> Tensor:
    """Images `(C, 1, h, w)` near the least-squares solution: conjugate gradients from zero, each coil on its own."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a.conj() * b).real.flatten(1).sum(dim=1).view(-1, 1, 1, 1)

    residual = transform.adjoint(y)
    image, direction, size = torch.zeros_like(residual), residual, product(residual, residual)
    for _ in range(FITTED):
        moved = transform.adjoint(transform.forward(direction))
        step = size / product(direction, moved).clamp_min(torch.finfo(y.real.dtype).tiny)
        image, residual = image + step * direction, residual - step * moved
        size, before = product(residual, residual), size
        direction = residual + (size / before.clamp_min(torch.finfo(y.real.dtype).tiny)) * direction
    return image
