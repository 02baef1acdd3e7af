"""What a user gives: files by name, or arrays; told apart and checked."""

from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.volume import Volume
from lipspline.imaging.coils import COILS, PHASES, UNKNOWNS
from lipspline.imaging.simulation import checked_noise

Data = str | Path | Tensor | NDArray[Any]
WORDS = ("", *COILS, *PHASES, *UNKNOWNS)
"""What is never the name of a file."""


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
