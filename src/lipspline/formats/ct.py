"""CT images in Hounsfield units, and sinograms."""

from dataclasses import dataclass
from math import pi
from pathlib import Path

from torch import Tensor

from lipspline.formats import arrays, dicom, hdf5, nifti, pictures
from lipspline.formats.arrays import Container
from lipspline.formats.mri import read as read_any
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume

SINOGRAM = ("sinogram", "sinograms", "projections", "y", "data")
SHAPES = {3: "(angles, detectors) or (slices, angles, detectors)"}


@dataclass(frozen=True)
class Sinograms:
    """Line integrals of a stack of slices."""

    data: Tensor
    """`(S, A, D)`: slices, angles, detectors."""
    angles: Tensor | None = None
    """`(A,)` in radians, if the file has them."""


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


def read_sinograms(path: str | Path, slices: slice = slice(None)) -> Sinograms:
    """Read sinograms `(A, D)` or `(S, A, D)` from npy, npz, HDF5 or TIFF.

    In npz and HDF5 they are called `sinogram` (or are the only array), and `angles` may stand beside them in radians.
    """
    path = Path(path)
    name = path.name.lower()
    if name.endswith(arrays.ENDINGS):
        with arrays.opened(path) as container:
            return _sinograms(container, slices)
    if name.endswith(hdf5.ENDINGS):
        with hdf5.opened(path) as file:
            return _sinograms(hdf5.container(file), slices)
    if name.endswith(pictures.TIFF):
        return Sinograms(pictures.read_volume(path, slices).slices)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    known = ", ".join((*arrays.ENDINGS, *hdf5.ENDINGS, *pictures.TIFF))
    raise FileError(
        f"{path} is not in a known format of sinograms; its name must end in one of {known}. Projections of images "
        f"are made by a simulation."
    )


def read_angles(path: str | Path) -> Tensor:
    """Angles `(A,)` in radians from an npy or npz file."""
    with arrays.opened(path) as container:
        found = container.find_or_only("angles")
        if found is None:
            raise FileError(f"{path} holds several arrays and none is called 'angles'.")
        return _in_radians(path, found.whole().double())


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


def _sinograms(container: Container, slices: slice) -> Sinograms:
    found = container.find_or_only(*SINOGRAM)
    if found is None:
        raise FileError(f"{container.path} holds no sinogram: none of {', '.join(map(repr, SINOGRAM))}.")
    if found.dtype.kind == "c":
        raise FileError(f"{container.path}: {found.name} is complex; a sinogram is real.")
    angles = container.find("angles", "theta")
    found = found.as_stack(2)
    numbers = found.stack(SHAPES, slices)
    return Sinograms(
        found.rows(numbers), None if angles is None else _in_radians(container.path, angles.whole().double())
    )


def _in_radians(path: str | Path, angles: Tensor) -> Tensor:
    if angles.ndim != 1:
        raise FileError(f"{path}: the angles have shape {tuple(angles.shape)}, not (A,).")
    if angles.abs().max() > 4 * pi:
        raise FileError(f"{path}: the angles reach {angles.abs().max():g}; give them in radians, not in degrees.")
    return angles
