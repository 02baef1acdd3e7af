"""Pictures in PNG, TIFF and npy files: as arrays as stored, as volumes, and as planes to denoise."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.files import write_whole
from lipspline.formats import arrays, png
from lipspline.formats.validation import FileError, affordable, chosen, existing, reading, refuse_jpeg
from lipspline.formats.volume import LazyVolume, Volume

PNG, TIFF = (".png",), (".tif", ".tiff")
ENDINGS = (*PNG, *TIFF)
LARGEST = 65535  # of 16 bits
LARGEST_TILE = 2**26
LARGEST_TIFF = 2**32 - 2**25  # bytes that addresses of 32 bits reach, with room for what is not pixels
LUMA = np.array([0.299, 0.587, 0.114])
COLOURS = {1: 1, 2: 1, 3: 3, 4: 3}
"""How many channels of an image show it; the last of 2 or 4 is its transparency."""
NOISY = (-1.0, 2.0)
"""No noise that is worth removing carries values in [0, 1] beyond this."""
FAINTEST = 1e-6
"""An image whose brightest value is a smaller part of white is not one of that white."""

Array = NDArray[Any]


def read(path: str | Path) -> Array:
    """Read one image, `(H, W)` or `(H, W, C)`, with the dtype of the file; black is 0, whatever the file calls black.

    Raises:
        FileError: the file is empty, truncated, damaged, not an image, or one whose colours are not understood.
    """
    path = Path(path)
    reader = _dispatch(path, _READERS)
    path = existing(path, "image")
    with reading(path, "picture"):
        return _checked_image(path, reader(path))


def write(path: str | Path, image: Array) -> None:
    """Write one image `(H, W)` or `(H, W, C)` without changing its dtype; the name decides the format.

    The file appears whole or not at all.
    """
    path = Path(path)
    encode = encoder(path, image.dtype)
    write_whole(path, encode(np.ascontiguousarray(image)))


def encoder(path: Path, dtype: np.dtype) -> Callable[[Array], bytes]:
    """What turns images of a dtype into the bytes of a file of that name; an error if its format cannot hold them."""
    refuse_jpeg(path)
    encode = _dispatch(path, _ENCODERS)
    if encode is png.encode and dtype not in (np.uint8, np.uint16):
        raise ValueError(f"A PNG file holds 8 or 16 bits, not {dtype}. Write {path.name} as .tif or .npy.")
    return encode


def read_volume(path: str | Path, slices: slice = slice(None)) -> Volume:
    """Read a PNG or JPEG picture as gray values in [0, 1], or the pages of a TIFF file.

    Integers are divided by their largest value; floats are not changed; colour becomes luma.
    """
    path = existing(path, "picture")
    if path.suffix.lower() not in TIFF:
        chosen(path, 1, slices)
        return _checked_volume(path, gray(read(path))[None])
    with reading(path, "TIFF"), _tiff(path) as file:
        numbers = chosen(path, len(file.pages), slices)
        pages = [_page(path, file.pages[number], len(numbers)) for number in numbers]
        if len({page.shape[:2] for page in pages}) > 1:
            raise FileError(f"{path} has pages of different sizes; the slices of a volume have one size.")
        return _checked_volume(path, np.stack([gray(page) for page in pages]))


def count_pages(path: str | Path) -> tuple[int, int, int]:
    """How many pages a TIFF file has, and how many rows and columns the first of them."""
    path = existing(path, "picture")
    with reading(path, "TIFF"), _tiff(path) as file:
        height, width = _page(path, file.pages[0], 1).shape[:2]
        return len(file.pages), height, width


def write_volume(path: str | Path, volume: LazyVolume) -> None:
    """Write one slice as PNG of 16 bit, from its least to its largest value; or a stack as TIFF in float32."""
    path = Path(path)
    if path.suffix.lower() in TIFF:
        tifffile = checks.require("tifffile", "images", "Writing TIFF files")
        pages = (volume.slices[i].numpy() for i in range(len(volume.slices)))
        shape, large = tuple(volume.slices.shape), 4 * volume.slices.numel() > LARGEST_TIFF
        options = {"photometric": "minisblack", "metadata": None}
        tifffile.imwrite(path, pages, shape=shape, dtype=np.float32, bigtiff=large, **options)
        return
    if len(volume.slices) != 1:
        raise ValueError(
            f"A PNG file holds one slice, but there are {len(volume.slices)}. Choose one, or write .tif or .nii.gz."
        )
    image = volume.slices[0].double()
    low, high = image.min(), image.max()
    scaled = (image - low) / (high - low).clamp_min(torch.finfo(image.dtype).tiny) * LARGEST
    write(path, scaled.round().numpy().astype(np.uint16))


def gray(image: Array) -> NDArray[np.float64]:
    """An image as `(H, W)` with values in [0, 1]: integers are divided by their largest value, colour becomes luma.

    Example:
        >>> gray(np.array([[0, 255]], dtype=np.uint8))
        array([[0., 1.]])
    """
    scale = np.iinfo(image.dtype).max if np.issubdtype(image.dtype, np.integer) else 1.0
    values = image.astype(np.float64) / scale
    if values.ndim == 2:
        return values
    return values[..., :3] @ LUMA if values.shape[-1] >= 3 else values[..., 0]


# Files as arrays


def _read_png(path: Path) -> Array:
    pillow = checks.require("PIL.Image", "images", "Reading PNG files")
    with pillow.open(path, formats=("PNG",)) as picture:
        width, height = picture.size
        affordable(path, (height, width, 4), 8, "a picture")
        if png.has_words(picture):
            return png.read_words(pillow, path)
        picture.load()
        if picture.mode == "P":
            picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
        image = np.asarray(picture)
        sixteen_bit = picture.mode.startswith("I")
    return image.astype(np.uint16) if sixteen_bit else image


def _read_jpeg(path: Path) -> Array:
    pillow = checks.require("PIL.Image", "images", "Reading JPEG files")
    turn = checks.require("PIL.ImageOps", "images", "Reading JPEG files").exif_transpose
    with pillow.open(path, formats=("JPEG",)) as picture:
        width, height = picture.size
        affordable(path, (height, width, 4), 8, "a picture")
        picture = turn(picture)
        return np.asarray(picture if picture.mode == "L" else picture.convert("RGB"))


def _read_tiff(path: Path) -> Array:
    with _tiff(path) as file:
        if len(file.pages) > 1:
            raise FileError(f"{path} holds {len(file.pages)} pages, not one image.")
        return _page(path, file.pages[0], 1)


@contextlib.contextmanager
def _tiff(path: Path) -> Iterator[Any]:
    """An open TIFF file, each image of which is a page."""
    with checks.require("tifffile", "images", "Reading TIFF files").TiffFile(path) as file:
        described = len(file.pages) == 1 and (file.is_imagej or file.is_shaped)  # iterating damaged pages may not end
        if described and file.series and (count := _planes(file.series[0])) > 1:
            raise FileError(f"{path} holds {count} images in one page; write each as a page of its own.")
        yield file


def _planes(series: Any) -> int:
    """How many images a series has, whatever their number of channels."""
    sizes = zip(series.axes, series.shape, strict=True)
    return int(np.prod([size for axis, size in sizes if axis not in "YXS"], dtype=np.int64))


def _page(path: Path, page: Any, count: int) -> Array:
    """One page of a TIFF file, `(H, W)` or `(H, W, C)`, upright and with black as 0; checked before it is decoded."""
    if page.dtype is None or page.dtype.kind not in "biuf":
        raise FileError(f"{path} has a page of {page.dtype} values, not of gray numbers.")
    if page.axes not in TIFF_AXES:
        raise FileError(f"{path} has a page with axes {page.axes}, which is not one image.")
    size = affordable(path, (count, *page.shape), max(8, page.dtype.itemsize), "pages")
    stored = sum(page.databytecounts)
    if page.compression == 1 and page.dtype.kind != "b" and stored * count * 8 < size:
        raise FileError(f"{path} is truncated: a page of {page.shape} values has {stored} bytes.")
    if page.imagelength * page.imagewidth and (page.tilelength * page.tilewidth or 1) > LARGEST_TILE:
        raise FileError(f"{path} has tiles of {page.tilelength} x {page.tilewidth} values.")
    if page.dtype.kind in "iu" and page.bitspersample != 8 * page.dtype.itemsize:
        raise FileError(f"{path} has {page.bitspersample} bits a value; 1, 8, 16, 32 and 64 are read.")
    return _upright(path, page, _with_black_as_zero(path, page))


def _with_black_as_zero(path: Path, page: Any) -> Array:
    """The values of a page, gray or red, green and blue; what its numbers mean is its photometric interpretation."""
    kind = int(page.photometric) if page.photometric is not None else MIN_IS_BLACK
    if kind not in PHOTOMETRIC:
        name = getattr(page.photometric, "name", str(page.photometric))
        raise FileError(f"{path} holds colours as {name}; gray values, RGB and palettes are read. Convert it to RGB.")
    if page.samplesperpixel not in PHOTOMETRIC[kind]:
        raise FileError(f"{path} has {page.samplesperpixel} values a pixel, more or fewer than an image has.")
    image = np.moveaxis(page.asarray(), *TIFF_AXES[page.axes])
    if image.dtype == np.bool_:
        image = image.astype(np.uint8) * np.uint8(255 if kind != PALETTE else 1)
    if kind == MIN_IS_WHITE:
        if image.dtype.kind != "u" or image.ndim != 2:
            raise FileError(f"{path} has 0 for white in {image.dtype} values, whose black is unknown. Convert it.")
        return np.iinfo(image.dtype).max - image
    return _colours(path, page, image) if kind == PALETTE else image


def _colours(path: Path, page: Any, numbers: Array) -> Array:
    """Red, green and blue of the numbers of a palette."""
    palette = None if page.colormap is None else np.asarray(page.colormap)
    if palette is None or palette.ndim != 2 or len(palette) != 3 or numbers.max(initial=0) >= palette.shape[1]:
        raise FileError(f"{path} has numbers of colours that its palette does not hold.")
    if not (palette % 257).any() or not (palette % 256).any():  # eight bits, written as sixteen
        palette = (palette >> 8).astype(np.uint8)
    return np.moveaxis(palette[:, numbers], 0, -1)


def _upright(path: Path, page: Any, image: Array) -> Array:
    """An image turned as its file says that it is to be seen."""
    tag = page.tags.get("Orientation")
    turn = 1 if tag is None else int(tag.value)
    if turn not in ORIENTATIONS:
        raise FileError(f"{path} has the orientation {turn}, which does not exist.")
    transposed, up_down, left_right = ORIENTATIONS[turn]
    image = image.swapaxes(0, 1) if transposed else image
    image = image[::-1] if up_down else image
    return image[:, ::-1] if left_right else image


def _read_npy(path: Path) -> Array:
    with arrays.opened(path) as container:
        found = container.get("array")
        affordable(path, found.shape, found.dtype.itemsize, "an image")
        return found.load(range(found.shape[0])).astype(found.dtype.newbyteorder("="))


def _encode_tiff(image: Array) -> bytes:
    tifffile = checks.require("tifffile", "images", "Writing TIFF files")
    channels = 1 if image.ndim == 2 else image.shape[-1]
    photometric = "rgb" if channels >= 3 else "minisblack"
    extra = ["unassalpha"] if channels in (2, 4) else None
    options = {"photometric": photometric, "extrasamples": extra, "planarconfig": "contig" if channels > 1 else None}
    return _saved(tifffile.imwrite, data=image, metadata=None, **options)


def _encode_npy(image: Array) -> bytes:
    return _saved(np.save, arr=image)


def _saved(save: Callable, **options: Any) -> bytes:
    """What a function writes to the file that is its first argument."""
    file = io.BytesIO()
    save(file, **options)
    return file.getvalue()


def _checked_image(path: Path, image: Array) -> Array:
    if image.dtype == np.bool_:
        image = image.astype(np.uint8) * np.uint8(255)
    if image.ndim == 3 and image.shape[-1] == 1:
        image = image[..., 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[-1] not in COLOURS):
        raise FileError(
            f"The file {path} has shape {image.shape}; an image is (height, width) or (height, width, channels) with "
            f"3 channels (colour), or 2 or 4 with transparency."
        )
    if image.dtype.kind not in "iuf":
        raise FileError(f"The file {path} holds {image.dtype} values; an image holds integers or floats.")
    if image.dtype.kind == "f" and not np.isfinite(image).all():
        bad = int((~np.isfinite(image)).sum())
        raise FileError(f"The image file {path} has {bad} NaN or infinite value(s) of {image.size}.")
    return image


def _checked_volume(path: Path, stack: Array) -> Volume:
    if not np.isfinite(stack).all():
        raise FileError(f"{path} has NaN or infinite values.")
    return Volume(torch.from_numpy(stack.astype(np.float32)))


def _dispatch(path: Path, table: dict[str, Callable]) -> Callable:
    suffix = path.suffix.lower()
    if suffix not in table:
        raise ValueError(f"{path} is not in a known image format. The name must end in one of {', '.join(table)}.")
    return table[suffix]


TIFF_AXES = {"YX": (0, 0), "YXS": (0, 0), "SYX": (0, -1)}
"""The axes of TIFF pages that are one image, and which is moved where to have the channels last."""
MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE = 0, 1, 2, 3
PHOTOMETRIC = {MIN_IS_WHITE: (1,), MIN_IS_BLACK: (1, 2), RGB: (3, 4), PALETTE: (1,)}
"""The meanings of numbers in a TIFF file that are understood, and how many values a pixel may then have."""
ORIENTATIONS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
"""Numbers of the tag "Orientation": whether rows are columns, then whether to turn up and down, left and right."""

_READERS = {
    ".png": _read_png,
    ".tif": _read_tiff,
    ".tiff": _read_tiff,
    ".npy": _read_npy,
    ".jpg": _read_jpeg,
    ".jpeg": _read_jpeg,
}
_ENCODERS = {".png": png.encode, ".tif": _encode_tiff, ".tiff": _encode_tiff, ".npy": _encode_npy}
IMAGE_ENDINGS = tuple(_READERS)


# Images as planes to denoise


def white_level(image: Array, white: float | None = None, black: float = 0.0) -> float:
    """The value that stands for white, if that for black is this.

    If it is not given, it is the largest value of 8 and 16 bit without sign, and 1 for floats, whose values must then
    lie in [-1, 2]: in [0, 1], and a little beyond it for the noise.

    Example:
        >>> white_level(np.zeros((2, 2), np.uint16)), white_level(np.zeros((2, 2), np.uint16), 4095)
        (65535.0, 4095.0)
    """
    if white is not None:
        checks.positive("white minus black" if black else "white", white - black)
        return _given(image, float(white), black)
    if image.dtype in (np.uint8, np.uint16):
        return float(np.iinfo(image.dtype).max)
    low, high = float(image.min()), float(image.max())
    if not np.issubdtype(image.dtype, np.floating):
        raise ValueError(
            f"An image of {image.dtype} with values in [{low:g}, {high:g}] does not say which value is white. Give "
            f"white, for instance 255."
        )
    if low < NOISY[0] or high > NOISY[1]:
        raise ValueError(
            f"The image holds {image.dtype} values in [{low:g}, {high:g}], but floats are taken to be 0 for black and "
            f"1 for white. Give white, for instance {_round_up(high):g}."
        )
    return 1.0


def _given(image: Array, white: float, black: float) -> float:
    low, high = float(image.min()), float(image.max())
    least, most, span = low - black, high - black, white - black
    if least < NOISY[0] * span or most > NOISY[1] * span or 0 < max(-least, most) < span * FAINTEST:
        below = f" and black {black:g}" if black else ""
        raise ValueError(f"white is {white:g}{below}, but the image has values in [{low:g}, {high:g}]. Check white.")
    if np.issubdtype(image.dtype, np.integer) and white > np.iinfo(image.dtype).max:
        largest = np.iinfo(image.dtype).max
        raise ValueError(f"white is {white:g}, but the image holds {image.dtype} values, at most {largest}.")
    return white


def _round_up(value: float) -> float:
    """A value that may well have been meant as white."""
    return next((white for white in (1, 255, 4095, 65535) if value <= white), value)


def to_planes(image: Array, white: float, black: float = 0.0) -> Tensor:
    """The channels that show an image `(H, W)` or `(H, W, C)`, as `(C, 1, H, W)` in float32, without transparency."""
    channels = image[..., None] if image.ndim == 2 else image[..., : COLOURS[image.shape[-1]]]
    planes = np.moveaxis(channels, -1, 0).astype(np.float32)
    planes -= np.float32(black)
    planes /= np.float32(white - black)
    return torch.from_numpy(planes)[:, None]


def from_planes(planes: Tensor, image: Array, white: float, black: float = 0.0) -> Array:
    """An image like `image`, of its dtype and shape and with its transparency, that shows `planes` `(C, 1, H, W)`.

    Integers are rounded, and stay between black and white, or within what `image` has beyond.
    """
    result = image.copy()
    channels = result[..., None] if image.ndim == 2 else result
    for index, plane in enumerate(planes[:, 0]):
        channels[..., index] = _stored(plane.numpy(), channels[..., index], white, black)
    return result


def _stored(values: NDArray[np.float32], like: Array, white: float, black: float) -> Array:
    scaled = values.astype(np.float64) * (white - black) + black
    if np.issubdtype(like.dtype, np.integer):
        scaled = np.rint(scaled).clip(min(black, int(like.min())), max(white, int(like.max())))
    with np.errstate(over="ignore"):  # whoever writes it looks for infinity
        return scaled.astype(like.dtype)
