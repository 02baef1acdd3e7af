"""Raw data in ISMRMRD files: readouts, told apart by their flags and sorted into Cartesian k-space."""

from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats import hdf5
from lipspline.formats.ismrmrd_header import Encoding, children, encoding_of, parsed_header, text_in
from lipspline.formats.kspace import Kspace, transform_partitions, with_mask
from lipspline.formats.validation import FileError, affordable, chosen
from lipspline.formats.volume import LPS_TO_RAS, from_voxel_size, invertible, shifted

GROUP = "dataset"
AT_ONCE = 256  # readouts
NOISE = "ACQ_IS_NOISE_MEASUREMENT"
NOISE_SAMPLES = 20  # for each coil, that a covariance needs
NOT_IMAGING = {
    NOISE: "noise measurements",
    "ACQ_IS_NAVIGATION_DATA": "navigators",
    "ACQ_IS_PHASECORR_DATA": "phase correction lines",
    "ACQ_IS_DUMMYSCAN_DATA": "dummy scans",
    "ACQ_IS_RTFEEDBACK_DATA": "real-time feedback lines",
    "ACQ_IS_HPFEEDBACK_DATA": "feedback lines",
    "ACQ_IS_SURFACECOILCORRECTIONSCAN_DATA": "lines of a surface coil correction",
    "ACQ_IS_PHASE_STABILIZATION_REFERENCE": "phase stabilization references",
    "ACQ_IS_PHASE_STABILIZATION": "phase stabilization lines",
}
"""Flags of readouts that are no part of an image, and what such readouts are called."""
COMPRESSED = tuple(f"ACQ_COMPRESSION{number}" for number in range(1, 5))
APART = ("separate", "external")
"""Calibration modes whose lines must not be mixed with those of the image."""
REPEATED = ("contrast", "phase", "repetition", "set")
PLACE = ("slice", "kspace_encode_step_2", "kspace_encode_step_1")


class Readouts(NamedTuple):
    """Some readouts of a file: their numbers in it, and their headers."""

    numbers: NDArray[np.int64]
    heads: NDArray[Any]

    def counter(self, name: str) -> NDArray[np.int64]:
        """One of the counters of the scan."""
        return self.heads["idx"][name].astype(np.int64)

    def places(self) -> NDArray[np.int64]:
        """Slice, partition and column of each, `(n, 3)`."""
        return np.stack([self.counter(name) for name in PLACE], axis=1)

    def flagged(self, *names: str) -> NDArray[np.bool_]:
        """Which of them have one of these flags."""
        constants = checks.require("ismrmrd", "mri", "Reading ISMRMRD files")
        bits = sum(1 << (getattr(constants, name) - 1) for name in names)
        return (self.heads["flags"] & np.uint64(bits)) != 0

    def repeats(self) -> tuple[int, NDArray[np.int64]]:
        """How many images there are of each slice, and to which of them each readout belongs."""
        kinds, which = np.unique(np.stack([self.counter(name) for name in REPEATED]), axis=1, return_inverse=True)
        return kinds.shape[1], which.reshape(-1).astype(np.int64)

    def where(self, kept: NDArray[np.bool_]) -> "Readouts":
        """Some of them."""
        return Readouts(self.numbers[kept], self.heads[kept])


def holds_readouts(file: Any) -> bool:
    """Whether an open HDF5 file is an ISMRMRD file."""
    h5py = checks.require("h5py", "mri", "Reading HDF5 files")
    link = file.get(GROUP, getlink=True)
    return isinstance(link, h5py.HardLink) and isinstance(file[GROUP], h5py.Group) and "data" in file[GROUP]


def read(path: str | Path, slices: slice = slice(None)) -> Kspace:
    """Read Cartesian k-space, in two or three dimensions.

    The image is made of the readouts of the first encoding that has some; embedded calibration lines belong to it,
    others and readouts that are no part of an image are left out; averages are averaged; reversed lines are turned.
    What was left out or averaged is in `notes`. A third dimension that is fully measured is transformed, and its slices
    are what `slices` counts.
    """
    path = Path(path)
    with hdf5.opened(path) as file:
        group = hdf5.member(file, GROUP)
        header, stored = parsed_header(path, hdf5.text(group, "xml")), hdf5.array(group, "data")
        if header is None or not (encodings := children(header, "encoding")):
            raise FileError(f"{path} has no readable XML header: the size of k-space is unknown.")
        everything = _readouts(path, stored)
        readouts, number, notes = _of_the_image(path, everything, encodings)
        noise = _noise(stored, everything.where(everything.flagged(NOISE)), readouts)
        encoding = encoding_of(path, encodings[number])
        count, flat = int(readouts.counter("slice").max()) + 1, encoding.shape[2] == 1
        _check_layers(path, readouts, flat)
        repeats, repeated = readouts.repeats()
        numbers = chosen(path, repeats * count if flat else encoding.shape[2], slices)
        if flat:
            layer = repeated * count + readouts.counter("slice")
            kept = np.isin(layer, numbers)
            readouts, layer, layers = readouts.where(kept), layer[kept] - numbers.start, len(numbers)
        else:
            layer = readouts.counter("kspace_encode_step_2") - encoding.middle[1] + encoding.shape[2] // 2
            layers = encoding.shape[2]
        data, points = _sorted(path, stored, readouts, encoding, layer, layers)
    if not torch.isfinite(data).all():
        raise FileError(f"{path} has NaN or infinite values.")
    affine, regular = _affine(readouts, encoding) if repeats == 1 else (_sizes(encoding), True)
    if repeats > 1:
        notes = (*notes, f"{repeats} images of each slice ({', '.join(REPEATED)}), one stack after the other")
    notes = notes if regular else (*notes, "its slices are not parallel and evenly spaced, so their place is not kept")
    if not flat:
        data = transform_partitions(data, path, points)[numbers.start : numbers.stop]
        points, affine = points[:1].expand(len(numbers), -1, -1), shifted(affine, depth=numbers.start)
    data, mask = with_mask(data, points, path)
    return Kspace(data, mask, crop=encoding.crop, affine=affine, noise=noise, notes=notes)


# Which readouts make the image


def _readouts(path: Path, stored: Any) -> Readouts:
    """All of them."""
    if stored.dtype.names is None or not {"head", "data"} <= set(stored.dtype.names):
        raise FileError(f"{path}: 'dataset/data' does not hold readouts.")
    affordable(path, stored.shape, stored.dtype.itemsize, "readouts")
    hdf5.check_lengths(stored, *(name for name in ("traj", "data") if name in stored.dtype.names))
    heads = np.asarray(stored.fields("head")[:]).reshape(-1)
    return Readouts(np.arange(len(heads)), heads)


def _of_the_image(
    path: Path, found: Readouts, encodings: list[ElementTree.Element]
) -> tuple[Readouts, int, tuple[str, ...]]:
    """The readouts of one image, the number of their encoding, and what was left out or is averaged."""
    left = [(name, found.flagged(flag)) for flag, name in NOT_IMAGING.items()]
    notes = [f"{int(flags.sum())} {name} left out" for name, flags in left if flags.any()]
    found = found.where(~found.flagged(*NOT_IMAGING))
    if not len(found.numbers):
        raise FileError(f"{path} holds no readouts of an image.")
    if found.flagged(*COMPRESSED).any():
        raise FileError(f"{path} holds compressed readouts, which are not read.")
    if (highest := int(found.heads["encoding_space_ref"].max())) >= len(encodings):
        raise FileError(f"{path} has readouts of encoding {highest}; its XML header describes {len(encodings)}.")
    found, calibration = _without_calibration(path, found, encodings)
    numbers = np.unique(found.heads["encoding_space_ref"])
    others = found.heads["encoding_space_ref"] != numbers[0]
    notes += [*calibration, *([f"{int(others.sum())} readouts of other encodings left out"] if others.any() else [])]
    found = found.where(~others)
    _check_one_image(path, found)
    if (averages := len(np.unique(found.counter("average")))) > 1:
        notes.append(f"{averages} averages averaged")
    return found, int(numbers[0]), tuple(notes)


def _without_calibration(
    path: Path, found: Readouts, encodings: list[ElementTree.Element]
) -> tuple[Readouts, list[str]]:
    """Without the calibration lines that were measured apart, or twice; embedded ones are lines of the image."""
    only = found.flagged("ACQ_IS_PARALLEL_CALIBRATION") & ~found.flagged("ACQ_IS_PARALLEL_CALIBRATION_AND_IMAGING")
    modes = [text_in(encoding, "parallelImaging", "calibrationMode").lower() for encoding in encodings]
    of_readouts = np.array(modes)[found.heads["encoding_space_ref"]]
    unknown = only & ~np.isin(of_readouts, (*APART, "embedded"))
    if unknown.any():
        raise FileError(
            f"{path} has {int(unknown.sum())} calibration lines of the mode {str(of_readouts[unknown][0])[:40]!r}; the "
            f"'calibrationMode' in its XML header must be embedded, separate or external."
        )
    kept = {tuple(place) for place in found.where(~only).places().tolist()}
    twice = np.array([tuple(place) in kept for place in found.places().tolist()])
    apart = only & (np.isin(of_readouts, APART) | twice)
    if apart.all():
        raise FileError(f"{path} holds calibration lines only, and no readouts of an image.")
    return found.where(~apart), [f"{int(apart.sum())} calibration lines left out"] if apart.any() else []


def _check_one_image(path: Path, found: Readouts) -> None:
    """Refuse readouts that do not belong together, or that nothing tells apart."""
    if len(counts := np.unique(found.heads["active_channels"])) > 1:
        raise FileError(f"{path} has readouts of {counts[0]} and of {counts[-1]} coils; all must have the same coils.")
    if len(np.unique(found.heads["channel_mask"], axis=0)) > 1:
        raise FileError(f"{path} has readouts of different coils ('channel_mask'); all must have the same coils.")
    lines = np.column_stack([found.places(), found.counter("average"), found.repeats()[1]])
    places, times = np.unique(lines, axis=0, return_counts=True)
    if (times > 1).any():
        number, partition, column = places[times.argmax()][:3]
        raise FileError(
            f"{path} has {times.max()} readouts for column {column} of slice {number}, partition {partition}, and no "
            f"counter that tells them apart."
        )


def _check_layers(path: Path, readouts: Readouts, flat: bool) -> None:
    """Refuse partitions where the header has none, and slabs where it has partitions."""
    if flat and len(kinds := np.unique(readouts.counter("kspace_encode_step_2"))) > 1:
        raise FileError(f"{path} has readouts of {len(kinds)} partitions, but one in its XML header.")
    for name in () if flat else REPEATED:
        if len(kinds := np.unique(readouts.counter(name))) > 1:
            raise FileError(f"{path} holds {len(kinds)} of the kind '{name}'; write one of them into its own file.")
    if not flat and len(kinds := np.unique(readouts.counter("slice"))) > 1:
        raise FileError(f"{path} has {len(kinds)} slabs of partitions; write one of them into its own file.")


# From readouts to k-space


def _sorted(
    path: Path, stored: Any, readouts: Readouts, encoding: Encoding, layer: NDArray, layers: int
) -> tuple[Tensor, Tensor]:
    """k-space `(layers, C, H, W)` of readouts in their layers and columns, and which of its points were measured."""
    rows, columns, _ = encoding.shape
    coils = int(readouts.heads["active_channels"].max(initial=0))
    affordable(path, (layers, coils, rows, columns), 8, "k-space")
    column = readouts.counter("kspace_encode_step_1") - encoding.middle[0] + columns // 2
    if not ((column >= 0) & (column < columns) & (layer >= 0) & (layer < layers)).all():
        raise FileError(f"{path} has readouts outside the {rows} x {columns} points that its header announces.")
    data, times = (np.zeros((layers, n, columns, rows), kind) for n, kind in ((coils, np.complex64), (1, np.float32)))
    place = {int(number): i for i, number in enumerate(readouts.numbers)}
    turned = readouts.flagged("ACQ_IS_REVERSE")
    for first in range(0, stored.shape[0], AT_ONCE):
        for number, samples in enumerate(stored.fields("data")[first : first + AT_ONCE], first):
            if (i := place.get(number)) is not None:
                start, values = _samples(path, readouts.heads[i], samples, rows, bool(turned[i]))
                part = slice(start, start + values.shape[1])
                data[layer[i], :, column[i], part] += values
                times[layer[i], 0, column[i], part] += 1
    return torch.from_numpy(data / np.maximum(times, 1)).mT, torch.from_numpy(times[:, 0] > 0).mT


def _samples(
    path: Path, head: Any, samples: NDArray[Any], rows: int, reverse: bool
) -> tuple[int, NDArray[np.complex64]]:
    """The row where a readout begins, and its values `(C, samples)`.

    The middle of a line that was measured backwards is counted by some in the order of time, by others after turning
    it; where both would fit, the line is refused.
    """
    coils, count = int(head["active_channels"]), int(head["number_of_samples"])
    if len(samples) != 2 * coils * count:
        raise FileError(f"{path} has a readout of {len(samples)} numbers, not of 2 x {coils} x {count}.")
    pre, post, middle = (int(head[name]) for name in ("discard_pre", "discard_post", "center_sample"))
    values = np.ascontiguousarray(samples, np.float32).view(np.complex64).reshape(coils, count)
    middles = {middle}
    if reverse:
        values, pre, post, middles = values[:, ::-1], post, pre, {middle, count - 1 - middle}
    values = values[:, pre : count - post]
    starts = [start for one in middles if 0 <= (start := rows // 2 - one + pre) <= rows - values.shape[1]]
    if not starts or not values.shape[1]:
        raise FileError(f"{path} has a readout of {count} samples that does not fit the {rows} rows of k-space.")
    if len(starts) > 1:
        raise FileError(f"{path} has reversed readouts of {count} samples whose middle is not clear; turn them.")
    return starts[0], values


def _noise(stored: Any, scans: Readouts, readouts: Readouts) -> Tensor | None:
    """Covariance `(C, C)` of the real parts of the noise of the coils, from noise measurements; None if there are few.

    Noise is proportional to the bandwidth, so it is multiplied by the ratio of the sampling times. Averaged lines have
    less of it.
    """
    coils = int(readouts.heads["active_channels"].max(initial=0))
    sums, count = np.zeros((coils, coils), np.complex128), 0
    for number, head in zip(scans.numbers, scans.heads, strict=True):
        values = np.ascontiguousarray(stored.fields("data")[int(number)], np.float32).view(np.complex64)
        if int(head["active_channels"]) == coils and values.size == coils * int(head["number_of_samples"]):
            samples = values.reshape(coils, -1).astype(np.complex128)
            samples = samples - samples.mean(axis=1, keepdims=True)
            sums, count = sums + samples @ samples.conj().T, count + samples.shape[1]
    if count < NOISE_SAMPLES * coils or not np.isfinite(sums).all() or np.linalg.eigvalsh(sums)[0] <= 0:
        return None
    times = [float(some.heads["sample_time_us"][0]) for some in (scans, readouts)]
    ratio = times[0] / times[1] if min(times) > 0 else 1.0
    averages = len(np.unique(readouts.counter("average")))
    return torch.from_numpy(sums * ratio / (2 * count * averages))


def _sizes(encoding: Encoding) -> Tensor:
    """The affine map of voxels of which only the size is known."""
    row, column, depth = (n / m for n, m in zip(encoding.encoded, encoding.shape, strict=True))
    return from_voxel_size(column, row, depth)


def _affine(readouts: Readouts, encoding: Encoding) -> tuple[Tensor, bool]:
    """From (column, row, slice) to mm in NIfTI's coordinates, and whether slices are parallel and evenly spaced.

    Sizes only where they are not, or where the scanner gives no directions.
    """
    sizes = _sizes(encoding)
    column, row, depth = sizes.diagonal()[:3].tolist()
    numbers, where = np.unique(readouts.counter("slice"), return_index=True)
    heads = readouts.heads[where]
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
    corner = position[0] - steps[0] * (columns // 2) - steps[1] * (rows // 2)
    if encoding.shape[2] > 1:
        corner = corner - steps[2] * (encoding.shape[2] // 2)
    affine = torch.eye(4, dtype=torch.float64)
    affine[:3] = torch.stack([*steps, corner], dim=1)
    found = invertible(LPS_TO_RAS @ affine)
    return (sizes, False) if found is None else (found, True)
