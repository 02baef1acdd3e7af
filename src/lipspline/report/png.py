"""PNG files from 8-bit arrays with nothing but zlib: grey, or indices into a palette."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
GREY, INDEXED = 0, 3  # colour types of the format


def encode(pixels: Bytes, palette: Bytes | None = None) -> bytes:
    """A PNG file that shows `pixels (H, W)` as grey values, or as rows of `palette (N, 3)`.

    Rows are stored as differences to the row above (filter "up"), which smooth images compress better by.

    Example:
        >>> encode(np.zeros((2, 2), np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or 0 in pixels.shape:
        raise ValueError(f"A PNG is made of uint8 pixels (H, W), but got {pixels.dtype} of shape {pixels.shape}.")
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if palette is None else INDEXED, 0, 0, 0)
    above = np.vstack([np.zeros((1, width), np.uint8), pixels[:-1]])
    rows = np.hstack([np.full((height, 1), 2, np.uint8), pixels - above])
    chunks = [(b"IHDR", header)]
    if palette is not None:
        chunks.append((b"PLTE", np.ascontiguousarray(palette, np.uint8).tobytes()))
    chunks += [(b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def data_uri(pixels: Bytes, palette: Bytes | None = None) -> str:
    """The same as the `src` of an image that is its own file."""
    return "data:image/png;base64," + base64.b64encode(encode(pixels, palette)).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
