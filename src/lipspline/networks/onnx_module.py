"""An ONNX file as a module of torch, so that it can be certified: the common operations of the standard.

Activations of files that `to_onnx` wrote are recognised (`onnx_activations`). Shapes and other integers are computed
when the module runs, with numpy, so that tracing sees plain numbers.
"""

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline.networks.onnx_activations import read_node, recognise

Attributes = dict[str, Any]
Operation = Callable[..., Any]
_OPERATIONS: dict[str, Operation] = {}


class OnnxModule(nn.Module):
    """The graph of an ONNX file, with one input and one output; made by `from_onnx`."""

    def __init__(self, graph: Any):
        super().__init__()
        from onnx import numpy_helper

        self.fixed: dict[Any, np.ndarray] = {}
        self.tensors: dict[Any, str] = {}
        constants = {initial.name: numpy_helper.to_array(initial) for initial in graph.initializer}
        nodes, tables = recognise([read_node(n) for n in graph.node], constants, *(o.name for o in graph.output))
        for given, array in {**constants, **tables}.items():
            if np.issubdtype(array.dtype, np.floating) and array.ndim:  # limits and factors stay plain numbers
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
        if unknown := ", ".join(sorted(kinds - set(_OPERATIONS))):
            raise ValueError(f"certify has no rule for these operations of ONNX: {unknown}. Certify the torch module.")
        self.nodes, self.layers = nodes, nn.ModuleList(node.kind for node in nodes if isinstance(node.kind, nn.Module))

    def forward(self, x: Tensor) -> Tensor:
        values: dict[Any, Any] = {**self.fixed, **{name: getattr(self, own) for name, own in self.tensors.items()}}
        values |= {self.input_name: x, "": None}
        layers = iter(self.layers)
        for kind, inputs, outputs, attributes in self.nodes:
            own = next(layers) if isinstance(kind, nn.Module) else kind
            function = _OPERATIONS[own] if isinstance(own, str) else own
            results = function(*(values[name] for name in inputs), **attributes)
            named = zip(outputs, results if isinstance(results, tuple) else (results,), strict=False)
            values |= {name: result for name, result in named if name}
        return values[self.output_name]


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
        raise ValueError(f"{Path(path).name} is no ONNX file that can be read ({type(error).__name__}).") from error
    if model.functions:
        raise ValueError(f"{Path(path).name} defines operations of its own, which may replace those of the standard.")
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < 13 and any(node.op_type == "LogSoftmax" for node in model.graph.node):
        raise ValueError("A LogSoftmax before opset 13 is over all axes from one on, which has no rule. Export anew.")
    return OnnxModule(model.graph).eval()


def _is(name: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        _OPERATIONS[name] = function
        return function

    return register


def _ints(value: Any) -> list[int]:
    """Integers that do not depend on the input."""
    if isinstance(value, Tensor):
        raise ValueError("A shape or an index in this file depends on the values of the input.")
    return [int(v) for v in np.asarray(value).reshape(-1)]


def _tensor(value: Any, like: Tensor) -> Any:
    return torch.from_numpy(np.array(value)).to(like) if isinstance(value, np.ndarray) else value


def _both(function: Callable[[Any, Any], Any]) -> Operation:
    """Of two tensors, or of two arrays of integers."""

    def apply(a: Any, b: Any) -> Any:
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            like = a if isinstance(a, Tensor) else b
            return function(_tensor(a, like), _tensor(b, like))
        return np.asarray(function(a, b))

    return apply


for _name, _function in {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a // b if isinstance(a, np.ndarray) and np.issubdtype(a.dtype, np.integer) else a / b,
    "MatMul": lambda a, b: a @ b,
}.items():
    _OPERATIONS[_name] = _both(_function)

_OPERATIONS |= {
    "Relu": F.relu,
    "Abs": torch.abs,
    "Neg": torch.neg,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Erf": torch.erf,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Mish": F.mish,
    "HardSwish": F.hardswish,
    "Softsign": F.softsign,
    "Identity": lambda x: x,
    "Dropout": lambda x, ratio=None, training=False, **_: x if not _flag(training) else _refuse_training(),
    "PRelu": lambda x, slope: F.prelu(x, slope.reshape(-1)),
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "Celu": lambda x, alpha=1.0: F.celu(x, alpha),
    "Gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate),
    "Exp": torch.exp,
    "Sqrt": torch.sqrt,
    "Pow": lambda x, y: x ** _tensor(y, x),
    "Softmax": lambda x, axis=-1: x.softmax(axis),
    "LogSoftmax": lambda x, axis=-1: x.log_softmax(axis),
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.ndim)), keepdim=True),
    "Constant": lambda value=None, value_int=None, value_ints=None, value_float=None: (
        _constant(value if value is not None else value_int if value_int is not None else value_ints)
        if value_float is None
        else value_float
    ),
    "Shape": lambda x, start=0, end=None: np.asarray(x.shape[start:end], dtype=np.int64),
    "Transpose": lambda x, perm=None: x.permute(perm or tuple(reversed(range(x.ndim)))),
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(_ints(shape)))),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Cast": lambda x, to=1: x if isinstance(x, np.ndarray) or to in (1, 10, 11, 16) else _refuse_cast(),
    "Selu": lambda x, alpha=1.6732632, gamma=1.0507010: gamma * F.elu(x, alpha),
    "Softplus": lambda x: F.softplus(x, threshold=40),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
}


def _constant(value: Any) -> Any:
    array = np.asarray(value)
    return torch.from_numpy(array.copy()) if np.issubdtype(array.dtype, np.floating) and array.ndim else array


def _flag(value: Any) -> bool:
    return value is not None and bool(_ints(value)[0])


def _refuse_training() -> Any:
    raise ValueError("The file drops entries at random, as in training, and enlarges the others.")


def _refuse_cast() -> Any:
    raise ValueError("The file casts a tensor to integers, which jumps, so that it has no Lipschitz constant.")


@_is("Clip")
def _clip(x: Tensor, low: Any = None, high: Any = None, min: float | None = None, max: float | None = None) -> Tensor:
    bounds = [
        float(b) if b is not None else None
        for b in (low if low is not None else min, high if high is not None else max)
    ]
    return x.clamp(*bounds)


@_is("Gemm")
def _gemm(
    a: Tensor, b: Tensor, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    y = (a.mT if transA else a) @ (b.mT if transB else b)
    y = y if alpha == 1 else alpha * y
    return y if c is None else y + (c if beta == 1 else beta * c)


def _pads(x: Tensor, pads: list[int] | None, auto_pad: str, axes: int) -> list[int]:
    """Pixels before and after each axis, the last axis first, as torch counts them."""
    if auto_pad not in ("NOTSET", "VALID"):
        raise ValueError(f"auto_pad={auto_pad} has no rule. Export with explicit pads.")
    pads = [0] * (2 * axes) if pads is None or auto_pad == "VALID" else pads
    return [p for axis in reversed(range(axes)) for p in (pads[axis], pads[axis + axes])]


@_is("Conv")
def _conv(x, w, b=None, *, group=1, strides=None, dilations=None, pads=None, auto_pad="NOTSET", kernel_shape=None):
    axes = w.ndim - 2
    around = _pads(x, pads, auto_pad, axes)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    same = around[::2] == around[1::2]
    if not same:
        x = F.pad(x, around)
    padding = around[::2][::-1] if same else 0
    return convolve(x, w, b, strides or 1, padding, dilations or 1, group)


@_is("ConvTranspose")
def _conv_transpose(
    x, w, b=None, *, group=1, strides=None, dilations=None, pads=None, auto_pad="NOTSET", kernel_shape=None,
    output_padding=None,
):  # fmt: skip
    axes = w.ndim - 2
    around = _pads(x, pads, auto_pad, axes)
    if around[::2] != around[1::2]:
        raise ValueError("A ConvTranspose with unequal pads has no rule.")
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    return convolve(x, w, b, strides or 1, around[::2][::-1], output_padding or 0, group, dilations or 1)


@_is("MaxPool")
def _max_pool(
    x, *, kernel_shape, strides=None, pads=None, dilations=None, ceil_mode=0, auto_pad="NOTSET", storage_order=0
):
    axes = len(kernel_shape)
    around = _pads(x, pads, auto_pad, axes)
    if around[::2] != around[1::2]:
        x, around = F.pad(x, around, value=-math.inf), [0] * len(around)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]
    return pool(x, kernel_shape, strides or 1, around[::2][::-1], dilations or 1, bool(ceil_mode))


@_is("AveragePool")
def _average_pool(x, *, kernel_shape, strides=None, pads=None, ceil_mode=0, count_include_pad=0, auto_pad="NOTSET"):
    axes = len(kernel_shape)
    around = _pads(x, pads, auto_pad, axes)
    if around[::2] != around[1::2]:
        raise ValueError("An AveragePool with unequal pads has no rule.")
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes - 1]
    return pool(x, kernel_shape, strides or 1, around[::2][::-1], bool(ceil_mode), bool(count_include_pad))


@_is("BatchNormalization")
def _batch_norm(x, scale, bias, mean, var, *, epsilon=1e-5, momentum=0.9, training_mode=0):
    if training_mode:
        raise ValueError("Batch normalisation in training mode has no Lipschitz bound.")
    return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


@_is("Reshape")
def _reshape(x, shape, allowzero=0):
    sizes = _ints(shape)
    if not isinstance(x, Tensor):
        return np.reshape(x, sizes)
    return x.reshape([x.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(sizes)])


@_is("Squeeze")
def _squeeze(x, axes=None):
    if not isinstance(x, Tensor):
        return np.squeeze(x, tuple(_ints(axes)) if axes is not None else None)
    return x.squeeze() if axes is None else x.squeeze(tuple(_ints(axes)))


@_is("Unsqueeze")
def _unsqueeze(x, axes=None):
    places = sorted(_ints(axes))
    if not isinstance(x, Tensor):
        return np.expand_dims(x, tuple(places))
    for place in places:
        x = x.unsqueeze(place)
    return x


@_is("Concat")
def _concat(*parts, axis=0):
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not tensors:
        return np.concatenate([np.atleast_1d(part) for part in parts], axis)
    return torch.cat([_tensor(part, tensors[0]) for part in parts], axis)


@_is("Split")
def _split(x, split=None, *, axis=0, num_outputs=None, outputs=1):
    sizes = -(-x.shape[axis] // outputs) if split is None else _ints(split)
    return tuple(x.split(sizes, axis))


@_is("Slice")
def _slice(x, starts, ends, axes=None, steps=None):
    first, last = _ints(starts), _ints(ends)
    places = _ints(axes) if axes is not None else list(range(len(first)))
    strides = _ints(steps) if steps is not None else [1] * len(first)
    if any(s < 1 for s in strides):
        raise ValueError("A Slice with a negative step has no rule.")
    cut = [slice(None)] * x.ndim
    for start, end, place, step in zip(first, last, places, strides, strict=True):
        cut[place] = slice(start, min(end, 2**31), step)
    return x[tuple(cut)]


@_is("Gather")
def _gather(x, indices, axis=0):
    places = np.asarray(indices)
    _ints(places)
    if not isinstance(x, Tensor):
        return np.take(x, places, axis)
    if places.ndim == 0:
        return x.select(axis, int(places))
    return x.index_select(axis, torch.from_numpy(places.reshape(-1)).long())


@_is("Pad")
def _pad(x, pads=None, value=None, axes=None, mode="constant"):
    counts = _ints(pads)
    if axes is not None:
        raise ValueError("A Pad with axes has no rule.")
    half = len(counts) // 2
    around = [p for axis in reversed(range(half)) for p in (counts[axis], counts[axis + half])]
    while len(around) > 2 and not any(around[-2:]):
        around = around[:-2]
    torch_mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return F.pad(x, around, torch_mode, **({"value": float(value or 0.0)} if mode == "constant" else {}))


def _reduction(name: str, function: Operation | None = None) -> Operation:
    of_tensors = function or getattr(torch, name)

    def reduce(x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        if not isinstance(x, Tensor):
            return np.prod(x) if name == "prod" else getattr(np, name)(x)
        if noop_with_empty_axes and (axes is None or not _ints(axes)):
            return x
        places = tuple(_ints(axes)) if axes is not None else tuple(range(x.ndim))
        return of_tensors(x, dim=places, keepdim=bool(keepdims))

    return reduce


_OPERATIONS |= {
    "ReduceMean": _reduction("mean"),
    "ReduceSum": _reduction("sum"),
    "ReduceMax": _reduction("amax"),
    "ReduceMin": _reduction("amin"),
    "ReduceProd": _reduction("prod"),
    "ReduceL2": _reduction("norm", torch.linalg.vector_norm),
    "Max": lambda *parts: functools.reduce(torch.maximum, parts),
    "Min": lambda *parts: functools.reduce(torch.minimum, parts),
    "Sum": lambda *parts: functools.reduce(torch.add, parts),
}


@_is("TopK")
def _top_k(x, k, *, axis=-1, largest=1, sorted=1):
    """The values only: where they are jumps."""
    return x.topk(*_ints(k), dim=axis, largest=bool(largest), sorted=bool(sorted)).values


@_is("DepthToSpace")
def _depth_to_space(x, *, blocksize, mode="DCR"):
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    b, c, h, w = x.shape
    x = x.reshape(b, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(b, c // blocksize**2, h * blocksize, w * blocksize)


@_is("SpaceToDepth")
def _space_to_depth(x, *, blocksize):
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // blocksize, blocksize, w // blocksize, blocksize).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(b, c * blocksize**2, h // blocksize, w // blocksize)
