"""Certificates of pooling, normalisation and rearrangements, against dense matrices."""

import math

import pytest
import torch
from layer_norms import dense, norm, upper
from torch import nn

from lipspline.certification.proof import certify


@pytest.mark.parametrize("layer", [nn.PixelShuffle(2), nn.PixelUnshuffle(2)])
def test_shuffles_keep_distances(layer: nn.Module):
    """Permutations: all singular values are one."""
    torch.testing.assert_close(
        torch.linalg.svdvals(dense(layer, 4, 4, 4)), torch.ones(64, dtype=torch.float64), atol=1e-12, rtol=0
    )
    assert upper(layer) == 1.0


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, None, 0), (3, 3, 0), (3, 1, 1), (3, 2, 1), (4, 2, 1)])
def test_average_pooling_has_the_norm_of_its_matrix(axes: int, kernel: int, stride: int | None, padding: int):
    """Windows that do not overlap: exactly 1/sqrt(pixels); others: near the norm on a large image."""
    layer = (nn.AvgPool1d if axes == 1 else nn.AvgPool2d)(kernel, stride, padding)
    bound = upper(layer)
    exact = norm(layer, 1, *[36 if axes == 1 else 18] * axes)
    assert exact <= bound * (1 + 1e-12)
    if (stride or kernel) == kernel:
        assert bound == pytest.approx(kernel ** (-axes / 2), rel=1e-8)
        assert bound == pytest.approx(exact, rel=1e-8)
    else:
        assert bound <= exact * 1.1


@pytest.mark.parametrize(
    "layer",
    [
        nn.AvgPool1d(3, 1, 1, count_include_pad=False),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        nn.AvgPool1d(2, 2, ceil_mode=True),
        nn.AvgPool2d(2, 2, ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=1),
    ],
)
def test_average_pooling_with_unequal_divisors_is_refused(layer: nn.Module):
    """Incomplete windows are divided by less, which raises the norm."""
    with pytest.raises(ValueError, match=r"average pooling only with"):
        certify(layer)


def test_average_pooling_without_padding_may_ignore_how_padding_counts():
    """Without padding the two ways to count are one."""
    assert upper(nn.AvgPool1d(2, count_include_pad=False)) == pytest.approx(2**-0.5, rel=1e-8)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "windows"),
    [(2, 2, 1, 1), (3, 3, 1, 1), (3, 1, 1, 3), (3, 2, 1, 2), (4, 2, 1, 2), (3, 2, 2, 3), (2, 3, 2, 1), (4, 4, 2, 2)],
)
def test_max_pooling_is_bounded_by_the_windows_a_pixel_is_in_and_reaches_it(
    kernel: int, stride: int, dilation: int, windows: int
):
    """A bump on one pixel raises all the windows that see it: ratio sqrt(windows), exactly."""
    layer = nn.MaxPool1d(kernel, stride, dilation=dilation)
    assert upper(layer) == pytest.approx(math.sqrt(windows), rel=1e-14)
    assert upper(layer) >= math.sqrt(windows)
    x = torch.zeros(1, 1, 60, dtype=torch.float64)
    bumps = torch.eye(60, dtype=torch.float64)[:, None]
    assert float((layer(x + bumps) - layer(x)).flatten(1).norm(dim=1).max()) == pytest.approx(math.sqrt(windows))


def test_max_pooling_of_images_multiplies_the_axes():
    """Two windows along one axis, one along the other."""
    assert upper(nn.MaxPool2d((4, 3), (2, 3))) == pytest.approx(math.sqrt(2))
    assert upper(nn.MaxPool2d(2)) == 1.0


@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalisation_has_its_largest_gain(affine: bool):
    """|γ| / sqrt(var + ε), channel by channel, in eval mode."""
    layer = nn.BatchNorm2d(3, affine=affine)
    layer.running_var.copy_(torch.tensor([0.25, 4.0, 1.0]))
    if affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.1, -3.0, 1.0]))
    exact = norm(layer.eval(), 3, 2, 2)
    assert exact * (1 - 1e-14) <= upper(layer) <= exact * (1 + 1e-12)
    assert exact == pytest.approx(1.5 if affine else 2.0, rel=1e-4)


def test_batch_normalisation_without_statistics_is_refused():
    """Its output depends on the batch."""
    with pytest.raises(ValueError, match=r"^Batch normalisation without running statistics has no Lipschitz bound\.$"):
        certify(nn.BatchNorm1d(3, track_running_stats=False))
