"""MRI from whatever a scanner or a data set gives: k-space, or images to simulate it from."""

from pathlib import Path

from lipspline.data import dicom, fastmri, nifti
from lipspline.data.guard import FileError
from lipspline.data.kspace import Kspace
from lipspline.data.volume import Volume


def read(path: str | Path, slices: slice = slice(None)) -> Kspace | Volume:
    """Read k-space or images: fastMRI HDF5, NIfTI, DICOM (a file, or a folder with a series).

    Args:
        slices: which ones, `slice(3, 9)` for numbers 3 to 8; only these are read.
    """
    path = Path(path)
    name = path.name.lower()
    if path.is_dir() or name.endswith(dicom.ENDINGS):
        return dicom.read(path, slices)
    if name.endswith(nifti.ENDINGS):
        return nifti.read(path, slices)
    if name.endswith((".h5", ".hdf5")):
        return fastmri.read(path, slices)
    raise FileError(f"{path} is not in a known format.")
