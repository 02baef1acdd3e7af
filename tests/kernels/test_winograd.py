"""Winograd's algorithm is the convolution, to round-off."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from lipspline import kernels
from lipspline.kernels import native
from lipspline.kernels.winograd import (
    convolution,
    convolve,
    has_winograd,
    learns_winograd,
    prepare,
    runs_winograd,
    weight_gradient,
)

pytestmark = pytest.mark.skipif(not has_winograd(), reason="the C kernels are not built, or the processor has no AVX2")

SHAPES = [
    (1, 64, 64, 13, 18),
    (2, 68, 68, 16, 9),
    (1, 5, 3, 7, 7),
    (3, 17, 33, 1, 1),
    (1, 8, 16, 4, 96),
    (1, 16, 8, 101, 2),
    (5, 1, 1, 6, 5),
    (1, 20, 48, 40, 40),
]


def data(batch: int, inputs: int, outputs: int, height: int, width: int):
    stream = torch.Generator().manual_seed(inputs * outputs + height)
    x = torch.randn(batch, inputs, height, width, generator=stream)
    weight = torch.randn(outputs, inputs, 3, 3, generator=stream) / (9 * inputs) ** 0.5
    return x, weight, torch.randn(outputs, generator=stream)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_convolution(shape):
    x, weight, bias = data(*shape)
    wanted = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    y = convolve(x, prepare(weight), bias)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.double(), wanted, rtol=0, atol=2e-5)
    assert (y - wanted).pow(2).mean().sqrt() < 2e-6


def test_the_round_off_is_at_most_twice_that_of_the_definition():
    """The sum over channels and taps, term by term in float32. (What torch does depends on the processor.)"""
    x, weight, bias = data(1, 64, 64, 32, 32)
    wanted = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    padded = F.pad(x, (1, 1, 1, 1))
    plain = bias.view(1, -1, 1, 1).expand(1, 64, 32, 32)
    for channel in range(64):
        for i, j in itertools.product(range(3), range(3)):
            plain = (
                plain + weight[:, channel, i, j].view(1, -1, 1, 1) * padded[:, channel, None, i : i + 32, j : j + 32]
            )
    ours = convolve(x, prepare(weight), bias)
    assert (ours - wanted).pow(2).mean().sqrt() < 2 * (plain - wanted).pow(2).mean().sqrt()


def test_a_single_weight_moves_the_image():
    """A one in each of the nine places: an image of small integers comes out moved, to round-off."""
    x = torch.arange(2 * 30.0).view(1, 2, 5, 6)
    for i in range(3):
        for j in range(3):
            weight = torch.zeros(2, 2, 3, 3)
            weight[0, 0, i, j] = weight[1, 1, i, j] = 1
            moved = F.pad(x, (1, 1, 1, 1))[..., i : i + 5, j : j + 6]
            torch.testing.assert_close(convolve(x, prepare(weight), torch.zeros(2)), moved, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layouts_and_slices_are_read_right(layout):
    x, weight, bias = data(2, 24, 24, 9, 11)
    wide = torch.randn(2, 24, 18, 22).contiguous(memory_format=layout)
    wide[..., ::2, 1::2] = x
    prepared = prepare(weight)
    wanted = convolve(x, prepared, bias)
    assert torch.equal(convolve(x.contiguous(memory_format=layout), prepared, bias), wanted)
    assert torch.equal(convolve(wide[..., ::2, 1::2], prepared, bias), wanted)


def test_threads_change_no_bit():
    x, weight, bias = data(1, 32, 32, 50, 70)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(convolve(x, prepare(weight), bias))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_pixel_is_the_same_bit_by_bit_in_every_image_that_is_cut_at_multiples_of_four():
    x, weight, bias = data(1, 16, 16, 60, 44)
    prepared = prepare(weight)
    whole, part = convolve(x, prepared, bias), convolve(x[..., 8:41, 12:], prepared, bias)
    assert torch.equal(whole[..., 9:40, 13:], part[..., 1:-1, 1:])


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_neighbourhood(odd):
    x, weight, bias = data(1, 20, 20, 24, 24)
    prepared = prepare(weight)
    before = convolve(x, prepared, bias)
    x[0, 3, 9, 9] = odd
    after = convolve(x, prepared, bias)
    assert not after[0, :, 8:11, 8:11].isfinite().any()
    far = torch.ones(24, 24, dtype=torch.bool)
    far[4:16, 4:16] = False
    assert torch.equal(after[..., far], before[..., far])


@pytest.mark.parametrize("shape", [(0, 16, 5, 5), (1, 16, 0, 5)])
def test_nothing_in_nothing_out(shape):
    y = convolve(torch.empty(shape), prepare(torch.randn(24, 16, 3, 3)), torch.zeros(24))
    assert y.shape == (shape[0], 24, *shape[2:])


def test_where_it_runs():
    x, weight, bias = data(1, 16, 16, 5, 5)
    assert runs_winograd(x, weight, bias)
    assert runs_winograd(x, weight)
    assert not runs_winograd(x.double(), weight.double(), bias.double())
    assert not runs_winograd(x, weight.clone().requires_grad_(), bias)
    with kernels.using("eager"):
        assert not runs_winograd(x, weight, bias)
    library = native.library
    assert library is not None
    try:
        library.lipspline_limit_instruction_set(0)
        assert not has_winograd()
        assert not runs_winograd(x, weight, bias)
    finally:
        library.lipspline_limit_instruction_set(2)


# Gradients


def gradients(function, x, weight, bias, g):
    """Those of `sum(g * function(...))` with respect to everything."""
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    return torch.autograd.grad(function(*leaves), leaves, g)


def definition(x, weight, bias):
    return F.conv2d(x, weight, bias, padding=1)


@pytest.mark.parametrize("shape", [*SHAPES, (16, 16, 24, 40, 40), (2, 70, 18, 3, 50)])
def test_gradients_are_those_of_the_convolution(shape):
    x, weight, bias = data(*shape)
    g = torch.randn(shape[0], shape[2], *shape[3:])
    wanted = gradients(definition, *(t.double() for t in (x, weight, bias)), g.double())
    for ours, exact in zip(gradients(convolution, x, weight, bias, g), wanted, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=4e-6 * float(exact.abs().max()))


def test_only_the_gradients_that_are_wanted_are_computed():
    x, weight, _ = data(2, 16, 16, 9, 9)
    y = convolution(x, weight.requires_grad_(), None)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, weight_gradient(x, torch.ones_like(y)), rtol=0, atol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_read_in_every_layout(layout):
    x, weight, bias = data(2, 24, 24, 9, 11)
    g = torch.randn(2, 24, 9, 11)
    wanted = gradients(convolution, x, weight, bias, g)
    laid_out = gradients(
        convolution, x.contiguous(memory_format=layout), weight, bias, g.contiguous(memory_format=layout)
    )
    expanded = gradients(convolution, x, weight, bias, torch.ones(1, 1, 1, 1).expand_as(g))
    assert all(map(torch.equal, laid_out, wanted))
    for ours, exact in zip(expanded, gradients(definition, x, weight, bias, torch.ones_like(g)), strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=2e-4)


def test_threads_change_no_bit_of_a_gradient():
    x, g = torch.randn(16, 20, 40, 40), torch.randn(16, 24, 40, 40)  # 1600 tiles, cut into eight parts
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(weight_gradient(x, g))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_second_derivatives_are_those_of_the_convolution():
    x, weight, bias = (t.requires_grad_() for t in data(1, 16, 16, 6, 5))
    g = torch.randn(1, 16, 6, 5)

    def penalty(function):
        y = function(x, weight, bias)
        (by_x,) = torch.autograd.grad((g * y.square()).sum(), x, create_graph=True)
        return torch.autograd.grad(by_x.square().sum(), [x, weight, bias])

    for ours, exact in zip(penalty(convolution), penalty(definition), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


def test_many_gradients_at_once():
    x, weight, bias = data(1, 16, 16, 6, 5)
    leaf, many = x.requires_grad_(), torch.randn(3, 1, 16, 6, 5)
    ours = torch.autograd.grad(convolution(leaf, weight, bias), leaf, many, is_grads_batched=True)[0]
    exact = torch.autograd.grad(definition(leaf, weight, bias), leaf, many, is_grads_batched=True)[0]
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-5)


def test_where_it_learns():
    x, weight, bias = data(1, 16, 16, 5, 5)
    weight.requires_grad_()
    assert learns_winograd(x, weight, bias)
    assert not learns_winograd(x.double(), weight.double(), bias.double())
    assert not learns_winograd(x, weight, bias.double())
    with kernels.using("eager"):
        assert not learns_winograd(x, weight, bias)
    with torch.autograd.forward_ad.dual_level():
        assert not learns_winograd(x, weight, bias)
