"""MRI from whatever a scanner or a data set gives: k-space, or images to simulate it from."""

from pathlib import Path

from torch import Tensor

from lipspline.formats import arrays, bart, dicom, fastmri, hdf5, ismrmrd, ismrmrd_header, nifti, pictures, siemens
from lipspline.formats.kspace import Kspace, LazyKspace
from lipspline.formats.trajectories import NonCartesianKspace, read_samples, read_trajectory
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume

__all__ = [
    "Kspace",
    "LazyKspace",
    "NonCartesianKspace",
    "Volume",
    "read",
    "read_maps",
    "read_mask",
    "read_scan",
    "read_trajectory",
]


def read(path: str | Path, slices: slice = slice(None)) -> Kspace | Volume:
    """Read Cartesian k-space or images, as `read_scan` does, into memory; trajectories are refused."""
    found = read_scan(path, slices)
    if isinstance(found, LazyKspace) and not isinstance(found, Kspace):
        shape = " x ".join(map(str, found.data.shape))
        raise FileError(f"{path} holds k-space of {shape} values, too much to be held in memory; choose fewer slices.")
    if isinstance(found, NonCartesianKspace):
        raise FileError(f"{path} was measured on a trajectory; only Cartesian k-space can be used here.")
    return found


def read_scan(
    path: str | Path, slices: slice = slice(None), *, trajectory: Tensor | None = None, size: int | None = None
) -> LazyKspace | NonCartesianKspace | Volume:
    """Read k-space, Cartesian or on a trajectory, or images; the content of the file decides, its name the format.

    Cartesian k-space of HDF5, npy and BART files that is too large for memory is read piece by piece.

    k-space: fastMRI and ISMRMRD HDF5, BART's .cfl/.hdr, Siemens .dat, npy and npz with complex numbers, a folder
    with `y.pt`.
    Images: fastMRI HDF5 without k-space, npy and npz with real numbers, NIfTI, DICOM (a file, or a folder with a
    series), PNG and TIFF.

    Args:
        slices: which ones, `slice(3, 9)` for numbers 3 to 8; only these are read.
        trajectory: where npy, npz and BART files were measured, `(readouts, samples, 2)`; ISMRMRD files have their own,
            and so has an npz file with `trajectory` in it.
        size: of images that were measured on a trajectory.
    """
    path = Path(path)
    name = path.name.lower()
    if trajectory is not None or (name.endswith(".npz") and _has_trajectory(path)):
        if not name.endswith(arrays.ENDINGS) and bart.pair(path) is None:
            raise FileError(
                f"{path} cannot be read with a trajectory from elsewhere; only npy, npz and BART files can."
            )
        return read_samples(path, slices, trajectory, size)
    if path.is_dir():
        return fastmri.read_tensors(path) if fastmri.is_tensor_folder(path) else dicom.read(path, slices)
    if name.endswith(hdf5.ENDINGS):
        return _read_hdf5(path, slices, size)
    if bart.pair(path) is not None:
        return bart.read(path, slices)
    for endings, reader in (
        (arrays.ENDINGS, fastmri.read_numpy),
        (siemens.ENDINGS, siemens.read),
        (nifti.ENDINGS, nifti.read),
        (dicom.ENDINGS, dicom.read),
        (pictures.ENDINGS, pictures.read_volume),
    ):
        if name.endswith(endings):
            return reader(path, slices)
    raise unknown_format(
        path,
        *(hdf5.ENDINGS, arrays.ENDINGS, bart.ENDINGS, siemens.ENDINGS, nifti.ENDINGS, dicom.ENDINGS, pictures.ENDINGS),
    )


def read_mask(path: str | Path) -> Tensor:
    """A sampling mask `(W,)` or `(H, W)` from npy, npz or BART's .cfl: true where it is not zero."""
    if bart.pair(path) is not None:
        return bart.read_mask(path)
    with arrays.opened(path) as container:
        found = container.find_or_only("mask")
        if found is None:
            raise FileError(f"{path} holds several arrays and none is called 'mask'.")
        return found.whole().squeeze() != 0


def read_maps(path: str | Path) -> Tensor:
    """Coil sensitivities `(S, C, H, W)`, or `(1, C, H, W)` for all slices, from npy, npz or BART's .cfl."""
    path = Path(path)
    if bart.pair(path) is not None:
        return bart.read_maps(path)
    with arrays.opened(path) as container:
        found = container.find_or_only("sensitivity", "maps")
        if found is None or found.dtype.kind != "c" or len(found.shape) not in (3, 4):
            raise FileError(f"{path} does not hold complex coil maps (coils, H, W) or (slices, coils, H, W).")
        maps = found.whole()
        return maps if maps.ndim == 4 else maps.unsqueeze(0)


def unknown_format(path: Path, *endings: tuple[str, ...]) -> Exception:
    """What to raise for a file whose name ends in none of these."""
    if not path.exists():
        return FileNotFoundError(f"There is no file {path}.")
    known = ", ".join(ending for group in endings for ending in group)
    return FileError(f"{path} is not in a known format. Its name must end in one of {known}.")


def _has_trajectory(path: Path) -> bool:
    with arrays.opened(path) as container:
        return container.find("trajectory", "traj") is not None


def _read_hdf5(path: Path, slices: slice, size: int | None) -> LazyKspace | NonCartesianKspace | Volume:
    with hdf5.opened(path) as file:
        raw = ismrmrd_header.holds_readouts(file)
    return ismrmrd.read(path, slices, size) if raw else fastmri.read_hdf5(path, slices)
