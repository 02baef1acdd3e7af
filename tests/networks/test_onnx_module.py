"""ONNX files as modules: the outputs of onnxruntime, and bounds above the exact Jacobian."""

import json
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lipspline as ls
from lipspline.cli import main

onnx = pytest.importorskip("onnx", reason="needs the package onnx")
runtime = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
pytest.importorskip("onnxscript", reason="torch needs the package onnxscript to write ONNX files")

from lipspline.networks.onnx_module import from_onnx  # noqa: E402


class Small(nn.Module):
    """Most of the operations that are known, with a residual sum and a concatenation."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.grouped, self.up = nn.Conv2d(4, 4, 3, 2, 1, groups=2), nn.ConvTranspose2d(4, 2, 2, 2)
        self.prelu, self.dense = nn.PReLU(4), nn.Linear(16, 3)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x)))
        y = self.up(self.prelu(self.grouped(y))) + x
        a, b = y.chunk(2, 1)
        y = torch.cat([torch.maximum(a, b), torch.minimum(a, b), F.pad(y, (1, 0, 0, 0))[..., :-1]], 1)
        y = F.max_pool2d(y.abs(), 2) - F.avg_pool2d(F.leaky_relu(y, 0.2), 2)
        y = F.silu(y).clamp(-1, 1).mean(-1)
        return self.dense(torch.tanh(y).flatten(1)[:, :16] / 3).softmax(1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    model = Small().eval()
    torch.onnx.export(model, (torch.randn(1, 2, 8, 8),), path, dynamo=True, verbose=False)
    return path


def test_the_module_computes_what_onnxruntime_computes(file):
    x = torch.randn(1, 2, 8, 8)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    there = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    assert torch.allclose(from_onnx(file)(x), torch.from_numpy(there), atol=1e-5)


def test_the_bound_is_above_the_exact_jacobian(file):
    module = from_onnx(file)
    x = torch.randn(1, 2, 8, 8)
    jacobian = torch.func.jacrev(from_onnx(file).double())(x.double()).reshape(3, -1)
    certificate = ls.certify(module, x)
    assert 0 < float(torch.linalg.matrix_norm(jacobian, ord=2)) <= certificate.upper
    assert certificate.lower is not None


def test_the_command_certifies_onnx_files(file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lipspline", "certify", str(file), "--lipschitz", "1e6", "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    document = json.loads(capsys.readouterr().out)
    assert document["valid_for"] == "inputs of shape (1, 2, 8, 8)"
    assert 0 < document["lower"] <= document["upper"]


def test_the_command_certifies_a_function_of_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x - 0.5 * x\n"
        "def build():\n"
        "    return Mine()\n"
    )
    monkeypatch.setattr(sys, "argv", ["lipspline", "certify", f"{tmp_path}/mine.py:build", "--shape", "3", "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["upper"] == pytest.approx(0.5, abs=1e-9)


def test_lengths_of_pooled_pixels_are_certified(tmp_path):
    """`L2NormPool2d`, whose file has the operation ReduceL2."""
    network = ls.plain(nn.Sequential(ls.nn.conv2d(1, 4, 3), ls.nn.L2NormPool2d(2), nn.Flatten(), ls.nn.linear(64, 3)))
    x = torch.randn(1, 1, 8, 8)
    torch.onnx.export(network, (x,), tmp_path / "pooled.onnx", dynamo=True, verbose=False)
    module = from_onnx(tmp_path / "pooled.onnx")
    torch.testing.assert_close(module(x), network(x), atol=1e-5, rtol=0)
    certificate = ls.certify(module, x)
    assert 0.1 < float(torch.linalg.matrix_norm(torch.func.jacrev(module)(x).reshape(3, -1), ord=2)) <= 1.00001
    assert certificate.upper == pytest.approx(1, abs=1e-5)


def test_an_unknown_operation_is_named(tmp_path):
    node = onnx.helper.make_node("Det", ["x"], ["y"])
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g", [value("x", onnx.TensorProto.FLOAT, [1, 2, 2])], [value("y", onnx.TensorProto.FLOAT, [1])]
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "det.onnx")
    with pytest.raises(ValueError, match=r"no rule for these operations of ONNX: Det\. Certify the torch module"):
        from_onnx(tmp_path / "det.onnx")


def test_a_file_that_is_no_onnx_is_refused(tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"\x00\x01not protobuf")
    with pytest.raises(ValueError, match="no ONNX file"):
        from_onnx(tmp_path / "no.onnx")
