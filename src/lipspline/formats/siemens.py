"""Raw data of Siemens scanners (`.dat`, twix) as k-space, by pymapvbvd: Cartesian lines, in two or three dimensions."""

import contextlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.kspace import Kspace, transform_partitions, with_mask
from lipspline.formats.validation import FileError, affordable, chosen, existing, reading

ENDINGS = (".dat",)
KIND = "Siemens raw data"
IMAGES = ("Rep", "Set", "Phs", "Eco", "Sli")
"""Counters that number images: repetition, set, phase, echo and slice, the last one fastest."""
LARGEST_OVERSAMPLING = 8.0
ENDS_EARLY = "unexpected read error"
OTHERS = {"phasecor": "phase-correction", "refscan": "separate calibration", "rtfeedback": "navigator"}


def read(path: str | Path, slices: slice = slice(None)) -> Kspace:
    """The k-space of the last measurement in a file: averages are averaged, oversampling is cropped, if it is known.

    Place and orientation are not read. Lines that were measured backwards (echo-planar imaging) are refused: their
    phase would have to be corrected.
    """
    path = existing(path, KIND)
    with reading(path, KIND):
        measurement = _last_measurement(path)
        if "image" not in measurement:
            raise FileError(f"{path} holds no lines of an image.")
        lines = measurement["image"]
        places, shape = _places(path, lines)
        numbers = chosen(path, shape[0], slices) if shape[1] == 1 else range(shape[0])
        affordable(path, (len(numbers), *shape[1:]), 8, "k-space")
        wanted = np.isin(places[:, 0], numbers)
        samples = _samples(lines)[..., wanted]
        data = _placed(samples, places[wanted] - [numbers[0], 0, 0, 0], (len(numbers), *shape[1:]))
        notes = tuple(f"Siemens: {note}" for note in _notes(measurement))
    if shape[1] > 1:
        volume = transform_partitions(data[0], path)
        numbers = chosen(path, len(volume), slices)
        data = volume[numbers.start : numbers.stop].unsqueeze(1)
    data, mask = with_mask(data[:, 0], None, path)
    oversampling = _oversampling(measurement)
    crop = None if oversampling is None else (round(data.shape[-2] / oversampling), data.shape[-1])
    return Kspace(data, mask, crop=crop, notes=notes)


def _last_measurement(path: Path) -> Any:
    """What is behind the adjustments, where a file holds several measurements; a file that ends early is refused."""
    mapvbvd = checks.require("mapvbvd", "siemens", KIND)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = mapvbvd.mapVBVD(str(path), quiet=True)
    if any(ENDS_EARLY in str(each.message) for each in said):
        raise FileError(f"{path} ends early: it was cut off, or the measurement was stopped.")
    return found[-1] if isinstance(found, list) else found


def _places(path: Path, lines: Any) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Image, partition, first row and column of each line `(N, 4)`, and the shape `(images, P, C, H, W)` of k-space."""
    if lines.IsReflected.any():
        raise FileError(f"{path} holds lines that were measured backwards (echo-planar imaging), which are not read.")
    for name, what in (("NCol", "samples"), ("NCha", "coils")):
        if np.ptp(getattr(lines, name)):
            raise FileError(f"{path} holds lines of different numbers of {what}, which do not belong together.")
    middles = [np.unique(getattr(lines, name)) for name in ("centerCol", "centerLin", "centerPar")]
    if any(len(middle) != 1 for middle in middles):
        raise FileError(f"{path} holds lines with different middles of k-space, which do not belong together.")
    samples, coils = (int(np.max(getattr(lines, name))) for name in ("NCol", "NCha"))
    ends = (samples, int(lines.Lin.max()) + 1, int(lines.Par.max()) + 1)
    sizes = [_around(int(middle[0]), end) for middle, end in zip(middles, ends, strict=True)]
    starts = [size // 2 - int(middle[0]) for size, middle in zip(sizes, middles, strict=True)]
    counters = np.stack([getattr(lines, name) for name in IMAGES], axis=1)
    _, image = np.unique(counters, axis=0, return_inverse=True)
    count = int(image.max()) + 1
    if sizes[2] > 1 and count > 1:
        raise FileError(f"{path} holds {count} images in three dimensions; one is read.")
    columns = [image.reshape(-1), lines.Par + starts[2], np.full(len(image), starts[0]), lines.Lin + starts[1]]
    return np.stack(columns, axis=1).astype(np.int64), (count, sizes[2], coils, sizes[0], sizes[1])


def _around(middle: int, end: int) -> int:
    """The size of k-space whose middle `size // 2` is at `middle` and which holds all indices below `end`.

    Example:
        >>> _around(128, 256), _around(64, 192), _around(0, 1), _around(2, 5)
        (256, 256, 1, 5)
    """
    return 1 if end == 1 else 2 * middle + 1 if end == 2 * middle + 1 else max(2 * middle, 2 * (end - middle))


def _samples(lines: Any) -> NDArray[np.complex64]:
    """`(samples, C, N)` as measured: with the oversampling, and every line by itself."""
    lines.flagRemoveOS = False
    found = np.asarray(lines.unsorted())
    return found.reshape(int(np.max(lines.NCol)), int(np.max(lines.NCha)), -1)


def _placed(samples: NDArray[np.complex64], places: NDArray[np.int64], shape: tuple[int, ...]) -> Tensor:
    """k-space `(images, P, C, H, W)`: means of the lines that lie in the same place."""
    data = np.zeros(shape, dtype=np.complex64)
    times = np.zeros((shape[0], shape[1], 1, 1, shape[-1]), dtype=np.float32)
    for k, (image, part, row, column) in enumerate(places):
        data[image, part, :, row : row + len(samples), column] += samples[..., k].T
        times[image, part, 0, 0, column] += 1
    return torch.from_numpy(data / np.maximum(times, 1))


def _oversampling(measurement: Any) -> float | None:
    """How many times finer than the field of view asks for readouts are sampled; None if the header does not say."""
    for part in ("Dicom", "Meas"):
        value = measurement["hdr"].get(part, {}).get("flReadoutOSFactor")
        with contextlib.suppress(TypeError, ValueError):
            if 1 <= (factor := float(value)) <= LARGEST_OVERSAMPLING:
                return factor
    return None


def _notes(measurement: Any) -> list[str]:
    notes = ["place and orientation are not read; slices are in the order of their numbers"]
    if "noise" in measurement:
        notes.append("the noise measurement is not used")
    notes += [f"{words} lines left out" for name, words in OTHERS.items() if name in measurement]
    if (np.unique(measurement["image"].Ave)).size > 1:
        notes.append("averages averaged")
    if _oversampling(measurement) is None:
        notes.append("the header does not say how readouts are oversampled: images are not cropped")
    return notes
