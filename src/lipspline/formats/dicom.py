"""DICOM images: one file, or the series in a folder; written as derived secondary captures."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.validation import FileError, affordable, chosen, existing, reading
from lipspline.formats.volume import LPS_TO_RAS, Volume, shifted, voxel_size

ENDINGS = (".dcm", ".dicom", ".ima")
MAGIC, PREAMBLE = b"DICM", 128
DEFLATED = "1.2.840.10008.1.2.1.99"
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
LARGEST = 65535  # of 16 bits
LONGEST_NAME, LONGEST_TEXT = 64, 1024  # characters of a long string and of a short text

PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
STUDY = ("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName")
IDENTITY = (*PATIENT, *STUDY, "StudyInstanceUID", "FrameOfReferenceUID")
"""What makes a derived image belong to the same patient and study."""


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
        values = np.stack([_pixels(frame) for frame in frames[numbers.start : numbers.stop]])
        affine = shifted(_affine(frames), depth=numbers.start)
        identity = {key: str(first.get(key)) for key in IDENTITY if first.get(key)}
        unit = "hounsfield" if first.get("Modality") == "CT" else "arbitrary"
    if not np.isfinite(values).all():
        raise FileError(f"{path} has NaN or infinite values.")
    return Volume(torch.from_numpy(values), affine, unit, identity)


def write(path: str | Path, volume: Volume, *, modality: str, description: str) -> None:
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
        if int(header.get("SamplesPerPixel") or 1) != 1:
            raise FileError(f"{path} is a colour image; only gray images are read.")
        count = int(header.get("NumberOfFrames") or 1)
        affordable(path, (count, *shape), max(4, int(header.get("BitsAllocated") or 0) // 8))
        return [Frame(header, number, *_plane(header, number)) for number in range(count)]


def _plane(header: Any, frame: int) -> tuple[Tensor | None, Tensor | None]:
    position = _look_up(header, frame, "PlanePositionSequence", "ImagePositionPatient")
    orientation = _look_up(header, frame, "PlaneOrientationSequence", "ImageOrientationPatient")
    spacing = _look_up(header, frame, "PixelMeasuresSequence", "PixelSpacing")
    if orientation is None or spacing is None or (len(orientation), len(spacing)) != (6, 2):
        return None, None
    axes = torch.tensor([float(v) for v in orientation], dtype=torch.float64).view(2, 3)
    axes = axes * torch.tensor([[float(spacing[1])], [float(spacing[0])]], dtype=torch.float64)
    if position is None or len(position) != 3:
        return None, axes
    return torch.tensor([float(v) for v in position], dtype=torch.float64), axes


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
        ("orientations", {tuple(map(tuple, _rounded(frame.axes))) for frame in frames}),
    ):
        if len(kinds) > 1:
            raise FileError(
                f"{path} holds images of {len(kinds)} different {name}; put each series into its own folder."
            )


def _rounded(axes: Tensor | None) -> list[list[float]]:
    return [] if axes is None else [[round(v, 3) for v in row] for row in axes.tolist()]


def _pixels(frame: Frame) -> NDArray[np.float32]:
    """The values of one frame, with slope and intercept applied."""
    pydicom = checks.require("pydicom", "dicom", "Reading DICOM files")
    path = Path(frame.header.filename)
    with reading(path, "DICOM"):
        dataset = pydicom.dcmread(path)
        if "PixelData" not in dataset:
            raise FileError(f"{path} is a DICOM file without pixels.")
        values = pydicom.pixels.pixel_array(dataset, index=frame.number)
        group = "PixelValueTransformationSequence"
        slope, intercept = (_look_up(dataset, frame.number, group, f"Rescale{kind}") for kind in ("Slope", "Intercept"))
        slope, intercept = (1.0 if slope is None else float(slope)), (0.0 if intercept is None else float(intercept))
        return (values * slope + intercept).astype(np.float32)


def _affine(frames: list[Frame]) -> Tensor | None:
    """From (column, row, slice) to mm in NIfTI's coordinates; slices are taken as equally far apart."""
    first, last = frames[0], frames[-1]
    if first.position is None or first.axes is None:
        return None
    if len(frames) > 1 and last.position is not None:
        step = (last.position - first.position) / (len(frames) - 1)
    else:
        thickness = first.header.get("SpacingBetweenSlices") or first.header.get("SliceThickness") or 1
        step = _normal(first.axes) * float(thickness)
    affine = torch.eye(4, dtype=torch.float64)
    affine[:3] = torch.stack([*first.axes, step, first.position], dim=1)
    return LPS_TO_RAS @ affine if torch.isfinite(affine).all() else None


def _normal(axes: Tensor) -> Tensor:
    normal = torch.linalg.cross(axes[0], axes[1])
    return normal / torch.linalg.vector_norm(normal).clamp_min(torch.finfo(normal.dtype).tiny)


class Scale(NamedTuple):
    """How a stored integer becomes a value: `slope * stored + intercept`; both as they fit into 16 characters."""

    slope: float
    intercept: float


def _sixteen_bit(values: Tensor) -> Scale:
    decimal = checks.require("pydicom.valuerep", "dicom", "Writing DICOM files").format_number_as_ds
    low, high = float(values.min()), float(values.max())
    slope = (high - low) / (LARGEST - 1) or 1.0  # one step to spare: slope and intercept are rounded
    return Scale(float(decimal(slope)), float(decimal(low)))


def _series_header(volume: Volume, modality: str, description: str, scale: Scale) -> Any:
    """Everything that the files of a series share."""
    pydicom = checks.require("pydicom", "dicom", "Writing DICOM files")
    header = pydicom.Dataset()
    for key in (*PATIENT, *STUDY):
        setattr(header, key, volume.identity.get(key, ""))
    content = [description, *volume.identity.values(), hashlib.sha256(volume.slices.numpy().tobytes()).hexdigest()]
    header.StudyInstanceUID = volume.identity.get("StudyInstanceUID") or _identifier("study", *content)
    header.SeriesInstanceUID = _identifier("series", *content)
    header.SOPClassUID = SECONDARY_CAPTURE
    header.Modality, header.SeriesNumber, header.ConversionType = modality, None, "WSD"
    header.ImageType = ["DERIVED", "SECONDARY"]
    header.SeriesDescription, header.DerivationDescription = description[:LONGEST_NAME], description[:LONGEST_TEXT]
    header.SecondaryCaptureDeviceManufacturer = "lipspline"
    header.Rows, header.Columns = volume.slices.shape[1:]
    header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 16, 15, 0
    header.RescaleSlope, header.RescaleIntercept = scale
    header.RescaleType = "HU" if volume.unit == "hounsfield" else "US"
    if volume.affine is not None:
        axes, (column, row, depth) = _axes(volume.affine), voxel_size(volume.affine)
        header.ImageOrientationPatient = [round(v, 9) for v in axes.flatten().tolist()]
        header.PixelSpacing = [pydicom.valuerep.DSfloat(v, auto_format=True) for v in (row, column)]
        header.SpacingBetweenSlices = pydicom.valuerep.DSfloat(depth, auto_format=True)
        header.FrameOfReferenceUID = volume.identity.get("FrameOfReferenceUID") or _identifier("frame", *content)
        header.PositionReferenceIndicator = None
    else:
        header.PatientOrientation = None
    return header


def _identifier(*content: str) -> str:
    """A new identifier for new content, the same for the same: a series that is written again is that series."""
    pydicom = checks.require("pydicom", "dicom", "Writing DICOM files")
    return pydicom.uid.generate_uid(entropy_srcs=["lipspline", *content])


def _axes(affine: Tensor) -> Tensor:
    """Unit vectors along the columns and along the rows, in DICOM's coordinates."""
    axes = (LPS_TO_RAS @ affine)[:3, :2].T
    axes = axes / torch.linalg.vector_norm(axes, dim=1, keepdim=True)
    if abs(float(axes[0] @ axes[1])) > 1e-4:
        raise ValueError("The rows and columns of this volume are not at right angles, as DICOM wants. Write NIfTI.")
    return axes


def _save(path: Path, series: Any, volume: Volume, number: int, scale: Scale) -> None:
    pydicom = checks.require("pydicom", "dicom", "Writing DICOM files")
    image = pydicom.Dataset(series)
    image.SOPInstanceUID, image.InstanceNumber = _identifier("image", series.SeriesInstanceUID, str(number)), number + 1
    if volume.affine is not None:
        corner = LPS_TO_RAS @ volume.affine @ torch.tensor([0.0, 0, number, 1], dtype=torch.float64)
        image.ImagePositionPatient = [pydicom.valuerep.DSfloat(v, auto_format=True) for v in corner[:3].tolist()]
    stored = ((volume.slices[number].double() - scale.intercept) / scale.slope).round().clamp(0, LARGEST)
    image.set_pixel_data(stored.numpy().astype(np.uint16), "MONOCHROME2", 16, generate_instance_uid=False)
    image.file_meta = pydicom.dataset.FileMetaDataset()
    image.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    image.save_as(path, enforce_file_format=True)
