"""The noise level of an image: of noise alone, behind smooth images, behind photographs."""

import os
from pathlib import Path

import pytest
import torch

from lipspline.formats import datasets
from lipspline.functional.noise import estimate_noise, third_differences


def white_noise(*shape, seed=0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("shape", "tolerance"), [((60, 60), 0.08), ((200, 300), 0.03), ((3, 1, 200, 200), 0.03)])
def test_the_level_of_noise_alone_is_found(shape, tolerance):
    mean = sum(estimate_noise(0.2 * white_noise(*shape, seed=seed)) for seed in range(8)) / 8
    assert mean == pytest.approx(0.2, rel=tolerance)


def test_it_scales_with_the_image_and_ignores_polynomials():
    noise, t = white_noise(150, 150).double(), torch.linspace(-1, 1, 150, dtype=torch.float64)
    level = estimate_noise(noise)
    assert estimate_noise(3 * noise) == pytest.approx(3 * level)
    smooth = 5 * t[:, None] ** 2 * t - 2 * t[:, None] + 7
    assert estimate_noise(noise + smooth) == pytest.approx(level)
    assert estimate_noise(smooth + 0 * noise) < 1e-12


def test_third_differences_have_gain_one():
    taps = torch.tensor([1.0, -3.0, 3.0, -1.0])
    expected = torch.outer(taps, taps) / 20
    impulse = torch.zeros(1, 1, 7, 7)
    impulse[..., 3, 3] = 1
    torch.testing.assert_close(third_differences(impulse)[0, 0].flip(0, 1), expected)
    assert float(expected.square().sum()) == pytest.approx(1)


def test_edges_and_texture_in_a_part_of_the_image_do_not_matter():
    image = torch.zeros(256, 256)
    image[64:128, 64:200] = 1
    image[160:, 160:] = torch.rand(96, 96)
    assert estimate_noise(image + 0.05 * white_noise(256, 256)) == pytest.approx(0.05, rel=0.06)


def test_clipped_parts_are_left_out():
    """Where an image is saturated there is no noise, whatever there is elsewhere."""
    image = torch.cat([torch.full((100, 256), 1.2), torch.full((56, 256), -0.2), torch.full((100, 256), 0.5)])
    noisy = (image + 0.05 * white_noise(256, 256)).clamp(0, 1)
    assert estimate_noise(noisy) == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("level", [10, 15, 25])
def test_it_is_close_on_photographs(level):
    """Mean over images within 8 percent; too high rather than too low, as texture looks like noise."""
    folder = os.environ.get("LIPSPLINE_DATA")
    if not folder or not (Path(folder) / "bsd").is_dir():
        pytest.skip("LIPSPLINE_DATA names no folder with bsd/ in it")
    clean = datasets.read_folder(Path(folder) / "bsd/bsd68", 12)
    found = [255 * estimate_noise(image.noisy) for image in datasets.noisy_images(clean, level / 255)]
    assert level * 0.98 <= sum(found) / len(found) <= level * 1.08


def test_an_image_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match=r"image of 12x400 pixels cannot be estimated; it needs 20x20"):
        estimate_noise(torch.zeros(12, 400))
