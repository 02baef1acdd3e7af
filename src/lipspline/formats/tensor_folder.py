"""MRI as the paper's authors publish it: a folder for each image with `y.pt`, `mask.pt`, `smaps.pt` and `x_crop.pt`."""

import zipfile
from pathlib import Path

import torch
from torch import Tensor

from lipspline.formats.guard import FileError, affordable, existing, reading
from lipspline.formats.kspace import Kspace, from_uncentred, with_mask


def is_tensor_folder(path: Path) -> bool:
    """Whether a folder holds k-space in this layout."""
    return (path / "y.pt").is_file()


def read(path: str | Path) -> Kspace:
    """Read one image: real, with k-space that has frequency zero first."""
    path = Path(path)
    data = _tensor(path / "y.pt")
    data = from_uncentred(data if data.is_complex() else data.to(torch.complex64))
    mask, maps, truth = (
        _tensor(file) if (file := path / name).is_file() else None for name in ("mask.pt", "smaps.pt", "x_crop.pt")
    )
    if mask is not None:
        mask = torch.fft.fftshift((mask[0, 0] != 0).expand(data.shape[-2:]), dim=(-2, -1))
        mask = mask[0] if (mask == mask[0]).all() else mask
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
