"""Gray pictures as volumes: one slice as PNG, a stack of pages as TIFF."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lipspline._infra import checks
from lipspline.formats import images
from lipspline.formats.guard import FileError, affordable, chosen, existing, reading
from lipspline.formats.volume import Volume

PNG, TIFF = (".png",), (".tif", ".tiff")
ENDINGS = (*PNG, *TIFF)
LARGEST = 65535  # of 16 bits


def read(path: str | Path, slices: slice = slice(None)) -> Volume:
    """Read a PNG picture as gray values in [0, 1], or the pages of a TIFF file as they are.

    Integers of a TIFF file are divided by their largest value too; floats are not changed.
    """
    path = existing(path, "picture")
    return _read_png(path, slices) if path.suffix.lower() in PNG else _read_tiff(path, slices)


def write(path: str | Path, volume: Volume) -> None:
    """Write one slice as PNG of 16 bit, from its least to its largest value; or a stack as TIFF in float32."""
    path = Path(path)
    if path.suffix.lower() in TIFF:
        pages = volume.slices.numpy()
        writer = checks.require("tifffile", "images", "Writing TIFF files")
        writer.imwrite(path, pages, photometric="minisblack", metadata=None)
        return
    if len(volume.slices) != 1:
        raise ValueError(
            f"A PNG file holds one slice, but there are {len(volume.slices)}. Choose one with --slices, or write .tif, "
            f".npy or .nii.gz."
        )
    image = volume.slices[0].double()
    low, high = image.min(), image.max()
    scaled = (image - low) / (high - low).clamp_min(torch.finfo(image.dtype).tiny) * LARGEST
    images.write(path, scaled.round().numpy().astype(np.uint16))


def _read_png(path: Path, slices: slice) -> Volume:
    pillow = checks.require("PIL.Image", "images", "Reading PNG files")
    chosen(path, 1, slices)
    with reading(path, "PNG"):
        with pillow.open(path, formats=("PNG",)) as picture:
            width, height = picture.size
        affordable(path, (height, width, 4), 8, "a picture")
        return _checked(path, images.gray(images.read(path))[None])


def _read_tiff(path: Path, slices: slice) -> Volume:
    tifffile = checks.require("tifffile", "images", "Reading TIFF files")
    with reading(path, "TIFF"), tifffile.TiffFile(path) as file:
        pages = file.pages
        numbers = chosen(path, len(pages), slices)
        return _checked(path, np.stack([_page(path, pages[number], len(numbers)) for number in numbers]))


def _page(path: Path, page: Any, count: int) -> np.ndarray:
    """One page as gray floats, checked before it is decoded."""
    if page.dtype is None or page.dtype.kind not in "iuf":
        raise FileError(f"{path} has a page of {page.dtype} values, not of gray numbers.")
    size = affordable(path, (count, *page.shape), max(8, page.dtype.itemsize), "pages")
    stored = sum(page.databytecounts)
    if page.compression == 1 and stored * count * 8 < size:
        raise FileError(f"{path} is truncated: a page of {page.shape} values has {stored} bytes.")
    if page.imagelength * page.imagewidth and (page.tilelength * page.tilewidth or 1) > 2**26:
        raise FileError(f"{path} has tiles of {page.tilelength} x {page.tilewidth} values.")
    image = page.asarray()
    return images.gray(image) if image.ndim in (2, 3) else image


def _checked(path: Path, stack: np.ndarray) -> Volume:
    if stack.ndim != 3 or not np.isfinite(stack).all():
        raise FileError(f"{path} has NaN or infinite values, or is no gray picture.")
    return Volume(torch.from_numpy(stack.astype(np.float32)))
