"""Numbers as shades of grey and as colours, and PNG files, read back by another program."""

import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipspline.report.images import Window, data_uri, encode_png, magnitude, palette, spanning

Image = pytest.importorskip("PIL.Image")


def test_shades_are_those_of_the_formula():
    pixels = torch.linspace(-1, 3, 50).view(5, 10)
    wanted = np.clip(np.rint((pixels.double().numpy() - 0.5) / 1.5 * 255), 0, 255)
    np.testing.assert_array_equal(Window(0.5, 2.0).bytes(pixels), wanted)


@pytest.mark.parametrize(
    ("pixels", "wanted"), [([0.2, 0.7], (0.0, 0.7)), ([-1.0, 2.0], (-1.0, 2.0)), ([0.0, 0.0], (0.0, 1.0))]
)
def test_the_window_holds_zero_and_all_values(pixels, wanted):
    window = spanning(torch.tensor(pixels, dtype=torch.float64))
    assert (window.low, window.high) == wanted


def test_the_colours_grow_lighter_from_end_to_end():
    """So that they can be read in grey too."""
    colours = palette()
    assert colours.shape == (256, 3)
    lightness = colours @ np.array([0.2126, 0.7152, 0.0722])
    assert np.all(np.diff(lightness) > -0.5)
    assert lightness[0] < 10
    assert lightness[-1] > 240


def test_complex_images_are_shown_by_their_modulus():
    assert torch.equal(magnitude(torch.full((1, 1, 2, 2), 3 - 4j)), torch.full((2, 2), 5.0))


def test_a_batch_is_refused():
    with pytest.raises(ValueError, match=r"one image \(H, W\), but got shape \(2, 1, 4, 4\)\. Pick one"):
        magnitude(torch.zeros(2, 1, 4, 4))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_grey_pixels_come_back(height, width, seed):
    """Any size, any values, read by Pillow."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    with Image.open(io.BytesIO(encode_png(pixels))) as picture:
        picture.verify()
    with Image.open(io.BytesIO(encode_png(pixels))) as picture:
        assert picture.mode == "L"
        np.testing.assert_array_equal(np.asarray(picture), pixels)


def test_a_palette_gives_the_colours():
    palette = np.random.default_rng(0).integers(0, 256, (256, 3), dtype=np.uint8)
    pixels = np.arange(256, dtype=np.uint8).reshape(8, 32)
    with Image.open(io.BytesIO(encode_png(pixels, palette))) as picture:
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), palette[pixels])


def test_the_address_holds_the_file():
    pixels = np.eye(3, dtype=np.uint8)
    start, _, content = data_uri(pixels).partition(",")
    assert start == "data:image/png;base64"
    assert base64.b64decode(content) == encode_png(pixels)


def test_smooth_images_are_compressed():
    ramp = np.add.outer(np.arange(200), np.arange(200)).astype(np.uint8)
    assert len(encode_png(ramp)) < ramp.size / 20


@pytest.mark.parametrize("pixels", [np.zeros((2, 2)), np.zeros(4, np.uint8), np.zeros((0, 3), np.uint8)])
def test_other_arrays_are_refused(pixels):
    with pytest.raises(ValueError, match=r"^A PNG is made of uint8 pixels \(H, W\), but got "):
        encode_png(pixels)
