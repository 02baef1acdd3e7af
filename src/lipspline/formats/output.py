"""Reconstructed volumes on disk: the name decides the format, and an output exists completely or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from lipspline.formats import dicom, hdf5, nifti, pictures
from lipspline.formats.volume import Volume


@dataclass(frozen=True)
class Image:
    """What is written: a volume, how it came about, and its complex values where it has some."""

    volume: Volume
    modality: str
    description: str
    complex_values: Tensor | None = None


Writer = Callable[[Path, Image], None]


def writer(path: str | Path, slices: int) -> Writer:
    """What writes `slices` slices into a file of this name; asked before the work begins, it refuses what cannot be.

    .npy, .h5, .nii, .nii.gz and .tif hold volumes; .png and .dcm hold one slice; a name without ending becomes a folder
    with a DICOM series.
    """
    path = Path(path)
    name = path.name.lower()
    known = {
        (".npy",): _write_npy,
        hdf5.ENDINGS: _write_hdf5,
        nifti.ENDINGS: lambda file, image: nifti.write(file, image.volume),
        pictures.TIFF: lambda file, image: pictures.write_volume(file, image.volume),
        pictures.PNG: lambda file, image: pictures.write_volume(file, image.volume),
        (".dcm",): _write_dicom,
    }
    if slices > 1 and name.endswith((*pictures.PNG, ".dcm")):
        raise ValueError(
            f"{path.name} can hold one slice, but there are {slices}. Choose one with --slices, or name an output that "
            f"holds a volume: .nii.gz, .npy, .h5, .tif, or a name without ending for a folder with a DICOM series."
        )
    for endings, write_one in known.items():
        if name.endswith(endings):
            return write_one
    if not path.suffix:
        return _write_dicom
    endings = ", ".join(ending for group in known for ending in group)
    raise ValueError(f"{path} is not in a known format. Its name must end in one of {endings}.")


def write(path: str | Path, image: Image) -> None:
    """Write an output beside its place, then move it there in one step."""
    path = Path(path)
    put(path, lambda draft: writer(path, len(image.volume.slices))(draft, image))


def put(path: Path, make: Callable[[Path], object]) -> None:
    """Let `make` write a file or folder under another name in the same folder, then give it its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        draft = workplace / path.name
        make(draft)
        if path.is_dir() and not path.is_symlink():
            os.replace(path, workplace / "old")
        os.replace(draft, path)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _write_npy(path: Path, image: Image) -> None:
    np.save(path, image.volume.slices.numpy())


def _write_hdf5(path: Path, image: Image) -> None:
    hdf5.write(path, image.volume, image=image.complex_values)


def _write_dicom(path: Path, image: Image) -> None:
    dicom.write(path, image.volume, modality=image.modality, description=image.description)
