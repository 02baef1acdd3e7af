"""PNG files: the one encoder, and a reader of 16 bits a channel, of which pillow reads only half in colour."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint16]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""The number that a PNG header has for each number of channels."""
INDEXED = 3
"""The colour type of a picture with a palette."""
FILTER_UP = 2
"""Rows are stored as differences to the row above, which compresses smooth images better."""

HALVES = {"RGB;16B": ("RGB;16B", "RGB;16L"), "RGBA;16B": ("RGBA;16B", "RGBA;16L")}
"""How pillow must take the bytes to keep the high and the low half of each word.

A decoder that is told that the bytes are in the other order drops the other half: two passes give both."""


def encode(pixels: NDArray[Any], palette: NDArray[np.uint8] | None = None) -> bytes:
    """The bytes of a PNG file with 8 or 16 bits a channel; nothing but zlib is needed.

    Args:
        pixels: uint8 or uint16 `(H, W)`, or `(H, W, C)` with C from 1 to 4: gray, gray and transparency, colour, colour
            and transparency.
        palette: colours `(N, 3)` of which `pixels`, then uint8 `(H, W)`, are the numbers.

    Example:
        >>> encode(np.zeros((2, 2), np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.dtype not in (np.uint8, np.uint16) or pixels.ndim not in (2, 3) or 0 in pixels.shape or channels > 4:
        raise ValueError(
            f"A PNG is made of uint8 or uint16 pixels (H, W) or (H, W, C), C from 1 to 4, but got {pixels.dtype} of "
            f"shape {pixels.shape}."
        )
    height, width = pixels.shape[:2]
    color_type = COLOR_TYPES[channels] if palette is None else INDEXED
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, color_type, 0, 0, 0)
    values = np.ascontiguousarray(pixels.reshape(height, -1), pixels.dtype.newbyteorder(">")).view(np.uint8)
    rows = np.empty((height, 1 + values.shape[1]), np.uint8)
    rows[:, 0], rows[0, 1:] = FILTER_UP, values[0]
    rows[1:, 1:] = values[1:] - values[:-1]
    chunks = [(b"IHDR", header)]
    if palette is not None:
        chunks.append((b"PLTE", np.ascontiguousarray(palette, np.uint8).tobytes()))
    chunks += [(b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def data_uri(pixels: NDArray[Any], palette: NDArray[np.uint8] | None = None) -> str:
    """The file of `encode` as the `src` of an image in a page that needs no other file."""
    return "data:image/png;base64," + base64.b64encode(encode(pixels, palette)).decode("ascii")


def has_words(picture: Any) -> bool:
    """Whether a picture opened by pillow, not yet decoded, has 16 bits a channel, and colour or transparency."""
    return _raw_mode(picture) in (*HALVES, "LA;16B")


def read_words(pillow: Any, path: Path) -> Words:
    """Read an image `(H, W, C)` of 16-bit words, C from 2 to 4."""
    with pillow.open(path) as picture:
        mode = _raw_mode(picture)
    if mode == "LA;16B":  # two words are as long as four bytes
        return _decoded(pillow, path, "RGBA").view(">u2").astype(np.uint16)
    high, low = (_decoded(pillow, path, half) for half in HALVES[mode])
    return np.stack([high, low], axis=-1).view(">u2")[..., 0].astype(np.uint16)


def _raw_mode(picture: Any) -> str:
    return str(picture.tile[0].args)


def _decoded(pillow: Any, path: Path, raw_mode: str) -> NDArray[np.uint8]:
    with pillow.open(path) as picture:
        picture.tile = [tile._replace(args=raw_mode) for tile in picture.tile]
        return np.array(picture)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
