"""Rules of affine layers, against dense matrices, singular values and frequencies [lip_linear_layers]."""

import itertools

import pytest
import torch
from layer_norms import SAMPLED, dense, learned, norm, upper
from torch import nn

from lipspline.certification import certify
from lipspline.nn import conv1d, conv2d, linear


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
    norms = [norm(layer, 2, *size) for size in ((9, 9), (9, 10), (12, 12))]
    assert max(norms) <= bound * (1 + 1e-12)
    lost = 1.35 if padding_mode == "zeros" or stride == 1 else 3.0  # a circular stride is bounded by that of stride 1
    assert max(norms) >= bound / (lost + (dilation - 1) / 2)  # small images lose some of the norm at their borders


def test_a_stride_without_overlap_is_a_matrix_of_patches():
    """Kernel size = stride: the norm is that of the flattened kernel, exactly."""
    layer = nn.Conv2d(2, 5, 3, stride=3)
    exact = float(torch.linalg.matrix_norm(layer.weight.detach().double().flatten(1), ord=2))
    assert exact * (1 - 1e-13) <= upper(layer) <= exact * 1.001
    assert norm(layer, 2, 6, 6) == pytest.approx(exact)


@pytest.mark.parametrize("size", [4, 5, 7])
def test_circular_strides_hold_on_sizes_that_the_stride_does_not_divide(size: int):
    """Around the border of a circular image windows overlap that never do on the plane: [1 1 1] with stride 3."""
    layer = nn.Conv1d(1, 1, 3, stride=3, padding=1, padding_mode="circular", bias=False)
    nn.init.ones_(layer.weight)
    assert norm(layer, 1, size) <= upper(layer) * (1 + 1e-12)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize(("kernel", "padding", "stride"), [(3, 1, 1), (5, 2, 2), (1, 2, 1), (2, 1, 3), (1, 2, 2)])
def test_paddings_that_show_pixels_twice_are_bounded(mode, axes: int, kernel: int, padding: int, stride: int):
    """On small images, where most pixels are near two borders; the identity kernel reaches the bound."""
    kind = nn.Conv1d if axes == 1 else nn.Conv2d
    layer = kind(1, 1, kernel, stride, padding, padding_mode=mode, bias=False).double()
    if kernel == 1:
        nn.init.ones_(layer.weight)
    norms = [norm(layer, 1, *[size] * axes) for size in range(max(kernel - 2 * padding, padding + 1, 1), 8)]
    assert max(norms) <= upper(layer) * (1 + 1e-12)
    if kernel == 1 and stride == 1 and mode != "replicate":  # which sees one pixel most often in images of one pixel
        assert max(norms) == pytest.approx(upper(layer))


def test_the_padding_that_runs_is_not_the_one_written_there_later():
    """torch pads a circular image by what it computed at construction, and a convolution with zeros by `padding`."""
    circular = nn.Conv1d(1, 1, 1, padding=2, padding_mode="circular", bias=False).double()
    nn.init.ones_(circular.weight)
    assert norm(circular, 1, 4) > 1.4
    circular.padding = (0,)
    assert norm(circular, 1, 4) <= upper(circular) * (1 + 1e-12)
    circular._reversed_padding_repeated_twice = [0, 3]
    assert norm(circular, 1, 3) == pytest.approx(2**0.5)
    assert norm(circular, 1, 3) <= upper(circular) * (1 + 1e-12)
    late = nn.Conv1d(1, 1, 3, padding=1, padding_mode="zeros").double()
    late.padding_mode = "replicate"
    assert norm(late, 1, 4) <= upper(late) * (1 + 1e-12)


@pytest.mark.parametrize(("name", "value"), [
    ("stride", 2), ("stride", (3,)), ("dilation", (2, 1)), ("padding", 5), ("groups", 2), ("kernel_size", (9, 9)),
])  # fmt: skip
def test_sizes_written_later_are_those_that_count(name: str, value):
    """The rule reads what forward reads."""
    layer = nn.Conv2d(4, 4, 3, padding=1).double()
    if name == "groups":
        layer.weight = nn.Parameter(layer.weight[:, :2].clone())
    setattr(layer, name, value)
    exact = norm(layer, 4, 8, 8)
    assert exact <= upper(layer) * (1 + 1e-12)
    assert exact >= upper(layer) / 2


@pytest.mark.parametrize(("name", "value", "complaint"), [
    ("stride", 1.5, r"stride must be an integer of at least 1, or one for each of 2 axes, but is 1\.5"),
    ("dilation", (1, 2, 3), r"dilation must be an integer of at least 1, or one for each of 2 axes"),
    ("padding_mode", "antireflect", "padding_mode of a certified convolution must be one of"),
    ("_reversed_padding_repeated_twice", [1, 2, 3], "padding must hold two integers for each axis"),
    ("_reversed_padding_repeated_twice", [-1, 2, 0, 0], "circular padding of less than nothing"),
    ("weight", nn.Parameter(torch.ones(4)), r"must have 4 dimensions, but has shape \(4,\)"),
    ("bias", nn.Parameter(torch.ones(2, 4)), "bias must be a vector or None"),
])  # fmt: skip
def test_sizes_that_make_no_sense_are_refused(name: str, value, complaint: str):
    """In words, whatever stands there."""
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    setattr(layer, name, value)
    with pytest.raises(ValueError, match=complaint):
        certify(layer)


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


def test_convolutions_of_volumes_have_the_norm_of_their_matrix():
    """Three axes, as two: the layer and its transpose."""
    layer = nn.Conv3d(2, 2, 2, stride=2).double()
    assert norm(layer, 2, 4, 4, 4) == pytest.approx(upper(layer), rel=1e-3)
    adjoint = nn.ConvTranspose3d(2, 2, 2, stride=2).double()
    assert norm(adjoint, 2, 2, 2, 2) == pytest.approx(upper(adjoint), rel=1e-3)


PADDINGS = {
    "constant": [nn.ConstantPad1d(2, 3.0), nn.ZeroPad2d((1, 0, 2, 1)), nn.ConstantPad2d((-1, 2, 0, 1), 0.5)],
    "reflect": [
        nn.ReflectionPad1d(2),
        nn.ReflectionPad1d((2, 0)),
        nn.ReflectionPad2d((1, 2, 0, 1)),
        nn.ReflectionPad2d(2),
    ],
    "replicate": [nn.ReplicationPad1d((2, 0)), nn.ReplicationPad1d(3), nn.ReplicationPad2d((1, 2, 0, 1))],
    "circular": [nn.CircularPad1d(2), nn.CircularPad1d((0, 1)), nn.CircularPad2d((1, 2, 0, 1))],
    "volumes": [nn.ReflectionPad3d(1), nn.ReplicationPad3d(1), nn.ZeroPad3d(1), nn.CircularPad3d(1)],
}


@pytest.mark.parametrize("layer", [layer for layers in PADDINGS.values() for layer in layers], ids=str)
def test_a_padding_has_the_norm_of_its_matrix_on_the_worst_image(layer: nn.Module):
    """The largest norm over all small sizes is the bound."""
    axes = int(type(layer).__name__[-2])
    norms = []
    for size in itertools.product(*[range(1, 6 if axes < 3 else 4)] * axes):
        try:
            norms.append(norm(layer, 1, *size))
        except RuntimeError:  # torch asks for images larger than what they are padded by
            continue
    assert upper(layer) == pytest.approx(max(norms), rel=1e-12)
    assert upper(layer) >= max(norms) * (1 - 1e-15)


@pytest.mark.parametrize("factor", [1, 2, 3, (2, 3), (5, 1), 41])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_upsampling_repeats_pixels(factor, mode: str):
    """By the root of the number of copies, which a factor without axes leaves open; 41 is rounded in float32."""
    layer = nn.Upsample(scale_factor=factor, mode=mode)
    sizes = (2, 3) if isinstance(factor, tuple) else (3,)
    exact = norm(layer, 1, *sizes) if factor != 41 else float(layer(torch.eye(3)[:, None]).sum(dim=2).max()) ** 0.5
    assert exact <= upper(layer) * (1 + 1e-12)
    if isinstance(factor, tuple):
        assert upper(layer) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    "layer", [nn.Upsample(scale_factor=1.5), nn.Upsample(size=4), nn.Upsample(scale_factor=2, mode="bilinear")]
)
def test_other_upsampling_is_refused(layer: nn.Module):
    """With what is known."""
    with pytest.raises(ValueError, match=r"by whole factors|must be one of 'nearest', 'nearest-exact'"):
        certify(layer)


@pytest.mark.parametrize("output", [1, 2, 3, (2, None), (1, 3)])
@pytest.mark.parametrize("kind", [nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d])
def test_adaptive_average_pooling_has_the_norm_of_its_matrix_on_the_worst_image(kind, output):
    """That of an image of one pixel."""
    axes = int(kind.__name__[-2])
    if axes == 1 and isinstance(output, tuple):
        return
    layer = kind(output)
    norms = [norm(layer, 1, *size) for size in itertools.product(*[range(1, 6)] * axes)]
    assert upper(layer) == pytest.approx(max(norms), rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 5), (20, 30), (64, 10)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_dense_layer_has_its_largest_singular_value(shape: tuple[int, int], size: float):
    """[lip_linear_layers]: equal up to outward rounding, and never below."""
    layer = nn.Linear(*shape)
    with torch.no_grad():
        layer.weight.mul_(size)
    exact = float(torch.linalg.matrix_norm(layer.weight.double(), ord=2))
    assert exact * (1 - 1e-13) <= upper(layer) <= exact * (1 + 1e-8)


def test_a_diagonal_layer_is_bounded_by_its_largest_entry():
    """A closed form: no factorization to trust."""
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([0.5, -2.0, 1.0])))
    assert 2.0 <= upper(layer) <= 2.0 * (1 + 1e-9)


def test_a_zero_layer_has_the_bound_zero():
    """Nothing passes."""
    layer = nn.Linear(3, 3)
    nn.init.zeros_(layer.weight)
    assert 0 <= upper(layer) < 1e-100


@pytest.mark.parametrize("constraint", ["orthonormal", "spectral"])
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
@pytest.mark.parametrize("lipschitz", [1.0, 0.5, 3.0])
def test_constrained_dense_layers_reach_their_target(constraint, shape: tuple[int, int], lipschitz: float):
    """[lip_linear_layers]: the bound is the target, to rounding of float32."""
    layer = linear(*shape, constraint=constraint, lipschitz=lipschitz)
    assert upper(layer) == pytest.approx(lipschitz, rel=1e-6)


@pytest.mark.parametrize("make", [conv1d, conv2d])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_orthogonal_convolutions_are_certified_one(make, padding_mode, kernel: int, stride: int):
    """[lip_linear_layers]: BCOP kernels, to 1e-5 and on both sides."""
    layer = make(4, 4, kernel, padding_mode=padding_mode, stride=stride)
    assert upper(layer) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_spectral_convolutions_are_certified_at_most_one_and_not_much_below(padding_mode):
    """[lip_linear_layers]: divided by an upper bound."""
    layer = conv2d(3, 5, 3, constraint="spectral", padding_mode=padding_mode)
    assert 1 / SAMPLED <= upper(layer) <= 1 + 1e-6


def test_the_bound_of_an_orthogonal_stack_is_one():
    """Eight orthogonal convolutions and learned splines, as in [sec:PnPReconstruction]: 1, up to rounding."""
    widths = [1, 16, 16, 16, 16, 16, 16, 16, 1]
    layers = [layer for c, d in itertools.pairwise(widths) for layer in (conv2d(c, d, 3), learned(d))]
    certificate = certify(nn.Sequential(*layers[:-1]))
    assert certificate.upper == pytest.approx(1.0, abs=1e-4)
    assert len(certificate.layers) == 15


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


@pytest.mark.parametrize(("name", "value"), [("eps", -1e-3), ("running_var", torch.tensor([-1.0, 1.0, 1.0]))])
def test_batch_normalisation_by_a_negative_variance_is_refused(name: str, value):
    """The root of a number near zero may be anything."""
    layer = nn.BatchNorm1d(3)
    setattr(layer, name, value)
    with pytest.raises(ValueError, match=r"negative variance or eps"):
        certify(layer)
