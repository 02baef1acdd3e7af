"""Volumes in NIfTI files, `.nii` and `.nii.gz`."""

import contextlib
import gzip
import io
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray

from lipspline._infra import checks
from lipspline.formats.validation import DEFLATE, FileError, affordable, chosen, existing, reading
from lipspline.formats.volume import LazyVolume, Unit, Volume, invertible, shifted, voxel_size

ENDINGS = (".nii", ".nii.gz")
LARGEST_HEADER = 540  # bytes, of NIfTI-2; NIfTI-1 has 348
OFFSET = 352  # bytes before the values of a file without extensions
SHEARED = 1e-4  # cosine of the angle between two axes, from which on they are not at right angles
FURTHEST = 2**24  # bytes before the values; extensions of real files take kilobytes


def read(path: str | Path, slices: slice = slice(None), *, unit: Unit = "arbitrary") -> Volume:
    """Read the slices along the third axis; the first axis runs along the columns, the second along the rows.

    Only the header is left to the library: the values are read here, never more than the header may ask for.
    """
    path = existing(path, "NIfTI")
    with reading(path, "NIfTI"), _open(path) as file:
        header = _header(path, file)
        columns, rows, count = _shape(path, header)
        numbers = chosen(path, count, slices)
        values = _values(path, file, header, (columns, rows), numbers)
        affine = torch.from_numpy(np.array(header.get_best_affine(), dtype=np.float64))
    if not (np.isfinite(values).all() and torch.isfinite(affine).all()):
        raise FileError(f"{path} has NaN or infinite values.")
    return Volume(torch.from_numpy(values), shifted(invertible(affine), depth=numbers.start), unit)


def write(path: str | Path, volume: LazyVolume) -> None:
    """Write a volume as float32 with its affine, slice by slice.

    Without an affine the voxels are cubes of 1 mm around the origin, seen as axial slices are: row 0 at the top, which
    is the front, and column 0 at the left, which is the right-hand side.
    """
    nibabel = checks.require("nibabel", "mri", "Writing NIfTI files")
    path, place = Path(path), invertible(volume.affine)
    depth, rows, columns = volume.slices.shape
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.float32)
    header.set_data_shape((columns, rows, depth))
    _set_place(header, _axial(columns, rows, depth) if place is None else place)
    header.set_data_offset(OFFSET)
    with path.open("wb") as raw:
        packed = gzip.GzipFile("", "wb", 1, raw, mtime=0) if path.suffix == ".gz" else contextlib.nullcontext(raw)
        with packed as file:
            header.write_to(file)
            for i in range(depth):
                file.write(volume.slices[i].contiguous().numpy().astype("<f4", copy=False).data)


def _set_place(header: Any, affine: torch.Tensor) -> None:
    """Say where the voxels are in every way that programs look for it: both affine maps, and sizes in millimetres.

    The quaternion of a header turns and mirrors but cannot shear, so a sheared map is only in the other form.
    """
    header.set_zooms(voxel_size(affine))
    header.set_sform(affine.numpy(), code="aligned")
    axes = affine[:3, :3] / torch.linalg.vector_norm(affine[:3, :3], dim=0)
    if torch.allclose(axes.T @ axes, torch.eye(3, dtype=axes.dtype), atol=SHEARED):
        header.set_qform(affine.numpy(), code="aligned")
    header.set_xyzt_units("mm")


def _axial(columns: int, rows: int, depth: int) -> torch.Tensor:
    steps = torch.tensor([-1.0, -1.0, 1.0], dtype=torch.float64)
    affine = torch.diag(torch.cat([steps, torch.ones(1, dtype=torch.float64)]))
    affine[:3, 3] = -steps * (torch.tensor([columns, rows, depth], dtype=torch.float64) - 1) / 2
    return affine


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _header(path: Path, file: BinaryIO) -> Any:
    nibabel = checks.require("nibabel", "mri", "Reading NIfTI files")
    block = file.read(LARGEST_HEADER)
    for kind in (nibabel.Nifti1Header, nibabel.Nifti2Header):
        if kind.may_contain_header(block):
            return kind.from_fileobj(io.BytesIO(block), check=False)
    raise FileError(f"{path} does not begin like a NIfTI file.")


def _shape(path: Path, header: Any) -> tuple[int, int, int]:
    """Columns, rows, slices; trailing dimensions of size 1 are dropped."""
    shape = [int(n) for n in header.get_data_shape()]
    while len(shape) > 3 and shape[-1] == 1:
        shape.pop()
    if len(shape) not in (2, 3):
        raise FileError(
            f"{path} has shape {tuple(shape)}; a volume is (columns, rows, slices). Take one volume of a series."
        )
    return shape[0], shape[1], (*shape, 1)[2]


def _values(path: Path, file: BinaryIO, header: Any, plane: tuple[int, int], numbers: range) -> NDArray[np.float32]:
    """The slices `(S, rows, columns)`, with slope and intercept of the header applied."""
    dtype = header.get_data_dtype()
    if dtype.kind not in "biuf":
        raise FileError(f"{path} holds {dtype} values; only real images are read.")
    shape = (len(numbers), plane[1], plane[0])
    size = affordable(path, shape, max(dtype.itemsize, 4)) // max(dtype.itemsize, 4) * dtype.itemsize
    offset = int(header.get_data_offset())
    start = offset + size // len(numbers) * numbers.start
    available = path.stat().st_size * (DEFLATE if path.suffix == ".gz" else 1)
    if not 0 <= offset <= FURTHEST or start + size > available:
        raise FileError(f"{path} is truncated: its header asks for {start + size} bytes.")
    file.seek(start)
    content = file.read(size)
    if len(content) < size:
        raise FileError(f"{path} is truncated: its header asks for {start + size} bytes.")
    slope, intercept = header.get_slope_inter()
    values = np.frombuffer(content, dtype).reshape(shape)
    if slope is None:
        return values.astype(np.float32)
    return (values * np.float64(slope) + np.float64(intercept)).astype(np.float32)
