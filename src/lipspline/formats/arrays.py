"""Arrays in npy and npz files; nothing is ever unpickled, and nothing read before its size is known."""

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lipspline.formats.guard import DEFLATE, FileError, affordable, existing, reading
from lipspline.formats.stored import Container, Stored

ENDINGS = (".npy", ".npz")
NUMBERS = "biufc"


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
