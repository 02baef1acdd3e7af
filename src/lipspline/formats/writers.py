"""The formats of results: which one a name stands for, and how it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from lipspline.formats import bart, dicom, hdf5, nifti, pictures
from lipspline.formats.validation import refuse_jpeg
from lipspline.formats.volume import LazyVolume, Stack


@dataclass(frozen=True)
class Image:
    """What is written: a volume, how it came about, and its complex values where it has some."""

    volume: LazyVolume
    modality: str
    description: str
    complex_values: Tensor | Stack | None = None


Writer = Callable[[Path, Image], None]


def writer(path: str | Path, slices: int, affine: Tensor | None = None) -> Writer:
    """What writes `slices` slices into a file of this name; asked before the work begins, it refuses what cannot be.

    .npy, .h5, .nii, .nii.gz, .tif and BART's .cfl hold volumes; .png and .dcm hold one slice; a name without ending
    becomes a folder with a DICOM series.
    """
    path = Path(path)
    refuse_jpeg(path)
    name = path.name.lower()
    known = {
        (".npy",): _write_npy,
        hdf5.ENDINGS: _write_hdf5,
        nifti.ENDINGS: lambda file, image: nifti.write(file, image.volume),
        pictures.TIFF: lambda file, image: pictures.write_volume(file, image.volume),
        pictures.PNG: lambda file, image: pictures.write_volume(file, image.volume),
        (".dcm",): _write_dicom,
        (bart.VALUES,): _write_bart,
    }
    if slices > 1 and name.endswith((*pictures.PNG, ".dcm")):
        raise ValueError(
            f"{path.name} can hold one slice, but there are {slices}. Choose one of the slices, or name an output that "
            f"holds a volume: .nii.gz, .npy, .h5, .tif, .cfl, or a name without ending for a folder with DICOM files."
        )
    if name.endswith(".dcm") or not path.suffix:
        dicom.check_affine(affine)
    for endings, write_one in known.items():
        if name.endswith(endings):
            return write_one
    if not path.suffix:
        return _write_dicom
    endings = ", ".join(ending for group in known for ending in group)
    raise ValueError(f"{path} is not in a known format. Its name must end in one of {endings}.")


def write(path: str | Path, image: Image) -> None:
    """Write an image in the format that its name stands for."""
    writer(path, len(image.volume.slices))(Path(path), image)


def _write_npy(path: Path, image: Image) -> None:
    slices = image.volume.slices
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": tuple(slices.shape)}
        np.lib.format.write_array_header_1_0(file, header)
        for i in range(len(slices)):
            file.write(slices[i].contiguous().numpy().astype("<f4", copy=False).data)


def _write_hdf5(path: Path, image: Image) -> None:
    hdf5.write(path, image.volume, image=image.complex_values)


def _write_bart(path: Path, image: Image) -> None:
    bart.write(path, image.volume.slices if image.complex_values is None else image.complex_values)


def _write_dicom(path: Path, image: Image) -> None:
    dicom.write(path, image.volume, modality=image.modality, description=image.description)
