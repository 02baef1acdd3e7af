"""Computed tomography by plug-and-play [table:reconstruction_performance_ct]."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lipspline._infra.randomness import generator
from lipspline.formats import ct
from lipspline.operators import ParallelBeamCT
from lipspline.operators.fbp import fbp
from lipspline.paper import gains
from lipspline.paper.config import Amount, Count
from lipspline.paper.mri import unit_maximum
from lipspline.paper.reconstruction import Comparison, Modality
from lipspline.pnp import Problem


@dataclass(frozen=True)
class Scan:
    """A parallel-beam geometry, and the noise on line integrals in the paper's unit: the image is 256 wide."""

    angles: Count
    detectors: Count
    noise: Amount


@dataclass(frozen=True)
class Settings:
    """What [table:reconstruction_performance_ct] compares: kinds of scans, and denoisers on them."""

    scans: dict[str, Scan]
    comparison: Comparison


def read(path: Path) -> list[Tensor]:
    """Attenuation images `(1, 1, N, N)`, each divided by its own maximum."""
    return [unit_maximum(ct.attenuation(image)) for image in ct.read(path).slices]


def measure(image: Tensor, scan: Scan, name: str, seed: int) -> Problem:
    """`y = H x + n` with parallel beams; the solver starts at the smoothest filtered backprojection [sec:exp_pnp]."""
    H = _geometry(image.shape[-1], scan.angles, scan.detectors)
    y = H.forward(image)
    y = y + scan.noise * torch.randn(y.shape, generator=generator(seed, "noise", name))
    return Problem(y, H, image, fbp(y, H, filter="hann"))


@cache
def _geometry(size: int, angles: int, detectors: int) -> ParallelBeamCT:
    return ParallelBeamCT.paper(size, angles=angles, detectors=detectors)


def sharpest(problem: Problem) -> Tensor:
    """Filtered backprojection with the bare ramp, as in the paper: its PSNR falls by 5 dB as noise doubles."""
    assert isinstance(problem.H, ParallelBeamCT)
    return fbp(problem.y, problem.H)


def smoothest(problem: Problem) -> Tensor:
    """Filtered backprojection with the window that suppresses most noise: a stronger rival."""
    assert isinstance(problem.H, ParallelBeamCT)
    return fbp(problem.y, problem.H, filter="hann")


MODALITY = Modality(read, measure, {"fbp": sharpest, "fbp-hann": smoothest})
EXPERIMENT = gains.experiment(Settings, MODALITY)
