"""Arrays that lie in a file under a name: read only when asked for, never more than is affordable; npy and npz.

Nothing is ever unpickled, and nothing is read before its size is known.
"""

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from lipspline.formats.validation import DEFLATE, FileError, affordable, chosen, existing, reading

ENDINGS = (".npy", ".npz")
NUMBERS = "biufc"


@dataclass(frozen=True)
class Stored:
    """One array of numbers in a file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[range], NDArray[Any]]
    """Some rows of the array."""

    def rows(self, numbers: range) -> Tensor:
        """Some rows as float32 or complex64; NaN is refused."""
        if not self.shape or numbers[-1] >= self.shape[0]:
            raise FileError(f"{self.path}: {self.name} has shape {self.shape}, too few for what else is in the file.")
        used = 8 if self.dtype.kind == "c" else 4
        affordable(self.path, (len(numbers), *self.shape[1:]), max(self.dtype.itemsize, used), self.name)
        values = torch.from_numpy(np.ascontiguousarray(self.load(numbers), _native(self.dtype)))
        values = values.to(torch.complex64 if self.dtype.kind == "c" else torch.float32)
        if not torch.isfinite(values).all():
            raise FileError(f"{self.path}: {self.name} has NaN or infinite values.")
        return values

    def whole(self) -> Tensor:
        """All of it."""
        return self.rows(range(self.shape[0] if self.shape else 0) or range(1))

    def real(self) -> "Stored":
        """The array itself, if it is real: no imaginary part is dropped."""
        if self.dtype.kind == "c":
            raise FileError(f"{self.path}: {self.name} is complex, but real numbers are wanted.")
        return self

    def as_stack(self, rank: int) -> "Stored":
        """The array itself, or, if it has this rank, a stack of which it is the only element."""
        if len(self.shape) != rank:
            return self
        return replace(self, shape=(1, *self.shape), load=lambda _: self.load(range(self.shape[0]))[None])

    def stack(self, ranks: dict[int, str], slices: slice = slice(None)) -> range:
        """The numbers of the chosen rows, if the array has one of the ranks, each given with what it means."""
        if len(self.shape) not in ranks:
            wanted = " or ".join(ranks.values())
            raise FileError(f"{self.path}: {self.name} has shape {self.shape}; it should be {wanted}.")
        return chosen(self.path, self.shape[0], slices)


def _native(dtype: np.dtype) -> np.dtype:
    """The dtype that torch knows: little end first, and bool or half as floats."""
    return np.dtype(np.float32) if dtype.kind == "b" else dtype.newbyteorder("=")


@dataclass(frozen=True)
class Container:
    """The arrays of one file by name; a file with a single array may have it under any."""

    path: Path
    names: tuple[str, ...]
    get: Callable[[str], Stored]

    def find(self, *names: str) -> Stored | None:
        """The first array of these names, or None."""
        return next((self.get(name) for name in names if name in self.names), None)

    def find_or_only(self, *names: str) -> Stored | None:
        """The first array of these names, or the only one there is."""
        if len(self.names) == 1:
            return self.get(self.names[0])
        return self.find(*names)


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[Container]:
    """The arrays of an npz file by name, or the one array of an npy file, which is called "array"."""
    path = existing(path, "numpy")
    with reading(path, "numpy"):
        if path.suffix.lower() == ".npy":
            yield Container(path, ("array",), lambda _: _single(path))
            return
        with zipfile.ZipFile(path) as archive:
            names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            yield Container(path, tuple(names), lambda name: _member(path, archive, names[name]))


def _single(path: Path) -> Stored:
    with path.open("rb") as file:
        shape, fortran, dtype = _header(path, file)
        offset, size = file.tell(), math.prod(shape) * dtype.itemsize
    if offset + size > path.stat().st_size:
        raise FileError(f"{path} is truncated: an array of shape {shape} needs {size} bytes.")

    def load(numbers: range) -> NDArray[Any]:
        mapped = np.memmap(path, dtype, "r", offset, shape, order="F" if fortran else "C")
        return np.array(mapped[numbers.start : numbers.stop])

    return Stored(path, "the array", shape, dtype, load)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Stored:
    with archive.open(info) as file:
        shape, fortran, dtype = _header(path, file)
    size, name = math.prod(shape) * dtype.itemsize, f"{info.filename.removesuffix('.npy')!r}"
    if size > DEFLATE * path.stat().st_size:
        raise FileError(f"{path}: {name} claims {size} bytes, more than a file of this size can hold.")

    def load(numbers: range) -> NDArray[Any]:
        affordable(path, shape, dtype.itemsize, name)  # members of an archive are read as a whole
        with archive.open(info) as file:
            _header(path, file)
            content = file.read(size)
        if len(content) < size:
            raise FileError(f"{path} is truncated: {name} needs {size} bytes.")
        values = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
        return values[numbers.start : numbers.stop]

    return Stored(path, name, shape, dtype, load)


def _header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type, as the file claims them."""
    major, minor = npy.read_magic(file)
    if (major, minor) not in ((1, 0), (2, 0)):
        raise FileError(f"{path} is an npy file of version {major}.{minor}; versions 1.0 and 2.0 are read.")
    header = npy.read_array_header_1_0(file) if major == 1 else npy.read_array_header_2_0(file)
    if header[2].kind not in NUMBERS:
        raise FileError(f"{path} holds {header[2]} values, not numbers.")
    return header
