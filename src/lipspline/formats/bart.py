"""BART's pairs of files: `.hdr` with the sizes as text, `.cfl` with complex numbers, first index fastest."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipspline.formats.kspace import Kspace, transform_partitions, with_mask
from lipspline.formats.validation import FileError, affordable, chosen, existing, reading

ENDINGS = (".cfl", ".hdr")
DIMENSIONS = 16
READ, PHASE, PARTITION, COIL, SLICE = 0, 1, 2, 3, 13
LONGEST_HEADER = 2**16


def read(path: str | Path, slices: slice = slice(None)) -> Kspace:
    """Read k-space: readout, phase, partition, coil and slice are dimensions 0, 1, 2, 3 and 13, as BART has them.

    A third dimension that is fully measured is transformed, and its slices are what `slices` counts.
    """
    path = Path(path)
    data = _read(path)
    if data.shape[2] > 1 and data.shape[0] > 1:
        raise FileError(f"{path} has {data.shape[0]} slices of {data.shape[2]} partitions; give one of the two.")
    flat = data.shape[2] == 1
    data = data.squeeze(2) if flat else transform_partitions(data.squeeze(0).movedim(1, 0), path)
    numbers = chosen(path, data.shape[0], slices)
    data, mask = with_mask(data[numbers.start : numbers.stop], None, path)
    return Kspace(data, mask)


def read_maps(path: str | Path) -> Tensor:
    """Coil sensitivities `(S, C, H, W)` as `bart ecalib` writes them."""
    data = _read(Path(path))
    return data[:, :, 0] if data.shape[2] == 1 else data.squeeze(0).movedim(1, 0)


def _read(path: Path) -> Tensor:
    """All of a file as `(slices, coils, partitions, rows, columns)`."""
    header = existing(path.with_suffix(".hdr"), "BART header")
    values = existing(path.with_suffix(".cfl"), "BART")
    with reading(path, "BART"):
        shape = _sizes(header)
        size = affordable(path, shape, 8)
        if values.stat().st_size < size:
            raise FileError(f"{values} is truncated: its header asks for {size} bytes.")
        data = np.fromfile(values, "<c8", math.prod(shape)).reshape(shape, order="F")
    known = (SLICE, COIL, PARTITION, READ, PHASE)
    extra = [axis for axis in range(len(shape)) if axis not in known and shape[axis] > 1]
    if extra:
        raise FileError(
            f"{path} has {shape[extra[0]]} entries along dimension {extra[0]}; only slices, coils and the "
            f"three directions of k-space may vary."
        )
    ordered = data.transpose(*known, *(axis for axis in range(len(shape)) if axis not in known))
    result = torch.from_numpy(np.ascontiguousarray(ordered.reshape(ordered.shape[:5])))
    if not torch.isfinite(result).all():
        raise FileError(f"{path} has NaN or infinite values.")
    return result


def _sizes(header: Path) -> tuple[int, ...]:
    if header.stat().st_size > LONGEST_HEADER:
        raise FileError(f"{header} is too long to be a BART header.")
    lines = header.read_text(errors="replace").splitlines()
    marks = [i for i, line in enumerate(lines) if line.startswith("# Dimensions")]
    words = lines[marks[0] + 1].split() if marks and marks[0] + 1 < len(lines) else []
    if not words or not all(word.isdecimal() for word in words) or len(words) > DIMENSIONS:
        raise FileError(f"{header} does not name the dimensions of an array.")
    return (*map(int, words), *(1,) * (DIMENSIONS - len(words)))
