"""MRI in the layout of the fastMRI data set: HDF5 with `kspace`, or with reconstructed images only."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipspline.data import hdf5
from lipspline.data.guard import FileError, chosen
from lipspline.data.kspace import Kspace, with_mask
from lipspline.data.volume import Volume, from_voxel_size, shifted

REFERENCES = ("reconstruction_rss", "reconstruction_esc", "reconstruction")


def read(path: str | Path, slices: slice = slice(None)) -> Kspace | Volume:
    """Read k-space (single- or multi-coil, with `mask` and `sensitivity` if given), or images where there is none.

    A file with k-space gives `Kspace`, cropped to the size its header or its reference names; a file with
    `reconstruction_rss` or `reconstruction_esc` alone gives a `Volume`.
    """
    with hdf5.opened(path) as file:
        kspace = hdf5.dataset(file, "kspace")
        reference = next((found for name in REFERENCES if (found := hdf5.dataset(file, name)) is not None), None)
        if kspace is None and reference is None:
            raise FileError(f"{path} holds neither 'kspace' nor {', '.join(map(repr, REFERENCES))}.")
        if kspace is None:
            return _images(Path(path), reference, slices)
        return _kspace(Path(path), file, kspace, reference, slices)


def _images(path: Path, found: Any, slices: slice) -> Volume:
    return Volume(_stack(path, found, chosen(path, _count(path, found, (3,)), slices)))


def _kspace(path: Path, file: Any, found: Any, reference: Any, slices: slice) -> Kspace:
    numbers = chosen(path, _count(path, found, (3, 4)), slices)
    data = torch.from_numpy(hdf5.rows(found, numbers)).to(torch.complex64)
    if not torch.isfinite(data).all():
        raise FileError(f"{path}: the k-space has NaN or infinite values.")
    data = data.unsqueeze(1) if data.ndim == 3 else data
    data, mask = with_mask(data, _mask(file), path)
    header = _header(file)
    truth = None if reference is None else _stack(path, reference, numbers)
    crop = truth.shape[-2:] if truth is not None else header.get("matrix")
    affine = from_voxel_size(*header["voxel"]) if "voxel" in header else None
    return Kspace(
        data,
        mask,
        maps=_maps(path, file, numbers, data.shape),
        reference=truth,
        crop=None if crop is None else (min(crop[0], data.shape[-2]), min(crop[1], data.shape[-1])),
        affine=shifted(affine, depth=numbers.start),
    )


def _count(path: Path, found: Any, ranks: tuple[int, ...]) -> int:
    if len(found.shape) not in ranks:
        wanted = " or ".join({3: "(slices, H, W)", 4: "(slices, coils, H, W)"}[rank] for rank in ranks)
        raise FileError(f"{path}: {found.name[1:]!r} has shape {found.shape}; it should be {wanted}.")
    return found.shape[0]


def _stack(path: Path, found: Any, numbers: range) -> Tensor:
    """Real images `(S, H, W)` of a dataset."""
    if numbers[-1] >= _count(path, found, (3,)):
        raise FileError(f"{path}: {found.name[1:]!r} has {found.shape[0]} slices, fewer than the k-space.")
    values = hdf5.rows(found, numbers)
    images = torch.from_numpy(np.abs(values) if values.dtype.kind == "c" else values).float()
    if not torch.isfinite(images).all():
        raise FileError(f"{path}: {found.name[1:]!r} has NaN or infinite values.")
    return images


def _mask(file: Any) -> Tensor | None:
    found = hdf5.dataset(file, "mask")
    return None if found is None else torch.from_numpy(hdf5.whole(found) != 0).squeeze()


def _maps(path: Path, file: Any, numbers: range, shape: torch.Size) -> Tensor | None:
    found = hdf5.dataset(file, "sensitivity")
    if found is None:
        return None
    if len(found.shape) != 4 or found.shape[1:] != shape[1:] or numbers[-1] >= found.shape[0]:
        raise FileError(f"{path}: 'sensitivity' has shape {found.shape}, which does not fit the k-space.")
    maps = torch.from_numpy(hdf5.rows(found, numbers)).to(torch.complex64)
    if not torch.isfinite(maps).all():
        raise FileError(f"{path}: 'sensitivity' has NaN or infinite values.")
    return maps


def _header(file: Any) -> dict[str, Any]:
    """Matrix size (rows, columns) and voxel size (column, row, slice) of the images, if the XML header names them."""
    found = file.get("ismrmrd_header")
    if found is None or found.shape != ():
        return {}
    text = found[()]
    return space_of_images(text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text))


def space_of_images(xml: str) -> dict[str, Any]:
    """The `reconSpace` of an ISMRMRD header: `matrix` (rows, columns) and `voxel` in mm (column, row, slice).

    Example:
        >>> size = "<x>320</x><y>160</y><z>1</z>"
        >>> xml = f"<reconSpace><matrixSize>{size}</matrixSize><fieldOfView_mm>{size}</fieldOfView_mm></reconSpace>"
        >>> space_of_images(xml)
        {'matrix': (320, 160), 'voxel': (1.0, 1.0, 1.0)}
    """
    part = re.search(r"<reconSpace>(.*?)</reconSpace>", xml, re.DOTALL)
    matrix, extent = (_xyz(part.group(1), tag) if part else None for tag in ("matrixSize", "fieldOfView_mm"))
    if matrix is None or extent is None or min(matrix) < 1 or min(extent) <= 0:
        return {}
    x, y, z = (length / size for length, size in zip(extent, matrix, strict=True))
    return {"matrix": (int(matrix[0]), int(matrix[1])), "voxel": (y, x, z)}


def _xyz(xml: str, tag: str) -> tuple[float, float, float] | None:
    part = re.search(rf"<{tag}>(.*?)</{tag}>", xml, re.DOTALL)
    numbers = [re.search(rf"<{axis}>\s*([0-9.eE+-]+)\s*</{axis}>", part.group(1)) if part else None for axis in "xyz"]
    try:
        x, y, z = (float(number.group(1)) for number in numbers if number is not None)
    except ValueError:
        return None
    return x, y, z
