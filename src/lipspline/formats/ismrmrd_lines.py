"""Readouts of ISMRMRD files as Cartesian k-space: where each of them lies, and slices of it, some at a time."""

from collections.abc import Iterator
from math import pi, prod, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline.formats.kspace import SPARSEST
from lipspline.formats.validation import FileError, affordable

READ_TOGETHER = 256  # readouts
SPAN = ("number_of_samples", "discard_pre", "discard_post", "center_sample")
"""What in the header of a readout says which rows of k-space it fills."""


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
