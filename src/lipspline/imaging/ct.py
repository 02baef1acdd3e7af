"""CT slices as problems: measured sinograms, or sinograms simulated from images [sec:exp_pnp]."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, pi
from typing import Any

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.randomness import generator
from lipspline.formats.ct import hounsfield
from lipspline.formats.sinograms import Sinograms
from lipspline.formats.volume import Unit
from lipspline.imaging import orientation
from lipspline.imaging.counts import (
    TURNED,
    Axis,
    Integrals,
    find_axis,
    line_integrals,
    negative_note,
    refuse_counts,
    refuse_small,
    refuse_uneven_sums,
    weighted_noise,
    without_rings,
)
from lipspline.imaging.problem import EmptySlice, Modality, Problem, brightness, checked_brightness, middle
from lipspline.imaging.simulation import OfImages, add_sinogram_noise, checked_noise, in_unit, normalized, square
from lipspline.operators import FanBeamCT, ParallelBeamCT, WeightedCT, fbp
from lipspline.operators.fan import DETECTORS

LARGEST = 10000  # pixels along a side
CONVENTIONS = ("plain", "scikit-image", "astra", "odl")
SOLVED: dict[str, Any] = {"positive": True, "along": -2, "trials": (2e-5, 150)}
"""Of `Problem`: nothing is negative, projections are held out, and strengths on trial are solved from zero."""


@dataclass(frozen=True, kw_only=True)
class Scanner:
    """How a CT scanner measured, where its file does not say it, and what its images shall be.

    Args:
        angles: how many, spread evenly over the arc; or the angles in radians; those of the file if not given.
        arc: degrees that evenly spread angles cover; 180 for parallel beams and 360 for fans if not given.
        every: use only every so many-th angle.
        axis: the detector, counted from 0, onto which the axis of rotation is projected; "middle", or "auto" to
            estimate it. If not given, it is estimated from counts, and in the middle for line integrals.
        rings: remove rings around the axis, which detectors make whose gain is off; see `counts.without_rings`.
        transpose: the data are `(detectors, angles)`.
        convention: whose sinograms they are: "astra" and "plain" are the same; "scikit-image" stands for what `radon`
            returns, `(detectors, angles)` with the axis on detector D // 2 and pixel N // 2, or its transpose where
            the sums over the detectors say so; "odl" for evenly spread angles that begin half a step after 0.
        size: side of the images in pixels; as many as there are detectors (times `spacing`) if not given.
        spacing: from one detector to the next, projected onto the axis, in pixels of the image; 1 if not given.
        pixel_size: from one detector to the next, in millimetres; that of the file if not given. Images are then
            attenuations per millimetre, else per pixel.
        source_origin: millimetres from the source of a fan to the axis; beams are parallel if neither this nor the file
            says it.
        source_detector: millimetres from the source to the detector.
        detector: of a fan, "flat" or "curved".
        water: attenuation of water per millimetre; images are then in Hounsfield units.
    """

    angles: int | Tensor | None = None
    arc: float | None = None
    every: int = 1
    axis: float | str | None = None
    rings: bool = False
    transpose: bool = False
    convention: str = "plain"
    size: int | None = None
    spacing: float | None = None
    pixel_size: float | None = None
    source_origin: float | None = None
    source_detector: float | None = None
    detector: str = "flat"
    water: float | None = None

    def __post_init__(self):
        checks.one_of("convention", self.convention, CONVENTIONS)
        checks.one_of("detector", self.detector, DETECTORS)
        checks.at_least("every", self.every, 1)
        for name in ("arc", "spacing", "pixel_size", "source_origin", "source_detector", "water"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        if isinstance(self.axis, str):
            checks.one_of("axis", self.axis, ("auto", "middle"))
        elif self.axis is not None and not isfinite(self.axis):
            raise ValueError(f"axis must be a detector, counted from 0, but is {self.axis!r}.")
        if (self.source_origin is None) != (self.source_detector is None):
            raise ValueError("A fan has two distances. Give both source_origin= and source_detector=, or none of them.")
        near, far = self.source_origin, self.source_detector
        if near is not None and far is not None and far < near:
            raise ValueError(
                f"source_origin={near:g} and source_detector={far:g} seem to be exchanged: the detector is behind the "
                f"axis, so it is farther from the source."
            )
        if self.arc is not None and isinstance(self.angles, Tensor):
            raise ValueError("arc= is for angles that are evenly spread. Leave it out, or give the number of angles.")


@dataclass(frozen=True)
class MeasuredCT:
    """Slices of measured sinograms: line integrals, or counts, which become line integrals with weights.

    Args:
        scanner: what the file does not say.
        first: number of the first slice in its file, for errors.
    """

    sinograms: Sinograms
    scanner: Scanner = field(default_factory=Scanner)
    first: int = 0
    modality: Modality = field(default="CT", init=False)
    direct_name: str = field(default="Filtered backprojection", init=False)
    identity: Mapping[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self):
        radon = self.scanner.convention == "scikit-image" and not orientation.rows_are_angles(self.sinograms)
        if self.scanner.transpose or radon:
            object.__setattr__(self, "sinograms", self.sinograms.transposed())
        rows, detectors = self.sinograms.data.shape[-2:]
        refuse_small(len(range(0, rows, self.scanner.every)), detectors)
        spacing = self.scanner.spacing or 1.0
        if self.scanner.size is None and detectors * spacing > LARGEST:
            raise ValueError(
                f"With spacing {spacing:g} the image would be {detectors * spacing:.3g} pixels wide; give size."
            )
        if self._distances is not None and self._detector_pixel is None:
            raise ValueError("The distances of a fan are in millimetres. Give pixel_size= of the detector, too.")
        if self._distances is None and self.scanner.detector != "flat":
            raise ValueError("detector= is for fans. Give source_origin= and source_detector= too, or leave it out.")
        if self.scanner.water is not None and self._detector_pixel is None:
            raise ValueError(
                "water= is an attenuation per millimetre, but the size of a pixel is not known. Give pixel_size= in "
                "millimetres too, or pixel_size=1 if water= is per pixel."
            )

    @property
    def count(self) -> int:
        """Number of slices."""
        return len(self.sinograms.data)

    @property
    def unit(self) -> Unit:
        """Hounsfield units if the attenuation of water is given, else attenuation per length."""
        if self.scanner.water is not None:
            return "hounsfield"
        return "per pixel" if self._detector_pixel is None else "per millimetre"

    @property
    def summary(self) -> str:
        """How the data came about, and what was found out about them."""
        detectors, kind = self.sinograms.data.shape[-1], "" if self._distances is None else ", fan beam"
        why = ", for the second half mirrors the first," if self._whole_turn else ""
        spread = "" if self._known else f"{why} taken to be evenly spread over {self._arc:g} degrees"
        parts = [f"CT{kind}, {len(self.angles)} angles{spread}, {detectors} detectors"]
        if self._detector_pixel is not None:
            parts.append(f"pixels of {self._image_pixel:.4g} mm")
        if self.sinograms.flat is not None:
            parts.append(f"from counts, in slice {self.first + self.count // 2} {self._central}")
        if self.axis.column != (detectors - 1) / 2 or self.axis.uncertainty is not None:
            parts.append(str(self.axis))
        if self.scanner.rings:
            parts.append("rings removed")
        if negative := negative_note(self._central.y):
            parts.append(negative)
        if unseen := self._unseen:
            parts.append(f"{unseen} of {self._size}x{self._size} pixels are met by no ray and stay zero")
        return "; ".join(parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the angles leave to the prior, and an axis that is likely beside the middle."""
        straight = self._distances is None and orientation.covered(self.angles, pi) > orientation.COMPLETE * pi
        guessed = self.scanner.axis is None and self.axis.how == Axis(0.0).how
        beside = orientation.axis_note(self._central.y, self.angles) if straight and guessed else ()
        return (*orientation.coverage_notes(self.geometry), *beside)

    @property
    def affine(self) -> Tensor | None:
        """Where the images lie if the size of a pixel is known: axial, the axis of rotation at the origin."""
        if self._detector_pixel is None:
            return None
        side, middle = self._image_pixel, (self._size - 1) / 2
        affine = torch.diag(torch.tensor([-side, -side, side, 1.0], dtype=torch.float64))
        affine[:3, 3] = torch.tensor([side * middle, side * middle, side * self.first], dtype=torch.float64)
        return affine

    @property
    def angles(self) -> Tensor:
        """The angles that are used, in radians."""
        return self._all_angles[:: self.scanner.every]

    @property
    def _known(self) -> bool:
        """Whether the file or the user says what the angles are, or over what they are spread."""
        said = (self.scanner.angles, self.scanner.arc, self.sinograms.angles)
        return any(each is not None for each in said)

    @property
    def _arc(self) -> float:
        """The degrees over which angles are spread that nobody names."""
        if self.scanner.arc is not None:
            return self.scanner.arc
        return 360.0 if self._distances is not None or self._whole_turn else 180.0

    @cached_property
    def _whole_turn(self) -> bool:
        """Whether evenly spread angles of parallel beams, whose arc nobody names, are those of a whole turn."""
        named = self.scanner.arc is not None or self.sinograms.angles is not None
        if named or isinstance(self.scanner.angles, Tensor) or self._distances is not None:
            return False
        return orientation.second_half_mirrors_first(self._integrals(self.count // 2, 1).y)

    @cached_property
    def _all_angles(self) -> Tensor:
        rows, detectors = self.sinograms.data.shape[-2:]
        given = self.scanner.angles if self.scanner.angles is not None else self.sinograms.angles
        if isinstance(given, Tensor) and self.scanner.arc is not None and self.scanner.angles is None:
            given = None
        wanted = rows if given is None else given if isinstance(given, int) else len(given)
        if wanted != rows:
            turned = f" It seems to be turned: give {TURNED}." if wanted == detectors else ""
            raise ValueError(f"The sinogram has {rows} rows, but {wanted} angles are given.{turned}")
        if isinstance(given, Tensor):
            return given
        half = 0.5 if self.scanner.convention == "odl" else 0.0
        return (torch.arange(rows, dtype=torch.float64) + half) * (self._arc * pi / 180 / rows)

    @cached_property
    def axis(self) -> Axis:
        """Onto which detector the axis of rotation is projected; all slices share it."""
        detectors, wanted = self.sinograms.data.shape[-1], self.scanner.axis
        if isinstance(wanted, (int, float)):
            return Axis(float(wanted), None, "as given")
        middle = (detectors - 1) / 2
        if wanted is None and self.scanner.convention == "scikit-image":
            return Axis(float(detectors // 2), None, "as in scikit-image")
        if wanted == "middle" or (wanted is None and self.sinograms.flat is None):
            return Axis(middle)
        straight = self._build(detectors, 1, middle)
        fan = 2 * float(straight.fan_angles.max()) if isinstance(straight, FanBeamCT) else 0.0
        if orientation.covered(self._all_angles) < 0.95 * (pi + fan):
            return Axis(middle, None, "taken to be in the middle, for the angles cover too little to estimate it")
        angles = self._all_angles
        needed = (angles - angles.min()) % (2 * pi) < (pi + fan) * (1 - 1e-9)
        found = find_axis(self._integrals(self.count // 2, 1).y[needed], angles[needed], self._geometry)
        return Axis(middle, None, "taken to be in the middle, for no place is better") if found is None else found

    @cached_property
    def geometry(self) -> ParallelBeamCT | FanBeamCT:
        """The operator that all slices share, without weights."""
        even = self.scanner.convention == "scikit-image" and self._size % 2 == 0
        return self._build(self.sinograms.data.shape[-1], 1, self.axis.column, self._size + even)

    @property
    def _unseen(self) -> int:
        """How many pixels of the images no ray meets."""
        support = self.geometry.support
        return 0 if support is None else int((~middle(support, (self._size, self._size))).sum())

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        H, found = self.geometry, self._integrals(i, self.scanner.every)
        y, weights = found.y[None, None], found.weights if self.sinograms.flat is not None else None
        scale = brightness(fbp(y, H, filter="hann"))
        if scale == 0:
            raise EmptySlice(self.first + i, torch.zeros(self._size, self._size, dtype=y.dtype))
        checked_brightness(scale, self.first + i)
        y = y / scale
        direct, noise = fbp(y, H), weighted_noise(y[0, 0], weights)
        if weights is not None:
            H, y = WeightedCT(H, weights), y * weights.sqrt()
        crop = (self._size, self._size)
        return Problem(y, H, direct, scale, noise, crop, start=direct, estimated=True, **SOLVED)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image as attenuation, or in Hounsfield units if the attenuation of water is given."""
        water = self.scanner.water
        return image * scale if water is None else hounsfield(image * scale / water)

    def _integrals(self, i: int, every: int) -> Integrals:
        """The line integrals of a slice at every so many-th angle."""
        fields = (self.sinograms.flat, self.sinograms.dark)
        data = self.sinograms.data[i][::every]
        if fields[0] is None:
            refuse_counts(data, self.first + i)
            found = Integrals(data, torch.ones_like(data))
        else:
            flat, dark = (None if each is None else each[i] for each in fields)
            assert flat is not None
            found = line_integrals(data, flat, dark)
        refuse_uneven_sums(found.y, self.first + i)
        return replace(found, y=without_rings(found.y)) if self.scanner.rings else found

    @cached_property
    def _central(self) -> Integrals:
        return self._integrals(self.count // 2, self.scanner.every)

    @property
    def _distances(self) -> tuple[float, float] | None:
        for one in (self.scanner, self.sinograms):
            if one.source_origin is not None and one.source_detector is not None:
                return one.source_origin, one.source_detector
        return None

    @property
    def _detector_pixel(self) -> float | None:
        return self.sinograms.pixel if self.scanner.pixel_size is None else self.scanner.pixel_size

    @property
    def _image_pixel(self) -> float:
        """The side of a pixel of the image, in millimetres, or 1 over the spacing if they are not known."""
        nearer = 1.0 if self._distances is None else self._distances[0] / self._distances[1]
        return (self._detector_pixel or 1.0) * nearer / (self.scanner.spacing or 1.0)

    @property
    def _size(self) -> int:
        detectors = self.sinograms.data.shape[-1]
        return self.scanner.size or max(2, round(detectors * (self.scanner.spacing or 1.0)))

    def _build(
        self, detectors: int, bins: float, column: float, size: int | None = None, angles: Tensor | None = None
    ) -> ParallelBeamCT | FanBeamCT:
        """The geometry of detectors that each stand for `bins` of the scanner, with the axis on one of them."""
        wide = bins * (self._detector_pixel or 1.0)
        offset = ((detectors - 1) / 2 - column) * wide
        angles = self.angles if angles is None else angles
        unknown = self._detector_pixel is None  # then lengths are in pixels of the image
        unit = (self.scanner.spacing or 1.0) if unknown else 1.0
        own = bins * (self.scanner.spacing or 1.0) if size is None else 1.0  # then a pixel is as wide as a detector
        size, pixel = size or detectors, self._image_pixel * own * unit
        if self._distances is None:
            return ParallelBeamCT(size, angles, detectors, wide * unit, pixel=pixel, offset=offset * unit)
        near, far = self._distances
        lengths = {"source_origin": near, "source_detector": far, "pixel": pixel, "offset": offset}
        detector = "curved" if self.scanner.detector == "curved" else "flat"
        return FanBeamCT(size, angles, detectors, wide, detector=detector, **lengths)

    def _geometry(self, angles: Tensor, detectors: int, bins: float, column: float) -> ParallelBeamCT | FanBeamCT:
        return self._build(detectors, bins, column, None, angles)


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
    direct_name: str = field(default="Filtered backprojection", init=False)

    def __post_init__(self):
        checked_noise(self.noise)

    @property
    def summary(self) -> str:
        """How the data came about."""
        angles = self.angles if isinstance(self.angles, int) else len(self.angles)
        return f"CT simulated from images, {angles} angles, {self.detectors} detectors, noise {self.noise:g} added"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the angles leave to the prior."""
        return orientation.coverage_notes(self.geometry)

    @cached_property
    def geometry(self) -> ParallelBeamCT:
        """The operator that all slices share; images are padded to a square."""
        size = max(self.volume.slices.shape[-2:])
        return ParallelBeamCT(size, self.angles, self.detectors, pixel=256 / size)

    def problem(self, i: int) -> Problem:
        """Slice number i."""
        (truth, scale), H = normalized(self.volume, i, self.first + i), self.geometry
        clean = H.forward(square(truth)[None, None])
        y = add_sinogram_noise(clean, self.noise, generator(self.seed, "sinogram", self.first + i))
        direct = fbp(y, H)
        height, width = truth.shape
        return Problem(y, H, direct, scale, self.noise, (height, width), truth, start=direct, **SOLVED)

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image in the unit of the images it was simulated from."""
        return in_unit(image, scale, self.unit)
