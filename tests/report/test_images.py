"""Numbers as shades of grey and as colours."""

import numpy as np
import pytest
import torch

from lipspline.report.drawing import Window, magnitude, palette, spanning


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
