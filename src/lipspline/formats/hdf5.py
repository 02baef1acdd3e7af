"""HDF5 files that nobody vouches for: no links to other files, no odd types, no absurd sizes."""

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lipspline._infra import checks
from lipspline.formats.arrays import Container, Stored
from lipspline.formats.validation import FileError, affordable, existing, reading
from lipspline.formats.volume import LazyVolume, Stack

ENDINGS = (".h5", ".hdf5")
NUMBERS = "biufc"
LONGEST_TEXT = 2**20


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """An open HDF5 file; whatever goes wrong with it inside the block is one sentence."""
    path = existing(path, "HDF5")
    h5py = checks.require("h5py", "mri", "Reading HDF5 files")
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        yield file


def container(file: Any) -> Container:
    """The arrays of an open file."""
    return Container(Path(file.filename), tuple(file.keys()), lambda name: _stored(file, name))


def write(path: str | Path, volume: LazyVolume, *, image: torch.Tensor | Stack | None = None) -> None:
    """Write a volume as `reconstruction` (S, H, W), as fastMRI does, with `affine`, and `complex` if it is given."""
    h5py = checks.require("h5py", "mri", "Writing HDF5 files")
    with h5py.File(path, "w") as file:
        for name, values, dtype in (("reconstruction", volume.slices, np.float32), ("complex", image, np.complex64)):
            if values is not None:
                written = file.create_dataset(name, tuple(values.shape), dtype)
                for i in range(len(values)):
                    written[i] = values[i].numpy()
        file["reconstruction"].attrs["unit"] = volume.unit
        if volume.affine is not None:
            file["affine"] = volume.affine.numpy()


def member(file: Any, name: str) -> Any:
    """What the file itself holds under a name; links to somewhere else are not followed."""
    h5py = checks.require("h5py", "mri", "Reading HDF5 files")
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise FileError(f"{file.file.filename}: {name!r} is a link to somewhere else, which is not followed.")
    return file[name]


def array(file: Any, name: str) -> Any:
    """A dataset whose values lie in the file itself, in pieces that are affordable."""
    h5py = checks.require("h5py", "mri", "Reading HDF5 files")
    found, path = member(file, name), Path(file.file.filename)
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise FileError(f"{path}: {name!r} is not an array.")
    if found.is_virtual or found.external:
        raise FileError(f"{path}: the array {name!r} lies in other files, which are not opened.")
    if found.chunks is not None:
        affordable(path, found.chunks, found.dtype.itemsize, f"pieces of {name!r}")
        _check_pieces(found, path)
    return found


def _check_pieces(found: Any, path: Path) -> None:
    """Refuse pieces that are said to lie outside the file, and pieces whose size is not that of all of them.

    The library would allocate whatever the first claim; of the others it would write more than it has allocated.
    """
    end = path.stat().st_size
    whole = math.prod(found.chunks) * found.id.get_type().get_size()
    compressed = found.id.get_create_plist().get_nfilters() > 0

    def check(piece: Any) -> bool | None:
        inside = 0 <= piece.byte_offset <= piece.byte_offset + piece.size <= end
        return None if inside and (compressed or piece.size == whole) else True

    if found.id.chunk_iter(check):
        raise FileError(
            f"{path} is truncated or damaged: a piece of {found.name[1:]!r} lies outside the file or has the wrong "
            f"size."
        )


def check_lengths(found: Any, *fields: str) -> None:
    """Refuse a table whose fields of varying length claim more than the file holds: they would be allocated first."""
    path, kind = Path(found.file.filename), found.id.get_type()
    if found.chunks is None or found.id.get_create_plist().get_nfilters():
        raise FileError(f"{path}: the table {found.name!r} is not stored in plain pieces, and not read.")
    starts = [kind.get_member_offset(kind.get_member_index(field.encode())) for field in fields]
    places: list[tuple[int, ...]] = []
    found.id.chunk_iter(lambda piece: places.append(piece.chunk_offset))
    heaps: set[int] = set()
    for place in places:
        table = np.frombuffer(found.id.read_direct_chunk(place)[1], np.uint8).reshape(-1, kind.get_size())
        for start in starts:
            lengths = table[:, start : start + 4].copy().view("<u4")
            _check_length(path, lengths.max())
            heaps.update(table[:, start + 4 : start + 12].copy().view("<u8")[lengths > 0].tolist())
    _check_heaps(found, heaps)


def _check_length(path: Path, length: int) -> None:
    if length > path.stat().st_size:
        raise FileError(f"{path} is damaged: an entry claims {length} values, more than the file holds.")


def _check_heaps(found: Any, addresses: Iterable[int]) -> None:
    """Refuse damaged collections of values of varying length, in which the library may search without an end.

    A collection is "GCOL", a version, its size, and entries: a number (0 for free space), their length, their values.
    """
    path, settings = Path(found.file.filename), found.file.id.get_create_plist()
    if settings.get_sizes() != (8, 8):
        raise FileError(f"{path}: {found.name!r} is stored with addresses of an unusual size, and not read.")
    base, end = settings.get_userblock(), path.stat().st_size
    damaged = FileError(f"{path} is damaged: the values of {found.name!r} are not where they are said to be.")
    with path.open("rb") as raw:
        for address in addresses:
            if not 0 < address <= end - base - 16:
                raise damaged
            raw.seek(base + address)
            head = raw.read(16)
            size = int.from_bytes(head[8:], "little")
            if head[:4] != b"GCOL" or not 16 <= size <= end - base - address:
                raise damaged
            _check_heap(raw.read(size - 16), damaged)


def _check_heap(entries: bytes, damaged: FileError) -> None:
    place = 0
    while place + 16 <= len(entries):
        number = int.from_bytes(entries[place : place + 2], "little")
        length = int.from_bytes(entries[place + 8 : place + 16], "little")
        step = 16 + length + -length % 8 if number else length  # that of free space counts its head
        if not 16 <= step <= len(entries) - place:
            raise damaged
        place += step


def text(file: Any, name: str) -> str:
    """A string of an open file; empty if there is none."""
    if name not in file:
        return ""
    found, path = array(file, name), Path(file.file.filename)
    place = found.id.get_offset()
    if found.size != 1 or found.dtype.itemsize > LONGEST_TEXT or place is None:
        return ""
    if found.dtype.kind == "O":  # of varying length, which is stored first
        with path.open("rb") as raw:
            raw.seek(place)
            head = raw.read(12)
        length = int.from_bytes(head[:4], "little")
        _check_length(path, length)
        if length > 0:
            _check_heaps(found, [int.from_bytes(head[4:], "little")])
        if length > LONGEST_TEXT:
            raise FileError(f"{path}: {name!r} is a text of {length} bytes; at most {LONGEST_TEXT} are read.")
    value = found[()] if found.shape == () else found[(0,) * len(found.shape)]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _stored(file: Any, name: str) -> Stored:
    found = array(file, name)
    if found.dtype.kind not in NUMBERS:
        raise FileError(f"{file.filename}: the array {name!r} holds {found.dtype} values, not numbers.")

    def load(numbers: range) -> NDArray[Any]:
        return np.asarray(found[numbers.start : numbers.stop])

    return Stored(Path(file.filename), f"{name!r}", tuple(found.shape), found.dtype, load)
