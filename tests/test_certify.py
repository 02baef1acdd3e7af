"""Certificates against dense matrices, closed forms and searches for counterexamples."""

import itertools
import json
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipspline.certify import Certificate, LayerBound, add_up, certify, declare, multiply_up, register_rule
from lipspline.nn import (
    AbsoluteValue,
    Averaged,
    FoldedSpline,
    GroupSort,
    Householder,
    LinearSpline,
    LipschitzPReLU,
    MaxMin,
    Scaled,
)
from lipspline.nn.layers import conv1d, conv2d, linear

SAMPLED = 1.025  # a bound over all frequencies from samples may exceed the norm by this factor


def dense(layer: nn.Module, *shape: int) -> Tensor:
    """The matrix of an affine layer for inputs of one shape, column by column."""
    layer = layer.double()
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return (layer(basis) - layer(torch.zeros_like(basis[:1]))).flatten(1).mT


def norm(layer: nn.Module, *shape: int) -> float:
    """The largest singular value of an affine layer for inputs of one shape."""
    return float(torch.linalg.matrix_norm(dense(layer, *shape), ord=2))


def upper(layer: nn.Module) -> float:
    return certify(layer, steps=0).upper


def learned(channels: int, size: float = 1.0, **options) -> LinearSpline:
    """A spline with random coefficients and scales."""
    spline = LinearSpline(channels, **options)
    with torch.no_grad():
        spline.coefficients.add_(size * spline.radius * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(0.5 * torch.randn_like(spline.log_scale))
    return spline


# Dense layers


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


# Convolutions


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


# Constrained layers


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
    """Eight orthogonal convolutions and learned splines, as in [sec:PnPReconstruction]: 1 to 1e-5."""
    widths = [1, 16, 16, 16, 16, 16, 16, 16, 1]
    layers = [layer for c, d in itertools.pairwise(widths) for layer in (conv2d(c, d, 3), learned(d))]
    certificate = certify(nn.Sequential(*layers[:-1]), steps=0)
    assert certificate.upper == pytest.approx(1.0, abs=1e-5)
    assert len(certificate.layers) == 15


# Splines and activations


@pytest.mark.parametrize("constraint", ["clip", "normalize", "none"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_spline_has_its_largest_slope(constraint, shared: bool):
    """Lip(σ̃) = ‖D c‖_∞ / T [sec:ScalePara], exactly, whatever the scale."""
    spline = learned(6, constraint=constraint, shared=shared)
    assert upper(spline) == float(spline.slopes().abs().max())
    assert (upper(spline) > 1) == (constraint == "none")


def test_the_certified_slope_is_the_steepest_ratio_of_the_function():
    """[sec:deepspline]: measured on the float64 function, in every region and outside."""
    spline = learned(3, regions=9, radius=1.0, slope=(-0.5, 0.75)).double()
    x = torch.linspace(-8, 8, 200001, dtype=torch.float64)[:, None].expand(-1, 3)
    ratio = float((spline(x).diff(dim=0) / x.diff(dim=0)).abs().max())
    assert upper(spline) == pytest.approx(ratio, rel=1e-9)
    assert upper(spline) <= 0.75


@pytest.mark.parametrize("name", ["slopes", "scale", "mean", "b"])
def test_a_folded_spline_that_was_changed_cannot_hide_a_jump(name: str):
    """New slopes with old intercepts would make a discontinuous function; derived again it is certified as it is."""
    spline = FoldedSpline.from_spline(learned(2, regions=4, radius=1.0).double())
    getattr(spline, name).mul_(0.25)
    with pytest.raises(ValueError, match=r"may jump\. Call refresh\(\) after changing its slopes, mean or scale\.$"):
        certify(nn.Sequential(spline))
    assert upper(spline.refresh()) == float(spline.slopes.abs().max())


def test_a_folded_spline_with_a_scale_that_is_not_positive_is_refused():
    """σ(α x)/α needs α > 0 here."""
    spline = FoldedSpline(2, regions=4, radius=1.0)
    spline.scale[1] = 0.0
    with pytest.raises(ValueError, match=r"^The scales of a FoldedSpline must be positive, but some are not\.$"):
        certify(spline)


ACTIVATIONS: list[tuple[nn.Module, float]] = [
    (nn.ReLU(), 1.0),
    (nn.Tanh(), 1.0),
    (nn.Hardtanh(-0.5, 2.0), 1.0),
    (nn.Softshrink(0.3), 1.0),
    (nn.Sigmoid(), 0.25),
    (nn.LeakyReLU(0.1), 1.0),
    (nn.LeakyReLU(-3.0), 3.0),
    (nn.PReLU(4, init=-1.5), 1.5),
    (nn.PReLU(4, init=0.25), 1.0),
    (AbsoluteValue(), 1.0),
    (LipschitzPReLU(4, init=0.3), 1.0),
    (GroupSort(2), 1.0),
    (GroupSort(4), 1.0),
    (MaxMin(), 1.0),
    (Householder(4), 1.0),
    (nn.Identity(), 1.0),
    (nn.Dropout(0.5), 1.0),
    (nn.Flatten(), 1.0),
    (nn.Unflatten(1, (2, 2)), 1.0),
    (Scaled(-2.5), 2.5),
    (Scaled(0.0), 0.0),
]


@pytest.mark.parametrize(("layer", "exact"), ACTIVATIONS, ids=lambda value: str(value))
def test_activations_have_their_constant_and_reach_it(layer: nn.Module, exact: float):
    """[lipschitz_activation_section]: the number, and inputs where it is attained."""
    assert upper(layer) == exact
    x = torch.cat([torch.zeros(1, 4), 2 * torch.randn(200, 4)]).double() + 1e-3
    model = layer.double().eval()
    jacobians = torch.stack([torch.autograd.functional.jacobian(lambda v: model(v[None]).flatten(), v) for v in x])
    assert float(torch.linalg.matrix_norm(jacobians, ord=2).max()) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("a", [1.5, 300.25, 2.0**24 + 2, -(2.0**24 + 2), 1e12])
def test_prelu_slopes_beyond_one_are_clipped_exactly(a: float):
    """max(a x, x) with a clipped to [-1, 1] [lipschitz_activation_section], also where a - 1 is not a float."""
    layer = LipschitzPReLU(2)
    with torch.no_grad():
        layer.a.fill_(a)
    ratio = float((layer(torch.tensor([[-1.0, -1.0]])) - layer(torch.zeros(1, 2))).norm() / math.sqrt(2))
    assert ratio == upper(layer) == 1.0


def test_softplus_has_no_rule_because_it_jumps():
    """torch goes over to the identity at threshold / beta: a jump by log 2 where the threshold is 0."""
    x = torch.tensor([[-1e-6], [1e-6]], dtype=torch.float64)
    assert float(nn.Softplus(threshold=0.0)(x).diff(dim=0).abs()) > 0.6
    with pytest.raises(ValueError, match=r"no rule for Softplus"):
        certify(nn.Softplus())


# Pooling, normalisation, rearrangements


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


# Networks


def test_layers_in_a_row_multiply():
    """[eq:architecture]: nested rows are flattened, with the names they have in the model."""
    model = nn.Sequential(Scaled(2.0), nn.Sequential(Scaled(3.0), nn.ReLU()), Scaled(0.25))
    certificate = certify(model, steps=0)
    assert certificate.upper == pytest.approx(1.5, rel=1e-14)
    assert certificate.upper >= 1.5
    assert [bound.name for bound in certificate.layers] == ["0", "1.0", "1.1", "2"]
    assert [bound.upper for bound in certificate.layers] == [2.0, 3.0, 1.0, 0.25]
    assert [bound.kind for bound in certificate.layers] == ["Scaled", "Scaled", "ReLU", "Scaled"]


def test_a_layer_that_stands_twice_counts_twice():
    """The same module in two places acts two times."""
    double = Scaled(2.0)
    assert upper(nn.Sequential(double, nn.ReLU(), double)) == pytest.approx(4.0)
    spline = learned(3, constraint="none")
    steepest = float(spline.slopes().abs().max())
    assert upper(nn.Sequential(spline, spline)) == pytest.approx(steepest**2)


def test_an_empty_row_is_the_identity():
    """Lipschitz constant one."""
    assert certify(nn.Sequential(), steps=0) == Certificate(1.0, ())


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("inner", [0.5, 1.0, 3.0])
def test_averages_with_the_identity_have_the_average_bound(beta: float, inner: float):
    """β L + (1 - β) [sec:PnPReconstruction], reached where R = L Id."""
    model = Averaged(Scaled(inner), beta)
    exact = beta * inner + (1 - beta)
    assert exact * (1 - 1e-15) <= upper(model) <= exact * (1 + 1e-14)
    assert norm(model, 3) == pytest.approx(exact)
    assert upper(Averaged(nn.Sequential(Scaled(inner), nn.ReLU()), beta)) == pytest.approx(exact)


def test_the_average_of_a_one_lipschitz_network_is_exactly_one():
    """No rounding where none is needed [sec:PnPReconstruction]."""
    assert upper(Averaged(nn.ReLU(), 0.3)) == 1.0


def test_declared_bounds_are_repeated_with_their_reason():
    """On the user's word, in the user's words."""
    model = nn.Sequential(declare(torch.sin, upper=1.0, reason="|cos| <= 1"), Scaled(2.0))
    certificate = certify(model, input_shape=(3,))
    assert certificate.upper == 2.0
    assert certificate.layers[0] == LayerBound("0", "Declared", "declared: |cos| <= 1", 1.0)
    torch.testing.assert_close(model(torch.ones(1, 3)), 2 * torch.ones(1, 3).sin())


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf])
def test_a_declared_bound_must_be_a_positive_number(bound: float):
    """A bound of infinity says nothing."""
    wanted = f"upper must be a positive finite number, but is {bound!r}."
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        declare(torch.sin, bound, "none")


class Unknown(nn.Module):
    """A layer without a rule."""

    def forward(self, x: Tensor) -> Tensor:
        return 7 * x


class MyLinear(nn.Linear):
    """A user's layer that is not the one it inherits from."""

    def forward(self, x: Tensor) -> Tensor:
        return 7 * super().forward(x)


class MySpline(LinearSpline):
    """A user's layer that is not the one it inherits from."""

    def forward(self, x: Tensor) -> Tensor:
        return 7 * super().forward(x)


class MySequential(nn.Sequential):
    """A row with a skip connection."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (Unknown(), "Unknown"),
        (MyLinear(2, 2), "MyLinear"),
        (MySpline(2), "MySpline"),
        (MySequential(nn.ReLU()), "MySequential"),
        (nn.LayerNorm(2), "LayerNorm"),
        (nn.ModuleList([nn.ReLU()]), "ModuleList"),
    ],
)
def test_an_unknown_layer_is_an_error_that_says_how_to_register_it(layer: nn.Module, kind: str):
    """Never a silent 1, also for classes that inherit from known ones."""
    wanted = (
        f"certify has no rule for {kind} (layer '1'), and will not guess one. "
        f"Register one with lipspline.register_rule({kind}), or vouch for a bound with lipspline.declare."
    )
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        certify(nn.Sequential(nn.ReLU(), layer))
    with pytest.raises(ValueError, match="^" + re.escape(wanted.replace("'1'", "'itself'"))):
        certify(layer)
    with pytest.raises(ValueError, match=re.escape(f"certify has no rule for {kind}")):
        certify(Averaged(layer, 0.5))


def test_a_registered_rule_is_used():
    """The way the error message shows."""

    class Sevenfold(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 7 * x

    register_rule(Sevenfold)(lambda layer: (7.0, "by hand"))
    assert certify(Sevenfold(), input_shape=(2,)).layers == (LayerBound("", "Sevenfold", "by hand", 7.0),)
    assert certify(Sevenfold(), input_shape=(2,)).lower == pytest.approx(7.0)


def test_a_slope_that_is_no_number_is_refused():
    """max(1, NaN) is 1 in some orders."""
    with pytest.raises(
        ValueError, match=r"^The rule for LeakyReLU \(layer 'itself'\) gave nan, which bounds nothing\.$"
    ):
        certify(nn.LeakyReLU(math.nan))


@pytest.mark.parametrize("bound", [math.nan, -1.0])
def test_a_rule_that_gives_no_bound_is_refused(bound: float):
    """A certificate of NaN compares false with everything."""

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    register_rule(Broken)(lambda layer: (bound, "by mistake"))
    wanted = f"The rule for Broken (layer 'itself') gave {bound!r}, which bounds nothing."
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        certify(Broken())


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("place", ["", "1", "1.0", "2", "3.inner"])
def test_hooks_are_refused_wherever_they_are(register: str, place: str):
    """They can change the function: on rows, layers, splines and inside averages."""
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()), LinearSpline(2), Averaged(nn.ReLU(), 0.5))
    getattr(model.get_submodule(place), register)(lambda *arguments: None)
    with pytest.raises(ValueError, match=r"has forward hooks, and certify cannot see what they do\. Remove them\.$"):
        certify(model)


def test_a_forward_set_on_an_instance_is_refused():
    """Neither the class nor its rule says what it does."""
    model = nn.Sequential(nn.ReLU())
    model[0].forward = lambda x: 7 * x
    wanted = (
        "Layer '0' has a forward that was set on the instance, and certify knows only that of its class ReLU. "
        "Make it a class and register a rule for it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        certify(model)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.Linear(2, 2), "weight"),
        (nn.Linear(2, 2), "bias"),
        (nn.Conv2d(1, 1, 3), "weight"),
        (nn.PReLU(), "weight"),
        (nn.BatchNorm1d(2), "running_var"),
        (FoldedSpline(2, regions=4, radius=1.0), "slopes"),
        (FoldedSpline(2, regions=4, radius=1.0), "mean"),
    ],
)
def test_parameters_that_are_not_finite_are_refused(layer: nn.Module, name: str, bad: float):
    """The error names the tensor."""
    with torch.no_grad():
        getattr(layer, name).view(-1)[0] = bad
    with pytest.raises(
        ValueError, match=rf"^Parameter '0\.{name}' has 1 NaN or infinite value\(s\) of \d+\. A network"
    ):
        certify(nn.Sequential(layer))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_spline_coefficients_that_are_not_finite_are_refused(bad: float):
    """Folding must not turn NaN into a slope of one."""
    spline = LinearSpline(2)
    with torch.no_grad():
        spline.coefficients[0, 3] = bad
    with pytest.raises(ValueError, match=r"NaN or infinite value"):
        certify(spline)


def test_certifying_leaves_the_model_alone():
    """Same outputs, same mode, same dtype, same parameters that require gradients; and it can be done again."""
    model = nn.Sequential(linear(3, 3), LinearSpline(3), linear(3, 2, constraint="spectral")).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = certify(model), certify(model)
    assert first.upper == pytest.approx(second.upper, rel=1e-9)
    assert first.lower == pytest.approx(second.lower, rel=1e-9)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    model(torch.randn(2, 3)).sum().backward()


# Lower bounds


def test_lower_is_the_largest_singular_value_of_a_linear_layer():
    """Power iteration converges, and the ratio is really seen."""
    layer = nn.Linear(20, 10)
    certificate = certify(layer, steps=300)
    exact = float(torch.linalg.matrix_norm(layer.weight.double(), ord=2))
    assert certificate.lower == pytest.approx(exact, rel=1e-5)
    assert certificate.lower <= exact


def test_lower_is_found_at_the_inputs_given():
    """Leaky ReLU: slope 1/2 on one side only."""
    layer = nn.LeakyReLU(0.5)
    assert certify(layer, inputs=-torch.ones(3, 4)).lower == pytest.approx(0.5)
    assert certify(layer, inputs=torch.cat([-torch.ones(3, 4), torch.ones(1, 4)])).lower == pytest.approx(1.0)


def test_lower_is_none_where_the_input_shape_is_unknown_or_not_asked_for():
    """A ReLU takes any shape."""
    assert certify(nn.ReLU()).lower is None
    assert certify(nn.ReLU(), input_shape=(3,)).lower == pytest.approx(1.0)
    assert certify(nn.Linear(2, 2), steps=0).lower is None


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Linear(3, 2), (3,)), (nn.Conv2d(2, 1, 3), (2, 8, 8)), (nn.Conv1d(2, 1, 3), (2, 9))]
)
def test_lower_guesses_the_input_from_the_first_layer(layer: nn.Module, shape: tuple[int, ...]):
    """Dense layers and convolutions know their channels."""
    for model in (layer, nn.Sequential(layer, nn.ReLU())):
        assert certify(model).lower is not None
        assert certify(model, input_shape=shape).lower is not None


@pytest.mark.parametrize("bias", [0.0, 1e3, 1e8, 1e12])
def test_rounding_does_not_lift_lower_above_upper(bias: float):
    """Large biases lose digits of differences."""
    layer = linear(4, 4)
    with torch.no_grad():
        layer.bias.fill_(bias)
    certificate = certify(layer)
    assert certificate.lower is not None
    assert certificate.lower <= certificate.upper


def test_a_model_in_float64_is_measured_in_float64():
    """Rounding its weights to float32 first would show ratios it does not have."""
    for seed in range(10):
        torch.manual_seed(seed)
        certificate = certify(nn.Sequential(linear(6, 6).double(), nn.ReLU(), linear(6, 6).double()), steps=5)
        assert certificate.upper == pytest.approx(1.0, abs=1e-9)
        assert certificate.lower is not None
        assert certificate.lower <= certificate.upper
    assert certify(linear(6, 6).double()).lower == pytest.approx(1.0, abs=2e-9)


@pytest.mark.parametrize("radius", [0.1, 10.0, 1e4])
def test_rounded_tables_do_not_lift_lower_above_upper(radius: float):
    """The knots of a spline in float32 must not look like steep pieces in float64."""
    torch.manual_seed(1)
    model = nn.Sequential(linear(8, 8), learned(8, regions=400, radius=radius, size=0.1), linear(8, 8))
    certificate = certify(model, inputs=radius * torch.randn(20, 8))
    assert certificate.lower is not None
    assert 0.3 < certificate.lower <= certificate.upper


SINGLE_LAYERS = {
    "dense": lambda: nn.Linear(30, 20),
    "wide dense": lambda: nn.Linear(100, 3),
    "orthonormal": lambda: linear(8, 8),
    "conv2d": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
    "conv2d zeros": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "conv2d 5x5": lambda: nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular"),
    "conv1d": lambda: nn.Conv1d(3, 4, 5, padding=2),
    "strided": lambda: nn.Conv2d(2, 4, 4, stride=2),
    "grouped": lambda: nn.Conv2d(4, 4, 3, groups=2, padding=1),
    "orthogonal": lambda: conv2d(4, 6, 3),
    "spectral": lambda: conv2d(4, 6, 3, constraint="spectral"),
}


@pytest.mark.parametrize("make", SINGLE_LAYERS.values(), ids=SINGLE_LAYERS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_single_layers_are_certified_within_five_percent(make: Callable[[], nn.Module], seed: int):
    """`upper / lower <= 1.05`: the bound is tight, and power iteration shows it."""
    torch.manual_seed(seed)
    certificate = certify(make(), steps=100)
    assert certificate.lower is not None
    assert certificate.lower <= certificate.upper <= 1.05 * certificate.lower


# Random networks

CHANNELS = 4


def activation(generator: torch.Generator) -> nn.Module:
    choices = [
        lambda: learned(CHANNELS, radius=0.5, init="identity"),
        lambda: learned(CHANNELS, radius=0.5, shared=True, init="abs"),
        lambda: learned(CHANNELS, radius=1.0, constraint="normalize"),
        lambda: learned(CHANNELS, radius=1.0, constraint="none", size=0.05),
        lambda: nn.ReLU(),
        lambda: AbsoluteValue(),
        lambda: LipschitzPReLU(CHANNELS, init=torch.empty(CHANNELS).uniform_(-1, 1)),
        lambda: GroupSort(2),
        lambda: GroupSort(4),
        lambda: MaxMin(),
        lambda: Householder(CHANNELS),
        lambda: nn.Tanh(),
        lambda: nn.LeakyReLU(-1.2),
    ]
    return choices[int(torch.randint(len(choices), (), generator=generator))]()


def random_network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A small network and the shape of its input: dense or convolutional, any activations, both paddings."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)

    def pick(*options):
        return options[int(torch.randint(len(options), (), generator=generator))]

    def dense_layer() -> nn.Module:
        return pick(
            lambda: nn.Linear(CHANNELS, CHANNELS),
            lambda: linear(CHANNELS, CHANNELS),
            lambda: linear(CHANNELS, CHANNELS, constraint="spectral"),
            lambda: linear(CHANNELS, CHANNELS, lipschitz=1.5),
        )()

    def convolution() -> nn.Module:
        kernel, padding_mode = pick(1, 2, 3), pick("zeros", "circular")
        options = {"padding": "same", "padding_mode": padding_mode}
        return pick(
            lambda: nn.Conv2d(CHANNELS, CHANNELS, kernel, **options),
            lambda: nn.Conv2d(CHANNELS, CHANNELS, kernel, groups=2, **options),
            lambda: conv2d(CHANNELS, CHANNELS, kernel, padding_mode=padding_mode),
            lambda: conv2d(CHANNELS, CHANNELS, kernel, padding_mode=padding_mode, constraint="spectral"),
            lambda: nn.Sequential(nn.PixelUnshuffle(2), conv2d(4 * CHANNELS, CHANNELS, kernel)),
        )()

    convolutional = seed % 2 == 1
    layers = []
    for _ in range(pick(1, 2, 3)):
        layers += [convolution() if convolutional else dense_layer(), activation(generator)]
    model: nn.Module = nn.Sequential(*layers)
    shape = (CHANNELS, 8, 8) if convolutional else (CHANNELS,)
    if not any(isinstance(module, nn.PixelUnshuffle) for module in model.modules()) and pick(True, False):
        model = Averaged(model, 0.7)
    return model, shape


def ratios(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Ratios of distances of a batch of pairs."""
    return (model(x) - model(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)


@torch.no_grad()
def largest_random_ratio(model: nn.Module, shape: tuple[int, ...], pairs: int) -> float:
    """Over pairs at all distances, from 1e-3 to 10."""
    x = torch.randn(pairs, *shape, dtype=torch.float64)
    distance = torch.logspace(-3, 1, pairs, dtype=torch.float64).reshape(-1, *[1] * len(shape))
    y = x + distance * torch.nn.functional.normalize(torch.randn_like(x).flatten(1)).reshape(x.shape)
    return float(ratios(model, x, y).max())


def largest_optimised_ratio(model: nn.Module, shape: tuple[int, ...], pairs: int, steps: int) -> float:
    """Climb the ratio from `pairs` starting pairs; every pair on the way is looked at."""
    x = torch.randn(pairs, *shape, dtype=torch.float64, requires_grad=True)
    gap = (0.3 * torch.randn(pairs, *shape, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam([x, gap], lr=0.05, maximize=True)
    best = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        ratio = ratios(model, x, x + gap)
        ratio.sum().backward()
        best = max(best, float(ratio.max()))
        optimizer.step()
    return best


def check_pairs(seed: int, pairs: int) -> None:
    model, shape = random_network(seed)
    bound = upper(model)
    model = model.double().eval().requires_grad_(False)
    steps = 20
    random = largest_random_ratio(model, shape, pairs // 2)
    optimised = largest_optimised_ratio(model, shape, pairs // 2 // steps, steps)
    assert max(random, optimised) <= bound * (
        1 + 1e-6
    )  # the model's float64 differs from what was certified by rounding
    assert optimised >= 0.02 * bound  # the search does search


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_two_hundred_random_networks_have_lower_below_upper(first: int):
    """Dense and convolutional, all activations, both paddings."""
    for seed in range(first, first + 20):
        model, shape = random_network(seed)
        certificate = certify(model, input_shape=shape, steps=4)
        assert certificate.lower is not None
        assert 0 < certificate.lower <= certificate.upper, f"network {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_no_pair_has_a_ratio_above_the_bound(seed: int):
    """10^5 random and optimised pairs, over twenty networks."""
    check_pairs(seed, 5000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_no_pair_of_a_million_has_a_ratio_above_the_bound(seed: int):
    """10^6 random and optimised pairs, over fifty networks."""
    check_pairs(seed, 20000)


# Arithmetic and output


def test_products_and_sums_are_rounded_upward():
    """Never below the exact value, and within a few units in the last place."""
    from fractions import Fraction

    factors = [0.1, 1.0, 3.3, 0.7, 1.0000001, 5e-3]
    exact = math.prod(map(Fraction, factors))
    assert exact <= Fraction(multiply_up(*factors)) <= exact * (1 + Fraction(1, 10**14))
    exact = sum(map(Fraction, factors))
    assert exact <= Fraction(add_up(*factors)) <= exact * (1 + Fraction(1, 10**14))


def test_ones_and_single_factors_are_exact():
    """A network of 1-Lipschitz layers is certified 1, not 1 + 1e-16."""
    assert multiply_up() == multiply_up(1.0, 1.0, 1.0) == 1.0
    assert multiply_up(1.0, 0.3, 1.0) == 0.3
    assert add_up() == add_up(0.0) == 0.0
    assert add_up(0.0, 0.3) == 0.3


def test_json_holds_everything():
    """Read back by any program."""
    certificate = certify(nn.Sequential(Scaled(2.0), nn.ReLU()), input_shape=(2,))
    document = json.loads(certificate.to_json())
    assert document == {
        "upper": 2.0,
        "layers": [
            {"name": "0", "kind": "Scaled", "rule": "absolute factor", "upper": 2.0},
            {"name": "1", "kind": "ReLU", "rule": "slopes between 0 and 1", "upper": 1.0},
        ],
        "lower": certificate.lower,
    }


def test_the_table_says_which_rule_gave_each_factor():
    """What print(certificate) shows, line by line."""
    text = str(Certificate(2.0, (LayerBound("0", "Scaled", "absolute factor", 2.0),), 1.5))
    assert text.splitlines() == [
        "layer  kind    bound        rule",
        "-" * len("0      Scaled  2.000000000  absolute factor"),
        "0      Scaled  2.000000000  absolute factor",
        "",
        "Lipschitz constant <= 2.000000000   (largest ratio seen: 1.500000000)",
    ]
    assert str(Certificate(2.0, ())).endswith("(largest ratio seen: not measured)")


def test_the_table_never_prints_less_than_the_bound():
    """A printed bound is read as a bound: 1 + 4e-10 is not 1.000000000."""
    value = 1 + 4e-10
    text = str(Certificate(value, (LayerBound("0", "Linear", "largest singular value", value),)))
    printed = [float(number) for number in re.findall(r"\d\.\d+", text)]
    assert len(printed) == 2
    assert min(printed) >= value


def test_the_input_shape_may_come_with_a_batch():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 1, 3))
    assert certify(model, (2, 9, 9)).lower == certify(model, (5, 2, 9, 9)).lower


def test_an_input_shape_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not take inputs of shape"):
        certify(nn.Linear(3, 2), (4,))
