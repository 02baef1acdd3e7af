"""Image files as arrays: PNG, TIFF and npy, one at a time or by the folder, in the dtype they are stored in."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipspline._infra import checks
from lipspline._infra.files import write_whole
from lipspline.formats import png16

Array = NDArray[Any]
LUMA = np.array([0.299, 0.587, 0.114])


def read(path: str | Path) -> Array:
    """Read one image, `(H, W)` or `(H, W, C)`, with the dtype of the file.

    Raises:
        ValueError: the file is empty, truncated, damaged or not an image; the message names it.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no image file {path}.")
    reader = _dispatch(path, _READERS)
    if path.stat().st_size == 0:
        raise ValueError(f"The image file {path} is empty.")
    try:
        image = reader(path)
    except ImportError:
        raise
    except Exception as error:  # decoders raise anything from SyntaxError to struct.error on damaged files
        reason = str(error).rstrip(".")
        raise ValueError(f"The image file {path} is damaged or truncated, or no such image ({reason}).") from error
    return _check(path, image)


def write(path: str | Path, image: Array) -> None:
    """Write one image `(H, W)` or `(H, W, C)` without changing its dtype; the name decides the format.

    The file appears whole or not at all.
    """
    path = Path(path)
    encode = encoder(path, image.dtype)
    write_whole(path, encode(np.ascontiguousarray(image)))


def encoder(path: Path, dtype: np.dtype) -> Callable[[Array], bytes]:
    """What turns images of a dtype into the bytes of a file of that name; an error if its format cannot hold them."""
    encode = _dispatch(path, _ENCODERS)
    if encode is _encode_png and dtype not in (np.uint8, np.uint16):
        raise ValueError(f"A PNG file holds 8 or 16 bits, not {dtype}. Write {path.name} as .tif or .npy.")
    return encode


def gray(image: Array) -> NDArray[np.float64]:
    """An image as `(H, W)` with values in [0, 1]: integers are divided by their largest value, colour becomes luma.

    Example:
        >>> gray(np.array([[0, 255]], dtype=np.uint8))
        array([[0., 1.]])
    """
    scale = np.iinfo(image.dtype).max if np.issubdtype(image.dtype, np.integer) else 1.0
    values = image.astype(np.float64) / scale
    return values if values.ndim == 2 else _luma(values)


@dataclass(frozen=True)
class NamedImage:
    """A gray 8-bit image and the name of its file without extension."""

    name: str
    pixels: NDArray[np.uint8]


def read_folder(folder: str | Path, most: int | None = None) -> list[NamedImage]:
    """The images of a folder as 8-bit gray, sorted by name; a broken file is an error that names it.

    Args:
        most: read only the first so many. Hidden files do not count.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no image folder {folder}.")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _READERS and path.name[0] != ".")
    if not files:
        raise FileNotFoundError(f"The folder {folder} holds no image. Formats: {', '.join(_READERS)}.")
    return [NamedImage(path.stem, _gray8(path)) for path in files[:most]]


def _gray8(path: Path) -> NDArray[np.uint8]:
    image = read(path)
    if image.dtype == np.uint8 and image.ndim == 2:
        return image.astype(np.uint8, copy=False)
    values = gray(image)
    if values.min() < 0 or values.max() > 1:
        raise ValueError(
            f"The image file {path} has values in [{values.min():g}, {values.max():g}]; an image of floats must have "
            f"values in [0, 1]. Divide it by its maximum."
        )
    return np.rint(values * 255).astype(np.uint8)


def _luma(values: NDArray[np.float64]) -> NDArray[np.float64]:
    channels = values.shape[-1]
    return values[..., :3] @ LUMA if channels >= 3 else values[..., 0]


def _check(path: Path, image: Array) -> Array:
    if image.dtype == np.bool_:
        image = image.astype(np.uint8) * np.uint8(255)
    if image.ndim == 3 and image.shape[-1] == 1:
        image = image[..., 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[-1] not in (2, 3, 4)):
        raise ValueError(
            f"The file {path} has shape {image.shape}; an image is (height, width) or (height, width, channels) with "
            f"3 channels (colour), or 2 or 4 with transparency."
        )
    if 0 in image.shape:
        raise ValueError(f"The image file {path} has no pixels: its shape is {image.shape}.")
    if not (np.issubdtype(image.dtype, np.integer) or np.issubdtype(image.dtype, np.floating)):
        raise ValueError(f"The file {path} holds {image.dtype} values; an image holds integers or floats.")
    if np.issubdtype(image.dtype, np.floating) and not np.isfinite(image).all():
        bad = int((~np.isfinite(image)).sum())
        raise ValueError(f"The image file {path} has {bad} NaN or infinite value(s) of {image.size}.")
    return image


def _dispatch(path: Path, table: dict[str, Callable]) -> Callable:
    suffix = path.suffix.lower()
    if suffix not in table:
        raise ValueError(f"{path} is not in a known image format. The name must end in one of {', '.join(table)}.")
    return table[suffix]


def _read_png(path: Path) -> Array:
    pillow = checks.require("PIL.Image", "images", "Reading PNG files")
    with pillow.open(path) as picture:
        if png16.has_words(picture):
            return png16.read(pillow, path)
        picture.load()
        if picture.mode == "P":
            picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
        image = np.asarray(picture)
        sixteen_bit = picture.mode.startswith("I")
    return image.astype(np.uint16) if sixteen_bit else image


def _encode_png(image: Array) -> bytes:
    if image.dtype == np.uint16:
        return png16.encode(image)
    return _saved(checks.require("PIL.Image", "images", "Writing PNG files").fromarray(image).save, format="png")


def _read_tiff(path: Path) -> Array:
    tifffile = checks.require("tifffile", "images", "Reading TIFF files")
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        if series.axes not in TIFF_AXES or len(file.series) > 1:
            raise ValueError(f"it holds {len(file.pages)} pages with axes {series.axes}, not one image")
        return np.moveaxis(series.asarray(), *TIFF_AXES[series.axes])


def _encode_tiff(image: Array) -> bytes:
    tifffile = checks.require("tifffile", "images", "Writing TIFF files")
    channels = 1 if image.ndim == 2 else image.shape[-1]
    photometric = "rgb" if channels >= 3 else "minisblack"
    extra = ["unassalpha"] if channels in (2, 4) else None
    options = {"photometric": photometric, "extrasamples": extra, "planarconfig": "contig" if channels > 1 else None}
    return _saved(tifffile.imwrite, data=image, metadata=None, **options)


def _read_npy(path: Path) -> Array:
    return np.load(path, allow_pickle=False)


def _encode_npy(image: Array) -> bytes:
    return _saved(np.save, arr=image)


def _saved(save: Callable, **options: Any) -> bytes:
    """What a function writes to the file that is its first argument."""
    file = io.BytesIO()
    save(file, **options)
    return file.getvalue()


TIFF_AXES = {"YX": (0, 0), "YXS": (0, 0), "SYX": (0, -1)}
"""The axes of TIFF files that are one image, and which is moved where to have the channels last."""

_READERS = {".png": _read_png, ".tif": _read_tiff, ".tiff": _read_tiff, ".npy": _read_npy}
_ENCODERS = {".png": _encode_png, ".tif": _encode_tiff, ".tiff": _encode_tiff, ".npy": _encode_npy}
