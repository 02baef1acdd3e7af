"""Arrays out of HDF5 files that nobody vouches for: no links to other files, no odd types, no absurd sizes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipspline import _checks
from lipspline.data.guard import FileError, affordable, existing, reading

NUMBERS = "biufc"


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """An open HDF5 file; whatever goes wrong with it inside the block is one sentence."""
    path = existing(path, "HDF5")
    h5py = _checks.require("h5py", "mri", "Reading HDF5 files")
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        yield file


def dataset(file: Any, name: str) -> Any | None:
    """The dataset `name` of an open file if it holds an array of numbers; None if there is none of that name."""
    h5py = _checks.require("h5py", "mri", "Reading HDF5 files")
    link = file.get(name, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        raise FileError(f"{file.filename}: {name!r} is a link to somewhere else, which is not followed.")
    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise FileError(f"{file.filename}: {name!r} is not an array.")
    if found.is_virtual or found.external:
        raise FileError(f"{file.filename}: the array {name!r} lies in other files, which are not opened.")
    if found.dtype.kind not in NUMBERS:
        raise FileError(f"{file.filename}: the array {name!r} holds {found.dtype} values, not numbers.")
    return found


def rows(found: Any, numbers: range) -> NDArray[Any]:
    """Some rows of a dataset, read without ever allocating more than is allowed."""
    path = Path(found.file.filename)
    affordable(path, (len(numbers), *found.shape[1:]), _widest(found.dtype), f"{found.name[1:]!r}")
    if found.chunks is not None:
        affordable(path, found.chunks, found.dtype.itemsize, f"pieces of {found.name[1:]!r}")
    return np.asarray(found[numbers.start : numbers.stop])


def whole(found: Any) -> NDArray[Any]:
    """All of a dataset that has at least one dimension."""
    if not found.shape:
        raise FileError(f"{found.file.filename}: {found.name[1:]!r} is a single number, not an array.")
    return rows(found, range(found.shape[0]))


def _widest(dtype: np.dtype) -> int:
    """Bytes of a value as stored or as it is used, whichever is more."""
    return max(dtype.itemsize, 8 if dtype.kind == "c" else 4)
