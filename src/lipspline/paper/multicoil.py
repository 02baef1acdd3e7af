"""Multi-coil MRI by plug-and-play, with coil maps estimated from the data [table:reconstruction_performance_mri]."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lipspline.formats import mri as files
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.operators import MultiCoilMRI, espirit, simulated_maps
from lipspline.operators.espirit import UNCROPPED
from lipspline.paper import gains, mri
from lipspline.paper.config import Amount, Count, Positive
from lipspline.paper.mri import Scan, add_noise, draw_mask, zero_fill
from lipspline.paper.reconstruction import Comparison, Modality
from lipspline.pnp import Problem


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
    def sampling(self) -> Scan:
        return Scan(self.acceleration, self.center, self.noise)


@dataclass(frozen=True)
class Settings:
    """What [table:reconstruction_performance_mri] compares: kinds of scans, and denoisers on them."""

    scans: dict[str, CoilScan]
    comparison: Comparison


def read(path: Path) -> Sequence[Tensor | Kspace]:
    """Fully sampled k-space slice by slice where there is some, else magnitude images to simulate it from."""
    found = [files.read(file) for file in mri.listed(path)]
    measured = [one for one in found if isinstance(one, Kspace)]
    if not measured:
        return mri.read(path)
    for one in measured:
        if not one.mask.all():
            raise FileError(f"{path} is undersampled: this experiment drops columns of fully sampled k-space.")
    return [replace(one, data=data[None]) for one in measured for data in one.data]


def measure(subject: Tensor | Kspace, scan: CoilScan, name: str, seed: int) -> Problem:
    """`y_c = M F S_c x + n_c`; the operator knows only the maps that ESPIRiT finds in y [sec:exp_pnp]."""
    if isinstance(subject, Kspace):
        return undersample(subject, scan, name, seed)
    mask = draw_mask(scan.sampling, subject.shape[-1], name, seed)
    maps = simulated_maps(scan.coils, (subject.shape[-2], subject.shape[-1]))
    y = add_noise(MultiCoilMRI(mask, maps).forward(subject), mask, scan.noise, name, seed)
    return Problem(y, MultiCoilMRI(mask, espirit(y[0], crop=UNCROPPED)), subject)


def undersample(kspace: Kspace, scan: CoilScan, name: str, seed: int) -> Problem:
    """Drop columns of measured k-space; the truth is the magnitude of the image from all of them."""
    full = kspace.data
    truth = _operator(torch.ones(full.shape[-1], dtype=torch.bool), full).adjoint(full).abs()
    mask = draw_mask(scan.sampling, full.shape[-1], name, seed)
    y = full * mask / truth.max()
    return Problem(y, _operator(mask, y), truth / truth.max())


def _operator(mask: Tensor, y: Tensor) -> MultiCoilMRI:
    """The operator for k-space of a scanner, with maps from it."""
    return MultiCoilMRI(mask, espirit(y[0], crop=UNCROPPED, convention="centred"), convention="centred")


MODALITY = Modality(read, measure, {"zero-fill": zero_fill})
EXPERIMENT = gains.experiment(Settings, MODALITY)
