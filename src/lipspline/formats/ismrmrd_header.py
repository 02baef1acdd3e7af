"""Raw data in ISMRMRD files: whether a file holds some, and its XML header, how readouts become images of what size."""

from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.validation import FileError, in_short
from lipspline.formats.volume import LPS_TO_RAS, from_voxel_size, invertible, voxel_size

Triple = tuple[float, float, float]
GROUP = "dataset"


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
    trajectory: str = ""
    """Its kind, if it is not Cartesian."""

    @property
    def crop(self) -> tuple[int, int]:
        """Rows and columns of the images in the field of view that is wanted."""
        shares = (want / have for want, have in zip(self.wanted, self.encoded, strict=True))
        rows, columns, _ = (max(1, min(n, round(n * share))) for n, share in zip(self.shape, shares, strict=True))
        return rows, columns

    @property
    def depth(self) -> int:
        """Partitions of the images in the field of view that is wanted."""
        return max(1, min(self.shape[2], round(self.shape[2] * self.wanted[2] / self.encoded[2])))


def parsed_header(path: Path, xml: str) -> ElementTree.Element | None:
    """The root of the XML header of a scan; None if it is empty. Documents that define entities are not read."""
    if not xml.strip():
        return None
    if "<!DOCTYPE" in xml:
        raise FileError(f"{path} has an XML header with a document type, which is not read.")
    try:
        return ElementTree.fromstring(xml)
    except (ElementTree.ParseError, ValueError) as error:
        raise FileError(f"{path} has an XML header that is damaged ({in_short(error)}).") from error


def space_of_images(path: Path, xml: str) -> dict[str, Any]:
    """The `reconSpace` of a header: `matrix` (rows, columns) and `voxel` in mm (column, row, slice).

    Example:
        >>> size = "<x>320</x><y>160</y><z>1</z>"
        >>> space = f"<reconSpace><matrixSize>{size}</matrixSize><fieldOfView_mm>{size}</fieldOfView_mm></reconSpace>"
        >>> space_of_images(Path("a.h5"), f"<ismrmrdHeader><encoding>{space}</encoding></ismrmrdHeader>")
        {'matrix': (320, 160), 'voxel': (1.0, 1.0, 1.0)}
    """
    root = parsed_header(path, xml)
    found = None if root is None else _space(_descendant(root, "encoding", "reconSpace"))
    if found is None:
        return {}
    matrix, extent = found
    x, y, z = (length / size for length, size in zip(extent, matrix, strict=True))
    return {"matrix": (matrix[0], matrix[1]), "voxel": (y, x, z)}


def encoding_of(path: Path, element: ElementTree.Element) -> Encoding:
    """One encoding of a header."""
    kind = text_in(element, "trajectory").lower()[:40]
    found = _space(_descendant(element, "encodedSpace"))
    if found is None:
        raise FileError(f"{path} has no size of k-space in its XML header.")
    matrix, encoded = found
    wanted = _space(_descendant(element, "reconSpace")) or found
    centers = (text_in(element, "encodingLimits", f"kspace_encoding_step_{axis}", "center") for axis in (1, 2))
    column, partition = (
        int(center) if _is_count(center) else size // 2 for center, size in zip(centers, matrix[1:], strict=True)
    )
    return Encoding(matrix, (column, partition), encoded, wanted[1], "" if kind == "cartesian" else kind)


def _space(element: ElementTree.Element | None) -> tuple[tuple[int, int, int], Triple] | None:
    """Matrix size and field of view in mm, along x (readout), y and z, of `encodedSpace` or `reconSpace`."""
    sizes = [text_in(element, "matrixSize", axis) for axis in "xyz"]
    try:
        x, y, z = (float(text_in(element, "fieldOfView_mm", axis)) for axis in "xyz")
    except ValueError:
        return None
    if not all(map(_is_count, sizes)) or "0" in sizes or not 0 < min(x, y, z) <= max(x, y, z) < float("inf"):
        return None
    rows, columns, partitions = map(int, sizes)
    return ((rows, columns, partitions), (x, y, z)) if min(rows, columns, partitions) else None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 9


def children(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """The elements of this name directly inside another, whatever their namespace."""
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def _descendant(element: ElementTree.Element | None, *names: str) -> ElementTree.Element | None:
    """The first element of the first name inside another, in it the first of the next, and so on."""
    for name in names:
        element = next(iter(children(element, name)), None) if element is not None else None
    return element


def text_in(element: ElementTree.Element | None, *names: str) -> str:
    """The text of an element inside others; empty if there is none."""
    found = _descendant(element, *names)
    return "" if found is None or found.text is None else found.text.strip()


# Where the images lie


def voxels_of(encoding: Encoding) -> Tensor:
    """The affine map of voxels of which only the size is known."""
    row, column, depth = (n / m for n, m in zip(encoding.encoded, encoding.shape, strict=True))
    return from_voxel_size(column, row, depth)


def place_of(heads: NDArray[Any], encoding: Encoding) -> tuple[Tensor, bool]:
    """From (column, row, slice) to mm in NIfTI's coordinates, and whether slices are parallel and evenly spaced.

    From the headers of the readouts of an image. Sizes only where slices are not so, or without directions.
    """
    sizes = voxels_of(encoding)
    column, row, depth = voxel_size(sizes)
    numbers, where = np.unique(heads["idx"]["slice"].astype(np.int64), return_index=True)
    heads = heads[where]
    phase, read, normal, position = (
        torch.from_numpy(heads[name].astype(np.float64)) for name in ("phase_dir", "read_dir", "slice_dir", "position")
    )
    directions = torch.stack([phase, read, normal], dim=1)
    if not ((torch.linalg.vector_norm(directions, dim=2) - 1).abs() < 1e-2).all():
        return sizes, True
    steps = [phase[0] * column, read[0] * row, normal[0] * depth]
    if len(numbers) > 1:
        steps[2] = (position[-1] - position[0]) / int(numbers[-1] - numbers[0])
        expected = position[0] + torch.from_numpy(numbers - numbers[0]).unsqueeze(1) * steps[2]
        off = torch.linalg.vector_norm(position - expected, dim=1).max()
        if (directions - directions[0]).abs().max() > 1e-3 or not off <= 0.05 * torch.linalg.vector_norm(steps[2]):
            return sizes, False
    rows, columns = encoding.crop
    corner = position[0] - steps[0] * (columns // 2) - steps[1] * (rows // 2) - steps[2] * int(numbers[0])
    if encoding.shape[2] > 1:
        corner = corner - steps[2] * (encoding.shape[2] // 2)
    affine = torch.eye(4, dtype=torch.float64)
    affine[:3] = torch.stack([*steps, corner], dim=1)
    found = invertible(LPS_TO_RAS @ affine)
    return (sizes, False) if found is None else (found, True)


def holds_readouts(file: Any) -> bool:
    """Whether an open HDF5 file is an ISMRMRD file."""
    h5py = checks.require("h5py", "mri", "Reading HDF5 files")
    link = file.get(GROUP, getlink=True)
    return isinstance(link, h5py.HardLink) and isinstance(file[GROUP], h5py.Group) and "data" in file[GROUP]
