"""An ONNX file as a module of torch, so that it can be certified: the common operations of the standard.

Activations of files that `to_onnx` wrote are recognised (`onnx_activations`). Shapes and other integers are computed
when the module runs, with numpy, so that tracing sees plain numbers.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipspline.certification.graph import NoOperationRule
from lipspline.networks import onnx_images  # noqa: F401 (it registers operations)
from lipspline.networks.onnx_activations import OnnxNode, read_node, recognise
from lipspline.networks.onnx_operations import OPERATIONS


class OnnxModule(nn.Module):
    """The graph of an ONNX file, with one input and one output; made by `from_onnx`."""

    def __init__(self, graph: Any, opset: int):
        super().__init__()
        from onnx import numpy_helper

        self.fixed: dict[Any, np.ndarray] = {}
        self.tensors: dict[Any, str] = {}
        constants = {initial.name: numpy_helper.to_array(initial) for initial in graph.initializer}
        nodes = [_of_its_time(read_node(n), opset) for n in graph.node]
        nodes, sizes = _sizes(nodes, constants)
        nodes, tables = recognise(nodes, constants, *(o.name for o in graph.output))
        for given, array in {**constants, **tables, **sizes}.items():
            numbers = given in sizes or not array.ndim  # limits, factors and sizes stay plain numbers
            if np.issubdtype(array.dtype, np.floating) and not numbers:
                name = f"weight_{len(self.tensors)}"
                self.register_buffer(name, torch.from_numpy(array.copy()))
                self.tensors[given] = name
            else:
                self.fixed[given] = array
        inputs = [value for value in graph.input if value.name not in self.tensors and value.name not in self.fixed]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise ValueError(
                f"certify bounds networks with one input and one output, but this file has {len(inputs)} and "
                f"{len(graph.output)}."
            )
        self.input_name, self.output_name = inputs[0].name, graph.output[0].name
        sizes = inputs[0].type.tensor_type.shape.dim
        self.input_sizes = tuple(d.dim_value if d.HasField("dim_value") else None for d in sizes)
        kinds = {node.kind for node in nodes if isinstance(node.kind, str)}
        if unknown := ", ".join(sorted(kinds - set(OPERATIONS))):
            raise ValueError(f"certify has no rule for these operations of ONNX: {unknown}. Certify the torch module.")
        self.nodes, self.layers = nodes, nn.ModuleList(node.kind for node in nodes if isinstance(node.kind, nn.Module))

    def forward(self, x: Tensor) -> Tensor:
        values: dict[Any, Any] = {**self.fixed, **{name: getattr(self, own) for name, own in self.tensors.items()}}
        values |= {self.input_name: x, "": None}
        layers = iter(self.layers)
        for kind, inputs, outputs, attributes in self.nodes:
            own = next(layers) if isinstance(kind, nn.Module) else kind
            function = OPERATIONS[own] if isinstance(own, str) else own
            try:
                results = function(*(values[name] for name in inputs), **attributes)
            except ValueError as error:
                raise NoOperationRule(f"{own} of the ONNX file: {error}") from error
            named = zip(outputs, results if isinstance(results, tuple) else (results,), strict=False)
            values |= {name: result for name, result in named if name}
        return values[self.output_name]


def _of_its_time(node: OnnxNode, opset: int) -> OnnxNode:
    """A node by the name of what it means in a file of this version."""
    if node.kind == "Softmax" and opset < 13:
        return node._replace(kind="Softmax over all axes from one on")
    return node


def _sizes(nodes: Sequence[OnnxNode], constants: dict[str, np.ndarray]) -> tuple[list[OnnxNode], dict[str, np.ndarray]]:
    """The real numbers that say how large something becomes, with the nodes that hold none of them."""
    asked = {name for node in nodes if node.kind in ("Resize", "Upsample", "Range") for name in node.inputs[1:]}
    held = {
        node.outputs[0]: np.asarray(next(iter(node.attributes.values())))
        for node in nodes
        if node.kind == "Constant" and node.outputs[0] in asked and len(node.attributes) == 1
    }
    given = {name: array for name, array in constants.items() if name in asked}
    return [node for node in nodes if node.outputs[0] not in held], held | given


def from_onnx(path: str | os.PathLike[str]) -> OnnxModule:
    """Read an ONNX file as a module of torch. Nothing in the file is run but the operations of the standard.

    Args:
        path: the file. Operations that are not known are an error that names them.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("Reading ONNX files needs the package onnx: pip install 'lipspline[onnx]'.") from error
    try:
        model = onnx.load(os.fspath(path))
        onnx.checker.check_model(model)
    except OSError:
        raise
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{Path(path).name} is no ONNX file that can be read ({type(error).__name__}: {line})."
        ) from error
    if model.functions:
        raise ValueError(f"{Path(path).name} defines operations of its own, which may replace those of the standard.")
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < 13 and any(node.op_type == "LogSoftmax" for node in model.graph.node):
        raise ValueError("A LogSoftmax before opset 13 is over all axes from one on, which has no rule. Export anew.")
    return OnnxModule(model.graph, opset).eval()
