"""Images without a download."""

import pytest
import torch

from lipspline.formats.builtin import BUILTIN, camera, head, shepp_logan


def test_the_phantom_is_that_of_scikit_image():
    """The same drawing up to its outlines; mirrored or upside down it would differ several times as much."""
    phantom = pytest.importorskip("skimage.data").shepp_logan_phantom()
    ours, theirs = shepp_logan(400).double(), torch.from_numpy(phantom)
    distance = (ours - theirs).abs().mean()
    assert distance < 0.006
    assert (ours.flip(0) - theirs).abs().mean() > 4 * distance
    assert (ours.flip(1) - theirs).abs().mean() > 2 * distance


@pytest.mark.parametrize("size", [8, 33, 256])
def test_the_phantom_has_any_size_and_the_mean_of_its_ellipses(size):
    phantom = shepp_logan(size)
    assert phantom.shape == (size, size)
    assert 0 <= phantom.min() <= phantom.max() <= 1
    assert float(phantom.mean()) == pytest.approx(0.1221, abs=0.01)


def test_the_head_is_a_slice_with_maximum_one():
    pytest.importorskip("matplotlib")
    image = head()
    assert image.shape == (256, 256)
    assert (image.min(), image.max()) == (0, 1)
    assert float(image[120, 120]) > 0.2


def test_the_photograph_is_averaged_to_a_quarter():
    original = torch.from_numpy(pytest.importorskip("skimage.data").camera()) / 255
    assert camera().shape == (256, 256)
    assert float(camera()[3, 5]) == pytest.approx(float(original[6:8, 10:12].mean()), abs=1e-6)


def test_every_image_has_a_name():
    assert list(BUILTIN) == ["head", "phantom", "camera"]
