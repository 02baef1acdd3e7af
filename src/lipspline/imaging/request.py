"""What to reconstruct and how: one typed request, checked before anything is read or computed."""

import glob
import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.files import is_pattern
from lipspline.formats.bart import pair
from lipspline.imaging.problem import Iteration
from lipspline.imaging.scanners import (
    Acquisition,
    Data,
    is_path,
)
from lipspline.imaging.strength import Auto
from lipspline.priors import EnergyPrior, resolve


@dataclass(frozen=True, kw_only=True)
class Request(Iteration):
    """One reconstruction: what is reconstructed, by which prior, and how far each slice is solved.

    Args:
        data: a file or folder, or an array: k-space, sinograms, or images to simulate them from.
        acquisition: how the data were measured.
        prior: a name in `priors.catalogue()`, a .safetensors file, or "auto" for the recommended one.
        strength: of the regularisation, relative to what "auto" chooses: 0.5 smooths less, 2 smooths more.
        noise: the noise level at which the prior is served, in units of 1/255; "auto" follows from the data.
        beta: the weight β of the denoiser; "auto" follows from the data.
        slices: which slices of the data, neighbours, numbered from 0.
        tol, max_steps, accelerate, contraction: as for `pnp.fbs`; the last is for denoisers only.
        compare: other priors, by name or file, with which the middle slice is reconstructed too.
    """

    data: Data
    acquisition: Acquisition
    prior: str = "auto"
    strength: float | Auto = "auto"
    noise: float | Auto = "auto"
    beta: float | Auto = "auto"
    slices: slice = field(default_factory=lambda: slice(None))
    compare: tuple[str, ...] = ()

    def __post_init__(self):
        for other in self.compare:
            resolve(other)
        for name in ("strength", "noise"):
            if getattr(self, name) != "auto":
                checks.positive(name, getattr(self, name))
        if self.beta != "auto":
            checks.within("beta", self.beta, 0, 1)
            if self.noise != "auto" and self.strength != "auto":
                raise ValueError("strength= has no effect if noise= and beta= are given. Leave one of them out.")
        if not 0 < self.contraction <= 1:
            raise ValueError(f"contraction must lie above 0 and be at most 1, but is {self.contraction!r}.")
        if self.contraction < 1 and isinstance(resolve(self.prior), EnergyPrior):
            raise ValueError(
                f"contraction= is for denoisers, but {resolve(self.prior).name} is an energy. "
                f"Leave it out, or take prior=lls."
            )
        checks.positive("tol", self.tol)
        checks.at_least("max_steps", self.max_steps, 1)
        first, last, step = self.slices.start, self.slices.stop, self.slices.step
        if (first or 0) < 0 or step not in (None, 1) or (last is not None and last < 0):
            raise ValueError(f"slices must be neighbours, numbered from 0, such as slice(3, 9), but is {self.slices}.")

    @property
    def first(self) -> int:
        """Number of the first slice in its file."""
        return self.slices.start or 0

    @property
    def source(self) -> str:
        """Where the data come from, in a word."""
        return str(self.data) if is_path(self.data) else "array"

    def files(self) -> list[Path]:
        """All files and folders that are read, and the patterns that name some of them."""
        named = [self.data, *(getattr(self.acquisition, each.name) for each in fields(self.acquisition))]
        named += [prior for prior in (self.prior, *self.compare) if Path(prior).suffix]
        paths = [Path(value) for value in named if is_path(value)]
        return [file for path in paths for file in _found(path)] + [path for path in paths if is_pattern(path)]

    def options(self) -> dict[str, Any]:
        """Everything but the data, as JSON values for people."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {each.name: getattr(self.acquisition, each.name) for each in fields(self.acquisition)}
        return {name: _shown(value) for name, value in {**given, **own}.items() if name not in ("data", "acquisition")}

    def fingerprint(self) -> dict[str, Any]:
        """Everything that a result depends on, as JSON values; files by size and time, arrays by their checksum."""
        return {each.name: _fingerprint(getattr(self, each.name)) for each in fields(self)}


def _shown(value: Any) -> Any:
    if isinstance(value, slice):
        return f"{'' if value.start is None else value.start}:{'' if value.stop is None else value.stop}"
    if isinstance(value, (Tensor, np.ndarray)):
        return f"array {tuple(value.shape)}"
    return str(value) if isinstance(value, Path) else value


def _fingerprint(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _fingerprint(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (Tensor, np.ndarray)):
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(tensor.numpy().tobytes()).hexdigest()]
    if isinstance(value, slice):
        return [value.start, value.stop]
    if is_path(value) and _found(Path(value)):
        return _state(Path(value))
    return str(value) if isinstance(value, Path) else value


def _found(path: Path) -> list[Path]:
    """The file or folder of this name, the two files of BART, or the files of a pattern such as `scan/*.tif`."""
    if (both := pair(path)) is not None:
        return [file for file in both if file.exists()]
    return [path] if path.exists() else sorted(map(Path, glob.glob(str(path))))


def _state(path: Path) -> list[Any]:
    """What tells one state of a file, or of the files in a folder, from another, without reading them."""
    files = sorted(path.iterdir()) if path.is_dir() else _found(path)
    return [
        str(path.resolve()),
        *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.exists()),
    ]
