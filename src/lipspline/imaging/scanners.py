"""What a user says about a scanner, MRI or CT, and gives with it: files by name, or arrays; told apart and checked."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats import ct as ct_files
from lipspline.formats import mri as mri_files
from lipspline.formats.kspace import Kspace, LazyKspace, measured, refuse_uncentred
from lipspline.formats.sinograms import FILES, Sinograms, read_angles, read_sinograms
from lipspline.formats.trajectories import NonCartesianKspace, on_trajectory, read_trajectory
from lipspline.formats.volume import Stack, Volume
from lipspline.imaging.coils import COILS, PHASES, UNKNOWNS, WHITENS, Phase, Unknown, Whiten, check_map_sets
from lipspline.imaging.ct import LARGEST, MeasuredCT, Scanner, SimulatedCT
from lipspline.imaging.mri import MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.imaging.problem import Scan
from lipspline.imaging.simulation import checked_noise
from lipspline.imaging.trajectories import RadialMRI, TrajectoryMRI, along_spokes

Data = str | Path | Tensor | NDArray[Any]
WORDS = ("", *COILS, *PHASES, *UNKNOWNS)
"""What is never the name of a file."""
ACCELERATION, ANGLES, DETECTORS = 4.0, 200, 400
"""What a simulation takes where nothing is said."""
KSPACE_NOISE, SINOGRAM_NOISE = 0.01, 1.0
"""The noise that a simulation adds where nothing is said: the paper's."""
OF_MEASUREMENTS = ("trajectory", "conjugate", "phase", "unknown", "whiten", "virtual_coils", "map_sets")
"""What is said about measured k-space only."""


def as_tensor(values: Data) -> Tensor:
    """An array as a finite tensor in float32 or complex64."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    tensor = tensor.detach().cpu().to(torch.complex64 if tensor.is_complex() else torch.float32)
    return checks.finite("data", tensor)


def is_path(value: object) -> TypeGuard[str | Path]:
    """Whether a value names a file or folder; the words of options do not."""
    return isinstance(value, (str, Path)) and str(value) not in WORDS


def images(data: Tensor, slices: slice, wanted: str = "images are (H, W) or (slices, H, W)") -> Volume:
    """Some slices of an array of real images."""
    if data.is_complex() or data.ndim not in (2, 3):
        raise ValueError(f"The data have shape {tuple(data.shape)} and type {data.dtype}, but {wanted}, real.")
    return Volume(some(data if data.ndim == 3 else data[None], slices))


def some(stack: Tensor, slices: slice) -> Tensor:
    """Some slices of a stack; none is an error."""
    if not len(stack[slices]):
        raise ValueError(f"There are {len(stack)} slice(s), numbered from 0, and none of them is among {slices}.")
    return stack[slices]


def named(data: Data) -> str:
    """The beginning of a sentence about the data."""
    return f"{data} holds" if is_path(data) else "The array holds"


def check_data_noise(noise: float | None, simulate: bool) -> None:
    """Refuse noise that would be added to nothing, or that is none."""
    if noise is None:
        return
    if not simulate:
        raise ValueError("data_noise= is for simulated data. Give simulate=True too, or leave it out.")
    checked_noise(noise)


# Magnetic resonance


@dataclass(frozen=True, kw_only=True)
class ScannerMRI:
    """How k-space was measured, or is simulated from images.

    Args:
        mask: keep what this keeps, `(W,)` or `(H, W)`; an array or an npy file. What is thrown away is used to compare.
        acceleration: or keep one column in so many, at random.
        center: fraction of the columns, in the middle, that are all kept.
        spokes: or measure images, or k-space without gaps, again on so many radial lines.
        trajectory: where npy, npz, BART files and arrays were measured, `(readouts, samples, 2)` in cycles per field of
            view along rows and columns (or per pixel, with `size`); an array or a file. k-space is then
            `(slices, coils, readouts, samples)`. ISMRMRD files have it inside.
        size: height and width of the images of a trajectory; by default as large as it reaches.
        conjugate: take the complex conjugate of the data: what a scanner with the other sign needs.
        coils: "auto" takes the maps of the file, else estimates them by ESPIRiT, as "espirit" does; or maps, an array
            `(C, H, W)` or `(S, C, H, W)`, or a file of them.
        phase: "fold" puts the phase of an image of low resolution into the coil maps, so that the image is nearly
            real; "auto" does so where the middle of k-space is measured, "none" never.
        unknown: "complex", or "real" for images that are real once their phase is folded (partial Fourier).
        whiten: "auto" makes the noise of the coils white, by the file's measurement of noise or an estimate; or "none".
        virtual_coils: so many combinations of the coils are used, those that carry most signal; all if None.
        map_sets: 2 for two sets of coil maps by ESPIRiT, where the field of view is smaller than the object.
        simulate: the data are images: measure them, add noise, compare.
        data_noise: standard deviation of the noise added in a simulation; by default the paper's.
        seed: of the random columns and the noise.
    """

    mask: Data | None = None
    acceleration: float | None = None
    center: float = 0.08
    spokes: int | None = None
    trajectory: Data | None = None
    size: int | None = None
    conjugate: bool = False
    coils: Data = "auto"
    phase: Phase = "auto"
    unknown: Unknown = "complex"
    whiten: Whiten = "auto"
    virtual_coils: int | None = None
    map_sets: int = 1
    simulate: bool = False
    data_noise: float | None = None
    seed: int = 0

    def __post_init__(self):
        if sum(each is not None for each in (self.mask, self.acceleration, self.spokes, self.trajectory)) > 1:
            raise ValueError(
                "mask=, acceleration=, spokes= and trajectory= all say what is measured. Give one of them."
            )
        for name in ("spokes", "size"):
            if getattr(self, name) is not None:
                checks.at_least(name, getattr(self, name), 2)
        if self.acceleration is not None and checks.positive("acceleration", self.acceleration) < 1:
            raise ValueError(f"acceleration must be at least 1, but is {self.acceleration:g}.")
        if not 0 <= self.center <= 1:
            raise ValueError(f"center must lie between 0 and 1, but is {self.center}.")
        checks.one_of("phase", self.phase, PHASES)
        checks.one_of("unknown", self.unknown, UNKNOWNS)
        checks.one_of("whiten", self.whiten, WHITENS)
        check_map_sets(self.map_sets, estimable=True)
        check_data_noise(self.data_noise, self.simulate)

    def scan(self, data: Data, slices: slice = slice(None)) -> Scan:
        """The slices to be reconstructed."""
        first = slices.start or 0
        found = self._read(data, slices)
        mask = mri_files.read_mask(self.mask) if is_path(self.mask) else _mask(self.mask)
        kept = Undersampling(mask, self.acceleration or ACCELERATION, self.center, self.seed)
        if not isinstance(found, Volume):
            return self._measured(data, found, kept, first)
        if not self.simulate:
            raise ValueError(
                f"{named(data)} images, not k-space, which is complex. To measure and reconstruct them give "
                f"simulate=True."
            )
        self._check_simulated()
        maps = self._coils()
        noise = KSPACE_NOISE if self.data_noise is None else self.data_noise
        known = maps if isinstance(maps, Tensor) else None
        if self.spokes is not None:
            return RadialMRI(found, self.spokes, noise, known, self.seed, first)
        return SimulatedMRI(found, kept, noise, known, self.seed, first)

    def _check_simulated(self) -> None:
        """Refuse what says something about measured k-space, where k-space is simulated."""
        for field in fields(self):
            if field.name in OF_MEASUREMENTS and getattr(self, field.name) != field.default:
                raise ValueError(f"{field.name}= is for measured k-space, but this is simulated. Leave it out.")

    def _read(self, data: Data, slices: slice) -> LazyKspace | NonCartesianKspace | Volume:
        points = self.trajectory
        points = read_trajectory(points) if is_path(points) else None if points is None else as_tensor(points)
        if is_path(data):
            found = mri_files.read_scan(data, slices, trajectory=points, size=self.size)
        elif points is None:
            found = _kspace_or_images(as_tensor(data), slices)
        else:
            found = on_trajectory(_stacked(as_tensor(data), slices), points, "the array", self.size)
        if self.size is not None and not isinstance(found, NonCartesianKspace):
            raise ValueError(f"size= is for k-space on a trajectory, but {named(data)} none. Leave it out.")
        return conjugated(found) if self.conjugate and not isinstance(found, Volume) else found

    def _measured(self, data: Data, found: LazyKspace | NonCartesianKspace, kept: Undersampling, first: int) -> Scan:
        thinned = self.mask is not None or self.acceleration is not None
        if self.simulate:
            raise ValueError(f"{named(data)} k-space already. Leave out simulate= and data_noise=.")
        options: dict[str, Any] = {
            name: getattr(self, name) for name in ("phase", "unknown", "whiten", "virtual_coils")
        }
        if isinstance(found, LazyKspace) and self.spokes is None:
            thinning = kept if thinned else None
            return MeasuredMRI(found, self._coils(), thinning, **options, map_sets=self.map_sets, first=first)
        check_map_sets(self.map_sets, estimable=False)
        if isinstance(found, NonCartesianKspace) and (thinned or self.spokes is not None):
            raise ValueError(f"{named(data)} k-space on a trajectory. Leave out mask=, acceleration= and spokes=.")
        if isinstance(found, LazyKspace) and not isinstance(found, Kspace):
            raise ValueError(f"{named(data)} too much k-space to be measured again by spokes= at once. Choose slices=.")
        spread = along_spokes(found, self.spokes or 0) if isinstance(found, Kspace) else found
        return TrajectoryMRI(spread, self._coils(), **options, first=first)

    def _coils(self) -> Literal["auto", "espirit"] | Tensor:
        if isinstance(self.coils, str) and self.coils in COILS:
            return "espirit" if self.coils == "espirit" else "auto"
        if is_path(self.coils):
            return mri_files.read_maps(self.coils)
        maps = as_tensor(self.coils).to(torch.complex64)
        return maps if maps.ndim == 4 else maps[None]


def conjugated(found: LazyKspace | NonCartesianKspace) -> LazyKspace | NonCartesianKspace:
    """Measurements with the other sign of the Fourier transform, with maps and noise to match."""
    others = {"data": found.data, "maps": found.maps, "noise": found.noise}
    turned = {name: _conjugate(value) for name, value in others.items() if value is not None}
    return replace(found, notes=(*found.notes, "complex conjugate taken"), **turned)


def _conjugate(values: Tensor | Stack) -> Tensor | Stack:
    return values.mapped(_conjugate_of) if isinstance(values, Stack) else _conjugate_of(values)


def _conjugate_of(values: Tensor) -> Tensor:
    return values.conj().resolve_conj()


def _kspace_or_images(data: Tensor, slices: slice) -> Kspace | Volume:
    """Complex numbers are k-space, frequency zero in the middle; real ones are images."""
    if not data.is_complex():
        return images(data, slices)
    chosen = _stacked(data, slices)
    refuse_uncentred(chosen, "the array")
    return Kspace(chosen, measured(chosen))


def _stacked(data: Tensor, slices: slice) -> Tensor:
    """Some slices `(S, C, H, W)` of k-space."""
    stack = {2: lambda: data[None, None], 3: lambda: data[:, None], 4: lambda: data}
    if data.ndim not in stack:
        raise ValueError(
            f"k-space is (H, W), (slices, H, W) or (slices, coils, H, W), but has shape {tuple(data.shape)}."
        )
    chosen = some(stack[data.ndim](), slices)
    if not chosen.any():
        raise ValueError("The k-space is zero everywhere: nothing was measured.")
    return chosen


def _mask(values: Data | None) -> Tensor | None:
    return None if values is None else torch.as_tensor(values).squeeze() != 0


# Tomography


@dataclass(frozen=True, kw_only=True)
class ScannerCT(Scanner):
    """How sinograms were measured, or are simulated from images: what a `Scanner` says, and these.

    Args:
        angles: how many, spread evenly over the arc; or radians, an array or an npy file.
        detectors: how many rays for each angle.
        files: what each of many files holds: "sinograms" of one slice, or "projections" of one angle.
        flat, dark: counts without an object, and without a beam: arrays `(D,)` or `(S, D)`, or files; then the data are
            counts too.
        simulate: the data are images: measure them, add noise, compare.
        data_noise: standard deviation of the noise added in a simulation; by default the paper's.
        seed: of the noise.
    """

    angles: int | Data | None = None  # pyright: ignore[reportIncompatibleVariableOverride] (files are read for a scan)
    detectors: int | None = None
    files: str = "sinograms"
    flat: Data | None = None
    dark: Data | None = None
    simulate: bool = False
    data_noise: float | None = None
    seed: int = 0

    def __post_init__(self):
        for name, least in (("angles", 1), ("detectors", 2), ("size", 2)):
            value = getattr(self, name)
            if isinstance(value, int) and not least <= value <= LARGEST:
                raise ValueError(f"{name} must lie between {least} and {LARGEST}, but is {value}.")
        checks.one_of("files", self.files, FILES)
        super().__post_init__()
        if self.simulate:
            self._refuse_scanner()
        check_data_noise(self.data_noise, self.simulate)

    def scan(self, data: Data, slices: slice = slice(None)) -> Scan:
        """The slices to be reconstructed."""
        first, angles = slices.start or 0, self._angles()
        if self.simulate:
            volume = ct_files.read(data, slices) if is_path(data) else images(as_tensor(data), slices)
            noise = SINOGRAM_NOISE if self.data_noise is None else self.data_noise
            detectors = self.detectors or DETECTORS
            return SimulatedCT(volume, ANGLES if angles is None else angles, detectors, noise, self.seed, first)
        found = self._sinograms(data, slices)
        scan = MeasuredCT(found, replace(self, angles=angles), first)
        if self.detectors not in (None, scan.sinograms.data.shape[-1]):
            raise ValueError(f"{named(data)} {scan.sinograms.data.shape[-1]} detectors, not {self.detectors}.")
        return scan

    def _sinograms(self, data: Data, slices: slice) -> Sinograms:
        fields = {"flat": self.flat, "dark": self.dark}
        paths = {name: value for name, value in fields.items() if is_path(value)}
        if is_path(data):
            if ct_files.holds_images(Path(data)):
                raise ValueError(
                    f"{data} holds images, not sinograms. To measure and reconstruct them give simulate=True."
                )
            found = read_sinograms(data, slices, files=self.files, **paths)
        else:
            found = Sinograms(images(as_tensor(data), slices, "sinograms are (angles, detectors) or a stack").slices)
        shape = found.data.shape
        given = {
            name: as_tensor(value).expand(shape[0], shape[2])
            for name, value in fields.items()
            if value is not None and not is_path(value)
        }
        return replace(found, **given)

    def _refuse_scanner(self) -> None:
        """A simulation has the geometry of the paper."""
        for each in fields(Scanner):
            if each.name != "angles" and getattr(self, each.name) != each.default:
                raise ValueError(
                    f"A simulation takes the size from the images and its geometry from the paper. Leave out "
                    f"{each.name}=, or simulate=True."
                )

    def _angles(self) -> int | Tensor | None:
        if self.angles is None or isinstance(self.angles, int):
            return self.angles
        return read_angles(self.angles) if is_path(self.angles) else as_tensor(self.angles).double()


Acquisition = ScannerMRI | ScannerCT
ACQUISITIONS: dict[str, type[ScannerMRI] | type[ScannerCT]] = {"mri": ScannerMRI, "ct": ScannerCT}
