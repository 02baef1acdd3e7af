"""Single-coil MRI of knees by plug-and-play [table:reconstruction_performance]."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lipspline._infra.randomness import generator
from lipspline.formats import mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.operators import MRI, cartesian_mask
from lipspline.paper import gains
from lipspline.paper.config import Amount, Positive
from lipspline.paper.reconstruction import Comparison, Modality
from lipspline.pnp import Problem


@dataclass(frozen=True)
class Scan:
    """A kind of measurement: a random Cartesian mask for each image, and noise on real and imaginary part."""

    acceleration: Positive
    center: Amount
    noise: Amount


@dataclass(frozen=True)
class Settings:
    """What [table:reconstruction_performance] compares: kinds of scans, and denoisers on them."""

    scans: dict[str, Scan]
    comparison: Comparison


def read(path: Path) -> list[Tensor]:
    """Magnitude images `(1, 1, H, W)`, each divided by its own maximum."""
    return [unit_maximum(image) for file in listed(path) for image in _magnitudes(file)]


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


def draw_mask(scan: Scan, width: int, name: str, seed: int) -> Tensor:
    """The mask of an image: it depends on the name of the image and the seed alone."""
    drawn = int(torch.randint(2**62, (1,), generator=generator(seed, "mask", name)))
    return cartesian_mask(width, scan.acceleration, scan.center, seed=drawn)


def add_noise(y: Tensor, mask: Tensor, noise: float, name: str, seed: int) -> Tensor:
    """Data with noise of standard deviation `noise` on real and imaginary part of what was measured."""
    stream = generator(seed, "noise", name)
    real, imaginary = (torch.randn(y.shape, generator=stream) for _ in range(2))
    return y + noise * torch.complex(real, imaginary) * torch.fft.ifftshift(mask)


def measure(image: Tensor, scan: Scan, name: str, seed: int) -> Problem:
    """`y = M F x + n` [sec:exp_pnp]."""
    mask = draw_mask(scan, image.shape[-1], name, seed)
    H = MRI(mask)
    return Problem(add_noise(H.forward(image), mask, scan.noise, name, seed), H, image)


def zero_fill(problem: Problem) -> Tensor:
    """`Hᵀ y`."""
    return problem.H.adjoint(problem.y)


MODALITY = Modality(read, measure, {"zero-fill": zero_fill})
EXPERIMENT = gains.experiment(Settings, MODALITY)
