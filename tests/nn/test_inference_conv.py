"""The convolution of plain networks: torch's function, and torch's convolution wherever more than a value is wanted."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lipspline import certify, kernels
from lipspline.kernels.winograd import has_winograd
from lipspline.networks.export import plain
from lipspline.nn.inference_conv import InferenceConv2d

needs_winograd = pytest.mark.skipif(not has_winograd(torch.empty(0)), reason="Winograd's algorithm does not run here")


def layer(inputs: int = 16, outputs: int = 24, **options) -> InferenceConv2d:
    torch.manual_seed(0)
    return InferenceConv2d(inputs, outputs, **{"kernel_size": 3, "padding": 1, **options}).requires_grad_(False)


def runs_winograd(conv: InferenceConv2d, x: torch.Tensor) -> bool:
    conv._prepared = None
    conv(x)
    return conv._prepared is not None


OPTIONS = [
    {},
    {"bias": False},
    {"padding": "same"},
    {"padding": 0},
    {"padding": 2},
    {"padding_mode": "circular"},
    {"stride": 2},
    {"dilation": 2, "padding": 2},
    {"groups": 4},
    {"kernel_size": 5, "padding": 2},
    {"kernel_size": (3, 1), "padding": (1, 0)},
    {"inputs": 1},
    {"inputs": 1, "padding_mode": "circular"},
    {"inputs": 3, "outputs": 64},
    {"outputs": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_torchs_convolution(options):
    conv = layer(**options)
    x = torch.randn(2, conv.in_channels, 13, 17)
    wanted = nn.Conv2d.forward(conv.double(), x.double())
    y = conv.float()(x)
    torch.testing.assert_close(y.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 1, "same"])
def test_gray_images_go_on_channels_last(padding):
    """Else the layer behind would have to change the order of all numbers in memory."""
    y = layer(inputs=1, padding=padding)(torch.randn(2, 1, 13, 17))
    assert y.is_contiguous(memory_format=torch.channels_last)


@needs_winograd
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_algorithm_runs_only_where_it_is_right_and_pays(options):
    conv = layer(**options)
    fits = options in ({}, {"bias": False}, {"padding": "same"})
    assert runs_winograd(conv, torch.randn(1, conv.in_channels, 9, 9)) == fits


@needs_winograd
def test_torch_computes_where_more_than_a_value_is_wanted():
    conv, x = layer(), torch.randn(1, 16, 9, 9)
    assert runs_winograd(conv, x)
    assert not runs_winograd(conv, x.clone().requires_grad_())
    assert not runs_winograd(conv, x[0])
    assert not runs_winograd(conv.requires_grad_(), x)
    conv.requires_grad_(False)
    with torch.autocast("cpu"):
        assert not runs_winograd(conv, x)
    with kernels.using("eager"):
        assert not runs_winograd(conv, x)
    with torch.inference_mode():
        assert runs_winograd(conv, x.clone())
    with torch.no_grad():
        assert runs_winograd(conv.requires_grad_(), x)
    assert not runs_winograd(conv.double(), x.double())


def test_derivatives_of_every_kind_are_torchs():
    conv, x, v = layer(), torch.randn(2, 16, 6, 6), torch.randn(2, 16, 6, 6)
    change = F.conv2d(v, conv.weight, None, padding=1)
    torch.testing.assert_close(torch.func.jvp(conv, (x,), (v,))[1], change, rtol=0, atol=1e-5)
    with torch.autograd.forward_ad.dual_level():
        dual = conv(torch.autograd.forward_ad.make_dual(x, v))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, change, rtol=0, atol=1e-5)
    pulled = torch.func.vjp(conv, x)[1](change)[0]
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(pulled, torch.autograd.grad(conv(leaf), leaf, change)[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.vmap(conv)(x), conv(x), rtol=0, atol=1e-5)


@needs_winograd
@pytest.mark.parametrize(
    "change",
    [
        lambda conv: conv.weight.mul_(2),
        lambda conv: conv.weight.data.mul_(2),
        lambda conv: setattr(conv.weight, "data", conv.weight.data * 2),
        lambda conv: conv.load_state_dict({"weight": 2 * conv.weight, "bias": conv.bias}, assign=True),
        lambda conv: conv.weight.data.numpy().__imul__(2),
    ],
)
def test_no_change_of_the_weight_escapes(change):
    conv, x = layer(), torch.randn(1, 16, 9, 9)
    with torch.no_grad():
        before = conv(x) - conv.bias.view(1, -1, 1, 1)
        change(conv)
        torch.testing.assert_close(conv(x) - conv.bias.view(1, -1, 1, 1), 2 * before, rtol=0, atol=1e-5)


@needs_winograd
def test_copies_and_files_keep_working():
    conv, x = layer(), torch.randn(1, 16, 9, 9)
    wanted = conv(x)
    assert torch.equal(copy.deepcopy(conv)(x), wanted)
    assert torch.equal(pickle.loads(pickle.dumps(conv))(x), wanted)
    assert list(conv.state_dict()) == ["weight", "bias"]


def test_plain_networks_use_it_and_are_certified_as_before():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
    folded = plain(model)
    assert [type(folded[0]), type(folded[2])] == [InferenceConv2d, InferenceConv2d]
    assert certify(folded, steps=0).upper == certify(model, steps=0).upper


def test_a_convolution_with_a_forward_of_its_own_is_left_alone():
    class Louder(nn.Conv2d):
        def forward(self, input):
            return 2 * super().forward(input)

    assert type(plain(nn.Sequential(Louder(1, 4, 3)))[0]) is Louder


@needs_winograd
def test_wrong_inputs_are_refused_by_torch():
    with pytest.raises(RuntimeError, match="channels"):
        layer()(torch.randn(1, 15, 9, 9))
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        layer()(torch.randn(1, 16, 9, 9, dtype=torch.float64))


def test_it_exports_as_an_ordinary_convolution():
    conv, x = layer(), torch.randn(1, 16, 9, 9)
    program = torch.export.export(conv, (x,))
    torch.testing.assert_close(program.module()(x), conv(x), rtol=0, atol=1e-5)
    assert any("conv2d" in str(node.target) for node in program.graph.nodes)
