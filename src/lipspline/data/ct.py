"""CT images in Hounsfield units, and sinograms."""

from pathlib import Path

from torch import Tensor

from lipspline.data import dicom, nifti
from lipspline.data.guard import FileError
from lipspline.data.volume import Volume


def read(path: str | Path, slices: slice = slice(None)) -> Volume:
    """Read images in Hounsfield units: NIfTI, or DICOM (a file, or a folder with a series).

    Args:
        slices: which ones, `slice(3, 9)` for numbers 3 to 8; only these are read.
    """
    path = Path(path)
    name = path.name.lower()
    if path.is_dir() or name.endswith(dicom.ENDINGS):
        return dicom.read(path, slices)
    if name.endswith(nifti.ENDINGS):
        return nifti.read(path, slices, unit="hounsfield")
    raise FileError(f"{path} is not in a known format.")


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
