"""Certificates of convolutions, against dense matrices and frequencies [lip_linear_layers]."""

import re

import pytest
import torch
from layer_norms import SAMPLED, norm, upper
from torch import nn

from lipspline.certification.proof import certify


def frequency_norm(layer: nn.Conv1d | nn.Conv2d, samples: int = 512) -> float:
    """Largest singular value of the response on a fine grid of frequencies, group by group: the norm on the plane."""
    largest = 0.0
    for group in layer.weight.detach().double().chunk(layer.groups):
        size = (samples,) if group.ndim == 3 else (samples // 4, samples // 4)
        axes = tuple(range(2, group.ndim))
        response = torch.fft.fftn(group, s=size, dim=axes).flatten(2).movedim(2, 0)
        largest = max(largest, float(torch.linalg.matrix_norm(response, ord=2).max()))
    return largest


CONVOLUTIONS = [
    (kind, c_in, c_out, kernel, groups)
    for kind in (nn.Conv1d, nn.Conv2d)
    for c_in, c_out, kernel, groups in [
        (1, 1, 1, 1),
        (3, 2, 1, 1),
        (2, 3, 3, 1),
        (1, 1, 5, 1),
        (4, 6, 3, 2),
        (4, 4, 2, 4),
    ]
]


@pytest.mark.parametrize(("kind", "c_in", "c_out", "kernel", "groups"), CONVOLUTIONS)
def test_a_convolution_has_the_norm_of_its_response(kind, c_in: int, c_out: int, kernel: int, groups: int):
    """[lip_linear_layers]: the operator's norm over all frequencies; groups take the largest, not the product."""
    layer = kind(c_in, c_out, kernel, groups=groups, padding="same")
    exact = frequency_norm(layer)
    assert exact * (1 - 1e-12) <= upper(layer) <= exact * (1.001 if kernel == 1 else SAMPLED)


def test_groups_take_the_maximum_in_a_closed_form():
    """Two groups that scale by 2 and by 3: the norm is 3, not 6."""
    layer = nn.Conv2d(2, 2, 1, groups=2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 3.0]).reshape(2, 1, 1, 1))
    assert 3.0 <= upper(layer) <= 3.0 * (1 + 1e-9)


def test_the_bound_is_that_of_the_operator_and_not_of_the_flattened_kernel():
    """An averaging kernel of 3x3 pixels: norm 1 for images, 1/3 as a flattened matrix."""
    layer = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    nn.init.constant_(layer.weight, 1 / 9)
    assert 1.0 - 1e-7 <= upper(layer) <= SAMPLED


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_bound_holds_for_every_image_size(padding_mode, kernel: int, dilation: int):
    """One number for all sizes and both paddings, and large circular images come near it."""
    layer = nn.Conv1d(2, 3, kernel, padding="same", padding_mode=padding_mode, dilation=dilation)
    bound = upper(layer)
    smallest = dilation * (kernel - 1) + 1
    norms = [norm(layer, 2, size) for size in (*range(smallest, smallest + 6), 48)]
    assert max(norms) <= bound * (1 + 1e-12)
    assert max(norms) >= bound / 1.05


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (3, 0), (5, 2), ((3, 5), (1, 2)), (2, 0)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 1), ((1, 2), 1), (2, 2), (1, 2)])
def test_two_dimensional_convolutions_stay_below_the_bound(padding_mode, kernel, padding, stride, dilation):
    """Stride, dilation and padding against the dense matrix, on sizes that the stride divides and on others."""
    layer = nn.Conv2d(
        *(2, 3, kernel), padding=padding, padding_mode=padding_mode, stride=stride, dilation=dilation
    ).double()
    bound = upper(layer)
    norms = [norm(layer, 2, *size) for size in ((9, 9), (10, 10), (12, 12), (9, 10))]
    assert max(norms) <= bound * (1 + 1e-12)
    lost = 1.35 if padding_mode == "zeros" or stride == 1 else 3.0  # a circular stride is bounded by that of stride 1
    assert max(norms) >= bound / (lost + (dilation - 1) / 2)  # small images lose some of the norm at their borders


def test_a_stride_without_overlap_is_a_matrix_of_patches():
    """Kernel size = stride: the norm is that of the flattened kernel, exactly."""
    layer = nn.Conv2d(2, 5, 3, stride=3)
    exact = float(torch.linalg.matrix_norm(layer.weight.double().flatten(1), ord=2))
    assert exact * (1 - 1e-13) <= upper(layer) <= exact * 1.001
    assert norm(layer, 2, 6, 6) == pytest.approx(exact)


@pytest.mark.parametrize("size", [4, 5, 7])
def test_circular_strides_hold_on_sizes_that_the_stride_does_not_divide(size: int):
    """Around the border of a circular image windows overlap that never do on the plane: [1 1 1] with stride 3."""
    layer = nn.Conv1d(1, 1, 3, stride=3, padding=1, padding_mode="circular", bias=False)
    nn.init.ones_(layer.weight)
    assert norm(layer, 1, size) <= upper(layer) * (1 + 1e-12)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_other_paddings_are_refused(mode):
    """They repeat pixels."""
    wanted = f"padding_mode of a certified convolution must be one of 'zeros', 'circular', but is {mode!r}."
    with pytest.raises(ValueError, match="^" + re.escape(wanted)):
        certify(nn.Conv2d(1, 1, 3, padding=1, padding_mode=mode))


def test_circular_padding_that_repeats_pixels_is_refused():
    """The identity kernel with circular padding 2 copies pixels: its norm is not 1."""
    layer = nn.Conv1d(1, 1, 1, padding=2, padding_mode="circular", bias=False)
    nn.init.ones_(layer.weight)
    assert norm(layer, 1, 4) > 1.4
    with pytest.raises(ValueError, match=r"kernel 1 and padding 2 repeats pixels.*Use padding at most 0\.$"):
        certify(layer.float())


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize(("stride", "padding", "output_padding", "dilation", "groups"), [
    (1, 0, 0, 1, 1), (1, 1, 0, 1, 2), (2, 1, 1, 1, 1), (2, 0, 0, 1, 2), (3, 1, 0, 2, 1),
])  # fmt: skip
def test_a_transposed_convolution_has_the_norm_of_the_convolution_it_transposes(
    axes: int, stride: int, padding: int, output_padding: int, dilation: int, groups: int
):
    """Against the dense matrix; a cropped border loses some of the norm."""
    kind = nn.ConvTranspose1d if axes == 1 else nn.ConvTranspose2d
    layer = kind(4, 2, 3, stride, padding, output_padding, groups=groups, dilation=dilation)
    bound = upper(layer)
    exact = norm(layer, 4, *[12 if axes == 1 else 6] * axes)
    assert exact <= bound * (1 + 1e-12)
    assert exact >= bound / 1.3
