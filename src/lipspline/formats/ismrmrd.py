"""Raw data in ISMRMRD files: readouts, told apart by their flags and sorted into Cartesian k-space."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats import hdf5
from lipspline.formats.ismrmrd_header import (
    GROUP,
    Encoding,
    children,
    encoding_of,
    parsed_header,
    place_of,
    text_in,
    voxels_of,
)
from lipspline.formats.ismrmrd_lines import CartesianLines, across_partitions, across_readout, lines_of, placed
from lipspline.formats.kspace import Kspace, LazyKspace, in_pieces, large, transform_partitions, with_mask
from lipspline.formats.trajectories import NonCartesianKspace, on_trajectory
from lipspline.formats.validation import FileError, affordable, chosen
from lipspline.formats.volume import shifted

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


def read(path: str | Path, slices: slice = slice(None), size: int | None = None) -> LazyKspace | NonCartesianKspace:
    """Read k-space in two or three dimensions, Cartesian or on a trajectory.

    The image is made of the readouts of the first encoding that has some; embedded calibration lines belong to it,
    others and readouts that are no part of an image are left out; averages are averaged; reversed lines are turned.
    What was left out or averaged is in `notes`. In three dimensions a direction that is fully measured is transformed,
    the partitions if they are, else the readout, and its positions are what `slices` counts.

    Args:
        size: of images that were measured on a trajectory; by default what the header says.
    """
    path = Path(path)
    with hdf5.opened(path) as file:
        group = hdf5.member(file, GROUP)
        header, stored = parsed_header(path, hdf5.text(group, "xml")), hdf5.array(group, "data")
        if header is None or not (encodings := children(header, "encoding")):
            raise FileError(f"{path} has no readable XML header: the size of k-space is unknown.")
        everything = _readouts(path, stored)
        readouts, number, notes = _of_the_image(path, everything, encodings)
        scans = everything.where(everything.flagged(NOISE))
        noise = _noise(stored, scans, readouts)
        if measured := len(scans.numbers):
            notes = (f"{measured} noise measurements {'left out: too few' if noise is None else 'read'}", *notes)
        encoding = encoding_of(path, encodings[number])
        flat = encoding.shape[2] == 1
        if not encoding.trajectory:
            _check_lines(path, readouts)
        _check_layers(path, readouts, flat)
        count = int(readouts.counter("slice").max()) + 1
        repeats, repeated = readouts.repeats()
        if flat:
            layer, layers = repeated * count + readouts.counter("slice"), repeats * count
        else:
            layer = readouts.counter("kspace_encode_step_2") - encoding.middle[1] + encoding.shape[2] // 2
            layers = encoding.shape[2]
        affine, regular = place_of(readouts.heads, encoding) if repeats == 1 else (voxels_of(encoding), True)
        if flat:
            numbers = chosen(path, layers, slices)
            kept = np.isin(layer, numbers)
            readouts, layer, layers = readouts.where(kept), layer[kept] - numbers.start, len(numbers)
            affine = shifted(affine, depth=numbers.start) if repeats == 1 else affine
        if repeats > 1:
            notes = (*notes, f"{repeats} images of each slice ({', '.join(REPEATED)}), one stack after the other")
        if not regular:
            notes = (*notes, "its slices are not parallel and evenly spaced, so their place is not kept")
        known = {"affine": affine, "noise": noise, "notes": notes}
        if encoding.trajectory:
            found = _on_trajectory(path, stored, readouts, encoding, layer, layers, size)
            if not flat:
                numbers = chosen(path, layers, slices)
                moved = transform_partitions(found.data, path, torch.ones(layers, 1, 1, dtype=torch.bool))
                found = replace(found, data=moved[numbers.start : numbers.stop])
                known["affine"] = shifted(affine, depth=numbers.start)
            return replace(found, **{**known, "notes": (*notes, *found.notes)})
        lines = _lines(path, readouts, encoding, layer, layers)
        if flat:
            return _two_dimensional(lines, stored, encoding, known)
        return _three_dimensional(lines, stored, encoding, slices, known)


def _two_dimensional(lines: CartesianLines, stored: Any, encoding: Encoding, known: dict[str, Any]) -> LazyKspace:
    """Slices that were measured one by one."""
    if not large(lines.shape):
        layers = range(lines.shape[0])
        points = torch.from_numpy(lines.times(layers) > 0).mT
        return Kspace(*with_mask(placed(lines, stored, layers), points, lines.path), crop=encoding.crop, **known)
    load = partial(_again, lines.path, partial(placed, lines))
    return LazyKspace(*in_pieces(_transposed(lines.shape), load, lines.path), crop=encoding.crop, **known)


def _three_dimensional(
    lines: CartesianLines, stored: Any, encoding: Encoding, slices: slice, known: dict[str, Any]
) -> LazyKspace:
    """Slices of k-space `(partitions, C, H, W)` across the direction that is fully measured.

    Across the readout they are rows of the image: its columns are partitions, and its rows phase encodings.
    """
    path, everything, affine = lines.path, range(lines.shape[0]), known["affine"]
    times = lines.times(everything)
    points = torch.from_numpy(times > 0).mT
    if (points == points.any(dim=0)).all():
        numbers, first, mask = chosen(path, len(points), slices), 0, points[0]
        across, turned = across_partitions, (0, 1, 2, 3)
        known, crop = {**known, "affine": shifted(affine, depth=numbers.start)}, encoding.crop
    elif (points == points.any(dim=1, keepdim=True)).all():
        numbers, first = chosen(path, encoding.crop[0], slices), encoding.shape[0] // 2 - encoding.crop[0] // 2
        mask, across, turned = points[:, 0].T, across_readout, (2, 1, 3, 0)  # readout, coil, phase, partition
        place = shifted(affine, row=numbers.start, depth=encoding.shape[2] // 2 - encoding.depth // 2)
        place = None if place is None else place[:, [2, 0, 1, 3]]  # columns, rows, slices: partition, phase, readout
        notes = (*known["notes"], "transformed along the readout, two directions of phase encoding")
        known, crop = {**known, "affine": place, "notes": notes}, (encoding.crop[1], encoding.depth)
    else:
        raise FileError(
            f"{path} is undersampled along its partitions, and its readouts are not complete; one of the two must be."
        )
    wanted = range(first + numbers.start, first + numbers.stop)
    if not large(lines.shape):
        data, kept = placed(lines, stored, everything).permute(turned), points[:, None].permute(turned)[:, 0]
        moved = transform_partitions(data, path, kept)[wanted.start : wanted.stop]
        return Kspace(*with_mask(moved, mask, path), crop=crop, **known)

    def load(few: range) -> Tensor:
        return _again(path, lambda again, some: across(lines, again, times, some), wanted[few.start : few.stop])

    shape = (len(wanted), lines.shape[1], *mask.shape)
    return LazyKspace(*in_pieces(shape, load, path, mask, costly=True), crop=crop, **known)


def _again(path: Path, make: Callable[[Any, range], Tensor], some: range) -> Tensor:
    """What is made of readouts, with their file opened again."""
    with hdf5.opened(path) as file:
        return make(hdf5.array(hdf5.member(file, GROUP), "data"), some)


def _transposed(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    layers, coils, columns, rows = shape
    return layers, coils, rows, columns


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
    left = [(name, found.flagged(flag)) for flag, name in NOT_IMAGING.items() if flag != NOISE]
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
    if len(counts := np.unique(found.heads["active_channels"])) > 1:
        raise FileError(f"{path} has readouts of {counts[0]} and of {counts[-1]} coils; all must have the same coils.")
    if len(np.unique(found.heads["channel_mask"], axis=0)) > 1:
        raise FileError(f"{path} has readouts of different coils ('channel_mask'); all must have the same coils.")
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


def _check_lines(path: Path, found: Readouts) -> None:
    """Refuse readouts that nothing tells apart."""
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


def _lines(path: Path, readouts: Readouts, encoding: Encoding, layer: NDArray, layers: int) -> CartesianLines:
    """Where readouts lie in Cartesian k-space."""
    rows, columns, _ = encoding.shape
    column = readouts.counter("kspace_encode_step_1") - encoding.middle[0] + columns // 2
    shape = (layers, int(readouts.heads["active_channels"].max(initial=0)), columns, rows)
    return lines_of(path, readouts.numbers, readouts.heads, readouts.flagged("ACQ_IS_REVERSE"), layer, column, shape)


def _on_trajectory(
    path: Path, stored: Any, readouts: Readouts, encoding: Encoding, layer: NDArray, layers: int, size: int | None
) -> NonCartesianKspace:
    """Readouts in the order of the file, with the trajectory that each of them has."""
    heads, dimensions = readouts.heads, readouts.heads["trajectory_dimensions"]
    lengths, lines = np.unique(heads["number_of_samples"]), np.bincount(layer, minlength=layers)
    if dimensions.min() < 2:
        raise FileError(f"{path} was measured on a {encoding.trajectory} trajectory, which is not in the file.")
    if len(lengths) > 1 or lines.min() != lines.max() or readouts.flagged("ACQ_IS_REVERSE").any():
        raise FileError(
            f"{path} has readouts of {lengths[0]} to {lengths[-1]} samples, {lines.min()} to {lines.max()} a slice; "
            f"on a trajectory all slices must have as many, of one length, and none reversed."
        )
    coils, samples = int(heads["active_channels"].max()), int(lengths[0])
    affordable(path, (layers, coils, int(lines[0]), samples), 8, "k-space")
    data = np.zeros((layers, coils, int(lines[0]), samples), np.complex64)
    points = np.zeros((layers, int(lines[0]), samples, 2))
    filled = np.zeros(layers, np.int64)
    for i, number in enumerate(readouts.numbers):
        line, where = stored[int(number)], (layer[i], filled[layer[i]])
        values = np.ascontiguousarray(line["data"], np.float32)
        track = np.ascontiguousarray(line["traj"], np.float32)
        if len(values) != 2 * coils * samples or len(track) != samples * int(dimensions[i]):
            raise FileError(f"{path} has a readout whose numbers do not fit its header.")
        data[where[0], :, where[1]] = values.view(np.complex64).reshape(coils, samples)
        points[where] = track.reshape(samples, -1)[:, :2]
        filled[layer[i]] += 1
    cut = slice(int(heads["discard_pre"].max()), samples - int(heads["discard_post"].max()))
    if not np.isfinite(data).all():
        raise FileError(f"{path} has NaN or infinite values.")
    found = on_trajectory(
        torch.from_numpy(data[..., cut]), torch.from_numpy(points[:, :, cut]), path, size or encoding.shape[:2]
    )
    if encoding.shape[2] > 1 and found.trajectory.ndim == 4:
        raise FileError(f"{path} has another trajectory in each partition; all must share one.")
    note = (f"{encoding.trajectory} trajectory, {int(lines[0])} readouts",)
    return replace(found, crop=None if size else encoding.crop, notes=(*note, *found.notes))


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
