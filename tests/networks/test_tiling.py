"""A tiled image is the untiled one."""

import itertools

import pytest
import torch
from torch import nn

from lipspline.networks.builders import denoiser
from lipspline.networks.inference import plain
from lipspline.networks.tiling import apply_tiled, reach_of_a_border, receptive_radius


def network(padding_mode: str, kernel: int = 3, depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    widths = [1, *[4] * (depth - 1), 1]
    layers: list[nn.Module] = []
    for c_in, c_out in itertools.pairwise(widths):
        layers += [nn.Conv2d(c_in, c_out, kernel, padding=kernel // 2, padding_mode=padding_mode), nn.Tanh()]
    return nn.Sequential(*layers)


SIZES = [
    ((1, 1, 50, 70), 16),
    ((2, 1, 33, 20), 32),
    ((1, 1, 17, 17), 8),
    ((1, 1, 190, 260), 16),
    ((1, 1, 12, 2000), 64),
]


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize(("shape", "tile"), SIZES)
def test_tiles_give_the_untiled_result(padding_mode, kernel, shape, tile):
    model, image = network(padding_mode, kernel), torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(apply_tiled(model, image, tile), model(image), rtol=0, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("options", "shape", "tile"),
    [
        ({}, (1, 1, 200, 301), 128),
        ({}, (1, 1, 146, 134), 32),
        ({"channels": 64, "depth": 8}, (1, 1, 203, 301), 128),
        ({"channels": 64, "depth": 8}, (1, 1, 214, 190), 128),
        ({"padding_mode": "circular"}, (1, 1, 180, 150), 130),
        ({"colors": 3, "kernel": 5}, (2, 3, 90, 61), 40),
        ({"activation": "gs"}, (1, 1, 161, 290), 150),
        ({"activation": "hh", "channels": 10}, (1, 1, 57, 700), 64),
    ],
)
def test_tiles_of_a_denoiser_are_the_untiled_result_bit_by_bit(options, shape, tile, threads):
    torch.manual_seed(0)
    model, image = plain(denoiser(**{"channels": 16, "depth": 4, **options})), torch.rand(shape)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            assert torch.equal(apply_tiled(model, image, tile), model(image))
    finally:
        torch.set_num_threads(before)


def test_memory_stays_flat():
    """No layer sees more than a window, whatever the size of the image."""
    model, seen = network("zeros"), set()
    model[0].register_forward_pre_hook(lambda _, inputs: seen.add(tuple(inputs[0].shape)))
    for side in (300, 700):
        apply_tiled(model, torch.zeros(1, 1, side, side), tile=200)
    assert seen == {(1, 1, 208, 208)}


def test_a_margin_smaller_than_the_receptive_radius_shows():
    """The test above can fail: one pixel less of margin changes the seams."""
    model, image = network("zeros"), torch.randn(1, 1, 40, 40)
    cut = image[..., :20, :]
    radius = receptive_radius(model)
    assert radius == 3
    whole, part = model(image), model(cut)
    assert torch.allclose(whole[..., : 20 - radius, :], part[..., : 20 - radius, :], atol=1e-6)
    assert not torch.allclose(whole[..., : 20 - radius + 1, :], part[..., : 20 - radius + 1, :], atol=1e-6)


def test_strided_convolutions_are_refused():
    with pytest.raises(ValueError, match="stride 1"):
        apply_tiled(nn.Conv2d(1, 1, 3, stride=2), torch.zeros(1, 1, 64, 64), tile=16)


def test_the_reach_of_a_border_counts_squares():
    """Pixels 0 to 3 share the round-off of pixel 0 in every other layer: 1, 4, 5, 8, 9, 12, 13 and 14."""
    model = plain(denoiser(channels=16, depth=8))
    assert receptive_radius(model) == 8
    assert reach_of_a_border(model) == 14
    assert reach_of_a_border(network("zeros")) == 3
