"""CT images, in Hounsfield units where the file has them."""

from pathlib import Path

from torch import Tensor

from lipspline.formats import dicom, nifti, pictures
from lipspline.formats.mri import read as read_any
from lipspline.formats.sinograms import PICTURES
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume


def read(path: str | Path, slices: slice = slice(None)) -> Volume:
    """Read images: NIfTI and DICOM in Hounsfield units; npy, npz, HDF5, PNG and TIFF as they are.

    Args:
        slices: which ones, `slice(3, 9)` for numbers 3 to 8; only these are read.
    """
    path = Path(path)
    if path.name.lower().endswith(nifti.ENDINGS):
        return nifti.read(path, slices, unit="hounsfield")
    if path.is_dir():
        return dicom.read(path, slices)
    found = read_any(path, slices)
    if not isinstance(found, Volume):
        raise FileError(f"{path} holds k-space, not images.")
    return found


def holds_images(path: Path) -> bool:
    """Whether a file or folder is in a format that only images come in: NIfTI, DICOM or PNG."""
    if not path.is_dir():
        return path.is_file() and path.name.lower().endswith((*nifti.ENDINGS, *dicom.ENDINGS, *pictures.PNG))
    files = [file for file in path.iterdir() if file.is_file()]
    if any(file.name.lower().endswith(PICTURES) for file in files):
        return False
    return any(file.suffix.lower() in dicom.ENDINGS or dicom.is_dicom(file) for file in files)


AIR = (-1100.0, -850.0)  # Hounsfield units, with noise, and lungs
LEAST_AIR = 0.01
"""The share of values near that of air from which on images are taken to be in Hounsfield units."""


def seems_hounsfield(images: Tensor) -> bool:
    """Whether values that come without a unit are Hounsfield units: some of them are those of air.

    Example:
        >>> import torch
        >>> seems_hounsfield(torch.tensor([-1000.0, 0.0, 40.0])), seems_hounsfield(torch.tensor([0.0, 400.0, 900.0]))
        (True, False)
    """
    return float(((images > AIR[0]) & (images < AIR[1])).double().mean()) > LEAST_AIR


def attenuation(hounsfield: Tensor) -> Tensor:
    """Attenuation in units of that of water: 0 for air, 1 for water, about 2 for bone; never negative.

    Scanners fill the corners that they do not see with values below that of air.

    Example:
        >>> import torch
        >>> attenuation(torch.tensor([-3024.0, -1000.0, 0.0, 1000.0]))
        tensor([0., 0., 1., 2.])
    """
    return (1 + hounsfield / 1000).clamp_min(0)


def hounsfield(attenuation: Tensor) -> Tensor:
    """Hounsfield units of an attenuation in units of that of water.

    Example:
        >>> import torch
        >>> hounsfield(torch.tensor([0.0, 1.0]))
        tensor([-1000.,     0.])
    """
    return 1000 * (attenuation - 1)
