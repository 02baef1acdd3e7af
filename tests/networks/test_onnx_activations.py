"""Files that `to_onnx` writes are certified, and no changed file gets a bound below what it computes."""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lipspline as ls
from lipspline.cli import main
from lipspline.functional.knots import FreeKnots
from lipspline.nn import FreeKnotSpline

onnx = pytest.importorskip("onnx", reason="needs the package onnx")
runtime = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
pytest.importorskip("onnxscript", reason="torch needs the package onnxscript to write ONNX files")

from lipspline.networks.onnx_module import from_onnx  # noqa: E402


def bent(channels: int, *, shared: bool = False, channel_dim: int = 1) -> ls.nn.LinearSpline:
    """Splines of few regions with slopes of all kinds."""
    spline = ls.nn.LinearSpline(channels, regions=4, radius=1.0, shared=shared, channel_dim=channel_dim)
    generator = torch.Generator().manual_seed(0)
    for parameter in spline.parameters():
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator)
    return spline


def free_knots() -> FreeKnotSpline:
    parts = [([-0.5, 0.25], [-1.0, 0.5, 1.0], 0.2), ([0.0, 1.0], [0.0, 1.0, -1.0], -0.1)]
    return FreeKnotSpline.from_splines([FreeKnots(*map(torch.tensor, part)) for part in parts])


def turned(layer: ls.nn.Householder) -> ls.nn.Householder:
    layer.angle.data += 0.3
    return layer


MODELS = {
    "splines": (lambda: nn.Sequential(ls.nn.linear(2, 2), bent(2)), (2,)),
    "splines of images": (lambda: nn.Sequential(ls.nn.conv2d(1, 2, 3), bent(2), ls.nn.conv2d(2, 1, 3)), (1, 5, 6)),
    "one spline for all": (lambda: nn.Sequential(ls.nn.linear(2, 2), bent(2, shared=True)), (2,)),
    "splines of the last dimension": (lambda: nn.Sequential(ls.nn.linear(2, 2), bent(2, channel_dim=-1)), (3, 2)),
    "splines as they start": (lambda: nn.Sequential(ls.nn.linear(2, 2), ls.nn.LinearSpline(2, radius=1.0)), (2,)),
    "free knots": (lambda: nn.Sequential(nn.Linear(2, 2), free_knots()), (2,)),
    "prelu": (lambda: nn.Sequential(ls.nn.linear(2, 2), ls.nn.LipschitzPReLU(2)), (2,)),
    "sorted pairs": (lambda: nn.Sequential(ls.nn.linear(2, 4), ls.nn.GroupSort(2), ls.nn.linear(4, 2)), (2,)),
    "maxmin of images": (lambda: nn.Sequential(ls.nn.conv2d(1, 4, 3), ls.nn.MaxMin()), (1, 5, 6)),
    "sorted groups": (lambda: nn.Sequential(ls.nn.linear(2, 4), ls.nn.GroupSort(4)), (2,)),
    "reflected pairs": (lambda: nn.Sequential(ls.nn.linear(2, 4), turned(ls.nn.Householder(4))), (2,)),
    "reflected pairs of images": (
        lambda: nn.Sequential(ls.nn.conv2d(1, 4, 3), turned(ls.nn.Householder(4))),
        (1, 5, 6),
    ),
}


EVERY_DAY = (
    "splines",
    "splines as they start",
    "splines of images",
    "one spline for all",
    "free knots",
    "sorted pairs",
    "reflected pairs",
)
every_model = [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


class Files(dict):
    """The files of models, each written when it is first wanted."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __missing__(self, name: str) -> Path:
        self[name] = self.folder / f"{len(self)}.onnx"
        ls.models.to_onnx(model_of(name), self[name], MODELS[name][1])
        return self[name]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files(tmp_path_factory.mktemp("onnx"))


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]().eval()


@pytest.mark.parametrize("name", every_model)
def test_a_file_of_our_own_is_certified_as_the_network_is(name: str, files):
    """And the module that is certified computes what onnxruntime computes."""
    module, shape = from_onnx(files[name]), MODELS[name][1]
    certificate = ls.certify(module, torch.zeros(1, *shape))
    assert certificate.upper == pytest.approx(ls.certify(ls.plain(model_of(name))).upper, rel=1e-5)
    assert certificate.upper >= stretch_of(files[name].read_bytes(), shape)
    x = 4 * torch.rand(3, *shape, generator=torch.Generator().manual_seed(1)) - 2
    there = outputs(files[name].read_bytes(), x.numpy())
    torch.testing.assert_close(module(x), torch.from_numpy(there), rtol=1e-5, atol=1e-5)


def test_the_command_certifies_what_the_library_wrote(files, monkeypatch, capsys):
    command = ["lipspline", "certify", str(files["splines of images"]), "--shape", "1,8,8", "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["upper"] <= 1


# Changed files


def outputs(file: bytes, x: np.ndarray) -> np.ndarray:
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def stretch_of(file: bytes, shape: tuple[int, ...], count: int = 3000) -> float:
    """The largest ‖f(x) - f(x')‖ / ‖x - x'‖ on lines through the inputs, in steps that rounding does not matter for."""
    generator, best = np.random.default_rng(0), 0.0
    for radius in (1.0, 4.0):
        ends = radius * generator.standard_normal((2, *shape))
        way = np.linspace(0, 1, count).reshape(-1, *[1] * len(shape))
        x = ((1 - way) * ends[0] + way * ends[1]).astype(np.float32)
        y = outputs(file, x).astype(np.float64)
        lengths = [np.linalg.norm(np.diff(z.astype(np.float64), axis=0).reshape(count - 1, -1), axis=1) for z in (x, y)]
        best = max(best, float(((lengths[1] - 1e-5) / lengths[0]).max()))
    return best


def changes(model) -> list[tuple[str, object]]:
    """The file with one number, one attribute, one operation or one input changed: (what, file) pairs."""
    found = []

    def change(what: str, edit) -> None:
        other = copy.deepcopy(model)
        edit(other.graph)
        found.append((what, other))

    for i, initial in enumerate(model.graph.initializer):
        array = onnx.numpy_helper.to_array(initial)
        for at in sorted({0, array.size // 2, array.size - 1}):
            for value in (1, 2, 0) if array.dtype.kind == "i" else (0.5, -3.0, 1000.0):

                def edit(graph, i=i, at=at, value=value, array=array):
                    new = array.copy().reshape(-1)
                    new[at] += value
                    new = onnx.numpy_helper.from_array(new.reshape(array.shape), graph.initializer[i].name)
                    graph.initializer[i].CopyFrom(new)

                change(f"{initial.name}[{at}] + {value}", edit)
        if array.dtype.kind == "f":
            for factor in (3.0, -1.0):

                def scale(graph, i=i, factor=factor, array=array):
                    new = np.clip(factor * array.astype(np.float64), -3e38, 3e38).astype(array.dtype)
                    graph.initializer[i].CopyFrom(onnx.numpy_helper.from_array(new, graph.initializer[i].name))

                change(f"{initial.name} * {factor}", scale)
    swaps = {"Floor": "Ceil", "Less": "Greater", "Greater": "Less", "Add": "Sub", "Sub": "Add", "Mul": "Add"}
    swaps |= {"GreaterOrEqual": "LessOrEqual", "ReduceSum": "ReduceMean"}
    for i, node in enumerate(model.graph.node):
        if node.op_type in swaps:
            change(f"{node.output[0]} by {swaps[node.op_type]}", lambda g, i=i: _rename(g.node[i], swaps))
        for j, k in ((0, 1), (1, 2)):
            if len(node.input) > k:
                change(f"inputs {j} and {k} of {node.output[0]}", lambda g, i=i, j=j, k=k: _swap(g.node[i].input, j, k))
        earlier = [name for other in model.graph.node[:i] for name in other.output]
        for j, name in enumerate(node.input):
            for new in (*earlier[-3:], model.graph.input[0].name):
                if new != name:
                    change(f"{node.output[0]} of {new}", lambda g, i=i, j=j, new=new: _put(g.node[i].input, j, new))
    return found


def _rename(node, swaps: dict[str, str]) -> None:
    node.op_type = swaps[node.op_type]


def _swap(names, j: int, k: int) -> None:
    names[j], names[k] = names[k], names[j]


def _put(names, j: int, new: str) -> None:
    names[j] = new


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["splines", "one spline for all", "free knots", "sorted pairs", "sorted groups", "reflected pairs"]
)
def test_no_changed_file_gets_a_bound_below_what_it_computes(name: str, files, tmp_path):
    """Each is refused, by us or by onnxruntime, or has a bound that holds."""
    shape, path, certified = MODELS[name][1], tmp_path / "changed.onnx", 0
    for what, changed in changes(onnx.load(files[name])):
        file = changed.SerializeToString()
        try:
            stretch = stretch_of(file, shape, 600)
        except Exception:  # no network any more
            continue
        path.write_bytes(file)
        try:
            upper = ls.certify(from_onnx(path), torch.zeros(1, *shape)).upper
        except (ValueError, KeyError):
            continue
        certified += 1
        assert not stretch > upper * (1 + 1e-4) + 1e-6, f"{what}: {stretch} > {upper}"
    assert certified > 5


def changed_table(path: Path, name: str, size: int, edit) -> Path:
    """A copy of a file in which the tables of this size went through `edit(intercepts, slopes)`."""
    model = onnx.load(path)
    tables = [t for t in model.graph.initializer if list(t.dims) == [size]]
    arrays = [onnx.numpy_helper.to_array(t).copy() for t in tables]
    edit(*arrays)
    for table, array in zip(tables, arrays, strict=True):
        table.CopyFrom(onnx.numpy_helper.from_array(array, table.name))
    onnx.save(model, path.with_name(name))
    return path.with_name(name)


def test_a_jump_in_the_tables_is_refused(files):
    def jump(b, s):
        b[1] += 1e-4

    with pytest.raises(ValueError, match="no rule for these operations"):
        from_onnx(changed_table(files["splines"], "jump.onnx", 8, jump))


def test_large_values_in_one_channel_hide_no_jump_in_another(files):
    def jump(b, s):
        b[4:] += 1e6
        b[1] += 0.1

    with pytest.raises(ValueError, match="no rule for these operations"):
        from_onnx(changed_table(files["splines"], "hidden.onnx", 8, jump))


def test_steeper_slopes_have_a_larger_bound(files):
    def steeper(b, s):
        b *= 3
        s *= 3

    path = changed_table(files["splines"], "steep.onnx", 8, steeper)
    assert ls.certify(from_onnx(path), torch.zeros(1, 2)).upper == pytest.approx(3, rel=1e-5)


def test_no_value_of_a_file_takes_the_place_of_a_table(files, tmp_path):
    """Values may have any name in a file, also one that is made up for a table."""
    model = onnx.load(files["splines"])
    graph, node, output = model.graph, onnx.helper.make_node, model.graph.output[0].name
    graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((2, 4), np.float32), "zeros"))
    graph.node.insert(0, node("Identity", ["zeros"], [f"{output}/table 1"]))
    graph.node.append(node("ReduceSum", [f"{output}/table 1"], ["nothing"]))
    graph.node.append(node("Add", [output, "nothing"], ["sum"]))
    graph.output[0].name = "sum"
    onnx.save(model, tmp_path / "named.onnx")
    assert ls.certify(from_onnx(tmp_path / "named.onnx"), torch.zeros(1, 2)).upper == pytest.approx(1, abs=1e-3)


def test_an_operation_of_another_domain_is_not_taken_for_ours(tmp_path):
    node = onnx.helper.make_node("evaluate_grid_spline", ["x"], ["y"], domain="lipspline")
    with pytest.raises(ValueError, match=r"no rule for these operations of ONNX: lipspline\.evaluate_grid_spline"):
        from_onnx(saved(tmp_path, [node], imports=[("", 18), ("lipspline", 1)]))


# Operations whose meaning depends on an option


def saved(folder: Path, nodes, *, imports=(("", 18),), functions=(), constants=()) -> Path:
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    ends = [value("x", kind, [1, 4, 3]), value("y", kind, ["a", "b", "c"])]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in constants]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    opsets = [onnx.helper.make_opsetid(*entry) for entry in imports]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, functions=functions), folder / "made.onnx")
    return folder / "made.onnx"


def test_a_dropout_that_trains_is_refused(tmp_path):
    node = onnx.helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])
    constants = [("ratio", np.float32(0.9)), ("training", np.array(True))]
    with pytest.raises(ValueError, match="drops entries at random"):
        ls.certify(from_onnx(saved(tmp_path, [node], constants=constants)), torch.zeros(1, 4, 3))


def test_a_mean_over_no_axes_is_the_identity(tmp_path):
    node = onnx.helper.make_node("ReduceMean", ["x"], ["y"], noop_with_empty_axes=1)
    assert ls.certify(from_onnx(saved(tmp_path, [node])), torch.zeros(1, 4, 3)).upper == 1


def test_an_old_log_softmax_is_refused(tmp_path):
    node = onnx.helper.make_node("LogSoftmax", ["x"], ["y"], axis=1)
    with pytest.raises(ValueError, match="LogSoftmax before opset 13"):
        from_onnx(saved(tmp_path, [node], imports=[("", 11)]))


def test_a_file_with_operations_of_its_own_is_refused(tmp_path):
    add = onnx.helper.make_node("Add", ["a", "a"], ["b"])
    own = onnx.helper.make_function("mine", "Twice", ["a"], ["b"], [add], [onnx.helper.make_opsetid("", 18)])
    node = onnx.helper.make_node("Twice", ["x"], ["y"], domain="mine")
    with pytest.raises(ValueError, match="defines operations of its own"):
        from_onnx(saved(tmp_path, [node], imports=[("", 18), ("mine", 1)], functions=[own]))


def test_an_output_without_a_name_is_no_input_that_is_left_out(tmp_path):
    """Else the second half, -x, would be added to the first as the bias that the product has not."""
    make = onnx.helper.make_node
    nodes = [make("Neg", ["x"], ["minus"]), make("Concat", ["x", "minus"], ["both"], axis=2)]
    nodes += [make("Split", ["both"], ["first", ""], axis=2, num_outputs=2), make("Flatten", ["first"], ["flat"])]
    nodes += [make("Gemm", ["flat", "one", ""], ["product"]), make("Reshape", ["product", "shape"], ["y"])]
    constants = [("one", np.eye(12, dtype=np.float32)), ("shape", np.array([1, 4, 3]))]
    path = saved(tmp_path, nodes, constants=constants)
    x = torch.rand(1, 4, 3)
    assert torch.equal(from_onnx(path)(x), x)
