"""Raw data in ISMRMRD files: readouts, sorted into Cartesian k-space."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats import hdf5
from lipspline.formats.dicom import LPS_TO_RAS
from lipspline.formats.kspace import Kspace, transform_partitions, with_mask
from lipspline.formats.validation import FileError, affordable, chosen
from lipspline.formats.volume import from_voxel_size, shifted

Triple = tuple[float, float, float]

GROUP = "dataset"
AT_ONCE = 256  # readouts
NOT_IMAGING = (
    *("ACQ_IS_NOISE_MEASUREMENT", "ACQ_IS_NAVIGATION_DATA", "ACQ_IS_PHASECORR_DATA", "ACQ_IS_DUMMYSCAN_DATA"),
    *("ACQ_IS_RTFEEDBACK_DATA", "ACQ_IS_HPFEEDBACK_DATA", "ACQ_IS_SURFACECOILCORRECTIONSCAN_DATA"),
)
CALIBRATION = "ACQ_IS_PARALLEL_CALIBRATION"
REPEATED = ("contrast", "phase", "repetition", "set")


class Encoding(NamedTuple):
    """How readouts become k-space."""

    shape: tuple[int, int, int]
    """Rows (readout), columns (phase), partitions."""
    middle: tuple[int, int]
    """Number of the column and of the partition where the frequency is zero."""
    encoded: Triple
    """Field of view that is measured, in mm along rows, columns, partitions."""
    wanted: Triple
    """Field of view of the images."""

    @property
    def crop(self) -> tuple[int, int]:
        """Rows and columns of the images in the field of view that is wanted."""
        shares = (want / have for want, have in zip(self.wanted, self.encoded, strict=True))
        rows, columns, _ = (max(1, min(n, round(n * share))) for n, share in zip(self.shape, shares, strict=True))
        return rows, columns


class Readouts(NamedTuple):
    """The readouts that make the image: which they are in the file, and their headers."""

    numbers: NDArray[np.int64]
    heads: NDArray[Any]

    def counter(self, name: str) -> NDArray[np.int64]:
        """One of the counters of the scan."""
        return self.heads["idx"][name].astype(np.int64)

    def where(self, kept: NDArray[np.bool_]) -> "Readouts":
        """Some of them."""
        return Readouts(self.numbers[kept], self.heads[kept])


def holds_readouts(file: Any) -> bool:
    """Whether an open HDF5 file is an ISMRMRD file."""
    h5py = checks.require("h5py", "mri", "Reading HDF5 files")
    link = file.get(GROUP, getlink=True)
    return isinstance(link, h5py.HardLink) and isinstance(file[GROUP], h5py.Group) and "data" in file[GROUP]


def read(path: str | Path, slices: slice = slice(None)) -> Kspace:
    """Read Cartesian k-space, in two or three dimensions; averages are averaged, calibration lines are used.

    A third dimension that is fully measured is transformed, and its slices are what `slices` counts.
    """
    path = Path(path)
    with hdf5.opened(path) as file:
        group = hdf5.member(file, GROUP)
        xml, stored = hdf5.text(group, "xml"), hdf5.array(group, "data")
        encoding = _encoding(path, xml)
        readouts = _imaging(path, stored, separate=element(xml, "parallelImaging", "calibrationMode") == "separate")
        count = int(readouts.counter("slice").max()) + 1
        flat = encoding.shape[2] == 1
        numbers = chosen(path, count if flat else encoding.shape[2], slices)
        if flat:
            readouts = readouts.where(np.isin(readouts.counter("slice"), numbers))
            data = _sorted(path, stored, readouts, encoding, readouts.counter("slice") - numbers.start, len(numbers))
        else:
            partition = readouts.counter("kspace_encode_step_2") - encoding.middle[1] + encoding.shape[2] // 2
            data = _sorted(path, stored, readouts, encoding, partition, encoding.shape[2])
    if not torch.isfinite(data).all():
        raise FileError(f"{path} has NaN or infinite values.")
    data = data if flat else transform_partitions(data, path)[numbers.start : numbers.stop]
    data, mask = with_mask(data, None, path)
    affine = _affine(readouts, encoding)
    return Kspace(data, mask, crop=encoding.crop, affine=affine if flat else shifted(affine, depth=numbers.start))


def _encoding(path: Path, xml: str) -> Encoding:
    if (kind := element(xml, "trajectory")) not in ("", "cartesian"):
        raise FileError(f"{path} was measured on a {kind[:40]} trajectory; only Cartesian k-space is read.")
    encoded = space(xml, "encodedSpace")
    if encoded is None:
        raise FileError(f"{path} has no readable XML header: the size of k-space is unknown.")
    wanted = space(xml, "reconSpace") or encoded
    rows, columns, partitions = (int(n) for n in encoded[0])
    limits = element(xml, "encodingLimits")
    centers = (element(limits, f"kspace_encoding_step_{axis}", "center") for axis in (1, 2))
    column, partition = (
        int(center) if center.isdecimal() else size // 2
        for center, size in zip(centers, (columns, partitions), strict=True)
    )
    return Encoding((rows, columns, partitions), (column, partition), encoded[1], wanted[1])


def _imaging(path: Path, stored: Any, *, separate: bool) -> Readouts:
    """The readouts that belong to the image, of one contrast, phase, repetition and set."""
    constants = checks.require("ismrmrd", "mri", "Reading ISMRMRD files")
    if stored.dtype.names is None or not {"head", "data"} <= set(stored.dtype.names):
        raise FileError(f"{path}: 'dataset/data' does not hold readouts.")
    affordable(path, stored.shape, stored.dtype.itemsize, "readouts")
    hdf5.check_lengths(stored, *(name for name in ("traj", "data") if name in stored.dtype.names))
    heads = np.asarray(stored.fields("head")[:]).reshape(-1)
    skipped = (*NOT_IMAGING, CALIBRATION) if separate else NOT_IMAGING
    bits = sum(1 << (getattr(constants, name) - 1) for name in skipped)
    found = Readouts(np.arange(len(heads)), heads).where((heads["flags"] & np.uint64(bits)) == 0)
    if not len(found.numbers):
        raise FileError(f"{path} holds no readouts of an image.")
    for name in REPEATED:
        if len(kinds := np.unique(found.counter(name))) > 1:
            raise FileError(f"{path} holds {len(kinds)} of the kind '{name}'; write one of them into its own file.")
    return found


def _sorted(path: Path, stored: Any, readouts: Readouts, encoding: Encoding, layer: NDArray, layers: int) -> Tensor:
    """k-space `(layers, C, H, W)` of the readouts, each put into its layer and column; repeated ones are averaged."""
    rows, columns, _ = encoding.shape
    coils = int(readouts.heads["active_channels"].max(initial=0))
    affordable(path, (layers, coils, rows, columns), 8, "k-space")
    column = readouts.counter("kspace_encode_step_1") - encoding.middle[0] + columns // 2
    if not ((column >= 0) & (column < columns) & (layer >= 0) & (layer < layers)).all():
        raise FileError(f"{path} has readouts outside the {rows} x {columns} points that its header announces.")
    data, times = np.zeros((layers, coils, columns, rows), np.complex64), np.zeros((layers, columns), np.float32)
    place = {int(number): i for i, number in enumerate(readouts.numbers)}
    for first in range(0, stored.shape[0], AT_ONCE):
        for number, samples in enumerate(stored.fields("data")[first : first + AT_ONCE], first):
            if (i := place.get(number)) is not None:
                start, values = _samples(path, readouts.heads[i], samples, rows)
                data[layer[i], : len(values), column[i], start : start + values.shape[1]] += values
                times[layer[i], column[i]] += 1
    return torch.from_numpy(data / np.maximum(times, 1)[:, None, :, None]).mT


def _samples(path: Path, head: Any, samples: NDArray[Any], rows: int) -> tuple[int, NDArray[np.complex64]]:
    """The row where a readout begins, and its values `(C, samples)`."""
    coils, count = int(head["active_channels"]), int(head["number_of_samples"])
    if len(samples) != 2 * coils * count:
        raise FileError(f"{path} has a readout of {len(samples)} numbers, not of 2 x {coils} x {count}.")
    kept = slice(int(head["discard_pre"]), count - int(head["discard_post"]))
    start = rows // 2 - int(head["center_sample"]) + kept.start
    values = np.ascontiguousarray(samples, np.float32).view(np.complex64).reshape(coils, count)[:, kept]
    if start < 0 or start + values.shape[1] > rows:
        raise FileError(f"{path} has a readout of {count} samples that does not fit the {rows} rows of k-space.")
    return start, values


def _affine(readouts: Readouts, encoding: Encoding) -> Tensor:
    """From (column, row, slice) to mm in NIfTI's coordinates; sizes only where the scanner gives no directions."""
    row, column, depth = (n / m for n, m in zip(encoding.encoded, encoding.shape, strict=True))
    heads = readouts.heads
    order = np.argsort(readouts.counter("slice"), kind="stable")
    first, last = heads[order[0]], heads[order[-1]]
    directions = [torch.from_numpy(first[f"{name}_dir"].astype(np.float64)) for name in ("phase", "read", "slice")]
    lengths = torch.stack([torch.linalg.vector_norm(direction) for direction in directions])
    if not ((lengths - 1).abs() < 1e-2).all():
        return from_voxel_size(column, row, depth)
    position, far = (torch.from_numpy(head["position"].astype(np.float64)) for head in (first, last))
    gap = int(readouts.counter("slice").max() - readouts.counter("slice").min())
    steps = [directions[0] * column, directions[1] * row, (far - position) / gap if gap else directions[2] * depth]
    rows, columns = encoding.crop
    corner = position - steps[0] * (columns // 2) - steps[1] * (rows // 2)
    if encoding.shape[2] > 1:
        corner = corner - steps[2] * (encoding.shape[2] // 2)
    affine = torch.eye(4, dtype=torch.float64)
    affine[:3] = torch.stack([*steps, corner], dim=1)
    return LPS_TO_RAS @ affine if torch.isfinite(affine).all() else from_voxel_size(column, row, depth)


def space_of_images(xml: str) -> dict[str, Any]:
    """The `reconSpace` of a header: `matrix` (rows, columns) and `voxel` in mm (column, row, slice).

    Example:
        >>> size = "<x>320</x><y>160</y><z>1</z>"
        >>> xml = f"<reconSpace><matrixSize>{size}</matrixSize><fieldOfView_mm>{size}</fieldOfView_mm></reconSpace>"
        >>> space_of_images(xml)
        {'matrix': (320, 160), 'voxel': (1.0, 1.0, 1.0)}
    """
    found = space(xml, "reconSpace")
    if found is None:
        return {}
    matrix, extent = found
    x, y, z = (length / size for length, size in zip(extent, matrix, strict=True))
    return {"matrix": (int(matrix[0]), int(matrix[1])), "voxel": (y, x, z)}


def space(xml: str, name: str) -> tuple[Triple, Triple] | None:
    """Matrix size and field of view in mm, along x (readout), y and z, of `encodedSpace` or `reconSpace`."""
    part = element(xml, name)
    matrix, extent = (_xyz(element(part, tag)) for tag in ("matrixSize", "fieldOfView_mm"))
    if matrix is None or extent is None or min(matrix) < 1 or not 0 < min(extent) <= max(extent) < float("inf"):
        return None
    return matrix, extent


def element(xml: str, *path: str) -> str:
    """What stands inside the first element of this name, and in it the next; empty if there is none.

    Example:
        >>> element("<a><ns:b>7</ns:b></a>", "a", "b")
        '7'
    """
    for name in path:
        part = re.search(rf"<(?:\w+:)?{name}(?:\s[^<>]*)?>(.*?)</(?:\w+:)?{name}>", xml, re.DOTALL)
        xml = part.group(1).strip() if part else ""
    return xml


def _xyz(xml: str) -> Triple | None:
    try:
        x, y, z = (float(element(xml, axis)) for axis in "xyz")
    except ValueError:
        return None
    return x, y, z
