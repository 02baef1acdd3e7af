"""Small files of every format that is read, each written by the format's own library."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

RNG = np.random.default_rng(0)
SLICES, COILS, HEIGHT, WIDTH = 3, 2, 20, 16


def images() -> np.ndarray:
    """Real images (S, H, W) with values in [0, 1]."""
    rows, columns = np.mgrid[-1 : 1 : HEIGHT * 1j, -1 : 1 : WIDTH * 1j]
    disk = (rows**2 + columns**2 < 0.6).astype(np.float32)
    return np.stack([disk * (0.5 + 0.1 * s) + 0.2 * (np.abs(rows) < 0.3) for s in range(SLICES)]).astype(np.float32)


def coil_maps() -> np.ndarray:
    """Sensitivities (C, H, W) whose squares add up to one."""
    rows, columns = np.mgrid[-1 : 1 : HEIGHT * 1j, -1 : 1 : WIDTH * 1j]
    maps = np.stack([np.exp(-((rows - 1) ** 2) / 4 + 1j * columns), np.exp(-((rows + 1) ** 2) / 4 - 0.5j * columns)])
    return (maps / np.sqrt((np.abs(maps) ** 2).sum(0))).astype(np.complex64)


def centred_fft(image: np.ndarray) -> np.ndarray:
    plane = (-2, -1)
    shifted = np.fft.fft2(np.fft.ifftshift(image, axes=plane), norm="ortho")
    return np.fft.fftshift(shifted, axes=plane).astype(np.complex64)


def single_coil() -> np.ndarray:
    """k-space (S, H, W), centred."""
    return centred_fft(images())


def multi_coil() -> np.ndarray:
    """k-space (S, C, H, W), centred."""
    return centred_fft(images()[:, None] * coil_maps())


def columns_mask() -> np.ndarray:
    mask = np.zeros(WIDTH, dtype=bool)
    mask[::2] = mask[3:13] = True
    return mask


def sinograms() -> np.ndarray:
    """(S, angles, detectors) of a square image."""
    from lipspline.operators import ParallelBeamCT

    square = torch.from_numpy(images()[:, 2:18])[:, None]
    return ParallelBeamCT(16, 12, 23, spacing=1.0).forward(square)[:, 0].numpy()


XML = """<?xml version="1.0"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
  <experimentalConditions><H1resonanceFrequency_Hz>128000000</H1resonanceFrequency_Hz></experimentalConditions>
  <encoding>
    <encodedSpace><matrixSize><x>{rows}</x><y>{columns}</y><z>{depth}</z></matrixSize>
      <fieldOfView_mm><x>40</x><y>16</y><z>{extent}</z></fieldOfView_mm></encodedSpace>
    <reconSpace><matrixSize><x>{half}</x><y>{columns}</y><z>{depth}</z></matrixSize>
      <fieldOfView_mm><x>20</x><y>16</y><z>{extent}</z></fieldOfView_mm></reconSpace>
    <trajectory>{trajectory}</trajectory>
    <encodingLimits>
      <kspace_encoding_step_1><minimum>0</minimum><maximum>{last}</maximum><center>{middle}</center></kspace_encoding_step_1>
    </encodingLimits>
  </encoding>
</ismrmrdHeader>"""


def write_fastmri(path: Path, *, coils: bool = True, mask: bool = False, maps: bool = False) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        kspace = multi_coil() if coils else single_coil()
        file["kspace"] = kspace * columns_mask() if mask else kspace
        file["reconstruction_rss" if coils else "reconstruction_esc"] = images()[:, 2:18]
        if mask:
            file["mask"] = columns_mask().astype(np.float32)
        if maps:
            file["sensitivity"] = np.broadcast_to(coil_maps(), (SLICES, COILS, HEIGHT, WIDTH))
    return path


RAW_FEATURES = (
    *("noise", "navigator", "phase correction", "dummy", "other encoding", "external calibration"),
    *("separate calibration", "embedded calibration", "doubled calibration", "reversed", "masks"),
)
"""What readouts of an ISMRMRD file may be besides lines of the image in the order of time."""


def write_ismrmrd(
    path: Path, *features: str, depth: bool = False, averages: int = 1, trajectory: str = "cartesian"
) -> Path:
    """Raw data of `multi_coil()`, with any of RAW_FEATURES; what is no line of the image holds the number 99."""
    import ismrmrd

    kspace, wrong = multi_coil(), np.full((COILS, HEIGHT), 99, np.complex64)
    sizes = {"rows": HEIGHT, "half": HEIGHT // 2, "columns": WIDTH, "depth": SLICES if depth else 1}
    text = XML.format(**sizes, extent=9 if depth else 3, last=WIDTH - 1, middle=WIDTH // 2, trajectory=trajectory)
    mode = next((feature.split()[0] for feature in features if feature.endswith("calibration")), "")
    mode = "embedded" if mode == "doubled" else mode
    if mode:
        factor = "<accelerationFactor><kspace_encoding_step_1>2</kspace_encoding_step_1>"
        factor += "<kspace_encoding_step_2>1</kspace_encoding_step_2></accelerationFactor>"
        parallel = f"<parallelImaging>{factor}<calibrationMode>{mode}</calibrationMode></parallelImaging>"
        text = text.replace("</encoding>", parallel + "</encoding>")
    if "other encoding" in features:
        second = text[text.index("<encoding>") : text.index("</ismrmrdHeader>")]
        text = text.replace("</ismrmrdHeader>", second + "</ismrmrdHeader>")
    ismrmrd.xsd.CreateFromDocument(text)  # the library's own check of the header
    with ismrmrd.Dataset(str(path), "dataset", mode="w") as dataset:
        dataset.write_xml_header(text)

        def append(data: np.ndarray, column: int, s: int, *flags: str, average: int = 0, encoding: int = 0) -> None:
            line = ismrmrd.Acquisition()
            line.resize(HEIGHT, COILS)
            line.center_sample, line.encoding_space_ref = HEIGHT // 2, encoding
            line.data[:] = data
            for flag in flags:
                line.setFlag(getattr(ismrmrd, flag))
            line.idx.kspace_encode_step_1, line.idx.average = int(column), average
            line.idx.kspace_encode_step_2, line.idx.slice = (s, 0) if depth else (0, s)
            line.read_dir[:], line.phase_dir[:], line.slice_dir[:] = (0, 1, 0), (1, 0, 0), (0, 0, 1)
            line.position[:] = (5, 6, 7 if depth else 7 + 4 * s)
            dataset.append_acquisition(line)

        left_out = {
            "noise": "ACQ_IS_NOISE_MEASUREMENT",
            "navigator": "ACQ_IS_NAVIGATION_DATA",
            "phase correction": "ACQ_IS_PHASECORR_DATA",
            "dummy": "ACQ_IS_DUMMYSCAN_DATA",
            "external calibration": "ACQ_IS_PARALLEL_CALIBRATION",
            "separate calibration": "ACQ_IS_PARALLEL_CALIBRATION",
            "doubled calibration": "ACQ_IS_PARALLEL_CALIBRATION",
        }
        for feature in dict.fromkeys(("noise", *features)):
            if feature in left_out:
                append(wrong, WIDTH // 2, 0, left_out[feature])
        for s in range(SLICES):
            for column in np.flatnonzero(raw_masks(features)[s]):
                if "other encoding" in features:
                    append(wrong, column, s, encoding=1)
                for average in range(averages):
                    data = kspace[s, :, :, column] + (1 if average else -1) * (averages > 1)
                    flags = []
                    if "reversed" in features and column % 2:
                        data, flags = data[:, ::-1], ["ACQ_IS_REVERSE"]
                    if "embedded calibration" in features and 4 < column < 12:
                        flags.append("ACQ_IS_PARALLEL_CALIBRATION")
                    append(data, column, s, *flags, average=average)
    return path


def raw_masks(features: tuple[str, ...]) -> np.ndarray:
    """Which columns `write_ismrmrd` writes, (S, W)."""
    return np.stack([np.roll(columns_mask(), s * ("masks" in features)) for s in range(SLICES)])


def spiral(interleaves: int = 16, samples: int = 40) -> np.ndarray:
    """Spirals (readouts, samples, 2) from the middle of k-space to its edge, in cycles per field of view."""
    way = np.linspace(0, 1, samples)
    turn = 2 * np.pi * (3 * way + np.arange(interleaves)[:, None] / interleaves)
    return np.stack([HEIGHT / 2 * way * np.sin(turn), WIDTH / 2 * way * np.cos(turn)], axis=-1)


def on_spirals() -> np.ndarray:
    """k-space (S, C, readouts, samples) of `images()` times `coil_maps()` on `spiral()`, by the sums themselves."""
    rows, columns = np.meshgrid(np.arange(HEIGHT) - HEIGHT // 2, np.arange(WIDTH) - WIDTH // 2, indexing="ij")
    points = spiral().reshape(-1, 2)
    phases = points[:, :1] * rows.reshape(1, -1) / HEIGHT + points[:, 1:] * columns.reshape(1, -1) / WIDTH
    seen = (images()[:, None] * coil_maps()).reshape(SLICES, COILS, -1)
    sums = seen @ np.exp(-2j * np.pi * phases).T / np.sqrt(HEIGHT * WIDTH)
    return sums.reshape(SLICES, COILS, *spiral().shape[:2]).astype(np.complex64)


def write_spirals(path: Path, *, depth: bool = False, per_pixel: bool = False, third: float | None = None) -> Path:
    """`on_spirals()` as an ISMRMRD file with a noise measurement, as slices or partitions, in either unit."""
    import ismrmrd

    sizes = {"rows": HEIGHT, "half": HEIGHT // 2, "columns": WIDTH, "depth": SLICES if depth else 1}
    text = XML.format(**sizes, extent=9 if depth else 3, last=15, middle=8, trajectory="spiral")
    ismrmrd.xsd.CreateFromDocument(text)
    data, points = on_spirals(), spiral() / (np.array([HEIGHT, WIDTH]) if per_pixel else 1)
    if third is not None:
        points = np.concatenate([points, np.full((*points.shape[:-1], 1), third)], axis=-1)
    with ismrmrd.Dataset(str(path), "dataset", mode="w") as dataset:
        dataset.write_xml_header(text)
        for s in range(SLICES):
            for number in range(-1 if s == 0 else 0, data.shape[2]):
                line = ismrmrd.Acquisition()
                line.resize(data.shape[3], COILS, points.shape[-1])
                line.data[:] = 99 if number < 0 else data[s, :, number]
                line.traj[:] = points[number]
                if number < 0:
                    line.setFlag(ismrmrd.ACQ_IS_NOISE_MEASUREMENT)
                line.idx.kspace_encode_step_1 = max(number, 0)
                line.idx.kspace_encode_step_2, line.idx.slice = (s, 0) if depth else (0, s)
                line.read_dir[:], line.phase_dir[:], line.slice_dir[:] = (0, 1, 0), (1, 0, 0), (0, 0, 1)
                line.position[:] = (5, 6, 7 if depth else 7 + 4 * s)
                dataset.append_acquisition(line)
    return path


VOXEL = (1.5, 2.0, 4.0)  # mm along rows (readout), columns (phase), slices
RAW_HEADER = """<?xml version="1.0"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
  <experimentalConditions><H1resonanceFrequency_Hz>128000000</H1resonanceFrequency_Hz></experimentalConditions>
  <encoding>
    <encodedSpace><matrixSize><x>{x}</x><y>{y}</y><z>{z}</z></matrixSize>
      <fieldOfView_mm><x>{fx}</x><y>{fy}</y><z>{fz}</z></fieldOfView_mm></encodedSpace>
    <reconSpace><matrixSize><x>{rx}</x><y>{y}</y><z>{z}</z></matrixSize>
      <fieldOfView_mm><x>{rfx}</x><y>{fy}</y><z>{fz}</z></fieldOfView_mm></reconSpace>
    <trajectory>cartesian</trajectory>
    <encodingLimits>
      <kspace_encoding_step_1><minimum>0</minimum><maximum>{last}</maximum><center>{cy}</center></kspace_encoding_step_1>
      <kspace_encoding_step_2><minimum>0</minimum><maximum>{lastz}</maximum><center>{cz}</center></kspace_encoding_step_2>
    </encodingLimits>
  </encoding>
</ismrmrdHeader>"""


def write_raw(
    path: Path,
    images: np.ndarray,
    directions=((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    position=(10, -20, 30),
    *,
    oversampling: int = 2,
    first: int = 0,
    columns: slice = slice(None),
    depth: bool = False,
    mask: np.ndarray | None = None,
):
    """Raw data of images (S, rows, columns), readouts oversampled.

    Args:
        directions: of readout, phase encoding and slices, in DICOM's coordinates.
        position: of the middle of the first slice, or of the volume.
        first: echoes lack so many of their first samples.
        columns: which phase encodings are measured.
        depth: partitions of a volume instead of slices; then `mask (columns, partitions)` may choose some lines.
    """
    import ismrmrd

    slices, rows, width = images.shape
    wide = np.zeros((slices, oversampling * rows, width), np.float32)
    top = oversampling * rows // 2 - rows // 2
    wide[:, top : top + rows] = images
    axes = (0, 1, 2) if depth else (1, 2)
    kspace = np.fft.fftshift(np.fft.fftn(np.fft.ifftshift(wide, axes=axes), axes=axes, norm="ortho"), axes=axes)
    samples = wide.shape[1]
    sizes = {"x": samples, "y": width, "z": slices if depth else 1, "rx": rows}
    fields = {"fx": samples * VOXEL[0], "rfx": rows * VOXEL[0], "fy": width * VOXEL[1], "fz": VOXEL[2] * sizes["z"]}
    limits = {"last": width - 1, "cy": width // 2, "lastz": sizes["z"] - 1, "cz": sizes["z"] // 2}
    text = RAW_HEADER.format(**sizes, **fields, **limits)
    ismrmrd.xsd.CreateFromDocument(text)
    with ismrmrd.Dataset(str(path), "dataset", mode="w") as dataset:
        dataset.write_xml_header(text)
        for s in range(slices):
            for column in range(width)[columns]:
                if mask is not None and not mask[column, s]:
                    continue
                line = ismrmrd.Acquisition()
                line.resize(samples - first, 1)
                line.center_sample = samples // 2 - first
                line.data[:] = kspace[s, first:, column]
                line.idx.kspace_encode_step_1 = column
                line.idx.kspace_encode_step_2, line.idx.slice = (s, 0) if depth else (0, s)
                line.read_dir[:], line.phase_dir[:], line.slice_dir[:] = directions
                place = np.array(position) + (0 if depth else s) * VOXEL[2] * np.array(directions[2])
                line.position[:] = place
                dataset.append_acquisition(line)
    return path


def write_cfl(path: Path, array: np.ndarray) -> Path:
    """As BART describes the format: sizes as text, then complex numbers with the first index fastest."""
    path.with_suffix(".hdr").write_text("# Dimensions\n" + " ".join(map(str, array.shape)) + "\n")
    array.astype("<c8").ravel(order="F").tofile(path.with_suffix(".cfl"))
    return path


def write_bart(path: Path) -> Path:
    kspace = multi_coil()[:1] * columns_mask()
    return write_cfl(path, kspace.transpose(2, 3, 0, 1))  # readout, phase, partition, coil


def write_nifti(path: Path, *, unit: str = "arbitrary") -> Path:
    import nibabel

    values = images() if unit == "arbitrary" else np.rint(1000 * images() - 1000)
    affine = np.array([[0.0, -0.8, 0, 10], [0.7, 0, 0, 20], [0, 0, 3, 30], [0, 0, 0, 1]])
    dtype = np.float32 if unit == "arbitrary" else np.int16
    nibabel.save(nibabel.Nifti1Image(values.transpose(2, 1, 0).astype(dtype), affine), path)
    return path


def dicom_image(number: int, modality: str = "CT"):
    """A DICOM data set of one slice, in Hounsfield units, made with pydicom."""
    import pydicom

    image = pydicom.Dataset()
    image.file_meta = pydicom.dataset.FileMetaDataset()
    image.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    image.SOPClassUID, image.SOPInstanceUID = pydicom.uid.CTImageStorage, f"1.2.3.{number + 1}"
    image.StudyInstanceUID, image.SeriesInstanceUID, image.FrameOfReferenceUID = "1.2.30", "1.2.31", "1.2.32"
    image.PatientName, image.PatientID, image.Modality, image.InstanceNumber = "Doe^J", "7", modality, number + 1
    image.Rows, image.Columns, image.SamplesPerPixel = HEIGHT, WIDTH, 1
    image.PhotometricInterpretation = "MONOCHROME2"
    image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 16, 16, 15, 0
    image.RescaleSlope, image.RescaleIntercept = 1, -1024
    image.ImageOrientationPatient, image.PixelSpacing = [1, 0, 0, 0, 1, 0], [0.7, 0.8]
    image.ImagePositionPatient = [10, 20, 30 - 3 * number]  # in descending order: readers must sort
    image.PixelData = np.rint(1000 * images()[number] + 24).astype("<u2").tobytes()
    return image


def write_dicom(path: Path, number: int = 0) -> Path:
    dicom_image(number).save_as(path, enforce_file_format=True)
    return path


def write_inverse_dicom(path: Path) -> Path:
    """White is the smallest value, and the name of the patient is in no Latin script."""
    image = dicom_image(0, "MR")
    del image.RescaleSlope, image.RescaleIntercept
    image.PhotometricInterpretation, image.BitsStored, image.HighBit = "MONOCHROME1", 12, 11
    image.SpecificCharacterSet, image.PatientName = "ISO_IR 192", "山田^太郎"
    image.save_as(path, enforce_file_format=True)
    return path


def write_dicom_frames(path: Path) -> Path:
    """All slices in one file, packed, each with a place of its own."""
    import pydicom

    image = dicom_image(0)
    image.NumberOfFrames = SLICES
    image.PixelData = np.rint(1000 * images() + 24).astype("<u2").tobytes()
    image.PerFrameFunctionalGroupsSequence = []
    for number in range(SLICES):
        position, group = pydicom.Dataset(), pydicom.Dataset()
        position.ImagePositionPatient = [10, 20, 30 + 3 * number]
        group.PlanePositionSequence = [position]
        image.PerFrameFunctionalGroupsSequence.append(group)
    del image.ImagePositionPatient
    image.compress(pydicom.uid.RLELossless)
    image.save_as(path, enforce_file_format=True)
    return path


def write_colour_dicom(path: Path, kind: str) -> Path:
    """Numbers of a palette, or three planes of colour, which are not read as gray values."""
    image = dicom_image(0, "OT")
    del image.RescaleSlope, image.RescaleIntercept
    image.PhotometricInterpretation = kind
    image.BitsAllocated, image.BitsStored, image.HighBit = 8, 8, 7
    pixels = np.rint(255 * images()).astype(np.uint8)
    if kind == "RGB":
        image.SamplesPerPixel, image.PlanarConfiguration, image.PixelData = 3, 1, pixels.tobytes()
    else:
        image.PixelData = pixels[0].tobytes()
        for colour in ("Red", "Green", "Blue"):
            setattr(image, f"{colour}PaletteColorLookupTableDescriptor", [256, 0, 16])
            setattr(image, f"{colour}PaletteColorLookupTableData", np.arange(255, -1, -1, dtype="<u2").tobytes())
    image.save_as(path, enforce_file_format=True)
    return path


def write_dicom_series(folder: Path) -> Path:
    folder.mkdir()
    for number in range(SLICES):
        write_dicom(folder / f"{number}.dcm", number)
    return folder


def write_png(path: Path) -> Path:
    from PIL import Image

    Image.fromarray(np.rint(255 * images()[0]).astype(np.uint8)).save(path)
    return path


def write_jpeg(path: Path) -> Path:
    from PIL import Image

    Image.fromarray(np.rint(255 * images()[0]).astype(np.uint8)).save(path, quality=95)
    return path


def write_colour_png(path: Path) -> Path:
    """Colours with transparency."""
    from PIL import Image

    colours = np.rint(255 * np.concatenate([images(), np.ones_like(images()[:1])])).astype(np.uint8)
    Image.fromarray(colours.transpose(1, 2, 0)).save(path)
    return path


def write_tiff(path: Path, array: np.ndarray) -> Path:
    import tifffile

    tifffile.imwrite(path, array.astype(np.float32), photometric="minisblack", metadata=None)
    return path


def write_palette(path: Path) -> Path:
    from PIL import Image

    colours = np.stack([np.rint(255 * image) for image in images()], axis=-1).astype(np.uint8)
    Image.fromarray(colours).quantize(64).save(path)
    return path


def write_other_tiff(path: Path, photometric: str) -> Path:
    """Two pages of 8 bits whose numbers are not gray values with 0 for black."""
    import tifffile

    image = np.rint(255 * images()[:2]).astype(np.uint8)
    planar = {"rgb": "separate", "separated": "contig"}.get(photometric)
    image = {"rgb": image[:, None].repeat(3, 1), "separated": image[..., None].repeat(4, -1)}.get(photometric, image)
    with tifffile.TiffWriter(path) as file:
        for page in image:
            file.write(page, photometric=photometric, planarconfig=planar, compression="zlib", metadata=None)
    return path


def write_npy(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def write_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def write_hdf5(path: Path, **arrays: np.ndarray) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
    return path


def write_exchange(path: Path) -> Path:
    """Counts as the Data Exchange of synchrotrons stores them, with two fields of each kind and angles in degrees."""
    import h5py

    counts = np.rint(100 + 9900 * np.exp(-sinograms() / 10)).astype(np.uint16).transpose(1, 0, 2)
    with h5py.File(path, "w") as file:
        group = file.create_group("exchange")
        group.create_dataset("data", data=counts, chunks=(4, 3, 23), compression="gzip")
        group["data_white"] = np.full((2, *counts.shape[1:]), 10000, np.uint16)
        group["data_dark"] = np.full((2, *counts.shape[1:]), 100, np.uint16)
        group["theta"] = np.arange(12) * 15.0
        group["theta"].attrs["units"] = "degrees"
    return path


def write_helsinki(path: Path, compress: bool = False) -> Path:
    """A sinogram of fan beams as the Helsinki challenges publish theirs."""
    import scipy.io

    parameters = {
        "distanceSourceOrigin": 410.66,
        "distanceSourceDetector": 553.74,
        "distanceUnit": "mm",
        "pixelSizePost": 1.2,
        "angles": np.arange(12) * 30.0,
    }
    data = {"CtDataLimited": {"sinogram": sinograms()[0].astype(np.float64), "parameters": parameters}}
    scipy.io.savemat(path, data, do_compression=compress)
    return path


def write_projections(folder: Path) -> Path:
    """A TIFF file for each slice."""
    folder.mkdir()
    for number, sinogram in enumerate(sinograms()):
        write_tiff(folder / f"{number}.tif", sinogram)
    return folder


def write_tensor_folder(folder: Path) -> Path:
    """One image as the authors of the paper publish theirs: frequency zero first, real image, cropped truth."""
    folder.mkdir()
    image = torch.from_numpy(images()[:1])[:, None]
    maps = torch.from_numpy(coil_maps())[None]
    mask = torch.fft.ifftshift(torch.from_numpy(columns_mask())).expand(1, 1, HEIGHT, WIDTH).clone()
    torch.save(torch.fft.fft2(image * maps, norm="ortho") * mask, folder / "y.pt")
    torch.save(mask, folder / "mask.pt")
    torch.save(maps, folder / "smaps.pt")
    torch.save(image[..., 2:18, :].clone(), folder / "x_crop.pt")
    return folder


def write_denoiser(path: Path, activation: str = "lls") -> Path:
    """A denoiser small enough for tests: random, and as 1-Lipschitz as a trained one."""
    from lipspline import models

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        models.save(models.denoiser(activation, channels=4, depth=3), path, {"noise": 15})
    return path


def ridge(seed: int, lowest: float = 0.0):
    """A small ridge energy, convex unless a slope below 0 is allowed."""
    from lipspline.priors.ridge import RidgeEnergy, normalised

    rng = torch.Generator().manual_seed(seed)
    raw = torch.randn(4, 1, 5, 5, generator=rng)
    filters = torch.cat([raw[:2] + raw[:2].flip(2, 3), raw[2:] - raw[2:].flip(2, 3)])
    slopes, nodes = lowest + (1 - lowest) * torch.rand(4, 6, generator=rng), torch.logspace(-2, 0, 3)
    slopes[:, -1] = 0
    return normalised(RidgeEnergy(filters, slopes, torch.zeros(4, 3), torch.zeros(3), nodes, even=2, radius=1.0))


def write_ridge(path: Path, lowest: float = 0.0) -> Path:
    from lipspline.priors.ridge_files import save_ridge

    save_ridge(ridge(0, lowest), path)
    return path


def write_adaptive(path: Path) -> Path:
    """Two small convex ridge energies and a network between them."""
    from lipspline.priors.adaptive import AdaptiveRidge, WeightNetwork, save_adaptive

    rng = torch.Generator().manual_seed(0)
    shapes = {"detect": (3, 1, 7, 7), "lift": (3,), "combine": (3, 3, 3, 3), "combine_bias": (3,)}
    shapes |= {"decide": (4, 3, 3, 3), "decide_bias": (4,), "log_gain": (3,)}
    tensors = {name: torch.randn(shape, generator=rng) / 4 for name, shape in shapes.items()}
    network = WeightNetwork(nodes=torch.logspace(-2, 0, 3), **tensors)
    save_adaptive(AdaptiveRidge(ridge(0), ridge(1), network), path)
    return path


def write_unrolled(path: Path) -> Path:
    """A small unrolled denoiser: two steps down one ridge energy, then one down it with another strength."""
    from lipspline.priors.ridge_files import load_ridge
    from lipspline.priors.unrolled import UnrolledDenoiser, save_unrolled

    first, second = load_ridge(write_ridge(path)), load_ridge(path)
    second.log_strength += 1.0
    save_unrolled(UnrolledDenoiser([first, second], [2, 1]), path)
    return path


MRI_FILES: dict[str, Callable[[Path], Path]] = {
    "single.h5": lambda path: write_fastmri(path, coils=False),
    "multi.h5": lambda path: write_fastmri(path, maps=True),
    "masked.h5": lambda path: write_fastmri(path, mask=True),
    "masks.npz": lambda path: write_npz(path, kspace=multi_coil(), mask=raw_masks(("masks",))),
    "raw.h5": write_ismrmrd,
    "raw-more.h5": lambda path: write_ismrmrd(
        path, "navigator", "phase correction", "other encoding", "external calibration", "reversed", "masks"
    ),
    "raw-averages.h5": lambda path: write_ismrmrd(path, "embedded calibration", averages=2),
    "raw-doubled.h5": lambda path: write_ismrmrd(path, "dummy", "doubled calibration"),
    "raw3d.h5": lambda path: write_ismrmrd(path, depth=True),
    "bart.cfl": write_bart,
    "kspace.npy": lambda path: write_npy(path, single_coil()),
    "kspace.npz": lambda path: write_npz(path, kspace=multi_coil(), mask=columns_mask(), maps=coil_maps()),
    "tensors": write_tensor_folder,
}
"""Files with k-space, by name."""

TRAJECTORY_FILES: dict[str, Callable[[Path], Path]] = {
    "spirals.h5": write_spirals,
    "spirals3d.h5": lambda path: write_spirals(path, depth=True, per_pixel=True),
    "spirals.npz": lambda path: write_npz(path, kspace=on_spirals(), trajectory=spiral(), size=np.array([20, 16])),
}
"""Files with k-space on a trajectory, by name."""

IMAGE_FILES: dict[str, Callable[[Path], Path]] = {
    "images.h5": lambda path: write_hdf5(path, reconstruction_rss=images()),
    "images.npy": lambda path: write_npy(path, images()),
    "image.png": write_png,
    "images.tif": lambda path: write_tiff(path, images()),
    "white.tif": lambda path: write_other_tiff(path, "miniswhite"),
    "planar.tif": lambda path: write_other_tiff(path, "rgb"),
    "palette.tif": write_palette,
    "palette.png": write_palette,
    "inverse.dcm": write_inverse_dicom,
    "frames.dcm": write_dicom_frames,
    "volume.nii": write_nifti,
    "volume.nii.gz": write_nifti,
    "slice.dcm": write_dicom,
    "series": write_dicom_series,
}
"""Files with images, by name."""

REFUSED_FILES: dict[str, Callable[[Path], Path]] = {
    "cmyk.tif": lambda path: write_other_tiff(path, "separated"),
    "palette.dcm": lambda path: write_colour_dicom(path, "PALETTE COLOR"),
    "planar.dcm": lambda path: write_colour_dicom(path, "RGB"),
}
"""Files with images that are not read, by name."""

PICTURE_FILES: dict[str, Callable[[Path], Path]] = {"photo.jpg": write_jpeg, "colour.png": write_colour_png}
"""Files with an image that only `denoise` reads, by name, beside those above."""

SINOGRAM_FILES: dict[str, Callable[[Path], Path]] = {
    "sinogram.npy": lambda path: write_npy(path, sinograms()),
    "sinogram.npz": lambda path: write_npz(path, sinogram=sinograms(), angles=np.arange(12) * np.pi / 12),
    "sinogram.tif": lambda path: write_tiff(path, sinograms()),
    "sinogram.h5": lambda path: write_hdf5(path, sinogram=sinograms()),
}
"""Files with sinograms, by name."""

SCANNER_FILES: dict[str, Callable[[Path], Path]] = {
    "exchange.h5": write_exchange,
    "fan.mat": write_helsinki,
    "packed.mat": lambda path: write_helsinki(path, compress=True),
    "counts.npz": lambda path: write_npz(
        path, sinogram=9900 * np.exp(-sinograms() / 10) + 100, flat=np.full(23, 10000.0), dark=np.full(23, 100.0)
    ),
    "projections": write_projections,
}
"""What CT scanners write besides sinograms, by name."""

BESIDE_FILES: dict[str, Callable[[Path], Path]] = {
    "mask.npy": lambda path: write_npy(path, columns_mask()),
    "maps.npz": lambda path: write_npz(path, maps=coil_maps()),
    "maps.cfl": lambda path: write_cfl(path, coil_maps().transpose(1, 2, 0)[:, :, None]),
    "trajectory.npy": lambda path: write_npy(path, spiral()),
    "trajectory.cfl": lambda path: write_cfl(path, np.insert(spiral(), 2, 0, axis=-1).transpose(2, 1, 0)),
    "angles.npy": lambda path: write_npy(path, np.arange(12) * np.pi / 12),
    "flat.npy": lambda path: write_npy(path, np.full(23, 10000.0)),
}
"""What is given beside a measurement, by the name of its option and an ending."""

WEIGHTS_FILES: dict[str, Callable[[Path], Path]] = {
    "denoiser.safetensors": write_denoiser,
    "relu.safetensors": lambda path: write_denoiser(path, "relu"),
    "ridge.safetensors": write_ridge,
    "weak.safetensors": lambda path: write_ridge(path, -0.2),
    "adaptive.safetensors": write_adaptive,
    "unrolled.safetensors": write_unrolled,
}
"""Files with a prior, by name."""
