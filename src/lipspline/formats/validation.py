"""What every reader does first: the file is there, claims no more than memory holds, and damage is one sentence."""

import contextlib
import logging
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

LIMIT = 2**30
"""Bytes that one array read from a file may take; with its conversion to floats a reader stays below 2 GB."""
DEFLATE = 1032
"""How many times smaller deflate can make anything: a file that claims more is a bomb or damaged."""

PATIENCE = 20.0
"""Seconds that reading a file for a trial may take."""


class FileError(ValueError):
    """A file that cannot be used, said in one sentence that names it."""


def existing(path: str | os.PathLike[str], kind: str) -> Path:
    """The path, if it is a file that is not empty."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no {kind} file {path}.")
    if path.stat().st_size == 0:
        raise FileError(f"The {kind} file {path} is empty.")
    return path


def reals(path: Path, what: str, values: Any, dtype: type) -> Tensor:
    """Numbers of a file as a tensor, if they are real: no imaginary part is dropped."""
    if np.iscomplexobj(values):
        raise FileError(f"{path}: {what} is complex, but real numbers are wanted.")
    return torch.from_numpy(np.ascontiguousarray(values, dtype))


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into one sentence that names it; warnings and logs are muted."""
    muted = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (FileError, ImportError):
        raise
    except Exception as error:  # decoders raise anything from SyntaxError to struct.error on damaged files
        raise FileError(f"{path} is damaged, or not a {kind} file ({in_short(error)}).") from error
    finally:
        logging.disable(muted)


def survivable(path: Path, kind: str, script: str) -> Path:
    """Return `path` if a process of its own survives a script that reads it.

    For libraries that take the whole process with them on a damaged file, where no exception can be caught.
    """
    trial = [sys.executable, "-c", script, str(path)]
    try:
        code = subprocess.run(trial, capture_output=True, timeout=PATIENCE).returncode
    except subprocess.TimeoutExpired:
        code = -1
    if code < 0:
        raise FileError(f"{path} is damaged, or not a {kind} file (reading it crashes or does not end).")
    return path


def in_short(error: BaseException) -> str:
    """What an exception of a library says, on one line of readable length."""
    words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return words if len(words) <= 160 else words[:157] + "..."


def affordable(path: Path, shape: Sequence[int], itemsize: int, what: str = "an array") -> int:
    """The bytes of an array that a file claims to hold, if they are some and not too many.

    Example:
        >>> affordable(Path("scan.nii"), (512, 512, 9), 2)
        4718592
        >>> affordable(Path("scan.nii"), (65535, 65535, 65535), 8)
        Traceback (most recent call last):
        lipspline.formats.validation.FileError: scan.nii claims an array of 65535 x 65535 x 65535 values, 2.25e+06 GB;
        at most 1.07 GB are read at once. If that is right, choose fewer slices.
    """
    size = math.prod(shape) * itemsize
    sizes = " x ".join(map(str, shape)) or "no"
    if not shape or min(shape) < 1:
        raise FileError(f"{path} claims {what} of {sizes} values: it is empty.")
    if size > LIMIT:
        raise FileError(
            f"{path} claims {what} of {sizes} values, {size / 1e9:.3g} GB; at most {LIMIT / 1e9:.3g} GB are read at "
            f"once. If that is right, choose fewer slices."
        )
    return size


def chosen(path: Path, count: int, slices: slice) -> range:
    """The numbers of the slices that a user asks for out of `count`; none is an error.

    Example:
        >>> chosen(Path("scan.nii"), 9, slice(3, 5))
        range(3, 5)
    """
    numbers = range(count)[slices]
    if numbers.step != 1:
        raise ValueError(f"slices must be neighbours, first:last, but the step is {numbers.step}.")
    if not numbers:
        raise FileError(f"{path} has {count} slice(s), numbered from 0, and none of them is among those asked for.")
    return numbers


def refuse_jpeg(path: Path) -> None:
    """Refuse to write a JPEG file."""
    if path.suffix.lower() in (".jpg", ".jpeg"):
        raise ValueError(
            f"{path} is not written: JPEG changes the pixels. Name it {path.with_suffix('.png')}, or .tif."
        )
