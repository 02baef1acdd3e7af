"""k-space kept as arrays: under the names of the fastMRI data set in HDF5 or npz, or as a folder of tensors.

The folder is how the authors of the paper publish an image: `y.pt`, `mask.pt`, `smaps.pt` and `x_crop.pt`.
"""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipspline.formats import arrays, hdf5
from lipspline.formats.arrays import Container, Stored
from lipspline.formats.ismrmrd_header import space_of_images
from lipspline.formats.kspace import Kspace, LazyKspace, check_claim, from_uncentred, in_pieces, large, with_mask
from lipspline.formats.validation import FileError, affordable, existing, reading
from lipspline.formats.volume import Stack, Volume, from_voxel_size, invertible, shifted

REFERENCES = ("reconstruction_rss", "reconstruction_esc", "reconstruction")
MAPS = ("sensitivity", "maps")
KSPACE = {3: "(H, W), (slices, H, W)", 4: "(slices, coils, H, W)"}
IMAGES = {3: "(H, W) or (slices, H, W)"}


def read_hdf5(path: str | Path, slices: slice = slice(None)) -> LazyKspace | Volume:
    """Read k-space (single- or multi-coil, with `mask` and `sensitivity` if given), or images where there is none.

    A file with k-space gives `Kspace`, to be cropped to the size its header or its reference names; a file with
    `reconstruction_rss` or `reconstruction_esc` alone gives a `Volume`.
    """
    with hdf5.opened(path) as file:
        header = space_of_images(Path(path), hdf5.text(file, "ismrmrd_header"))
        return _read(hdf5.container(file), slices, header)


def read_numpy(path: str | Path, slices: slice = slice(None)) -> LazyKspace | Volume:
    """The same from npz; a single array, or an npy file, is k-space if it is complex, else images."""
    with arrays.opened(path) as container:
        return _read(container, slices, {})


def _read(container: Container, slices: slice, header: dict[str, Any]) -> LazyKspace | Volume:
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
    place = None if affine is None or affine.shape != (4, 4) else invertible(affine.whole().double())
    return Volume(_real(found.rows(numbers)), shifted(place, depth=numbers.start))


def _kspace(
    container: Container, found: Stored, reference: Stored | None, slices: slice, header: dict[str, Any]
) -> LazyKspace:
    found = found.as_stack(2)
    numbers = found.stack(KSPACE, slices)
    shape = (len(numbers), *(found.shape[1:-2] or (1,)), *found.shape[-2:])
    if found.dtype.kind != "c":
        raise _magnitudes(container.path, found, "real numbers, no")
    truth = None if reference is None else _reference(reference, numbers)
    crop = header.get("matrix") if truth is None else truth.shape[-2:]
    affine = from_voxel_size(*header["voxel"]) if "voxel" in header else None
    known = {
        "reference": truth,
        "crop": None if crop is None else (min(crop[0], shape[-2]), min(crop[1], shape[-1])),
        "affine": shifted(affine, depth=numbers.start),
    }
    if not large(shape) or container.path.suffix.lower() == ".npz":  # members of archives are read as a whole
        data = found.rows(numbers).to(torch.complex64).view(shape)
        _refuse_magnitudes(container.path, found, data)
        mask = _mask(container, found.shape[0], numbers, shape, data)
        data, sampled = with_mask(data, mask, container.path)
        return Kspace(data, sampled, maps=_maps(container, numbers, shape), **known)
    return _in_pieces(container, found, numbers, shape, known)


def _in_pieces(
    container: Container, found: Stored, numbers: range, shape: tuple[int, ...], known: dict[str, Any]
) -> LazyKspace:
    """k-space that is too large for memory."""
    load = _again(container, found, ("kspace",), 2)

    def some(few: range) -> Tensor:
        return load(numbers[few.start : few.stop]).view(-1, *shape[1:])

    check_claim(container.path, shape)
    _refuse_magnitudes(container.path, found, some(range(shape[0] // 2, shape[0] // 2 + 1)))
    mask = _mask(container, found.shape[0], numbers, shape, None)
    data, sampled = in_pieces(shape, some, container.path, mask)
    return LazyKspace(data, sampled, maps=_lazy_maps(container, numbers, shape), **known)


def _again(container: Container, found: Stored, names: tuple[str, ...], rank: int) -> Callable[[range], Tensor]:
    """What reads complex rows of an array after its file was closed."""
    path = container.path
    if not path.name.lower().endswith(hdf5.ENDINGS):
        return lambda numbers: found.rows(numbers).to(torch.complex64)

    def load(numbers: range) -> Tensor:
        with hdf5.opened(path) as file:
            stored = hdf5.container(file).find_or_only(*names)
            if stored is None or (stored := stored.as_stack(rank)).shape != found.shape:
                raise FileError(f"{path} was changed while it was read.")
            return stored.rows(numbers).to(torch.complex64)

    return load


def _refuse_magnitudes(path: Path, found: Stored, data: Tensor) -> None:
    if (data.imag == 0).all() and (data.real >= 0).all() and data.real.unique().numel() > 2:
        raise _magnitudes(path, found, "no")


def _magnitudes(path: Path, found: Stored, what: str) -> FileError:
    return FileError(
        f"{path}: {found.name} holds {what} imaginary parts, but k-space is complex: its magnitudes alone make no "
        f"image. Store real + 1j * imaginary."
    )


def _mask(
    container: Container, slices: int, numbers: range, shape: tuple[int, ...], data: Tensor | None
) -> Tensor | None:
    """The mask of a file for the chosen ones of its `slices`: for all of them, or for each its own.

    Dimensions of size 1 may stand anywhere. `(slices, W)` where there are as many slices as rows could be `(H, W)` too:
    then the data tell, by being zero off one of the two and not off the other.
    """
    stored = container.find("mask")
    if stored is None:
        return None
    mask, (height, width) = stored.whole() != 0, shape[-2:]
    chosen = slice(numbers.start, numbers.stop)
    if mask.ndim == 3 and mask.shape in ((slices, 1, width), (slices, height, width)):
        return mask[chosen]
    mask = mask.squeeze()
    if mask.ndim == 3 and len(mask) == slices:
        return mask[chosen]
    if mask.ndim != 2 or slices == 1 or mask.shape != (slices, width):
        return mask
    by_slice = mask[chosen, None]
    if slices != height:
        return by_slice
    measured = None if data is None else (data != 0).any(dim=1)
    fits = (
        () if measured is None else [candidate for candidate in (mask, by_slice) if not (measured & ~candidate).any()]
    )
    if not fits:
        raise FileError(
            f"{container.path}: {stored.name} has shape {stored.shape}, which may mean (rows, columns) or (slices, "
            f"columns). Store it as (slices, rows, columns)."
        )
    return fits[0]


def _reference(found: Stored, numbers: range) -> Tensor:
    found = found.as_stack(2)
    found.stack(IMAGES)
    return _real(found.rows(numbers))


def _real(images: Tensor) -> Tensor:
    return images.abs() if images.is_complex() else images


def _maps(container: Container, numbers: range, shape: tuple[int, ...]) -> Tensor | None:
    found = _stored_maps(container, shape)
    if found is None:
        return None
    return found.rows(range(1) if found.shape[0] == 1 else numbers).to(torch.complex64).expand(shape)


def _lazy_maps(container: Container, numbers: range, shape: tuple[int, ...]) -> Tensor | Stack | None:
    """Maps as large as k-space are read when they are asked for."""
    found = _stored_maps(container, shape)
    if found is None or found.shape[0] == 1:
        return _maps(container, numbers, shape)
    load = _again(container, found, MAPS, 3)
    load(numbers[-1:])  # there are as many as slices
    return Stack(shape, lambda few: load(numbers[few.start : few.stop]))


def _stored_maps(container: Container, shape: tuple[int, ...]) -> Stored | None:
    found = container.find(*MAPS)
    if found is not None and (found := found.as_stack(3)).shape[1:] != shape[1:]:
        raise FileError(f"{container.path}: {found.name} has shape {found.shape}, which does not fit the k-space.")
    return found


def is_tensor_folder(path: Path) -> bool:
    """Whether a folder holds k-space as tensors."""
    return (path / "y.pt").is_file()


def read_tensors(path: str | Path) -> Kspace:
    """Read one image from a folder of tensors: real, with k-space that has frequency zero first."""
    path = Path(path)
    data = _tensor(path / "y.pt")
    data = from_uncentred(data if data.is_complex() else data.to(torch.complex64))
    mask, maps, truth = (
        _tensor(file) if (file := path / name).is_file() else None for name in ("mask.pt", "smaps.pt", "x_crop.pt")
    )
    if mask is not None:
        kept = mask[0] != 0
        if not (kept == kept[0]).all():
            raise FileError(f"{path}: mask.pt has another mask for each coil; all coils must measure the same points.")
        mask = torch.fft.fftshift(kept[0].expand(data.shape[-2:]), dim=(-2, -1))
    if maps is not None and maps.shape != data.shape:
        raise FileError(f"{path}: smaps.pt has shape {tuple(maps.shape)}, y.pt has {tuple(data.shape)}.")
    data, mask = with_mask(data, mask, path)
    reference = None if truth is None else truth[:, 0].float()
    crop = None if reference is None else (int(reference.shape[-2]), int(reference.shape[-1]))
    return Kspace(data, mask, maps=maps, reference=reference, crop=crop, real=True)


def _tensor(path: Path) -> Tensor:
    """A tensor `(1, C, H, W)`; files that would need code to be run are refused."""
    path = existing(path, "tensor")
    with reading(path, "tensor"):
        with zipfile.ZipFile(path) as archive:  # torch's old format is not one; it names its sizes only in pickles
            affordable(path, (sum(info.file_size for info in archive.infolist()),), 1, "a tensor")
        tensor = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(tensor, Tensor) or tensor.ndim != 4 or tensor.shape[0] != 1:
            raise FileError(f"{path} does not hold a tensor of shape (1, C, H, W).")
        affordable(path, tensor.shape, 8, "a tensor")
        tensor = tensor.detach().to(torch.complex64 if tensor.is_complex() else torch.float32)
        if not torch.isfinite(tensor).all():
            raise FileError(f"{path} has NaN or infinite values.")
        return tensor
