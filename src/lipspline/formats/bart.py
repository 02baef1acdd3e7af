"""BART's pairs of files: `.hdr` with the sizes as text, `.cfl` with complex numbers, first index fastest."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline.formats.kspace import (
    CONCENTRATED,
    Kspace,
    LazyKspace,
    energy_of,
    in_pieces,
    large,
    low_energy,
    with_mask,
)
from lipspline.formats.validation import FileError, affordable, chosen, existing, reading
from lipspline.formats.volume import Stack

VALUES, HEADER = ".cfl", ".hdr"
ENDINGS = (VALUES, HEADER)
DIMENSIONS = 16
READ, PHASE, PARTITION, COIL, SETS, SLICE = 0, 1, 2, 3, 4, 13
LONGEST_HEADER = 2**16


def pair(path: str | Path) -> tuple[Path, Path] | None:
    """The files of header and values by any name that BART's users give: `kspace`, `kspace.cfl` or `kspace.hdr`.

    None if the name is not that of a pair; one without ending must have its values there.
    """
    path = Path(path)
    if path.suffix.lower() in ENDINGS:
        return path.with_suffix(".hdr"), path.with_suffix(".cfl")
    header, values = (path.with_name(f"{path.name}{ending}") for ending in (".hdr", ".cfl"))
    return (header, values) if path.name and values.is_file() and not path.exists() else None


def header_of(path: Path) -> Path | None:
    """The header that belongs to a file of values; None for another file."""
    return path.with_suffix(HEADER) if path.suffix.lower() == VALUES else None


def write(path: Path, images: Tensor | Stack) -> None:
    """Write images `(S, H, W)` as complex numbers: rows, columns and slices are dimensions 0, 1 and 13.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(Path(folder, "out.cfl"), torch.ones(3, 4, 5))
        ...     Path(folder, "out.hdr").read_text().splitlines()[1]
        '4 5 1 1 1 1 1 1 1 1 1 1 1 3 1 1'
    """
    sizes = [1] * DIMENSIONS
    sizes[READ], sizes[PHASE], sizes[SLICE] = images.shape[1], images.shape[2], images.shape[0]
    path.with_suffix(HEADER).write_text(f"# Dimensions\n{' '.join(map(str, sizes))}\n")
    with path.open("wb") as file:
        for i in range(len(images)):
            file.write(np.ascontiguousarray(images[i].numpy().T, dtype="<c8").data)


def read(path: str | Path, slices: slice = slice(None)) -> LazyKspace:
    """Read k-space: readout, phase, partition, coil and slice are dimensions 0, 1, 2, 3 and 13, as BART has them.

    A first dimension of size 1 means that the readout was transformed already: dimensions 1 and 2 are then the rows and
    columns of k-space. In three dimensions a direction that is fully measured is transformed, the partitions if they
    are, else the readout, and its positions are what `slices` counts; one coil is held in memory at a time. Slices that
    are too much for memory are read piece by piece.
    """
    stored = _opened(Path(path))
    path, sizes = stored.path, stored.sizes
    if sizes[READ] > 1 and sizes[PARTITION] > 1:
        if sizes[SLICE] > 1:
            raise FileError(f"{path} has {sizes[SLICE]} slices of {sizes[PARTITION]} partitions; give one of the two.")
        return _three_dimensional(stored, slices)
    numbers = chosen(path, sizes[SLICE], slices)
    plane = sizes[1:3] if sizes[READ] == 1 and sizes[PARTITION] > 1 else sizes[:2]
    shape = (len(numbers), sizes[COIL], *plane)
    if large(shape):
        check = partial(_check_kspace, path)
        return LazyKspace(
            *in_pieces(shape, lambda few: stored.planes(numbers[few.start : few.stop]), path, check=check)
        )
    data, mask = with_mask(stored.planes(numbers), None, path)
    _check_kspace(path, energy_of(data))
    return Kspace(data, mask)


def _three_dimensional(stored: "Pair", slices: slice) -> LazyKspace:
    """Slices across the direction that is fully measured."""
    path, (rows, columns, partitions), coils = stored.path, stored.sizes[:3], stored.sizes[COIL]
    points = torch.zeros(rows, columns, partitions, dtype=torch.bool)
    for coil in range(coils):
        points |= stored.volume(coil) != 0
    if not points.any():
        raise FileError(f"The k-space in {path} is zero everywhere: nothing was measured.")
    axis = next((axis for axis in (2, 0) if (points == points.any(dim=axis, keepdim=True)).all()), None)
    if axis is None:
        raise FileError(
            f"{path} is measured in part along its readout and along its partitions; one of the two must be complete."
        )
    mask, numbers = points.any(dim=axis), chosen(path, points.shape[axis], slices)

    def load(few: range) -> Tensor:
        parts = []
        for coil in range(coils):
            lines = torch.fft.ifft(torch.fft.ifftshift(stored.volume(coil), dim=axis), dim=axis, norm="ortho")
            part = torch.fft.fftshift(lines, dim=axis).movedim(axis, 0)
            parts.append(part[numbers[few.start] : numbers[few.stop - 1] + 1] * mask)
        return torch.stack(parts, dim=1)

    notes = ("transformed along the readout, two directions of phase encoding",) if axis == 0 else ()
    shape = (len(numbers), coils, *mask.shape)
    if not large(shape):
        return Kspace(*with_mask(load(range(len(numbers))), mask, path), notes=notes)
    return LazyKspace(*in_pieces(shape, load, path, mask, costly=True), notes=notes)


def read_maps(path: str | Path) -> Tensor:
    """Coil sensitivities `(S, C, H, W)` as `bart ecalib` writes them; of two sets of maps the first."""
    stored = _opened(Path(path), also=(SETS,))
    if stored.sizes[READ] == 1 or stored.sizes[PARTITION] == 1:
        return stored.planes(range(stored.sizes[SLICE]))
    return torch.stack([stored.volume(coil) for coil in range(stored.sizes[COIL])]).permute(3, 0, 1, 2)


def read_mask(path: str | Path) -> Tensor:
    """A mask `(W,)` or `(H, W)`: where the first coil and slice are not zero."""
    stored = _opened(Path(path))
    if stored.sizes[READ] > 1 and stored.sizes[PARTITION] > 1:
        raise FileError(f"{stored.path} is a mask in three dimensions; give the two of one slice.")
    return (stored.planes(range(1))[0, 0] != 0).squeeze()


def read_trajectory(path: str | Path) -> Tensor:
    """A trajectory `(L, M, 3)` as `bart traj` writes it: coordinates, samples and readouts are dimensions 0, 1, 2."""
    stored = _opened(Path(path))
    if stored.sizes[0] != 3 or stored.sizes[COIL] * stored.sizes[SLICE] != 1:
        raise FileError(f"{stored.path} is no trajectory: its first dimension is {stored.sizes[0]}, not 3.")
    return stored.volume(0).real.permute(2, 1, 0)


def read_samples(path: str | Path, slices: slice = slice(None)) -> Tensor:
    """k-space `(S, C, L, M)` on a trajectory: samples, readouts, coils and slices are dimensions 1, 2, 3 and 13."""
    stored = _opened(Path(path))
    if stored.sizes[READ] != 1:
        raise FileError(
            f"{stored.path} is no k-space on a trajectory: its first dimension is {stored.sizes[READ]}, not 1."
        )
    numbers = chosen(stored.path, stored.sizes[SLICE], slices)
    affordable(stored.path, (len(numbers), *stored.sizes[1:4]), 8)
    place: list[Any] = [0] * DIMENSIONS
    place[1:4], place[SLICE] = [slice(None)] * 3, slice(numbers.start, numbers.stop)
    return stored.tensor(stored.values[tuple(place)].transpose(3, 2, 1, 0))


@dataclass(frozen=True)
class Pair:
    """A header and the numbers that it describes, not yet read."""

    path: Path
    sizes: tuple[int, ...]
    values: NDArray[np.complex64]
    """All sixteen dimensions, mapped."""

    def planes(self, numbers: range) -> Tensor:
        """Slices `(S, C, H, W)` of two-dimensional k-space."""
        place: list[Any] = [0] * DIMENSIONS
        place[:4], place[SLICE] = [slice(None)] * 4, slice(numbers.start, numbers.stop)
        found = self.values[tuple(place)]  # readout, phase, partition, coil, slice
        found = found[0] if self.sizes[READ] == 1 and self.sizes[PARTITION] > 1 else found[:, :, 0]
        return self.tensor(found.transpose(3, 2, 0, 1))

    def volume(self, coil: int) -> Tensor:
        """One coil `(readout, phase, partition)` of three-dimensional k-space."""
        affordable(self.path, self.sizes[:3], 8)
        return self.tensor(self.values[(slice(None), slice(None), slice(None), coil) + (0,) * (DIMENSIONS - 4)])

    def tensor(self, values: NDArray[np.complex64]) -> Tensor:
        """Some of the values, read; NaN is refused."""
        result = torch.from_numpy(np.array(values, order="C"))  # a copy: what is mapped cannot be written
        if not torch.isfinite(result).all():
            raise FileError(f"{self.path} has NaN or infinite values.")
        return result


def _opened(path: Path, also: tuple[int, ...] = ()) -> Pair:
    names = pair(path) or (path.with_suffix(".hdr"), path.with_suffix(".cfl"))
    header, values = existing(names[0], "BART header"), existing(names[1], "BART")
    with reading(path, "BART"):
        sizes = _sizes(header)
        size = math.prod(sizes) * 8
        if min(sizes) < 1:
            raise FileError(f"{path} claims an array of {' x '.join(map(str, sizes))} values: it is empty.")
        if values.stat().st_size < size:
            raise FileError(f"{values} is truncated: its header asks for {size} bytes, {size / 1e9:.3g} GB.")
        mapped = np.memmap(values, "<c8", "r", 0, sizes, order="F")
    known = (READ, PHASE, PARTITION, COIL, SLICE, *also)
    extra = [axis for axis in range(DIMENSIONS) if axis not in known and sizes[axis] > 1]
    if extra:
        raise FileError(
            f"{path} has {sizes[extra[0]]} entries along dimension {extra[0]}; only slices, coils and the "
            f"three directions of k-space may vary."
        )
    return Pair(path, sizes, mapped)


def _check_kspace(path: Path, energy: Tensor) -> None:
    """Refuse images: the energy `(H, W)` of k-space lies in the middle, at low frequencies, and theirs does not.

    The format tells neither, so this is the only way not to take one for the other.
    """
    found = low_energy(energy)
    if found is not None and found[0] < CONCENTRATED * found[1]:
        raise FileError(
            f"{path} does not look like k-space: {100 * found[0]:.2g} % of its energy lies at low frequencies, in the "
            f"middle {100 * found[1]:.2g} % of it. It may be an image, or k-space with frequency zero first: shift it "
            f"then."
        )


def _sizes(header: Path) -> tuple[int, ...]:
    if header.stat().st_size > LONGEST_HEADER:
        raise FileError(f"{header} is too long to be a BART header.")
    lines = header.read_text(errors="replace").splitlines()
    marks = [i for i, line in enumerate(lines) if line.startswith("# Dimensions")]
    words = lines[marks[0] + 1].split() if marks and marks[0] + 1 < len(lines) else []
    if not words or not all(word.isdecimal() for word in words) or len(words) > DIMENSIONS:
        raise FileError(f"{header} does not name the dimensions of an array.")
    return (*map(int, words), *(1,) * (DIMENSIONS - len(words)))
