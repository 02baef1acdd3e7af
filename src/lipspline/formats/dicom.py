"""DICOM images: one file, or the series in a folder; written as derived secondary captures."""

import hashlib
import textwrap
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.validation import FileError, affordable, chosen, existing, reading
from lipspline.formats.volume import LPS_TO_RAS, LazyVolume, Stack, Volume, invertible, shifted, voxel_size

ENDINGS = (".dcm", ".dicom", ".ima")
MAGIC, PREAMBLE = b"DICM", 128
DEFLATED = "1.2.840.10008.1.2.1.99"
UTF_8 = "ISO_IR 192"
EVEN = 0.05
"""How far slices may lie off a line of even steps, in units of a step."""
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
LARGEST = 65535  # of 16 bits
LONGEST_NAME, LONGEST_TEXT = 64, 1024  # characters of a long string and of a short text

PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
STUDY = ("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName")
IDENTITY = (*PATIENT, *STUDY, "StudyInstanceUID", "FrameOfReferenceUID")
"""What makes a derived image belong to the same patient and study."""
DESCRIBED = ("StudyDescription", "BodyPartExamined", "ProtocolName", "PatientAge", "PatientWeight", "PatientPosition")
"""What a derived image says too, where the file did."""
VIEWED = {
    "SliceThickness": "PixelMeasuresSequence",
    "SpacingBetweenSlices": "PixelMeasuresSequence",
    "WindowCenter": "FrameVOILUTSequence",
    "WindowWidth": "FrameVOILUTSequence",
}
"""The same, with the functional groups that files of several frames have them in. The distance of slices is empty in
the identity of a single slice whose file does not say it."""
TISSUE = (-160.0, 240.0)  # Hounsfield units: the window of soft tissue, where the file has none
BRIGHTEST = 200  # one pixel in so many is brighter than the window of other images


class Frame(NamedTuple):
    """One image of a file, and where it lies: None where the file does not say."""

    header: Any
    number: int
    position: Tensor | None
    axes: Tensor | None
    """`(2, 3)`: the steps in mm from column to column and from row to row."""

    @property
    def height(self) -> float:
        """Along the normal of the image, by which slices are sorted; the number of the file where it has no place."""
        if self.position is None or self.axes is None:
            return float(self.header.get("InstanceNumber") or 0) + self.number
        return float(self.position @ _normal(self.axes))


def is_dicom(path: Path) -> bool:
    """Whether a file begins as DICOM files do."""
    with path.open("rb") as file:
        return file.read(PREAMBLE + len(MAGIC))[PREAMBLE:] == MAGIC


def read(path: str | Path, slices: slice = slice(None)) -> Volume:
    """Read one DICOM file, of one or several frames, or a folder that holds one series, sorted by position."""
    path = Path(path)
    files = _series(path) if path.is_dir() else [existing(path, "DICOM")]
    with reading(path, "DICOM"):  # elements are decoded when they are asked for
        frames = sorted((frame for file in files for frame in _frames(file)), key=lambda frame: frame.height)
        _check_series(path, frames)
        numbers = chosen(path, len(frames), slices)
        first = frames[0].header
        affordable(path, (len(numbers), first.Rows, first.Columns), 4)
        values = _pixels(frames[numbers.start : numbers.stop])
        affine = shifted(_affine(frames), depth=numbers.start)
        identity = {key: str(first.get(key)) for key in IDENTITY if first.get(key)} | _description(first)
        identity |= {"SpacingBetweenSlices": ""} if len(frames) == 1 and "SpacingBetweenSlices" not in identity else {}
        unit = "hounsfield" if first.get("Modality") == "CT" else "arbitrary"
    if not np.isfinite(values).all():
        raise FileError(f"{path} has NaN or infinite values.")
    return Volume(torch.from_numpy(values), affine, unit, identity)


def write(path: str | Path, volume: LazyVolume, *, modality: str, description: str) -> None:
    """Write a volume as secondary captures of 16 bit, derived, with new identifiers: one file, or a new folder of them.

    Geometry, patient and study are those of `volume`; what it does not know stays empty.

    Args:
        path: a file ending in .dcm for a single slice, else a folder to be made, with a file for each slice.
        modality: of the measurement, "MR" or "CT".
        description: how the image was derived.
    """
    path, count = Path(path), len(volume.slices)
    single = path.suffix.lower() in ENDINGS
    if single and count > 1:
        raise ValueError(
            f"A DICOM file holds one slice, but there are {count}. Name a folder instead, without ending: "
            f"{path.with_suffix('')}."
        )
    scale = _sixteen_bit(volume.slices)
    series = _series_header(volume, modality, description, scale)
    if not single:
        path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        file = path if single else path / f"{number + 1:04d}.dcm"
        _save(file, series, volume, number, scale)


def _series(folder: Path) -> list[Path]:
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and _looks_like_dicom(file)]
    if not files:
        raise FileNotFoundError(f"The folder {folder} holds no DICOM file.")
    return files


def _looks_like_dicom(file: Path) -> bool:
    return file.suffix.lower() in ENDINGS or (file.name != "DICOMDIR" and is_dicom(file))


def _frames(path: Path) -> list[Frame]:
    """What a file holds, without its pixels."""
    pydicom = checks.require("pydicom", "dicom", "Reading DICOM files")
    with reading(path, "DICOM"):
        meta = pydicom.filereader.read_file_meta_info(path)
        if meta.get("TransferSyntaxUID") == DEFLATED:
            raise FileError(f"{path} is deflated as a whole, which is not read; convert it to plain DICOM.")
        header = pydicom.dcmread(path, stop_before_pixels=True)
        shape = [int(header.get(key) or 0) for key in ("Rows", "Columns")]
        if not all(shape):
            raise FileError(f"{path} is a DICOM file without pixels.")
        kind = str(header.get("PhotometricInterpretation") or "MONOCHROME2")
        if int(header.get("SamplesPerPixel") or 1) != 1 or not kind.startswith("MONOCHROME"):
            raise FileError(f"{path} is a colour image ({kind[:16]}); only gray images are read.")
        if "ModalityLUTSequence" in header:
            raise FileError(f"{path} gives its values by a table (ModalityLUTSequence), which is not read.")
        count = int(header.get("NumberOfFrames") or 1)
        affordable(path, (count, *shape), max(4, int(header.get("BitsAllocated") or 0) // 8))
        return [Frame(header, number, *_plane(header, number)) for number in range(count)]


def _plane(header: Any, frame: int) -> tuple[Tensor | None, Tensor | None]:
    position = _look_up(header, frame, "PlanePositionSequence", "ImagePositionPatient")
    orientation = _look_up(header, frame, "PlaneOrientationSequence", "ImageOrientationPatient")
    spacing = _look_up(header, frame, "PixelMeasuresSequence", "PixelSpacing")
    orientation, spacing, position = _numbers(orientation, 6), _numbers(spacing, 2), _numbers(position, 3)
    if orientation is None or spacing is None or not (spacing > 0).all():
        return None, None
    axes = orientation.view(2, 3)
    if not torch.allclose(axes @ axes.T, torch.eye(2, dtype=axes.dtype), atol=1e-2):
        return None, None  # no directions at all, which some programs write where they know none
    return position, axes * spacing.flip(0).unsqueeze(1)


def _description(header: Any) -> dict[str, str]:
    """What a derived image takes over; of several windows the first."""
    found = {key: str(header.get(key)) for key in DESCRIBED if header.get(key)}
    for key, group in VIEWED.items():
        with suppress(TypeError, ValueError, IndexError):  # what cannot be read is not taken over
            value = _look_up(header, 0, group, key)
            number = float(value[0] if hasattr(value, "__len__") else value)
            if isfinite(number) and (key == "WindowCenter" or number > 0):
                found[key] = f"{number:.10g}"
    if header.get("PhotometricInterpretation") == "MONOCHROME1" or not found.keys() >= {"WindowCenter", "WindowWidth"}:
        found = {key: value for key, value in found.items() if not key.startswith("Window")}
    return found


def _numbers(values: Any, count: int) -> Tensor | None:
    """So many finite numbers, or None."""
    if values is None or isinstance(values, str) or not hasattr(values, "__len__") or len(values) != count:
        return None
    found = torch.tensor([float(value) for value in values], dtype=torch.float64)
    return found if torch.isfinite(found).all() else None


def _look_up(header: Any, frame: int, group: str, keyword: str) -> Any:
    """An attribute of a frame: of the file, or of its functional groups where the file has several frames."""
    if keyword in header:
        return header[keyword].value
    for name, index in (("PerFrameFunctionalGroupsSequence", frame), ("SharedFunctionalGroupsSequence", 0)):
        groups = header.get(name) or []
        items = groups[index].get(group) if index < len(groups) else None
        if items and keyword in items[0]:
            return items[0][keyword].value
    return None


def _check_series(path: Path, frames: list[Frame]) -> None:
    for name, kinds in (
        ("series", {frame.header.get("SeriesInstanceUID") for frame in frames}),
        ("sizes", {(frame.header.Rows, frame.header.Columns) for frame in frames}),
        ("orientations", {f.axes is not None and tuple(f.axes.flatten().round(decimals=3).tolist()) for f in frames}),
    ):
        if len(kinds) > 1:
            raise FileError(
                f"{path} holds images of {len(kinds)} different {name}; put each series into its own folder."
            )
    images = [(str(frame.header.get("SOPInstanceUID") or frame.header.filename), frame.number) for frame in frames]
    if len(set(images)) < len(images):
        raise FileError(f"{path} holds the same image in several files; leave one of each.")
    _check_positions(path, frames)


def _check_positions(path: Path, frames: list[Frame]) -> None:
    """Refuse slices that are missing, doubled or beside each other: a volume has even steps along a line."""
    known = [frame.position for frame in frames if frame.position is not None]
    if not known or len(frames) == 1:
        return
    if len(known) < len(frames):
        raise FileError(f"{path} holds {len(frames)} images, and {len(frames) - len(known)} of them have no position.")
    positions, steps = torch.stack(known), torch.arange(len(known), dtype=torch.float64)
    gaps = torch.tensor([frame.height for frame in frames], dtype=torch.float64).diff()
    even = gaps.median()
    line = positions[0] + steps.unsqueeze(1) * (positions[-1] - positions[0]) / (len(known) - 1)
    off = torch.linalg.vector_norm(positions - line, dim=1)
    doubled = (gaps <= EVEN * even) | (gaps <= 1e-4)
    if not doubled.any() and ((gaps - even).abs() <= EVEN * even).all() and (off <= EVEN * even).all():
        return
    worst = int(doubled.int().argmax() if doubled.any() else (gaps - even).abs().argmax())
    first, second = ("(" + ", ".join(f"{v:g}" for v in positions[i].tolist()) + ")" for i in (worst, worst + 1))
    what = f"two images at {first}" if doubled.any() else f"a step from {first} to {second} among steps of {even:g}"
    raise FileError(
        f"{path} is not one stack of {len(frames)} slices at even steps: it has {what} mm. Slices are missing or "
        f"doubled, or there are several stacks."
    )


def _pixels(frames: list[Frame]) -> NDArray[np.float32]:
    """The values `(S, H, W)` of some frames, with slope and intercept applied; each file is read once."""
    pydicom = checks.require("pydicom", "dicom", "Reading DICOM files")
    first = frames[0].header
    values = np.empty((len(frames), int(first.Rows), int(first.Columns)), np.float32)
    places: dict[Path, dict[int, int]] = {}
    for place, frame in enumerate(frames):
        places.setdefault(Path(frame.header.filename), {})[frame.number] = place
    for path, numbers in places.items():
        with reading(path, "DICOM"):
            dataset = pydicom.dcmread(path)
            if "PixelData" not in dataset:
                raise FileError(f"{path} is a DICOM file without pixels.")
            wanted = sorted(numbers)
            every = wanted == list(range(int(dataset.get("NumberOfFrames") or 1)))
            found = pydicom.pixels.iter_pixels(dataset, indices=None if every else wanted)
            for number, stored in zip(wanted, found, strict=True):
                values[numbers[number]] = _in_unit(path, dataset, number, stored)
    return values


def _in_unit(path: Path, dataset: Any, number: int, stored: NDArray[Any]) -> NDArray[np.float64]:
    """What the stored integers of a frame mean."""
    group = "PixelValueTransformationSequence"
    slope, intercept = (_look_up(dataset, number, group, f"Rescale{kind}") for kind in ("Slope", "Intercept"))
    slope, intercept = (1.0 if slope is None else float(slope)), (0.0 if intercept is None else float(intercept))
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        if (slope, intercept) != (1, 0):
            raise FileError(f"{path} has its smallest value for white (MONOCHROME1), and a unit too; convert it.")
        largest = -1 if dataset.PixelRepresentation else 2 ** int(dataset.BitsStored) - 1
        stored = largest - stored.astype(np.int64)
    return stored * slope + intercept


def _affine(frames: list[Frame]) -> Tensor | None:
    """From (column, row, slice) to mm in NIfTI's coordinates; slices are equally far apart."""
    first, last = frames[0], frames[-1]
    if first.position is None or first.axes is None:
        return None
    if len(frames) > 1 and last.position is not None:
        step = (last.position - first.position) / (len(frames) - 1)
    else:
        said = _description(first.header)
        step = _normal(first.axes) * float(said.get("SpacingBetweenSlices") or said.get("SliceThickness") or 1)
    affine = torch.eye(4, dtype=torch.float64)
    affine[:3] = torch.stack([*first.axes, step, first.position], dim=1)
    return invertible(LPS_TO_RAS @ affine)


def _normal(axes: Tensor) -> Tensor:
    normal = torch.linalg.cross(axes[0], axes[1])
    return normal / torch.linalg.vector_norm(normal).clamp_min(torch.finfo(normal.dtype).tiny)


class Scale(NamedTuple):
    """How a stored integer becomes a value: `slope * stored + intercept`; both as they fit into 16 characters."""

    slope: float
    intercept: float


def _sixteen_bit(values: Tensor | Stack) -> Scale:
    decimal = checks.require("pydicom.valuerep", "dicom", "Writing DICOM files").format_number_as_ds
    ends = [torch.aminmax(values[i]) for i in range(len(values))]
    low, high = min(float(end.min) for end in ends), max(float(end.max) for end in ends)
    slope = (high - low) / (LARGEST - 1) or 1.0  # one step to spare: slope and intercept are rounded
    return Scale(float(decimal(slope)), float(decimal(low)))


def _series_header(volume: LazyVolume, modality: str, description: str, scale: Scale) -> Any:
    """Everything that the files of a series share."""
    pydicom = checks.require("pydicom", "dicom", "Writing DICOM files")
    header = pydicom.Dataset()
    header.SpecificCharacterSet = UTF_8
    with pydicom.config.disable_value_validation():  # what was read is copied, right or wrong
        for key in (*PATIENT, *STUDY):
            setattr(header, key, volume.identity.get(key, ""))
    digest = hashlib.sha256()
    for i in range(len(volume.slices)):
        digest.update(volume.slices[i].contiguous().numpy().data)
    content = [description, *volume.identity.values(), digest.hexdigest()]
    header.StudyInstanceUID = volume.identity.get("StudyInstanceUID") or _identifier("study", *content)
    header.SeriesInstanceUID = _identifier("series", *content)
    header.SOPClassUID = SECONDARY_CAPTURE
    header.Modality, header.SeriesNumber, header.ConversionType = modality, None, "WSD"
    header.ImageType = ["DERIVED", "SECONDARY"]
    for key, longest in (("SeriesDescription", LONGEST_NAME), ("DerivationDescription", LONGEST_TEXT)):
        setattr(header, key, textwrap.shorten(description, longest, placeholder=" ...", break_on_hyphens=False))
    header.SecondaryCaptureDeviceManufacturer = "lipspline"
    header.Rows, header.Columns = volume.slices.shape[1:]
    header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 16, 15, 0
    header.RescaleSlope, header.RescaleIntercept = scale
    header.RescaleType = "HU" if volume.unit == "hounsfield" else "US"
    _add_description(header, volume)
    header.Laterality = header.PatientOrientation = None  # of type 2C: there, and empty where nothing is known
    if (affine := invertible(volume.affine)) is not None:
        axes, (column, row, depth) = _axes(affine), voxel_size(affine)
        header.ImageOrientationPatient = [round(v, 9) for v in axes.flatten().tolist()]
        header.PixelSpacing = [pydicom.valuerep.DSfloat(v, auto_format=True) for v in (row, column)]
        if len(volume.slices) > 1 or volume.identity.get("SpacingBetweenSlices") != "":
            header.SpacingBetweenSlices = pydicom.valuerep.DSfloat(depth, auto_format=True)
        header.FrameOfReferenceUID = volume.identity.get("FrameOfReferenceUID") or _identifier("frame", *content)
        header.PositionReferenceIndicator = None
    return header


def _add_description(header: Any, volume: LazyVolume) -> None:
    """What was read, and a window: that of the file, of soft tissue, or of all but the brightest values."""
    pydicom = checks.require("pydicom", "dicom", "Writing DICOM files")
    with pydicom.config.disable_value_validation():
        for key in (*DESCRIBED, *VIEWED):
            if volume.identity.get(key):
                setattr(header, key, volume.identity[key])
    if "WindowCenter" not in header:
        low, high = TISSUE if volume.unit == "hounsfield" else _bright(volume.slices)
        header.WindowCenter, header.WindowWidth = (
            pydicom.valuerep.DSfloat(value, auto_format=True) for value in ((low + high) / 2, high - low)
        )
    if float(header.WindowWidth) < 1:  # which only this function may have
        header.VOILUTFunction = "LINEAR_EXACT"


def _bright(slices: Tensor | Stack) -> tuple[float, float]:
    """From the least value to one that few pixels exceed, in the slice where it is largest."""
    ends = [
        (float(one.min()), float(one.flatten().topk(max(1, one.numel() // BRIGHTEST)).values[-1])) for one in slices
    ]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    return (low, high) if low < high else (low, low + 1.0)


def _identifier(*content: str) -> str:
    """A new identifier for new content, the same for the same: a series that is written again is that series."""
    pydicom = checks.require("pydicom", "dicom", "Writing DICOM files")
    return pydicom.uid.generate_uid(entropy_srcs=["lipspline", *content])


def check_affine(affine: Tensor | None) -> None:
    """Refuse a volume that DICOM cannot describe; to be asked before the work begins."""
    if (affine := invertible(affine)) is not None:
        _axes(affine)


def _axes(affine: Tensor) -> Tensor:
    """Unit vectors along the columns and along the rows, in DICOM's coordinates."""
    axes = (LPS_TO_RAS @ affine)[:3, :2].T
    axes = axes / torch.linalg.vector_norm(axes, dim=1, keepdim=True)
    if abs(float(axes[0] @ axes[1])) > 1e-4:
        raise ValueError("The rows and columns of this volume are not at right angles, as DICOM wants. Write NIfTI.")
    return axes


def _save(path: Path, series: Any, volume: LazyVolume, number: int, scale: Scale) -> None:
    pydicom = checks.require("pydicom", "dicom", "Writing DICOM files")
    image = pydicom.Dataset(series)
    image.SOPInstanceUID, image.InstanceNumber = _identifier("image", series.SeriesInstanceUID, str(number)), number + 1
    if (affine := invertible(volume.affine)) is not None:
        corner = LPS_TO_RAS @ affine @ torch.tensor([0.0, 0, number, 1], dtype=torch.float64)
        image.ImagePositionPatient = [pydicom.valuerep.DSfloat(v, auto_format=True) for v in corner[:3].tolist()]
    stored = ((volume.slices[number].double() - scale.intercept) / scale.slope).round().clamp(0, LARGEST)
    image.set_pixel_data(stored.numpy().astype(np.uint16), "MONOCHROME2", 16, generate_instance_uid=False)
    image.file_meta = pydicom.dataset.FileMetaDataset()
    image.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    image.save_as(path, enforce_file_format=True)
