"""How raw data in ISMRMRD files become k-space: what the XML header says, and where each readout lies."""

from collections.abc import Iterator
from math import pi, prod, sqrt
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.kspace import SPARSEST
from lipspline.formats.validation import FileError, affordable, in_short
from lipspline.formats.volume import LPS_TO_RAS, from_voxel_size, invertible, voxel_size

Triple = tuple[float, float, float]
READ_TOGETHER = 256  # readouts
SPAN = ("number_of_samples", "discard_pre", "discard_post", "center_sample")
"""What in the header of a readout says which rows of k-space it fills."""
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


# Readouts as Cartesian k-space, some at a time


class CartesianLines(NamedTuple):
    """Where readouts lie in their file and in k-space."""

    path: Path
    shape: tuple[int, int, int, int]
    """Of k-space: layers, coils, columns, and rows, which run along the readout."""
    numbers: NDArray[np.int64]
    """Of the readouts in the file, ascending."""
    layer: NDArray[np.int64]
    column: NDArray[np.int64]
    samples: NDArray[np.int64]
    """How many a readout has."""
    turned: NDArray[np.bool_]
    span: NDArray[np.int64]
    """The first row, and the first and last sample after turning that are used, `(n, 3)`; the last is not included."""

    def rows(self, i: int) -> slice:
        """The rows that readout i fills."""
        start, first, last = self.span[i].tolist()
        return slice(start, start + last - first)

    def times(self, layers: range) -> NDArray[np.uint16]:
        """How often each point of some layers was measured, `(n, columns, rows)`."""
        affordable(self.path, (len(layers), *self.shape[2:]), 2, "k-space")
        found = np.zeros((len(layers), *self.shape[2:]), np.uint16)
        for i in self._of(layers).tolist():
            found[self.layer[i] - layers.start, self.column[i], self.rows(i)] += 1
        return found

    def read(self, stored: Any, layers: range) -> Iterator[list[tuple[int, NDArray[np.complex64]]]]:
        """The readouts of some layers, a few together: the number of each among the lines, and its values `(C, n)`."""
        wanted = self._of(layers)
        places = self.numbers[wanted] // READ_TOGETHER
        for place in np.unique(places).tolist():
            first = place * READ_TOGETHER
            some = stored.fields("data")[first : first + READ_TOGETHER]
            yield [(i, self._values(i, some[self.numbers[i] - first])) for i in wanted[places == place].tolist()]

    def _of(self, layers: range) -> NDArray[np.int64]:
        return np.flatnonzero((self.layer >= layers.start) & (self.layer < layers.stop))

    def _values(self, i: int, samples: NDArray[Any]) -> NDArray[np.complex64]:
        coils, count = self.shape[1], int(self.samples[i])
        if len(samples) != 2 * coils * count:
            raise FileError(f"{self.path} has a readout of {len(samples)} numbers, not of 2 x {coils} x {count}.")
        values = np.ascontiguousarray(samples, np.float32).view(np.complex64).reshape(coils, count)
        if not np.isfinite(values).all():
            raise FileError(f"{self.path} has NaN or infinite values.")
        values = values[:, ::-1] if self.turned[i] else values
        return values[:, self.span[i, 1] : self.span[i, 2]]


def lines_of(
    path: Path,
    numbers: NDArray[np.int64],
    heads: NDArray[Any],
    turned: NDArray[np.bool_],
    layer: NDArray[np.int64],
    column: NDArray[np.int64],
    shape: tuple[int, int, int, int],
) -> CartesianLines:
    """Readouts in their layers and columns of k-space `shape`, if they lie inside, and the file can hold so much.

    The middle of a line that was measured backwards is counted by some in the order of time, by others after turning
    it; where both would fit, the line is refused.
    """
    if 8 * prod(shape) > SPARSEST * path.stat().st_size:
        affordable(path, shape, 8, "k-space")
    if not ((column >= 0) & (column < shape[2]) & (layer >= 0) & (layer < shape[0])).all():
        raise FileError(f"{path} has readouts outside the {shape[3]} x {shape[2]} points that its header announces.")
    kinds = np.column_stack([*(heads[name].astype(np.int64) for name in SPAN), turned])
    different, which = np.unique(kinds, axis=0, return_inverse=True)
    spans = np.array([_span(path, shape[3], *kind) for kind in different.tolist()])
    return CartesianLines(
        path, shape, numbers, layer, column, heads[SPAN[0]].astype(np.int64), turned, spans[which.reshape(-1)]
    )


def _span(path: Path, rows: int, count: int, pre: int, post: int, middle: int, reverse: int) -> tuple[int, int, int]:
    middles = {middle}
    if reverse:
        pre, post, middles = post, pre, {middle, count - 1 - middle}
    used = max(0, count - post - pre)
    starts = [start for one in middles if 0 <= (start := rows // 2 - one + pre) <= rows - used]
    if not starts or not used:
        raise FileError(f"{path} has a readout of {count} samples that does not fit the {rows} rows of k-space.")
    if len(starts) > 1:
        raise FileError(f"{path} has reversed readouts of {count} samples whose middle is not clear; turn them.")
    return starts[0], pre, count - post


def placed(lines: CartesianLines, stored: Any, layers: range) -> Tensor:
    """k-space `(n, C, rows, columns)` of some layers; what was measured several times is averaged."""
    data = np.zeros((len(layers), *lines.shape[1:]), np.complex64)
    for some in lines.read(stored, layers):
        for i, values in some:
            data[lines.layer[i] - layers.start, :, lines.column[i], lines.rows(i)] += values
    return torch.from_numpy(data / np.maximum(lines.times(layers), 1)[:, None]).mT


def across_partitions(lines: CartesianLines, stored: Any, times: NDArray[np.uint16], numbers: range) -> Tensor:
    """Slices `(n, C, rows, columns)` of k-space whose layers are transformed, and all measured."""
    layers, coils, columns, rows = lines.shape
    middle = np.arange(layers) - layers // 2
    waves = np.exp(2j * pi * np.outer(middle[numbers.start : numbers.stop], middle) / layers) / sqrt(layers)
    waves, data = waves.astype(np.complex64), np.zeros((len(numbers), coils, columns, rows), np.complex64)
    for some in lines.read(stored, range(layers)):
        whole, members = _whole(lines, some, times), np.array([i for i, _ in some], np.int64)
        for column in np.unique(lines.column[members]).tolist():
            here = lines.column[members] == column
            data[:, :, column] += np.tensordot(waves[:, lines.layer[members[here]]], whole[here], 1)
    return torch.from_numpy(data).mT


def across_readout(lines: CartesianLines, stored: Any, times: NDArray[np.uint16], numbers: range) -> Tensor:
    """Slices `(n, C, columns, layers)` of k-space whose rows are transformed, and all measured."""
    layers, coils, columns, _ = lines.shape
    data = np.zeros((len(numbers), coils, columns, layers), np.complex64)
    for some in lines.read(stored, range(layers)):
        whole = torch.from_numpy(_whole(lines, some, times))
        moved = torch.fft.ifft(torch.fft.ifftshift(whole, dim=-1), dim=-1, norm="ortho")
        chosen = torch.fft.fftshift(moved, dim=-1)[..., numbers.start : numbers.stop].numpy()
        for (i, _), values in zip(some, chosen, strict=True):
            data[:, :, lines.column[i], lines.layer[i]] += values.T
    return torch.from_numpy(data)


def _whole(
    lines: CartesianLines, some: list[tuple[int, NDArray[np.complex64]]], times: NDArray[np.uint16]
) -> NDArray[np.complex64]:
    """Readouts on all rows, `(k, C, rows)`, each with its share of the mean of those in its place."""
    found = np.zeros((len(some), lines.shape[1], lines.shape[3]), np.complex64)
    for k, (i, values) in enumerate(some):
        found[k, :, lines.rows(i)] = values / times[lines.layer[i], lines.column[i], lines.rows(i)]
    return found


def holds_readouts(file: Any) -> bool:
    """Whether an open HDF5 file is an ISMRMRD file."""
    h5py = checks.require("h5py", "mri", "Reading HDF5 files")
    link = file.get(GROUP, getlink=True)
    return isinstance(link, h5py.HardLink) and isinstance(file[GROUP], h5py.Group) and "data" in file[GROUP]
