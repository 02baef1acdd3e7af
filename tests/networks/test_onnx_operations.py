"""Single operations of ONNX: what onnxruntime computes, and bounds that the Jacobian reaches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lipspline as ls

onnx = pytest.importorskip("onnx", reason="needs the package onnx")
runtime = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")

from lipspline.networks.onnx_images import _resize  # noqa: E402
from lipspline.networks.onnx_module import from_onnx  # noqa: E402

node = onnx.helper.make_node
FLOATS = onnx.TensorProto.FLOAT


def integers(*values: int) -> np.ndarray:
    """Indices, sizes or counts."""
    return np.array(values, dtype=np.int64)


def factors(*values: float) -> np.ndarray:
    """Real numbers."""
    return np.array(values, dtype=np.float32)


def saved(folder: Path, nodes: Sequence[Any], shape: Sequence[int], opset: int = 18, **constants: np.ndarray) -> Path:
    """A file with the input x of a shape and the output y, checked by nobody."""
    ends = [onnx.helper.make_tensor_value_info(name, FLOATS, sizes) for name, sizes in (("x", shape), ("y", None))]
    given = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph(list(nodes), "g", ends[:1], ends[1:], given)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    path = folder / "made.onnx"
    path.write_bytes(model.SerializeToString())
    y = session(path).run(None, {"x": np.zeros(shape, np.float32)})[0]
    del graph.output[:]
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", FLOATS, y.shape))
    onnx.save(model, path)
    return path


def session(path: Path) -> Any:
    """What runs the file elsewhere."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def agrees(path: Path, shape: Sequence[int], upper: float | None = None) -> None:
    """The module computes what onnxruntime does, and its bound is the norm of the Jacobian, or `upper`."""
    module, there = from_onnx(path), session(path)
    for scale in (0.3, 3.0):
        x = scale * torch.randn(*shape)
        expected = torch.from_numpy(there.run(None, {"x": x.numpy()})[0])
        torch.testing.assert_close(module(x), expected, atol=1e-4, rtol=1e-4)
    x = torch.randn(*shape)
    jacobian = torch.func.jacrev(module)(x).reshape(-1, x.numel())
    bound = ls.certify(module, tuple(shape[1:])).upper
    assert float(torch.linalg.matrix_norm(jacobian.double(), ord=2)) <= bound * (1 + 1e-6)
    assert bound == pytest.approx(
        float(torch.linalg.matrix_norm(jacobian, ord=2)) if upper is None else upper, rel=1e-4
    )


MODES = {
    "nearest": {"mode": "nearest"},
    "nearest of torch": {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    },
    "nearest, up": {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    "linear": {"mode": "linear"},
    "linear of torch": {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    "corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "asymmetric": {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    "cubic": {"mode": "cubic", "cubic_coeff_a": -0.75},
    "cubic inside": {"mode": "cubic", "exclude_outside": 1},
    "cubic corners": {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(
    ("inputs", "constants"),
    [
        (["x", "", "scales"], {"scales": factors(1, 1, 2, 2)}),
        (["x", "", "scales"], {"scales": factors(1, 1, 0.5, 1)}),
        (["x", "", "", "sizes"], {"sizes": integers(1, 2, 9, 4)}),
    ],
    ids=["twice", "half", "sizes"],
)
def test_resize(name: str, inputs: list[str], constants: dict[str, np.ndarray], tmp_path: Path):
    """Every pixel is a mean of others: a matrix for each axis."""
    shape = (1, 2, 6, 5)
    agrees(saved(tmp_path, [node("Resize", inputs, ["y"], **MODES[name])], shape, **constants), shape)


def test_resize_with_scales_of_a_constant_node_and_some_axes(tmp_path: Path):
    """As exporters write it."""
    scales = node("Constant", [], ["s"], value=onnx.numpy_helper.from_array(factors(2, 3)))
    path = saved(tmp_path, [scales, node("Resize", ["x", "", "s"], ["y"], mode="linear", axes=[2, 3])], (1, 1, 3, 3))
    agrees(path, (1, 1, 3, 3))


def test_upsample_of_old_files(tmp_path: Path):
    """The operation before Resize."""
    path = saved(
        tmp_path, [node("Upsample", ["x", "s"], ["y"], mode="nearest")], (1, 1, 3, 3), 9, s=factors(1, 1, 2, 2)
    )
    agrees(path, (1, 1, 3, 3), 2.0)


@pytest.mark.parametrize("options", [{"mode": "area"}, {"nearest_mode": "up"}])
def test_a_resize_of_no_known_mode_is_refused(options: dict[str, str]):
    """onnxruntime does not build such a file; other programs might."""
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}={value} has no rule"):
        _resize(torch.ones(1, 1, 4, 4), scales=factors(1, 1, 2, 2), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "linear", "antialias": 1}, "antialias"),
        ({"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}, "tf_crop_and_resize"),
    ],
)
def test_a_resize_that_is_not_known_is_refused(options: dict[str, Any], words: str, tmp_path: Path):
    """By the name of the option, not by what torch says."""
    constants = {"s": factors(1, 1, 0.5, 0.5), "roi": factors(0, 0, 0, 0, 1, 1, 1, 1)}
    path = saved(tmp_path, [node("Resize", ["x", "roi", "s"], ["y"], **options)], (1, 1, 4, 4), **constants)
    with pytest.raises(ValueError, match=f"^Resize of the ONNX file: .*{words}.* has no rule"):
        ls.certify(from_onnx(path), (1, 4, 4))


def test_range_gives_indices_and_factors(tmp_path: Path):
    """Counting depends on no input."""
    span = {"a": integers(0)[0], "b": integers(6)[0], "c": integers(2)[0]}
    counted = [node("Range", ["a", "b", "c"], ["r"]), node("Gather", ["x", "r"], ["y"], axis=1)]
    agrees(saved(tmp_path, counted, (1, 6), **span), (1, 6), 1.0)
    span = {"a": factors(1)[0], "b": factors(7)[0], "c": factors(1)[0]}
    counted = [node("Range", ["a", "b", "c"], ["r"]), node("Mul", ["x", "r"], ["y"])]
    agrees(saved(tmp_path, counted, (1, 6), **span), (1, 6), 6.0)


W = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
K = np.random.default_rng(1).normal(size=(3, 2, 3, 3)).astype(np.float32)
CASES: dict[str, tuple[list[Any], tuple[int, ...], dict[str, np.ndarray], float | None]] = {
    "a gather of a table of places": (
        [node("Gather", ["x", "i"], ["g"], axis=1), node("ReduceSum", ["g", "a"], ["y"])],
        (1, 5),
        {"i": np.array([[0, 1], [0, 4]]), "a": integers(1)},
        None,
    ),
    "a gather from the end": ([node("Gather", ["x", "i"], ["y"], axis=1)], (1, 5), {"i": integers(-1, 0, -2)}, None),
    "one place from the end": ([node("Gather", ["x", "i"], ["y"], axis=1)], (1, 5), {"i": np.array(-1)}, None),
    "places of several axes": (
        [node("GatherND", ["x", "i"], ["y"])],
        (1, 6),
        {"i": np.array([[0, 1], [0, 1], [0, -1]])},
        2**0.5,
    ),
    "tiles": ([node("Tile", ["x", "n"], ["y"])], (1, 4), {"n": integers(1, 3)}, 3**0.5),
    "a reversed slice": (
        [node("Slice", ["x", "a", "b", "d", "s"], ["y"])],
        (1, 6),
        {"a": integers(-1), "b": integers(-100), "d": integers(1), "s": integers(-2)},
        1.0,
    ),
    "sums of exponentials": ([node("ReduceLogSumExp", ["x", "a"], ["y"])], (1, 5), {"a": integers(1)}, 1.0),
    "einsum": ([node("Einsum", ["x", "w"], ["y"], equation="bi,ij->bj")], (1, 6), {"w": W}, None),
    "a mean of tensors": ([node("Mean", ["x", "c"], ["y"])], (1, 4), {"c": factors(1, 2, 3, 4)}, 0.5),
    "a constant shape": (
        [
            node("ConstantOfShape", ["s"], ["c"], value=onnx.numpy_helper.from_array(factors(3))),
            node("Mul", ["x", "c"], ["y"]),
        ],
        (1, 4),
        {"s": integers(1, 4)},
        3.0,
    ),
    "constants in a node": (
        [node("Constant", [], ["c"], value_floats=[2.0, 3.0, 4.0, 5.0]), node("Mul", ["x", "c"], ["y"])],
        (1, 4),
        {},
        5.0,
    ),
    "a border on some axes": (
        [node("Pad", ["x", "p", "", "a"], ["y"], mode="reflect")],
        (1, 2, 5, 5),
        {"p": integers(1, 2), "a": integers(-1)},
        2**0.5,
    ),
    "the same size": (
        [node("Conv", ["x", "k"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])],
        (1, 2, 7, 8),
        {"k": K},
        None,
    ),
    "the same size, lower": ([node("Conv", ["x", "k"], ["y"], auto_pad="SAME_LOWER")], (1, 2, 6, 6), {"k": K}, None),
    "maxima of the same size": (
        [node("MaxPool", ["x"], ["y"], auto_pad="SAME_UPPER", kernel_shape=[2, 2], strides=[2, 2])],
        (1, 2, 5, 5),
        {},
        1.0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_compute_what_onnxruntime_computes(name: str, tmp_path: Path):
    """With the bound of the linear ones exact."""
    nodes, shape, constants, upper = CASES[name]
    path = saved(tmp_path, nodes, shape, **constants)
    if name.startswith("the same size"):  # the bound is over all frequencies
        assert 0 < ls.certify(from_onnx(path), shape[1:]).upper < 20
        upper = ls.certify(from_onnx(path), shape[1:]).upper
    agrees(path, shape, upper)


def test_an_old_softmax_is_over_all_axes_from_one_on(tmp_path: Path):
    """Before opset 13."""
    agrees(saved(tmp_path, [node("Softmax", ["x"], ["y"])], (1, 3, 4), 11), (1, 3, 4), 0.5)


def test_a_length_over_no_axes_is_the_absolute_value(tmp_path: Path):
    """So that the difference to the input is no zero."""
    nodes = [node("ReduceL2", ["x"], ["a"], noop_with_empty_axes=1), node("Sub", ["a", "x"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(name, FLOATS, [1, 4]) for name in ("x", "y")]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[onnx.helper.make_opsetid("", 18)]
    )
    onnx.save(model, tmp_path / "made.onnx")
    module = from_onnx(tmp_path / "made.onnx")
    assert torch.equal(module(-torch.ones(1, 4)), 2 * torch.ones(1, 4))
    assert ls.certify(module, (4,)).upper == pytest.approx(2.0)


def test_what_a_file_asks_for_in_vain_is_said_without_advice_about_the_shape(tmp_path: Path):
    """The shape of the input is not what is wrong."""
    nodes = [node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y", "m", "v"], training_mode=1)]
    path = saved(tmp_path, nodes, (1, 2, 3, 3), s=factors(1, 1))
    with pytest.raises(ValueError, match=r"^BatchNormalization of the ONNX file: Batch normalisation in training mode"):
        ls.certify(from_onnx(path), (2, 3, 3))
