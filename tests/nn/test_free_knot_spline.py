"""The layer that sparsify leaves: free-knot splines for inference."""

import copy

import pytest
import torch

from lipspline.functional.knots import FreeKnots, free_knot_spline
from lipspline.networks.export import to_onnx
from lipspline.nn.free_knot_spline import FreeKnotSpline


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
