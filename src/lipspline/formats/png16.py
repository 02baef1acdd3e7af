"""PNG files with 16 bits a channel, which pillow writes only in gray and reads in colour only by half.

A decoder that is told that the bytes are in the other order drops the other half: two passes give both.
"""

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

HALVES = {"RGB;16B": ("RGB;16B", "RGB;16L"), "RGBA;16B": ("RGBA;16B", "RGBA;16L")}
"""How pillow must take the bytes to keep the high and the low half of each word."""


def has_words(picture: Any) -> bool:
    """Whether a picture opened by pillow, not yet decoded, has 16 bits a channel, and colour or transparency."""
    return _raw_mode(picture) in (*HALVES, "LA;16B")


def read(pillow: Any, path: Path) -> Words:
    """Read an image `(H, W, C)` of 16-bit words, C from 2 to 4."""
    with pillow.open(path) as picture:
        mode = _raw_mode(picture)
    if mode == "LA;16B":  # two words are as long as four bytes
        return _decoded(pillow, path, "RGBA").view(">u2").astype(np.uint16)
    high, low = (_decoded(pillow, path, half) for half in HALVES[mode])
    return np.stack([high, low], axis=-1).view(">u2")[..., 0].astype(np.uint16)


def encode(image: Words) -> bytes:
    """The bytes of a PNG file with an image `(H, W)` or `(H, W, C)` of 16-bit words, C from 2 to 4."""
    height, width = image.shape[:2]
    channels = image.size // (height * width)
    header = struct.pack(">IIBBBBB", width, height, 16, COLOR_TYPES[channels], 0, 0, 0)
    values = np.ascontiguousarray(image.reshape(height, width * channels), dtype=">u2").view(np.uint8)
    rows = np.empty((height, 1 + values.shape[1]), np.uint8)
    rows[:, 0] = 1  # each byte is stored as its difference to that of the pixel before
    rows[:, 1:] = values
    rows[:, 1 + 2 * channels :] -= values[:, : -2 * channels]
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _raw_mode(picture: Any) -> str:
    return str(picture.tile[0].args)


def _decoded(pillow: Any, path: Path, raw_mode: str) -> NDArray[np.uint8]:
    with pillow.open(path) as picture:
        picture.tile = [tile._replace(args=raw_mode) for tile in picture.tile]
        return np.array(picture)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
