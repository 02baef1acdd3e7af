"""PNG files, read back by another program."""

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipspline.formats.png import data_uri, encode

Image = pytest.importorskip("PIL.Image")


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_grey_pixels_come_back(height, width, seed):
    """Any size, any values, read by Pillow."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    with Image.open(io.BytesIO(encode(pixels))) as picture:
        picture.verify()
    with Image.open(io.BytesIO(encode(pixels))) as picture:
        assert picture.mode == "L"
        np.testing.assert_array_equal(np.asarray(picture), pixels)


def test_a_palette_gives_the_colours():
    palette = np.random.default_rng(0).integers(0, 256, (256, 3), dtype=np.uint8)
    pixels = np.arange(256, dtype=np.uint8).reshape(8, 32)
    with Image.open(io.BytesIO(encode(pixels, palette))) as picture:
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), palette[pixels])


def test_the_address_holds_the_file():
    pixels = np.eye(3, dtype=np.uint8)
    start, _, content = data_uri(pixels).partition(",")
    assert start == "data:image/png;base64"
    assert base64.b64decode(content) == encode(pixels)


def test_smooth_images_are_compressed():
    ramp = np.add.outer(np.arange(200), np.arange(200)).astype(np.uint8)
    assert len(encode(ramp)) < ramp.size / 20


@pytest.mark.parametrize("pixels", [np.zeros((2, 2)), np.zeros(4, np.uint8), np.zeros((0, 3), np.uint8)])
def test_other_arrays_are_refused(pixels):
    with pytest.raises(ValueError, match=r"^A PNG is made of uint8 or uint16 pixels .* but got "):
        encode(pixels)
