"""Simulated measurements for the tables of reconstructions: single-coil MRI, multi-coil MRI and CT.

[table:reconstruction_performance, table:reconstruction_performance_mri, table:reconstruction_performance_ct]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lipspline._infra.randomness import generator
from lipspline.formats import ct, fastmri, mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.imaging.simulation import add_kspace_noise, add_sinogram_noise
from lipspline.operators import MRI, MultiCoilMRI, ParallelBeamCT, cartesian_mask, espirit, simulated_maps
from lipspline.operators._espirit import UNCROPPED
from lipspline.operators._fbp import fbp
from lipspline.operators.mri import centred_ifft, uncentred_fft
from lipspline.paper import gains
from lipspline.paper.config import Amount, Count, Positive
from lipspline.paper.reconstruction import DenoiserComparison, ScanKind
from lipspline.pnp import ValidationProblem

# The authors' own measurements


def prepared(path: Path) -> list[Path]:
    """The images of a folder of the authors' public set, a folder with `y.pt` each."""
    return sorted(folder for folder in path.glob("*") if fastmri.is_tensor_folder(folder))


def as_prepared(folder: Path) -> ValidationProblem:
    """What the authors measured, with their mask and their coil maps; the truth is the middle of the image.

    The tensors are read by torch's reader for weights, which makes tensors and runs no code.
    """
    kspace = fastmri.read_tensors(folder)
    if kspace.reference is None:
        raise FileError(f"{folder} has no x_crop.pt, the image that reconstructions are compared with.")
    y = uncentred_fft(centred_ifft(kspace.data))
    H = MRI(kspace.mask) if kspace.maps is None else MultiCoilMRI(kspace.mask, kspace.maps[0])
    return ValidationProblem(y, H, kspace.reference[None])


# Single-coil MRI


@dataclass(frozen=True)
class MriScan:
    """A kind of measurement: a random Cartesian mask for each image, and noise on real and imaginary part."""

    acceleration: Positive
    center: Amount
    noise: Amount


@dataclass(frozen=True)
class MriSettings:
    """What [table:reconstruction_performance] compares: kinds of scans, and denoisers on them."""

    scans: dict[str, MriScan]
    comparison: DenoiserComparison


def read_magnitudes(path: Path) -> Sequence[Tensor | Path]:
    """Magnitude images `(1, 1, H, W)`, each divided by its own maximum; or the folders of prepared measurements."""
    return prepared(path) or [unit_maximum(image) for file in listed(path) for image in _magnitudes(file)]


def listed(path: Path) -> list[Path]:
    """The HDF5 files of a folder, which is how fastMRI comes; else the path itself."""
    return sorted(path.glob("*.h5")) or [path]


def _magnitudes(file: Path) -> Tensor:
    found = mri.read(file)
    images = found.reference if isinstance(found, Kspace) else found.slices
    if images is None:
        raise FileError(f"{file} holds k-space without reference images, but k-space is to be simulated from images.")
    return images


def unit_maximum(image: Tensor) -> Tensor:
    """`(H, W) -> (1, 1, H, W)`, nonnegative with maximum 1."""
    return (image / image.max()).clamp_min(0)[None, None]


def draw_mask(scan: MriScan, width: int, name: str, seed: int) -> Tensor:
    """The mask of an image: it depends on the name of the image and the seed alone."""
    drawn = int(torch.randint(2**62, (1,), generator=generator(seed, "mask", name)))
    return cartesian_mask(width, scan.acceleration, scan.center, seed=drawn)


def add_noise(y: Tensor, mask: Tensor, noise: float, name: str, seed: int) -> Tensor:
    """Data with noise of standard deviation `noise` on real and imaginary part of what was measured."""
    return add_kspace_noise(y, mask, noise, generator(seed, "noise", name))


def measure_mri(image: Tensor | Path, scan: MriScan, name: str, seed: int) -> ValidationProblem:
    """`y = M F x + n` [sec:exp_pnp]; what was measured before is read."""
    if isinstance(image, Path):
        return as_prepared(image)
    mask = draw_mask(scan, image.shape[-1], name, seed)
    H = MRI(mask)
    return ValidationProblem(add_noise(H.forward(image), mask, scan.noise, name, seed), H, image)


def zero_fill(problem: ValidationProblem) -> Tensor:
    """`Hᵀ y`."""
    return problem.H.adjoint(problem.y)


SINGLE_COIL = ScanKind(read_magnitudes, measure_mri, {"zero-fill": zero_fill})
MRI_EXPERIMENT = gains.experiment(MriSettings, SINGLE_COIL)


# Multi-coil MRI


@dataclass(frozen=True)
class CoilScan:
    """A kind of measurement with several coils.

    Args:
        coils: simulated ones, for images; measured k-space has its own, and no noise is added to it.
    """

    acceleration: Positive
    center: Amount
    noise: Amount
    coils: Count

    @property
    def sampling(self) -> MriScan:
        return MriScan(self.acceleration, self.center, self.noise)


@dataclass(frozen=True)
class MulticoilSettings:
    """What [table:reconstruction_performance_mri] compares: kinds of scans, and denoisers on them."""

    scans: dict[str, CoilScan]
    comparison: DenoiserComparison


def read_multicoil(path: Path) -> Sequence[Tensor | Kspace | Path]:
    """Fully sampled k-space slice by slice where there is some, else magnitude images to simulate it from.

    Of measurements that the authors have prepared, the folders.
    """
    if folders := prepared(path):
        return folders
    found = [mri.read(file) for file in listed(path)]
    measured = [one for one in found if isinstance(one, Kspace)]
    if not measured:
        return read_magnitudes(path)
    for one in measured:
        if not one.mask.all():
            raise FileError(f"{path} is undersampled: this experiment drops columns of fully sampled k-space.")
    return [replace(one, data=data[None]) for one in measured for data in one.data]


def measure_multicoil(subject: Tensor | Kspace | Path, scan: CoilScan, name: str, seed: int) -> ValidationProblem:
    """`y_c = M F S_c x + n_c`; the operator knows only the maps that ESPIRiT finds in y [sec:exp_pnp]."""
    if isinstance(subject, Path):
        return as_prepared(subject)
    if isinstance(subject, Kspace):
        return undersample(subject, scan, name, seed)
    mask = draw_mask(scan.sampling, subject.shape[-1], name, seed)
    maps = simulated_maps(scan.coils, (subject.shape[-2], subject.shape[-1]))
    y = add_noise(MultiCoilMRI(mask, maps).forward(subject), mask, scan.noise, name, seed)
    return ValidationProblem(y, MultiCoilMRI(mask, espirit(y[0], crop=UNCROPPED)), subject)


def undersample(kspace: Kspace, scan: CoilScan, name: str, seed: int) -> ValidationProblem:
    """Drop columns of measured k-space; the truth is the magnitude of the image from all of them."""
    full = kspace.data
    truth = _operator(torch.ones(full.shape[-1], dtype=torch.bool), full).adjoint(full).abs()
    mask = draw_mask(scan.sampling, full.shape[-1], name, seed)
    y = full * mask / truth.max()
    return ValidationProblem(y, _operator(mask, y), truth / truth.max())


def _operator(mask: Tensor, y: Tensor) -> MultiCoilMRI:
    """The operator for k-space of a scanner, with maps from it."""
    return MultiCoilMRI(mask, espirit(y[0], crop=UNCROPPED, convention="centred"), convention="centred")


MULTI_COIL = ScanKind(read_multicoil, measure_multicoil, {"zero-fill": zero_fill})
MULTICOIL_EXPERIMENT = gains.experiment(MulticoilSettings, MULTI_COIL)


# CT


@dataclass(frozen=True)
class CtScan:
    """A parallel-beam geometry, and the noise on line integrals in the paper's unit: the image is 256 wide."""

    angles: Count
    detectors: Count
    noise: Amount


@dataclass(frozen=True)
class CtSettings:
    """What [table:reconstruction_performance_ct] compares: kinds of scans, and denoisers on them."""

    scans: dict[str, CtScan]
    comparison: DenoiserComparison


def read_attenuations(path: Path) -> list[Tensor]:
    """Attenuation images `(1, 1, N, N)`, each divided by its own maximum.

    Arrays in a folder, as in the authors' public set, are attenuations already; all else is in Hounsfield units.
    """
    if path.is_dir() and (arrays := sorted(path.glob("*.npy"))):
        return [unit_maximum(image.float()) for file in arrays for image in ct.read(file).slices]
    return [unit_maximum(ct.attenuation(image)) for image in ct.read(path).slices]


def measure_ct(image: Tensor, scan: CtScan, name: str, seed: int) -> ValidationProblem:
    """`y = H x + n` with parallel beams; the solver starts at the smoothest filtered backprojection [sec:exp_pnp]."""
    H = _geometry(image.shape[-1], scan.angles, scan.detectors)
    y = add_sinogram_noise(H.forward(image), scan.noise, generator(seed, "noise", name))
    return ValidationProblem(y, H, image, fbp(y, H, filter="hann"))


@cache
def _geometry(size: int, angles: int, detectors: int) -> ParallelBeamCT:
    return ParallelBeamCT.paper(size, angles=angles, detectors=detectors)


def sharpest(problem: ValidationProblem) -> Tensor:
    """Filtered backprojection with the bare ramp, as in the paper: its PSNR falls by 5 dB as noise doubles."""
    assert isinstance(problem.H, ParallelBeamCT)
    return fbp(problem.y, problem.H)


def smoothest(problem: ValidationProblem) -> Tensor:
    """Filtered backprojection with the window that suppresses most noise: a stronger rival."""
    assert isinstance(problem.H, ParallelBeamCT)
    return fbp(problem.y, problem.H, filter="hann")


TOMOGRAPHY = ScanKind(read_attenuations, measure_ct, {"fbp": sharpest, "fbp-hann": smoothest})
CT_EXPERIMENT = gains.experiment(CtSettings, TOMOGRAPHY)
