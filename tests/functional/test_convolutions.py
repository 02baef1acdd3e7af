"""Orthogonal kernels and operator norms, against dense matrices, frequency responses and exactly known norms."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from lipspline.functional import convolutions
from lipspline.functional.convolutions import (
    bcop_factors,
    bcop_kernel,
    circular_convolution,
    circular_convolution_adjoint,
    conv_norm_circular,
    conv_norm_upper,
    conv_norms_upper,
)
from lipspline.functional.matrices import orthonormalize

CHANNELS = [(4, 4), (5, 5), (3, 5), (5, 3), (1, 1), (1, 6), (6, 1)]


def factors(c_out: int, c_in: int, k: int, axes: int, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    n = max(c_out, c_in)
    bases = torch.randn(k - 1, axes, n, n // 2, dtype=dtype)
    return orthonormalize(torch.randn(c_out, c_in, dtype=dtype)), orthonormalize(bases)


def dense(layer, shape: tuple[int, ...], dtype=torch.float64) -> Tensor:
    """The matrix of a linear map of tensors of `shape`."""
    inputs = torch.eye(math.prod(shape), dtype=dtype).reshape(-1, *shape)
    with torch.no_grad():
        return vmap(layer)(inputs).flatten(1).mT


def norm(matrix: Tensor) -> float:
    gram = matrix @ matrix.mT if len(matrix) < matrix.shape[1] else matrix.mT @ matrix
    return math.sqrt(float(torch.linalg.eigvalsh(gram.double())[-1]))


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize(("c_out", "c_in"), CHANNELS)
def test_a_bcop_kernel_is_an_orthogonal_operator(axes, k, c_out, c_in):
    """[lip_linear_layers]"""
    kernel = bcop_kernel(*factors(c_out, c_in, k, axes))
    assert kernel.shape == (c_out, c_in, *[k] * axes)
    w = dense(lambda x: circular_convolution(x, kernel), (c_in, 6, 5)[: axes + 1], torch.float32)
    gram = w.mT @ w if c_out >= c_in else w @ w.mT
    torch.testing.assert_close(gram, torch.eye(len(gram)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("c_out", "c_in"), [(4, 4), (3, 5)])
def test_the_response_is_the_product_of_the_factors_responses(c_out, c_in):
    """[lip_linear_layers]"""
    matrix, bases = factors(c_out, c_in, 3, 2, torch.float64)
    kernel, eye = bcop_kernel(matrix, bases), torch.eye(c_in, dtype=torch.float64)
    theta = torch.rand(2, dtype=torch.float64)
    shifts = torch.exp(-1j * theta)
    response = sum(
        kernel[:, :, i, j] * shifts[0] ** i * shifts[1] ** j for i, j in itertools.product(range(3), range(3))
    )
    expected = matrix.to(torch.complex128)
    for step, axis in itertools.product(range(2), range(2)):
        p = bases[step, axis] @ bases[step, axis].mT
        now, later = (p, eye - p) if step == 0 else (eye - p, p)
        expected = expected @ (now + later * shifts[axis])
    torch.testing.assert_close(response, expected)


@pytest.mark.parametrize(("c_out", "c_in"), CHANNELS)
def test_equal_bases_leave_the_matrix_at_the_middle_tap(c_out, c_in):
    matrix, bases = factors(c_out, c_in, 5, 2, torch.float64)
    kernel = bcop_kernel(matrix, bases[:1, :1].expand_as(bases))
    expected = torch.zeros_like(kernel)
    expected[:, :, 2, 2] = matrix
    torch.testing.assert_close(kernel, expected)


def test_kernels_of_a_batch_are_those_of_its_members():
    pairs = [factors(3, 4, 3, 2) for _ in range(6)]
    loop = torch.stack([bcop_kernel(*pair) for pair in pairs]).unflatten(0, (2, 3))
    matrices, bases = (torch.stack(x).unflatten(0, (2, 3)) for x in zip(*pairs, strict=True))
    torch.testing.assert_close(bcop_kernel(matrices, bases), loop)
    torch.testing.assert_close(vmap(vmap(bcop_kernel))(matrices, bases), loop)


@pytest.mark.parametrize(("c_out", "c_in"), [(3, 3), (2, 4), (4, 2)])
def test_gradients_of_the_kernel(c_out, c_in):
    raw = [x.requires_grad_() for x in factors(c_out, c_in, 3, 2, torch.float64)]
    assert torch.autograd.gradcheck(lambda m, b: bcop_kernel(orthonormalize(m), orthonormalize(b)), raw)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("c_out", "c_in"), [(4, 4), (5, 5), (3, 5), (5, 3), (16, 16)])
def test_factors_are_found_again_from_their_kernel(axes, k, c_out, c_in):
    kernel = bcop_kernel(*factors(c_out, c_in, k, axes, torch.float64))
    matrix, bases = bcop_factors(kernel)
    torch.testing.assert_close(orthonormalize(matrix), matrix)
    torch.testing.assert_close(orthonormalize(bases), bases)
    torch.testing.assert_close(bcop_kernel(matrix, bases), kernel)


@pytest.mark.parametrize("kernel", [torch.randn(4, 4, 3, 3), torch.randn(3, 3, 1, 1), torch.zeros(2, 2, 3)])
def test_a_kernel_without_factors_is_refused(kernel):
    with pytest.raises(ValueError, match=r"not a product of orthogonal two-tap factors.*constraint='spectral'"):
        bcop_factors(kernel)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("axes", [1, 2])
def test_the_circular_convolution_is_that_of_torch_and_its_adjoint_the_transpose(k, axes):
    kernel = torch.randn(3, 2, *[k] * axes, dtype=torch.float64)
    size = (7, 5)[:axes]
    layer = (nn.Conv1d, nn.Conv2d)[axes - 1](2, 3, k, padding="same", padding_mode="circular", bias=False).double()
    layer.weight.data.copy_(kernel)
    w = dense(lambda x: layer(x[None])[0], (2, *size))
    torch.testing.assert_close(dense(lambda x: circular_convolution(x, kernel), (2, *size)), w)
    torch.testing.assert_close(dense(lambda u: circular_convolution_adjoint(u, kernel), (3, *size)), w.mT)
    assert conv_norm_circular(kernel, size) == pytest.approx(norm(w), rel=1e-10)


CASES = [
    {"kernel": (6, 4, 3, 3)},
    {"kernel": (4, 6, 2, 5)},
    {"kernel": (3, 3, 1, 1)},
    {"kernel": (5, 2, 4)},
    {"kernel": (6, 2, 3, 3), "groups": 3},
    {"kernel": (4, 3, 3, 3), "dilation": 2},
    {"kernel": (4, 3, 3, 3), "stride": 2},
    {"kernel": (4, 3, 4), "stride": 3},
    {"kernel": (4, 3, 3, 2), "stride": (2, 1), "dilation": (3, 2)},
    {"kernel": (4, 2, 3, 3), "stride": 2, "groups": 2},
    {"kernel": (3, 2, 5), "stride": 2, "dilation": 2},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_upper_bound_holds_for_the_layer_of_torch_and_is_tight(case):
    """[lip_linear_layers]"""
    kernel = torch.randn(case["kernel"])
    options = {key: value for key, value in case.items() if key != "kernel"}
    axes, groups = kernel.ndim - 2, case.get("groups", 1)
    upper = conv_norm_upper(kernel, **options)
    size = (90,) if axes == 1 else (14, 12)
    convolve = nn.functional.conv1d if axes == 1 else nn.functional.conv2d
    padding = tuple(k for k in kernel.shape[2:])
    x = kernel.double()
    w = dense(lambda v: convolve(v[None], x, padding=padding, **options)[0], (kernel.shape[1] * groups, *size))
    assert norm(w) <= upper <= 1.12 * norm(w)  # zero padding alone loses some percent on so small images


@pytest.mark.parametrize("seed", range(20))
def test_the_upper_bound_is_within_two_percent_of_the_norm_on_periodic_images(seed):
    """[lip_linear_layers]"""
    generator = torch.Generator().manual_seed(seed)
    kernel = torch.randn(*[(4, 4, 3, 3), (2, 6, 5, 5), (8, 3, 2, 2), (5, 5, 7)][seed % 4], generator=generator)
    true = conv_norm_circular(kernel, [96] * (kernel.ndim - 2))
    assert true <= conv_norm_upper(kernel) <= 1.021 * true


def test_circular_padding_with_a_stride_that_does_not_divide_the_size_is_covered_by_stride_one():
    """Three periodic samples, kernel (1, 1, 1), stride 2: twice the same sum, so the norm is sqrt(6)."""
    kernel = torch.ones(1, 1, 3)
    layer = nn.Conv1d(1, 1, 3, stride=2, padding=1, padding_mode="circular", bias=False)
    layer.weight.data.copy_(kernel)
    true = norm(dense(lambda x: layer(x[None])[0], (1, 3), torch.float32))
    assert true == pytest.approx(math.sqrt(6), rel=1e-6)
    assert conv_norm_upper(kernel, stride=2) < true <= conv_norm_upper(kernel, stride=1)


def test_a_maximum_between_the_sampled_frequencies_is_bounded_too():
    """Two taps, the identity and a rotation by an angle halfway between samples, have norm 2 at that frequency only."""
    angle = torch.tensor(math.pi / 16, dtype=torch.float64)
    rotation = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    kernel = torch.stack([torch.eye(2, dtype=torch.float64), rotation], dim=2)
    assert conv_norm_circular(kernel, [16]) < 2 - 5e-3
    assert 2 <= conv_norm_upper(kernel) < 2.03


@pytest.mark.parametrize(
    ("kernel", "true"),
    [
        (torch.tensor([[[1.0, -1.0]]]), 2.0),
        (torch.tensor([[[1.0, 2.0, 1.0]]]), 4.0),
        (torch.ones(1, 1, 3, 3) / 9, 1.0),
        (torch.ones(2, 3, 2, 2), 4 * math.sqrt(6)),
    ],
)
def test_the_upper_bound_of_kernels_with_known_norm(kernel, true):
    assert true <= conv_norm_upper(kernel) <= 1.021 * true


def test_a_shift_has_norm_one():
    kernel = torch.zeros(1, 1, 3, 3)
    kernel[0, 0, 2, 1] = 1.0
    assert 1 <= conv_norm_upper(kernel) < 1 + 1e-11


def test_the_norm_is_not_that_of_the_flattened_kernel():
    kernel = torch.ones(1, 1, 3, 3)
    assert float(torch.linalg.matrix_norm(kernel.flatten(1), ord=2)) == pytest.approx(3.0)
    assert conv_norm_upper(kernel) >= 9.0


def test_groups_take_the_largest_norm_not_the_product():
    kernel = torch.stack([torch.eye(1) * 2, torch.eye(1) * 3]).reshape(2, 1, 1)
    assert conv_norm_upper(kernel, groups=2) == pytest.approx(3.0, rel=1e-9)


def test_the_bound_is_homogeneous_over_the_whole_range_of_float64():
    kernel = torch.randn(3, 3, 3, dtype=torch.float64)
    for exponent in (-800, -40, 0, 40, 800):
        scaled = torch.ldexp(kernel, torch.tensor(exponent))
        assert conv_norm_upper(scaled) == math.ldexp(conv_norm_upper(kernel), exponent)


@pytest.mark.parametrize(("c_out", "c_in", "k"), [(32, 32, 3), (64, 1, 3), (1, 64, 3), (16, 16, 5)])
def test_the_bound_of_an_orthogonal_float32_kernel_is_one_to_a_millionth(c_out, c_in, k):
    """Rounded once, from float64, as certificates see it; computed in float32 it is one to a hundred thousandth."""
    kernel = bcop_kernel(*factors(c_out, c_in, k, 2, torch.float64)).float()
    assert abs(conv_norm_upper(kernel) - 1) < 1e-6
    assert abs(conv_norm_upper(bcop_kernel(*factors(c_out, c_in, k, 2))) - 1) < 1e-5


@pytest.mark.parametrize("shape", [(4, 4, 3, 3), (6, 3, 3, 2), (5, 4, 5)])
def test_the_autocorrelation_bounds_every_eigenvalue(shape):
    """For any kernel and any c [lip_linear_layers]."""
    kernel = torch.randn(shape, dtype=torch.float64) / 20
    true = conv_norm_circular(kernel, [48] * (kernel.ndim - 2)) ** 2
    for mean in (0.0, 0.3, true):
        assert true <= convolutions._autocorrelation_eigenvalue_upper(kernel, mean)


@pytest.mark.parametrize("kernel", [torch.ones(1, 1, 2), torch.ones(1, 1, 3, 2), torch.eye(3)[..., None, None]])
def test_the_bound_by_autocorrelation_is_attained_by_kernels_that_all_add_up(kernel):
    x = kernel.double() / 8
    mean = float(x.square().sum()) / x.shape[1]
    true = conv_norm_circular(x, [4] * (x.ndim - 2)) ** 2
    assert convolutions._autocorrelation_eigenvalue_upper(x, mean) == pytest.approx(true, rel=1e-12)


@pytest.mark.parametrize(("c_out", "c_in"), [(32, 32), (16, 3), (2, 24)])
@pytest.mark.parametrize("defect", [0.0, 3e-8])
def test_a_nearly_orthogonal_kernel_is_bounded_without_its_frequencies(c_out, c_in, defect, monkeypatch):
    """Quickly, and yet within the defect of its norm [lip_linear_layers]."""
    kernel = bcop_kernel(*factors(c_out, c_in, 3, 2, torch.float64))
    kernel = kernel * (1 + defect * torch.randn_like(kernel))
    true = conv_norm_circular(kernel, [12, 12])
    monkeypatch.setattr(convolutions, "_sampled_eigenvalue_upper", None)
    assert true - 1e-13 <= conv_norm_upper(kernel) <= true + max(30 * defect, 1e-10)


def test_bounds_of_a_batch_are_those_of_its_members_also_under_vmap():
    kernels = torch.randn(2, 3, 4, 2, 3)
    expected = torch.tensor([[conv_norm_upper(k) for k in row] for row in kernels], dtype=torch.float64)
    torch.testing.assert_close(conv_norms_upper(kernels, 1), expected, rtol=0, atol=0)
    torch.testing.assert_close(vmap(lambda k: conv_norms_upper(k, 1), in_dims=1)(kernels), expected.mT, rtol=0, atol=0)
    torch.library.opcheck(conv_norms_upper, (kernels, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "stride must be at least 1, but is 0"),
        ({"dilation": (1, 0)}, "dilation must be at least 1, but is 0"),
        ({"groups": 0}, "groups must be at least 1, but is 0"),
        ({"groups": 3}, "groups 3 must divide the output channels, but 4 is not a multiple of 3"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        conv_norm_upper(torch.randn(4, 1, 3, 3), **options)


def test_a_kernel_that_is_not_finite_has_no_bound():
    with pytest.raises(ValueError, match="NaN or infinite"):
        conv_norm_upper(torch.full((1, 1, 3), float("nan")))
