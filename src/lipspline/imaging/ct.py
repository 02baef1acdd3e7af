"""CT slices as problems: measured sinograms, or sinograms simulated from images [sec:exp_pnp]."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import floor, sqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from lipspline._infra import checks
from lipspline._infra.randomness import generator
from lipspline.formats.ct import Sinograms
from lipspline.formats.volume import Unit
from lipspline.imaging.mri import GAUSSIAN_MEDIAN
from lipspline.imaging.problem import (
    EmptySlice,
    Modality,
    OfImages,
    Problem,
    add_sinogram_noise,
    brightness,
    checked_brightness,
    checked_noise,
    in_unit,
    normalized,
)
from lipspline.operators import ParallelBeamCT, fbp

LARGEST = 10000  # pixels along a side


@dataclass(frozen=True)
class MeasuredCT:
    """Slices of measured sinograms. Lengths are in pixels, so images are attenuations per pixel.

    Args:
        angles: how many, spread evenly over half a turn; or the angles in radians; those of the file if not given.
        size: side of the images; as large as the detectors see from every angle if not given.
        spacing: from one detector to the next, in pixels; without it the detectors span the diagonal of the image
            if a size is given, and are one pixel apart if not.
        first: number of the first slice in its file, for errors.
    """

    sinograms: Sinograms
    angles: int | Tensor | None = None
    size: int | None = None
    spacing: float | None = None
    first: int = 0
    modality: Modality = field(default="CT", init=False)
    unit: Unit = field(default="arbitrary", init=False)
    identity: Mapping[str, str] = field(default_factory=dict, init=False)
    affine: Tensor | None = field(default=None, init=False)

    @property
    def count(self) -> int:
        """Number of slices."""
        return len(self.sinograms.data)

    @property
    def summary(self) -> str:
        """How the data came about."""
        _, angles, detectors = self.sinograms.data.shape
        return f"CT, {angles} angles, {detectors} detectors"

    def __post_init__(self):
        if self.spacing is not None:
            checks.positive("spacing", self.spacing)
            side = self.sinograms.data.shape[-1] * self.spacing / sqrt(2)
            if self.size is None and side > LARGEST:
                raise ValueError(f"With spacing {self.spacing:g} the image would be {side:.3g} pixels wide; give size.")

    @cached_property
    def geometry(self) -> ParallelBeamCT:
        """The operator that all slices share."""
        _, rows, detectors = self.sinograms.data.shape
        angles = self.angles if self.angles is not None else self.sinograms.angles
        angles = rows if angles is None else angles
        wanted = angles if isinstance(angles, int) else len(angles)
        if wanted != rows:
            turned = " It seems to be turned: detectors must be the last dimension." if wanted == detectors else ""
            raise ValueError(f"The sinogram has {rows} rows, but {wanted} angles are given.{turned}")
        if self.size is None:
            spacing = 1.0 if self.spacing is None else self.spacing
            return ParallelBeamCT(max(2, floor(detectors * spacing / sqrt(2))), angles, detectors, spacing)
        return ParallelBeamCT(self.size, angles, detectors, self.spacing)

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        H, y = self.geometry, self.sinograms.data[i][None, None]
        scale = brightness(fbp(y, H, filter="hann"))
        if scale == 0:
            raise EmptySlice(self.first + i, torch.zeros(H.size, H.size, dtype=y.dtype))
        checked_brightness(scale, self.first + i)
        y = y / scale
        direct = fbp(y, H)
        return Problem(y, H, direct, scale, noise_in_sinogram(y), start=direct, positive=True)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image as attenuation per pixel."""
        return image * scale


@dataclass(frozen=True)
class SimulatedCT(OfImages):
    """Sinograms simulated from images in the paper's geometry [table:reconstruction_performance_ct].

    Images in Hounsfield units become attenuations, 0 for air; each is divided by its own maximum.

    Args:
        noise: standard deviation of the noise added to the line integrals; the image, whatever its size, is 256 wide.
        first: number of the first slice; the noise of a slice depends on its number and the seed alone.
    """

    angles: int | Tensor = 200
    detectors: int = 400
    noise: float = 1.0
    seed: int = 0
    first: int = 0
    modality: Modality = field(default="CT", init=False)

    def __post_init__(self):
        checked_noise(self.noise)

    @property
    def summary(self) -> str:
        """How the data came about."""
        angles = self.angles if isinstance(self.angles, int) else len(self.angles)
        return f"CT simulated from images, {angles} angles, {self.detectors} detectors, noise {self.noise:g} added"

    @cached_property
    def geometry(self) -> ParallelBeamCT:
        """The operator that all slices share; images are padded to a square."""
        size = max(self.volume.slices.shape[-2:])
        return ParallelBeamCT(size, self.angles, self.detectors, pixel=256 / size)

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        (truth, scale), H = normalized(self.volume, i, self.first + i), self.geometry
        clean = H.forward(_square(truth)[None, None])
        y = add_sinogram_noise(clean, self.noise, generator(self.seed, "sinogram", self.first + i))
        direct = fbp(y, H)
        height, width = truth.shape
        return Problem(y, H, direct, scale, self.noise, (height, width), truth, start=direct, positive=True)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of the images it was simulated from."""
        return in_unit(image, scale, self.unit)


def noise_in_sinogram(y: Tensor) -> float:
    """An estimate of the noise, from second differences along the detectors, in which smooth data nearly vanish."""
    if y.shape[-1] < 3:
        return 0.0
    bends = y[..., 2:] - 2 * y[..., 1:-1] + y[..., :-2]
    return float(bends.abs().median()) / GAUSSIAN_MEDIAN / sqrt(6)


def _square(image: Tensor) -> Tensor:
    """The image in the middle of a square of zeros, so that `problem.middle` finds it again."""
    size = max(image.shape)
    (above, left), (below, right) = zip(*(_margins(size, n) for n in image.shape), strict=True)
    return pad(image, (left, right, above, below))


def _margins(size: int, n: int) -> tuple[int, int]:
    before = size // 2 - n // 2
    return before, size - n - before
