"""Pixels of any kind as planes, and back."""

import numpy as np
import pytest
import torch

from lipspline.formats.pixels import from_planes, to_planes, white_level

RNG = np.random.default_rng(0)
KINDS = [np.uint8, np.uint16, np.float16, np.float32, np.float64]


def picture(dtype, shape) -> np.ndarray:
    if np.issubdtype(dtype, np.integer):
        return RNG.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)
    return RNG.uniform(-0.1, 1.1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 2), (5, 7, 3), (5, 7, 4)])
def test_back_and_forth_nothing_changes(dtype, shape):
    image = picture(dtype, shape)
    white = white_level(image)
    result = from_planes(to_planes(image, white), image, white)
    assert result.dtype == image.dtype
    assert result.shape == image.shape
    if dtype == np.float64:
        np.testing.assert_allclose(result, image, atol=1e-7)  # denoisers compute in float32
    else:
        assert np.array_equal(result, image)


@pytest.mark.parametrize(("channels", "planes"), [(2, 1), (3, 3), (4, 3)])
def test_planes_are_the_colours_between_black_and_white(channels, planes):
    image = picture(np.uint8, (4, 6, channels))
    values = to_planes(image, 255)
    assert values.shape == (planes, 1, 4, 6)
    np.testing.assert_allclose(values[:, 0].numpy(), np.moveaxis(image, -1, 0)[:planes] / 255, rtol=1e-6)


@pytest.mark.parametrize("channels", [2, 4])
def test_transparency_is_kept(channels):
    image = picture(np.uint8, (4, 6, channels))
    result = from_planes(torch.zeros(channels - 1, 1, 4, 6), image, 255)
    assert np.array_equal(result[..., -1], image[..., -1])
    assert not result[..., :-1].any()


def test_integers_are_rounded_and_stay_in_the_range():
    image = np.array([[10, 20, 30, 300]], np.uint16)
    planes = torch.tensor([-0.5, 0.1006, 0.91, 1.5])[None, None, None]
    assert from_planes(planes, image, 255).tolist() == [[0, 26, 232, 300]]  # 300 was there, beyond white
    assert from_planes(planes, image, 4095).tolist() == [[0, 412, 3726, 4095]]


def test_signed_values_below_black_are_kept():
    image = np.array([[-1000, 3000]], np.int16)
    assert from_planes(torch.tensor([[[[-0.5, 0.5]]]]), image, 2000).tolist() == [[-1000, 1000]]


@pytest.mark.parametrize(
    ("image", "white", "message"),
    [
        (np.full((2, 2), 200.0), None, r"float64 values in \[200, 200\], but .* 1 for white.*--white 255"),
        (np.full((2, 2), -3.0), None, r"values in \[-3, -3\]"),
        (np.full((2, 2), 7), None, r"int64 with values in \[7, 7\] does not say which value is white"),
        (np.zeros((2, 2), np.uint8), 256, "white is 256, but the image holds uint8 values, at most 255"),
        (np.zeros((2, 2)), 0, "white must be a positive finite number, but is 0"),
    ],
)
def test_where_white_is_not_clear_it_must_be_said(image, white, message):
    with pytest.raises(ValueError, match=message):
        white_level(image, white)


def test_given_white_is_taken():
    assert white_level(np.full((2, 2), 200.0), 255) == 255
    assert white_level(np.full((2, 2), 7), 255) == 255
    assert white_level(np.full((2, 2), 1.7)) == 1  # noise may carry values beyond white
