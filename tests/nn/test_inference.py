"""Layers for inference: the functions they were made from, and torch's wherever more than a value is wanted."""

import copy
import io
import pickle
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline import certify, kernels
from lipspline.functional.knots import FreeKnots, free_knot_spline
from lipspline.kernels.winograd import has_winograd
from lipspline.networks.inference import plain, to_onnx
from lipspline.nn import FoldedSpline, LinearSpline
from lipspline.nn.inference import FreeKnotSpline, InferenceConv2d

needs_winograd = pytest.mark.skipif(not has_winograd(), reason="Winograd's algorithm does not run here")


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
    assert certify(folded).upper == certify(model).upper


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


@needs_winograd
@pytest.mark.parametrize(
    "bias", [torch.randn(48)[::2], torch.randn(24, 3)[:, 1], torch.randn(24).flip(0).expand(1, 24)[0]]
)
def test_a_bias_of_any_layout_is_added(bias):
    """By its values, whatever lies beside them in memory."""
    conv, x = layer(), torch.randn(1, 16, 9, 9)
    conv.bias = nn.Parameter(bias, requires_grad=False)
    assert runs_winograd(conv, x)
    torch.testing.assert_close(conv(x), F.conv2d(x, conv.weight, bias, padding=1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [1, 23, 25, 1000])
def test_a_bias_of_another_length_is_refused_by_torch(length):
    conv = layer()
    conv.bias = nn.Parameter(torch.randn(length), requires_grad=False)
    with pytest.raises(RuntimeError, match="bias"):
        conv(torch.randn(1, 16, 9, 9))


@pytest.mark.parametrize("shape", [(25, 16, 3, 3), (24, 16, 5, 5), (8, 16, 3, 3)])
def test_a_weight_of_another_shape_is_torchs_business(shape):
    """The algorithm never runs on a weight that its layer does not describe."""
    conv = layer()
    conv.weight = nn.Parameter(torch.randn(shape), requires_grad=False)
    conv.bias = None
    x = torch.randn(1, 16, 9, 9)
    torch.testing.assert_close(conv(x), F.conv2d(x, conv.weight, padding=1), rtol=0, atol=1e-5)


def test_circular_images_smaller_than_the_padding_are_refused_in_one_sentence():
    conv = layer(kernel_size=9, padding="same", padding_mode="circular")
    assert conv(torch.randn(1, 16, 4, 5)).shape == (1, 24, 4, 5)
    for size in ((3, 5), (5, 3)):
        with pytest.raises(ValueError, match=r"^A circular convolution with kernel \(9, 9\) needs at least 4 pixels"):
            conv(torch.randn(1, 16, *size))


def test_it_exports_as_an_ordinary_convolution():
    conv, x = layer(), torch.randn(1, 16, 9, 9)
    program = torch.export.export(conv, (x,))
    torch.testing.assert_close(program.module()(x), conv(x), rtol=0, atol=1e-5)
    assert any("conv2d" in str(node.target) for node in program.graph.nodes)


def learned(channels: int = 4, **options) -> LinearSpline:
    """A spline with random coefficients and scales, in float64."""
    spline = LinearSpline(channels, **options).double()
    with torch.no_grad():
        spline.coefficients.add_(spline.radius * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(0.5 * torch.randn_like(spline.log_scale))
    return spline


def largest_jump(spline: FoldedSpline) -> float:
    """Largest gap at the inner knots, between the lines of neighbouring regions."""
    inner = torch.linspace(-spline.radius, spline.radius, spline.regions + 1, dtype=torch.float64)[1:-1]
    knots = inner / spline.scale.double()[:, None]
    b, s = spline.b.double(), spline.slopes.double()
    return float(((b + s * torch.nn.functional.pad(knots, (0, 1)))[:, :-1] - (b[:, 1:] + s[:, 1:] * knots)).abs().max())


@pytest.mark.parametrize("constraint", ["clip", "normalize", "none"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("channel_dim", "shape"), [(1, (5, 4, 3)), (-1, (5, 3, 4))])
@pytest.mark.parametrize("regions", [5, 50])
def test_it_is_the_function_it_was_made_from(constraint, shared: bool, channel_dim: int, shape, regions: int):
    """[prop:splineproj] and [sec:ScalePara], evaluated once."""
    spline = learned(constraint=constraint, shared=shared, channel_dim=channel_dim, regions=regions, radius=0.7)
    x = 2 * torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(FoldedSpline.from_spline(spline)(x), spline(x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_accepts_splines_of_any_dtype_and_keeps_the_dtype_of_the_input(dtype: torch.dtype):
    """Half-precision parameters are folded in float32."""
    spline = LinearSpline(4, init="abs", radius=1.0).to(dtype)
    x = torch.randn(6, 4).to(dtype)
    folded = FoldedSpline.from_spline(spline)
    assert folded.slopes.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert folded(x).dtype == dtype
    torch.testing.assert_close(folded(x), spline(x))


def test_it_has_nothing_to_train_and_does_not_follow_its_origin():
    """Buffers only, and its own."""
    spline = learned()
    folded = FoldedSpline.from_spline(spline)
    x = torch.randn(3, 4, dtype=torch.float64)
    before = folded(x)
    with torch.no_grad():
        spline.coefficients.mul_(0.1)
        spline.log_scale.add_(1.0)
    assert list(folded.parameters()) == []
    assert not before.requires_grad
    assert torch.equal(folded(x), before)


def test_a_new_one_is_the_identity():
    """Slopes one, mean zero, scale one."""
    x = torch.randn(5, 3)
    torch.testing.assert_close(FoldedSpline(3, regions=4, radius=1.0)(x), x)


def test_the_intercepts_are_not_stored():
    """A file holds slopes, one level and one scale per spline: no numbers that could make a jump."""
    folded = FoldedSpline.from_spline(learned())
    assert set(folded.state_dict()) == {"slopes", "mean", "scale"}
    assert largest_jump(folded) < 1e-15


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_equal(duplicate):
    """deepcopy and pickle of the module."""
    folded = FoldedSpline.from_spline(learned())
    x = torch.randn(9, 4, dtype=torch.float64)
    assert torch.equal(duplicate(folded)(x), folded(x))


@pytest.mark.parametrize("assign", [False, True])
def test_loading_derives_the_intercepts_again(assign: bool):
    """Through bytes, into a fresh module: same function, no jump."""
    folded = FoldedSpline.from_spline(learned(radius=0.7))
    buffer = io.BytesIO()
    torch.save(folded.state_dict(), buffer)
    other = FoldedSpline(4, regions=50, radius=0.7).double()
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True), assign=assign)
    x = torch.randn(9, 4, dtype=torch.float64)
    assert torch.equal(other(x), folded(x))
    assert largest_jump(other) < 1e-14


def test_loading_inside_a_model_derives_the_intercepts_again():
    """The hook runs for children too."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), FoldedSpline.from_spline(learned(radius=0.7)))
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), FoldedSpline(4, regions=50, radius=0.7).double())
    other.load_state_dict(model.state_dict())
    x = torch.randn(9, 4, dtype=torch.float64)
    assert torch.equal(other[1](x), model[1](x))


def test_a_change_of_dtype_leaves_no_jump():
    """In float64 the folded spline of float32 tables is continuous to float64 accuracy."""
    folded = FoldedSpline.from_spline(learned(radius=10.0).float()).double()
    assert largest_jump(folded) < 1e-13


def test_export_gives_the_same_function():
    """torch.export of the inference module."""
    folded = FoldedSpline.from_spline(learned())
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.export.export(folded, (x,)).module()(x), folded(x))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channels": 0}, "channels must be at least 1, but is 0."),
        ({"regions": 1}, "regions must be at least 2, but is 1."),
        ({"radius": 0}, "radius must be a positive finite number, but is 0."),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments: dict, message: str):
    """Got, wanted."""
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        FoldedSpline(**{"channels": 3, "regions": 5, "radius": 1.0, **arguments})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, 5), "FoldedSpline has 4 channels but the input has 5"),
        (torch.randn(4), "FoldedSpline needs an input of rank 2 or more"),
        (
            torch.ones(2, 4, dtype=torch.int64),
            "FoldedSpline needs a floating-point input, but got torch.int64. Convert it with x.float().",
        ),
    ],
)
def test_bad_inputs_are_refused_in_one_sentence(x: Tensor, message: str):
    """Wrong channel count, rank or dtype."""
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        FoldedSpline(4, regions=5, radius=1.0)(x)


def test_repr_says_what_it_is():
    """What print(model) shows."""
    assert repr(FoldedSpline(3, regions=5, radius=0.5)) == "FoldedSpline(3, regions=5, radius=0.5)"
    assert repr(FoldedSpline(3, regions=5, radius=0.5, shared=True)).endswith(", shared=True)")


def spline(knots: int) -> FreeKnots:
    return FreeKnots(torch.randn(knots).sort().values, torch.rand(knots + 1) * 2 - 1, torch.randn(()))


def test_channels_with_different_numbers_of_knots_keep_their_splines():
    splines = [spline(3), spline(0), spline(1)]
    layer = FreeKnotSpline.from_splines(splines)
    x = 3 * torch.randn(200, 3)
    wanted = torch.stack([free_knot_spline(x[:, i], splines[i]) for i in range(3)], dim=1)
    torch.testing.assert_close(layer(x), wanted)


@pytest.mark.parametrize(("shape", "dim"), [((2, 5, 3, 4), 1), ((2, 3, 5), -1)])
def test_channels_may_be_first_or_last_own_or_shared(shape, dim):
    x = torch.randn(shape)
    own = FreeKnotSpline.from_splines([spline(2) for _ in range(5)], channel_dim=dim)
    torch.testing.assert_close(own(x), free_knot_spline(x, own.splines(), dim))
    one = spline(4)
    shared = FreeKnotSpline.from_splines([one], channels=5, channel_dim=dim)
    torch.testing.assert_close(shared(x), free_knot_spline(x, one, dim))


def test_intercepts_are_derived_again_after_loading():
    layer = FreeKnotSpline.from_splines([spline(3), spline(2)])
    empty = FreeKnotSpline(2, knots=3)
    assert set(layer.state_dict()) == {"knots", "slopes", "intercept"}
    empty.load_state_dict(layer.state_dict())
    x = torch.randn(50, 2)
    assert torch.equal(empty(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_layer_keeps_the_dtype_of_its_input(dtype):
    layer = FreeKnotSpline.from_splines([spline(3), spline(2)])
    x = torch.randn(20, 2, dtype=dtype)
    assert layer(x).dtype == dtype
    assert layer.to(dtype)(x).dtype == dtype


def test_the_layer_exports():
    layer = FreeKnotSpline.from_splines([spline(3), spline(2)])
    x = torch.randn(4, 2)
    assert torch.equal(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_the_layer_goes_to_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer = FreeKnotSpline.from_splines([spline(3), spline(0), spline(2)])
    to_onnx(layer, tmp_path / "layer.onnx", (3,))
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
    x = torch.cat([torch.randn(50, 3), layer.knots.T])
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), layer(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FreeKnotSpline(0, knots=1), "channels must be at least 1, but is 0"),
        (lambda: FreeKnotSpline(2, knots=0), "knots must be at least 1, but is 0"),
        (lambda: FreeKnotSpline(2, knots=1)(torch.ones(1, 3)), "FreeKnotSpline has 2 channels but the input has 3"),
        (lambda: FreeKnotSpline(2, knots=1)(torch.ones(1, 2).long()), "floating-point input"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()
