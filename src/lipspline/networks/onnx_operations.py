"""The operations of ONNX by name, as functions of tensors, or of the arrays of integers that shapes are made of.

Operations on images: `onnx_images`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}


def onnx_operation(name: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        OPERATIONS[name] = function
        return function

    return register


def ints(value: Any) -> list[int]:
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
    OPERATIONS[_name] = _both(_function)

OPERATIONS |= {
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
    "Softmax over all axes from one on": lambda x, axis=1: x.reshape(*x.shape[:axis], -1).softmax(-1).reshape(x.shape),
    "LogSoftmax": lambda x, axis=-1: x.log_softmax(axis),
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.ndim)), keepdim=True),
    "Constant": lambda value_float=None, **values: (
        _constant(next(iter(values.values()))) if value_float is None else value_float
    ),
    "ConstantOfShape": lambda shape, value=(0.0,): _constant(np.full(ints(shape), np.asarray(value).reshape(()))),
    "Range": lambda start, limit, delta: np.arange(*(_number(value) for value in (start, limit, delta))),
    "Tile": lambda x, repeats: x.repeat(ints(repeats)) if isinstance(x, Tensor) else np.tile(x, ints(repeats)),
    "Einsum": lambda *parts, equation: torch.einsum(equation, *parts),
    "Shape": lambda x, start=0, end=None: np.asarray(x.shape[start:end], dtype=np.int64),
    "Transpose": lambda x, perm=None: x.permute(perm or tuple(reversed(range(x.ndim)))),
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(ints(shape)))),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Cast": lambda x, to=1: x if isinstance(x, np.ndarray) or to in (1, 10, 11, 16) else _refuse_cast(),
    "Selu": lambda x, alpha=1.6732632, gamma=1.0507010: gamma * F.elu(x, alpha),
    "Softplus": lambda x: F.softplus(x, threshold=40),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
}


def _constant(value: Any) -> Any:
    array = np.asarray(value, np.float32 if isinstance(value, list) and isinstance(value[0], float) else None)
    return torch.from_numpy(array.copy()) if np.issubdtype(array.dtype, np.floating) and array.ndim else array


def _number(value: Any) -> Any:
    """A count that does not depend on the input, of the type that it has in the file."""
    if isinstance(value, Tensor):
        raise ValueError("its ends depend on the values of the input")
    return np.asarray(value).reshape(())[()]


def _flag(value: Any) -> bool:
    return value is not None and bool(ints(value)[0])


def _refuse_training() -> Any:
    raise ValueError("The file drops entries at random, as in training, and enlarges the others.")


def _refuse_cast() -> Any:
    raise ValueError("The file casts a tensor to integers, which jumps, so that it has no Lipschitz constant.")


@onnx_operation("Clip")
def _clip(x: Tensor, low: Any = None, high: Any = None, min: float | None = None, max: float | None = None) -> Tensor:
    bounds = [
        float(b) if b is not None else None
        for b in (low if low is not None else min, high if high is not None else max)
    ]
    return x.clamp(*bounds)


@onnx_operation("Gemm")
def _gemm(
    a: Tensor, b: Tensor, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    y = (a.mT if transA else a) @ (b.mT if transB else b)
    y = y if alpha == 1 else alpha * y
    return y if c is None else y + (c if beta == 1 else beta * c)


@onnx_operation("Reshape")
def _reshape(x, shape, allowzero=0):
    sizes = ints(shape)
    if not isinstance(x, Tensor):
        return np.reshape(x, sizes)
    return x.reshape([x.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(sizes)])


@onnx_operation("Squeeze")
def _squeeze(x, axes=None):
    if not isinstance(x, Tensor):
        return np.squeeze(x, tuple(ints(axes)) if axes is not None else None)
    return x.squeeze() if axes is None else x.squeeze(tuple(ints(axes)))


@onnx_operation("Unsqueeze")
def _unsqueeze(x, axes=None):
    places = sorted(ints(axes))
    if not isinstance(x, Tensor):
        return np.expand_dims(x, tuple(places))
    for place in places:
        x = x.unsqueeze(place)
    return x


@onnx_operation("Concat")
def _concat(*parts, axis=0):
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not tensors:
        return np.concatenate([np.atleast_1d(part) for part in parts], axis)
    return torch.cat([_tensor(part, tensors[0]) for part in parts], axis)


@onnx_operation("Split")
def _split(x, split=None, *, axis=0, num_outputs=None, outputs=1):
    sizes = -(-x.shape[axis] // outputs) if split is None else ints(split)
    return tuple(x.split(sizes, axis))


@onnx_operation("Slice")
def _slice(x, starts, ends, axes=None, steps=None):
    first, last = ints(starts), ints(ends)
    places = ints(axes) if axes is not None else list(range(len(first)))
    strides = ints(steps) if steps is not None else [1] * len(first)
    cut, reversed_cuts = [slice(None)] * x.ndim, {}
    for start, end, place, step in zip(first, last, places, strides, strict=True):
        if step < 0 and isinstance(x, Tensor):
            beyond = None if end < -x.shape[place] else end
            reversed_cuts[place] = list(range(x.shape[place])[start:beyond:step])
        else:
            cut[place] = slice(start, min(end, 2**31), step)
    y = x[tuple(cut)]
    for place, kept in reversed_cuts.items():
        y = y.index_select(place, torch.tensor(kept, dtype=torch.int64))
    return y


@onnx_operation("Gather")
def _gather(x, indices, axis=0):
    places = np.asarray(indices)
    ints(places)
    if not isinstance(x, Tensor):
        return np.take(x, places, axis)
    if places.ndim == 0:
        return x.select(axis, int(places))
    axis %= x.ndim
    found = x.index_select(axis, _places(places, x.shape[axis]))
    return found.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def _places(indices: np.ndarray, size: int) -> Tensor:
    """Indices of one axis, those from the end counted from the start."""
    return torch.from_numpy(np.where(indices < 0, indices + size, indices).reshape(-1)).long()


@onnx_operation("GatherND")
def _gather_nd(x, indices, batch_dims=0):
    places = np.asarray(indices)
    ints(places)
    if batch_dims:
        raise ValueError("batch_dims above 0 has no rule.")
    axes = places.shape[-1]
    each = [np.where(places[..., i] < 0, places[..., i] + x.shape[i], places[..., i]) for i in range(axes)]
    flat = np.ravel_multi_index(each, tuple(x.shape[:axes]))
    rows = x.reshape(-1, *x.shape[axes:]).index_select(0, torch.from_numpy(flat.reshape(-1)).long())
    return rows.reshape(*places.shape[:-1], *x.shape[axes:])


def _reduction(name: str, function: Operation | None = None) -> Operation:
    of_tensors = function or getattr(torch, name)

    def reduce(x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        if not isinstance(x, Tensor):
            return np.prod(x) if name == "prod" else getattr(np, name)(x)
        if noop_with_empty_axes and (axes is None or not ints(axes)):
            return x.abs() if name == "norm" else x
        if name == "prod":
            raise ValueError("a product of numbers that depend on the input has no rule.")
        places = tuple(ints(axes)) if axes is not None else tuple(range(x.ndim))
        return of_tensors(x, dim=places, keepdim=bool(keepdims))

    return reduce


OPERATIONS |= {
    "ReduceMean": _reduction("mean"),
    "ReduceSum": _reduction("sum"),
    "ReduceMax": _reduction("amax"),
    "ReduceMin": _reduction("amin"),
    "ReduceProd": _reduction("prod"),
    "ReduceL2": _reduction("norm", torch.linalg.vector_norm),
    "ReduceLogSumExp": _reduction("logsumexp"),
    "Mean": lambda *parts: functools.reduce(torch.add, parts) / len(parts),
    "Max": lambda *parts: functools.reduce(torch.maximum, parts),
    "Min": lambda *parts: functools.reduce(torch.minimum, parts),
    "Sum": lambda *parts: functools.reduce(torch.add, parts),
}


@onnx_operation("TopK")
def _top_k(x, k, *, axis=-1, largest=1, sorted=1):
    """The values only: where they are jumps."""
    return x.topk(*ints(k), dim=axis, largest=bool(largest), sorted=bool(sorted)).values
