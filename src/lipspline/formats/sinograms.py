"""What CT scanners measure: line integrals, or counts with flat and dark fields."""

import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import pi, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.files import is_pattern
from lipspline.formats import arrays, hdf5, pictures
from lipspline.formats.arrays import Container, Stored
from lipspline.formats.validation import FileError, affordable, chosen, existing, reading, reals, survivable
from lipspline.formats.volume import Stack

SINOGRAM = ("sinogram", "sinograms", "projections", "y", "data")
FLAT, DARK = ("flat", "white", "data_white"), ("dark", "data_dark")
SHAPES = {3: "(angles, detectors) or (slices, angles, detectors)"}
MATLAB = (".mat",)
PICTURES = (*pictures.TIFF, *pictures.PNG, ".npy")
"""Files of which a folder may hold many."""
BLOCK = 2**26  # numbers of a stack that are read at once, where reading one slice costs as much as reading many
LARGEST_MATLAB = 2**26  # bytes: such files are read as a whole

FILES = ("sinograms", "projections")


@dataclass(frozen=True)
class Sinograms:
    """What was measured of a stack of slices, and what the file says about the scanner; lengths in millimetres."""

    data: Tensor | Stack
    """`(S, A, D)`: slices, angles, detectors; line integrals, or counts if there is a flat field."""
    angles: Tensor | None = None
    """`(A,)` in radians, if the file has them."""
    flat: Tensor | Stack | None = None
    """`(S, D)`: counts without an object; then `data` are counts too."""
    dark: Tensor | Stack | None = None
    """`(S, D)`: counts without a beam."""
    source_origin: float | None = None
    """From the source to the axis of rotation; None for parallel beams."""
    source_detector: float | None = None
    pixel: float | None = None
    """From one detector to the next."""

    def transposed(self) -> "Sinograms":
        """The same with angles and detectors exchanged, for files `(detectors, angles)`."""
        if self.flat is not None:
            raise ValueError("Counts with a flat field say which dimension is which. Leave out transpose=True.")
        data, (count, rows, columns) = self.data, self.data.shape
        return replace(self, data=Stack((count, columns, rows), lambda n: torch.stack([data[i].mT for i in n])))


def read_sinograms(
    path: str | Path,
    slices: slice = slice(None),
    *,
    files: str = "sinograms",
    flat: str | Path | None = None,
    dark: str | Path | None = None,
) -> Sinograms:
    """Read sinograms `(A, D)` or `(S, A, D)` from npy, npz, HDF5, TIFF or MATLAB, or from many files.

    In npz and HDF5 they are called `sinogram` (or are the only array), and `angles` may stand beside them in radians;
    with `flat` (and `dark`) beside them they are counts. HDF5 files of the Data Exchange (`exchange/data`,
    `data_white`, `data_dark`, `theta`) are counts `(A, S, D)`. Arrays larger than memory are read slice by slice.

    Args:
        slices: which ones; only these are read.
        files: what each file of a folder, or of a pattern such as `scan/*.tif`, holds: the sinogram of one slice, or
            the projection of one angle, whose rows are slices.
        flat, dark: files of fields, `(D,)`, `(S, D)` or many of them; several are averaged by their median.
    """
    found = _read(Path(path), slices, checks.one_of("files", files, FILES))
    if dark is not None and flat is None and found.flat is None:
        raise ValueError("A dark field is for counts, which need a flat field too. Give flat=FILE.")
    fields = {
        name: _field(Path(file), slices, found.data.shape)
        for name, file in (("flat", flat), ("dark", dark))
        if file is not None
    }
    return replace(found, **fields)


def _read(path: Path, slices: slice, files: str) -> Sinograms:
    name = path.name.lower()
    if path.is_dir() or is_pattern(path):
        return _many(path, slices, files)
    if name.endswith(".npy"):
        with arrays.opened(path) as container:
            return _lazy(container, slices)
    if name.endswith(arrays.ENDINGS):
        with arrays.opened(path) as container:
            return _sinograms(container, slices)
    if name.endswith(hdf5.ENDINGS):
        with hdf5.opened(path) as file:
            if "exchange" in file:
                return _data_exchange(path, file, slices)
            return _sinograms(hdf5.container(file), slices)
    if name.endswith(pictures.TIFF):
        return _pages(path, slices)
    if name.endswith(MATLAB):
        return _matlab(path, slices)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    known = ", ".join((*arrays.ENDINGS, *hdf5.ENDINGS, *pictures.TIFF, *MATLAB))
    raise FileError(
        f"{path} is not in a known format of sinograms; its name must end in one of {known}. Projections of images "
        f"are made by a simulation."
    )


def read_angles(path: str | Path) -> Tensor:
    """Angles `(A,)` in radians from an npy or npz file."""
    with arrays.opened(path) as container:
        found = container.find_or_only("angles")
        if found is None:
            raise FileError(f"{path} holds several arrays and none is called 'angles'.")
        return _in_radians(path, found)


# One array with names


def _sinograms(container: Container, slices: slice) -> Sinograms:
    found = container.find_or_only(*SINOGRAM)
    if found is None:
        raise FileError(f"{container.path} holds no sinogram: none of {', '.join(map(repr, SINOGRAM))}.")
    found = found.real().as_stack(2)
    numbers = found.stack(SHAPES, slices)
    angles, flat, dark = (container.find(*names) for names in (("angles", "theta"), FLAT, DARK))
    radians = None if angles is None else _in_radians(container.path, angles)
    white, black = (
        None if field is None else _fields(field.real().whole(), found.shape, numbers, field.name)
        for field in (flat, dark)
    )
    data = found.rows(numbers) if prod(found.shape) <= BLOCK else _reopened(container, found, numbers)
    return Sinograms(data, radians, white, black)


def _reopened(container: Container, found: Stored, numbers: range) -> Tensor | Stack:
    """The rows of a large array, block by block; each time its file is opened again."""
    if not container.path.name.lower().endswith(hdf5.ENDINGS):
        return found.rows(numbers)  # the members of an archive can only be read as a whole
    affordable(container.path, found.shape[1:], max(4, found.dtype.itemsize), "a sinogram")

    def load(few: range) -> Tensor:
        with hdf5.opened(container.path) as file:
            again = hdf5.container(file).find_or_only(*SINOGRAM)
            if again is None or again.shape != found.shape:
                raise FileError(f"{container.path} was changed while it was read.")
            return again.real().rows(numbers[few.start : few.stop])

    return Stack((len(numbers), *found.shape[1:]), load, BLOCK // prod(found.shape[1:]))


def _pages(path: Path, slices: slice) -> Sinograms:
    """The pages of a TIFF file; those of a large one block by block."""
    count, rows, detectors = pictures.count_pages(path)
    if count * rows * detectors <= BLOCK:
        return Sinograms(pictures.read_volume(path, slices).slices)
    numbers = chosen(path, count, slices)

    def load(few: range) -> Tensor:
        return pictures.read_volume(path, slice(numbers[few.start], numbers[few.stop - 1] + 1)).slices

    return Sinograms(Stack((len(numbers), rows, detectors), load, BLOCK // (8 * rows * detectors)))


def _lazy(container: Container, slices: slice) -> Sinograms:
    """The array of an npy file, slice by slice."""
    found = container.get(container.names[0]).real().as_stack(2)
    numbers = found.stack(SHAPES, slices)
    affordable(container.path, found.shape[1:], max(4, found.dtype.itemsize), "a sinogram")

    def load(few: range) -> Tensor:
        return found.rows(numbers[few.start : few.stop])

    return Sinograms(Stack((len(numbers), *found.shape[1:]), load))


def _fields(values: Tensor, shape: Sequence[int], numbers: range, name: object) -> Tensor:
    """Flat or dark fields `(D,)`, `(S, D)` or `(F, S, D)` as `(n, D)`: the median of several."""
    slices, _, detectors = shape
    if values.ndim == 3:
        values = values.median(dim=0).values
    if values.ndim == 2 and values.shape[0] != slices and slices == 1:
        values = values.median(dim=0).values
    values = values if values.ndim == 2 else values.reshape(1, -1).expand(slices, -1)
    if tuple(values.shape) != (slices, detectors):
        raise FileError(
            f"The field {name} has shape {tuple(values.shape)}, but there are {slices} slice(s) of {detectors} "
            f"detectors."
        )
    return values[numbers.start : numbers.stop].float()


def _in_radians(path: str | Path, found: Stored) -> Tensor:
    angles = found.real().whole().double()
    if angles.ndim != 1:
        raise FileError(f"{path}: the angles have shape {tuple(angles.shape)}, not (A,).")
    if angles.abs().max() > 4 * pi:
        raise FileError(f"{path}: the angles reach {angles.abs().max():g}; give them in radians, not in degrees.")
    return angles


# Data Exchange (synchrotrons): /exchange/data (A, S, D), data_white, data_dark (F, S, D), theta in degrees


def _data_exchange(path: Path, file: Any, slices: slice) -> Sinograms:
    group = hdf5.member(file, "exchange")
    if "data" not in group:
        raise FileError(f"{path} has a group 'exchange' without 'data'.")
    shapes = {name: hdf5.array(group, name).shape for name in ("data", "data_white", "data_dark") if name in group}
    angles, count, detectors = _exchange_shape(path, shapes["data"])
    numbers = chosen(path, count, slices)
    for name, shape in shapes.items():
        if len(shape) != 3 or shape[1:] != shapes["data"][1:]:
            raise FileError(
                f"{path}: 'exchange/{name}' has shape {shape}, which does not fit data of {shapes['data']}."
            )
    if "data_dark" in shapes and "data_white" not in shapes:
        raise FileError(f"{path}: 'exchange' has dark fields but no white ones ('data_white').")
    at_once = BLOCK // (angles * detectors)

    def load(name: str) -> Callable[[range], Tensor]:
        def rows(few: range) -> Tensor:
            wanted = numbers[few.start : few.stop]
            with hdf5.opened(path) as again:
                found = hdf5.array(hdf5.member(again, "exchange"), name)
                affordable(path, (shapes[name][0], len(wanted), detectors), 4, f"'exchange/{name}'")
                values = reals(path, f"'exchange/{name}'", found[:, wanted.start : wanted.stop], np.float32)
            if not torch.isfinite(values).all():
                raise FileError(f"{path}: 'exchange/{name}' has NaN or infinite values.")
            return values.median(dim=0).values if name != "data" else values.transpose(0, 1)

        return rows

    flat, dark = (
        Stack((len(numbers), detectors), load(name), at_once) if name in shapes else None
        for name in ("data_white", "data_dark")
    )
    data = Stack((len(numbers), angles, detectors), load("data"), at_once)
    return Sinograms(data, _theta(path, group, angles), flat, dark)


def _exchange_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise FileError(f"{path}: 'exchange/data' has shape {shape}; it should be (angles, slices, detectors).")
    return shape[0], shape[1], shape[2]


def _theta(path: Path, group: Any, angles: int) -> Tensor | None:
    """The angles of a Data Exchange file, which are in degrees unless their unit says otherwise."""
    if "theta" not in group:
        return None
    found = hdf5.array(group, "theta")
    unit = found.attrs.get("units", "degrees")
    unit = unit.decode("utf-8", "replace") if isinstance(unit, bytes) else str(unit)
    values = reals(path, "'exchange/theta'", found[()], np.float64).reshape(-1)
    if len(values) != angles or not torch.isfinite(values).all():
        raise FileError(f"{path}: 'exchange/theta' has {len(values)} angles for {angles} projections, or has NaN.")
    return values if unit.lower().startswith("rad") else values * (pi / 180)


# MATLAB files of the Helsinki tomography challenges


def _matlab(path: Path, slices: slice) -> Sinograms:
    """A structure with `sinogram` and `parameters`, such as `CtDataLimited`; or a plain array `sinogram`."""
    path = existing(path, "MATLAB")
    if path.stat().st_size > LARGEST_MATLAB:
        raise FileError(f"{path} has {path.stat().st_size} bytes; MATLAB files of at most {LARGEST_MATLAB} are read.")
    io = checks.require("scipy.io", "scipy", "Reading MATLAB files")
    with reading(path, "MATLAB"):
        with path.open("rb") as file:
            if b"MATLAB 7.3" in file.read(128):
                raise FileError(f"{path} is of MATLAB's version 7.3; save it with the option '-v7'.")
        survivable(path, "MATLAB", "import sys, scipy.io; scipy.io.loadmat(sys.argv[1])")
        content = io.loadmat(path, squeeze_me=True, struct_as_record=False)
        found = {name: value for name, value in content.items() if not name.startswith("__")}
        named = [value for value in found.values() if hasattr(value, "sinogram")]
        owner = named[0] if named else None
        sinogram = getattr(owner, "sinogram", found.get("sinogram"))
        if sinogram is None:
            raise FileError(f"{path} holds {', '.join(found) or 'nothing'}, but no sinogram.")
        data = reals(path, "the sinogram", sinogram, np.float32)
        data = data if data.ndim == 3 else data[None]
        parameters = getattr(owner, "parameters", None)
        angles = getattr(parameters, "angles", None)
        degrees = None if angles is None else reals(path, "the angles", angles, np.float64).reshape(-1)
        lengths = {name: _length(path, parameters, *theirs) for name, theirs in HELSINKI.items()}
    if data.ndim != 3 or not torch.isfinite(data).all():
        raise FileError(
            f"{path}: the sinogram has shape {tuple(data.shape)}, or NaN; it should be (angles, detectors)."
        )
    numbers = chosen(path, len(data), slices)
    radians = None if degrees is None else degrees * (pi / 180)
    near, far, pixel = lengths.values()
    if (near is None) != (far is None) or (near or 0.0) > (far or 0.0):
        said = " and ".join(f"{name[0]} = {lengths[key]}" for key, name in HELSINKI.items() if "source" in key)
        raise FileError(f"{path} has {said}, but of a fan both must be known, and the detector lies behind the axis.")
    chosen_data = data[numbers.start : numbers.stop]
    return Sinograms(chosen_data, radians, source_origin=near, source_detector=far, pixel=pixel)


HELSINKI = {
    "source_origin": ("distanceSourceOrigin",),
    "source_detector": ("distanceSourceDetector",),
    "pixel": ("pixelSizePost", "pixelSize"),
}
"""How the Helsinki challenges call the lengths."""


def _length(path: Path, parameters: Any, *names: str) -> float | None:
    value = next((getattr(parameters, name) for name in names if hasattr(parameters, name)), None)
    if value is None:
        return None
    if getattr(parameters, "distanceUnit", "mm") != "mm":
        raise FileError(f"{path}: lengths are in {parameters.distanceUnit!r}; only 'mm' is known.")
    return checks.positive(f"{names[0]} of {path}", float(value))


# Many files


def _many(path: Path, slices: slice, files: str) -> Sinograms:
    names = _listed(path)
    first = _one(names[0])
    rows, detectors = first.shape
    if files == "sinograms":
        numbers = chosen(path, len(names), slices)
        shape = (len(numbers), rows, detectors)
        return Sinograms(Stack(shape, lambda few: torch.stack([_alike(names[numbers[i]], first) for i in few])))
    numbers = chosen(path, rows, slices)

    def load(few: range) -> Tensor:
        affordable(path, (len(few), len(names), detectors), 4, "projections")
        wanted = slice(numbers[few.start], numbers[few.stop - 1] + 1)
        return torch.stack([_alike(name, first)[wanted] for name in names], dim=1)

    return Sinograms(Stack((len(numbers), len(names), detectors), load, BLOCK // (len(names) * detectors)))


def _listed(path: Path) -> list[Path]:
    """The files of a folder or of a pattern, with numbers in their names in order."""
    found = path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path)))
    names = [name for name in found if name.name.lower().endswith(PICTURES) and name.is_file()]
    if not names:
        raise FileError(f"There is no file ending in {', '.join(PICTURES)} among {path}.")
    return sorted(names, key=lambda name: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", str(name))])


def _one(name: Path) -> Tensor:
    """A file that holds one image `(rows, columns)`."""
    if name.suffix.lower() == ".npy":
        with arrays.opened(name) as container:
            values = container.get("array").real().whole()
    else:
        values = pictures.read_volume(name).slices
        values = values[0] if len(values) == 1 else values
    if values.ndim != 2:
        raise FileError(f"{name} has shape {tuple(values.shape)}; a file among many holds one image.")
    return values


def _alike(name: Path, first: Tensor) -> Tensor:
    values = _one(name)
    if values.shape != first.shape:
        raise FileError(f"{name} has shape {tuple(values.shape)}, but the first of the files {tuple(first.shape)}.")
    return values


def _field(path: Path, slices: slice, shape: Sequence[int]) -> Tensor:
    """Flat or dark fields from a file, a folder or a pattern, for the chosen slices."""
    if path.is_dir() or is_pattern(path):
        names = _listed(path)
        affordable(path, (len(names), prod(_one(names[0]).shape)), 4, "fields")
        values = torch.stack([_one(name) for name in names])
    elif path.suffix.lower() in arrays.ENDINGS:
        with arrays.opened(path) as container:
            found = container.find_or_only(*FLAT, *DARK)
            if found is None:
                raise FileError(f"{path} holds several arrays and none is called one of {', '.join((*FLAT, *DARK))}.")
            values = found.real().whole()
    else:
        values = pictures.read_volume(path).slices
    if values.ndim >= 2 and values.shape[-2] != shape[0]:  # fields of all slices, of which some were chosen
        numbers = chosen(path, values.shape[-2], slices)
        if len(numbers) == shape[0]:
            values = values[..., numbers.start : numbers.stop, :]
    return _fields(values, shape, range(shape[0]), path)
