"""MRI under the names of the fastMRI data set, in HDF5 or npz: `kspace`, or reconstructed images only."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipspline.formats import arrays, hdf5
from lipspline.formats.guard import FileError
from lipspline.formats.kspace import Kspace, with_mask
from lipspline.formats.scan_header import space_of_images
from lipspline.formats.stored import Container, Stored
from lipspline.formats.volume import Volume, from_voxel_size, shifted

REFERENCES = ("reconstruction_rss", "reconstruction_esc", "reconstruction")
KSPACE = {3: "(H, W), (slices, H, W)", 4: "(slices, coils, H, W)"}
IMAGES = {3: "(H, W) or (slices, H, W)"}


def read_hdf5(path: str | Path, slices: slice = slice(None)) -> Kspace | Volume:
    """Read k-space (single- or multi-coil, with `mask` and `sensitivity` if given), or images where there is none.

    A file with k-space gives `Kspace`, to be cropped to the size its header or its reference names; a file with
    `reconstruction_rss` or `reconstruction_esc` alone gives a `Volume`.
    """
    with hdf5.opened(path) as file:
        return _read(hdf5.container(file), slices, space_of_images(hdf5.text(file, "ismrmrd_header")))


def read_numpy(path: str | Path, slices: slice = slice(None)) -> Kspace | Volume:
    """The same from npz; a single array, or an npy file, is k-space if it is complex, else images."""
    with arrays.opened(path) as container:
        return _read(container, slices, {})


def _read(container: Container, slices: slice, header: dict[str, Any]) -> Kspace | Volume:
    kspace, reference = container.find("kspace"), container.find(*REFERENCES)
    if kspace is None and reference is None and len(container.names) == 1:
        only = container.get(container.names[0])
        kspace, reference = (only, None) if only.dtype.kind == "c" else (None, only)
    if kspace is not None:
        return _kspace(container, kspace, reference, slices, header)
    if reference is not None:
        return _volume(container, reference, slices)
    raise FileError(f"{container.path} holds neither 'kspace' nor {', '.join(map(repr, REFERENCES))}.")


def _volume(container: Container, found: Stored, slices: slice) -> Volume:
    found = found.as_stack(2)
    numbers = found.stack(IMAGES, slices)
    affine = container.find("affine")
    place = None if affine is None or affine.shape != (4, 4) else affine.whole().double()
    return Volume(_real(found.rows(numbers)), shifted(place, depth=numbers.start))


def _kspace(
    container: Container, found: Stored, reference: Stored | None, slices: slice, header: dict[str, Any]
) -> Kspace:
    found = found.as_stack(2)
    numbers = found.stack(KSPACE, slices)
    data = found.rows(numbers)
    data = data.to(torch.complex64) if data.ndim == 4 else data.to(torch.complex64).unsqueeze(1)
    mask = container.find("mask")
    data, sampled = with_mask(data, None if mask is None else (mask.whole() != 0).squeeze(), container.path)
    truth = None if reference is None else _reference(reference, numbers)
    crop = header.get("matrix") if truth is None else truth.shape[-2:]
    affine = from_voxel_size(*header["voxel"]) if "voxel" in header else None
    return Kspace(
        data,
        sampled,
        maps=_maps(container, numbers, data.shape),
        reference=truth,
        crop=None if crop is None else (min(crop[0], data.shape[-2]), min(crop[1], data.shape[-1])),
        affine=shifted(affine, depth=numbers.start),
    )


def _reference(found: Stored, numbers: range) -> Tensor:
    found = found.as_stack(2)
    found.stack(IMAGES)
    return _real(found.rows(numbers))


def _real(images: Tensor) -> Tensor:
    return images.abs() if images.is_complex() else images


def _maps(container: Container, numbers: range, shape: torch.Size) -> Tensor | None:
    found = container.find("sensitivity", "maps")
    if found is None:
        return None
    found = found.as_stack(3)
    if found.shape[1:] != shape[1:]:
        raise FileError(f"{container.path}: {found.name} has shape {found.shape}, which does not fit the k-space.")
    shared = found.shape[0] == 1
    return found.rows(range(1) if shared else numbers).to(torch.complex64).expand(shape)
