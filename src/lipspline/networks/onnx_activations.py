"""Activations of this library in ONNX files, recognised where the graph is exactly what `to_onnx` writes.

ONNX has no splines: a region is found by rounding down, and its line is looked up in tables. Such operations jump, and
have no Lipschitz constant one by one. Here the whole of them is replaced by the function that it computes, whose
constant `certify` takes from the tables. Nothing is trusted: every operation, attribute and number of a pattern is
compared, lines must meet at the knots, and what deviates stays as it is, to be refused for its operations.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lipspline.kernels import householder, piecewise_affine
from lipspline.nn import FreeKnotSpline

ROUNDING = 2.0
"""How far lines may miss each other at a knot, in units of eps times their terms there, as their tables are rounded."""
NUMBERS = (np.dtype(np.float32), np.dtype(np.float64))
LEAST = np.iinfo(np.int64).min


class OnnxNode(NamedTuple):
    """An operation of the standard by its name, or a function or layer that was recognised."""

    kind: str | Callable[..., Any] | nn.Module
    inputs: list[Any]  # names, or keys of tables
    outputs: list[str]
    attributes: dict[str, Any]


def read_node(node: Any) -> OnnxNode:
    """A node of a file; those of other domains have the name of the domain before their own."""
    from onnx import helper, numpy_helper

    attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    if node.op_type in ("Constant", "ConstantOfShape") and "value" in attributes:
        attributes = {"value": numpy_helper.to_array(attributes["value"])}
    kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    if kind == "Split":
        attributes["outputs"] = len(node.output)
    return OnnxNode(kind, list(node.input), list(node.output), attributes)


class OtherGraph(ValueError):
    """The graph is not that of the activation looked for."""


class Recognised(NamedTuple):
    """A function or layer that replaces nodes: its input, further tensors that it reads, and its options."""

    function: Callable[..., Tensor] | nn.Module
    input: str
    tables: tuple[np.ndarray, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012 (nobody writes to it)


class OnnxGraph:
    """The nodes of a file by what they make, and its constants."""

    def __init__(self, nodes: list[OnnxNode], constants: dict[str, np.ndarray]):
        self.makers = {name: node for node in nodes for name in node.outputs}
        self.constants = constants

    def inputs(self, name: str, kind: str, /, **attributes: Any) -> list[str]:
        """The inputs of the operation that makes a value, which must be of this kind, with these attributes only."""
        node = self.makers.get(name)
        if node is None or node.kind != kind or node.outputs != [name] or node.attributes != attributes:
            raise OtherGraph
        return node.inputs

    def array(self, name: str) -> np.ndarray:
        """A constant."""
        if name not in self.constants:
            raise OtherGraph
        return self.constants[name]

    def number(self, name: str) -> float:
        """A constant that is a single number."""
        array = self.array(name)
        _require(array.ndim == 0 and array.dtype in NUMBERS)
        return float(array)

    def integers(self, name: str) -> list[int]:
        """A constant that is a list of integers."""
        array = self.array(name)
        _require(array.ndim == 1 and array.dtype == np.int64)
        return array.tolist()


def recognise(
    nodes: list[OnnxNode], constants: dict[str, np.ndarray], *outputs: str
) -> tuple[list[OnnxNode], dict[tuple[str, int], np.ndarray]]:
    """The nodes that the outputs need, with activations in the place of what computes them, and the tables of these.

    A key of a table is no string, so that no value of the file can have its name.
    """
    graph, tables, replaced = OnnxGraph(nodes, constants), {}, []
    for node in nodes:
        found = _found(graph, node)
        if found is not None:
            keys = [(node.outputs[0], i) for i in range(len(found.tables))]
            tables.update(zip(keys, found.tables, strict=True))
            node = OnnxNode(found.function, [found.input, *keys], node.outputs, found.options)
        replaced.append(node)
    return list(_needed(replaced, set(outputs))), tables


def _found(graph: OnnxGraph, node: OnnxNode) -> Recognised | None:
    for pattern in PATTERNS.get(node.kind, ()) if isinstance(node.kind, str) else ():
        with suppress(OtherGraph, ValueError):  # too few or too many inputs are a ValueError
            return pattern(graph, node.outputs[0])
    return None


def _needed(nodes: list[OnnxNode], wanted: set[str]) -> Iterator[OnnxNode]:
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs) - {""}  # an input that is left out
            kept.append(node)
    return reversed(kept)


def _require(condition: bool) -> None:
    if not condition:
        raise OtherGraph


# Splines on a grid


def _grid_spline(graph: OnnxGraph, name: str) -> Recognised:
    """`b[entry] + s[entry] x`, with the entry of region `clamp(floor(scale x + offset))` in the row of a channel."""
    intercept, product = graph.inputs(name, "Add")
    b, entry = graph.inputs(intercept, "GatherND", batch_dims=0)
    slope, x = graph.inputs(product, "Mul")
    s, same_entry = graph.inputs(slope, "GatherND", batch_dims=0)
    number, last = graph.inputs(entry, "Unsqueeze")
    region, first = graph.inputs(number, "Add")
    (limited,) = graph.inputs(region, "Cast", to=7)
    clipped = _without_nan(graph, limited)
    rounded, low, high = graph.inputs(clipped, "Clip")
    (place,) = graph.inputs(rounded, "Floor")
    scaled, offset = graph.inputs(place, "Add")
    scale, same_x = graph.inputs(scaled, "Mul")
    _require(entry == same_entry and x == same_x and graph.integers(last) == [-1])
    _require(bool(np.isfinite(graph.number(offset))))
    regions = 1 + int(graph.number(high))
    _require(graph.number(low) == 0 and graph.number(high) == regions - 1 and regions >= 1)
    places, scales = graph.array(first), graph.array(scale)
    rows = places.size
    _require(places.dtype == np.int64 and places.shape == scales.shape and scales.ndim >= 2)
    _require(sum(n > 1 for n in places.shape) <= 1 and (places.reshape(-1) == regions * np.arange(rows)).all())
    tables = _tables(graph, b, s, (rows * regions,))
    b_, s_, scale_ = tables[0].reshape(rows, regions), tables[1].reshape(rows, regions), scales.reshape(rows)
    _require(scale_.dtype == b_.dtype and bool(np.isfinite(scale_).all() and (scale_ > 0).all()))
    knots = (np.arange(1, regions) - graph.number(offset)) / scale_.astype(np.float64)[:, None]
    _check_that_lines_meet(knots, b_, s_)
    options = {"offset": graph.number(offset), "channel_dim": int(np.argmax(places.shape)) if rows > 1 else 1}
    return Recognised(evaluate_grid_spline, x, (b_, s_, scale_), {**options, "ndim": scales.ndim})


def _without_nan(graph: OnnxGraph, name: str) -> str:
    """What `nan_to_num(0)` was applied to."""
    is_high, most, below = graph.inputs(name, "Where")
    is_low, least, number = graph.inputs(below, "Where")
    is_nan, zero, value = graph.inputs(number, "Where")
    compared = [graph.inputs(is_high, "Equal"), graph.inputs(is_low, "Equal")]
    _require(all(inputs[0] == value for inputs in compared) and graph.inputs(is_nan, "IsNaN") == [value])
    _require([graph.number(inputs[1]) for inputs in compared] == [np.inf, -np.inf] and graph.number(zero) == 0)
    _require(np.isfinite(graph.number(most)) and np.isfinite(graph.number(least)))
    return value


def evaluate_grid_spline(
    x: Tensor, b: Tensor, s: Tensor, scale: Tensor, *, offset: float, channel_dim: int, ndim: int
) -> Tensor:
    """The splines of channels of an input with the number of dimensions that the file spreads its tables over."""
    if x.ndim != ndim:
        raise ValueError(f"The splines of this file are for inputs of {ndim} dimensions, but one has {x.ndim}.")
    return piecewise_affine(x, b, s, scale, offset, channel_dim)


# Splines with free knots


def _free_knot_spline(graph: OnnxGraph, name: str) -> Recognised:
    """`b[row, i] + s[row, i] x`, with i the number of knots of the row that are not above x."""
    intercept, product = graph.inputs(name, "Add")
    b, region = graph.inputs(intercept, "GatherElements", axis=1)
    slope, x = graph.inputs(product, "Mul")
    s, same_region = graph.inputs(slope, "GatherElements", axis=1)
    counted, last = graph.inputs(region, "ReduceSum", keepdims=0, noop_with_empty_axes=0)
    (above,) = graph.inputs(counted, "Cast", to=7)
    spread, knots = graph.inputs(above, "GreaterOrEqual")
    same_x, also_last = graph.inputs(spread, "Unsqueeze")
    _require(region == same_region and x == same_x)
    _require(graph.integers(last) == [-1] and graph.integers(also_last) == [-1])
    t = graph.array(knots)
    _require(t.ndim == 3 and t.shape[1] == 1 and t.dtype in NUMBERS and bool(np.isfinite(t).all()))
    t = t[:, 0]
    tables = _tables(graph, b, s, (t.shape[0], t.shape[1] + 1))
    _require(t.dtype == tables[0].dtype and bool((np.diff(t, axis=1) >= 0).all()))
    _check_that_lines_meet(t.astype(np.float64), *tables)
    layer = FreeKnotSpline(len(t), knots=t.shape[1], channel_dim=0)  # it derives the other intercepts from the first
    layer.knots, layer.intercept, layer.slopes = (torch.tensor(part) for part in (t, tables[0][:, 0], tables[1]))
    return Recognised(layer.refresh(), x)


def _tables(graph: OnnxGraph, b: str, s: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Finite intercepts and slopes of one type."""
    tables = graph.array(b), graph.array(s)
    _require(tables[0].dtype == tables[1].dtype and tables[0].dtype in NUMBERS)
    _require(all(table.shape == shape and bool(np.isfinite(table).all()) for table in tables))
    return tables


def _check_that_lines_meet(knots: np.ndarray, b: np.ndarray, s: np.ndarray) -> None:
    """An error if the lines left and right of a knot miss each other by more than the rounding of their terms.

    The terms of a line are those at the farther end of its region: its intercept was computed from there, so that at a
    knot at zero, where they vanish, its rounding remains.
    """
    eps, b, s = np.finfo(b.dtype).eps, b.astype(np.float64), s.astype(np.float64)
    jumps = np.abs(b[:, 1:] - b[:, :-1] + (s[:, 1:] - s[:, :-1]) * knots)
    ends = np.pad(np.abs(knots), ((0, 0), (1, 1)))
    lines = np.abs(b) + np.abs(s) * np.maximum(ends[:, 1:], ends[:, :-1])
    _require(bool((jumps <= ROUNDING * eps * (lines[:, 1:] + lines[:, :-1])).all()))


# Pairs of channels


def _sorted_pairs(graph: OnnxGraph, name: str) -> Recognised:
    """Where the members of a pair are out of order, both are exchanged."""
    condition, flipped, x = graph.inputs(name, "Where")
    maker = graph.makers.get(condition)
    _require(maker is not None and maker.kind in ("Less", "Greater"))
    assert maker is not None
    first, second = graph.inputs(condition, str(maker.kind))
    split = graph.makers.get(first)
    _require(split is not None and split.kind == "Split" and split.outputs == [first, second])
    assert split is not None
    whole, sizes = split.inputs
    axis = split.attributes.get("axis")
    _require(isinstance(axis, int) and axis >= 1 and split.attributes == {"axis": axis, "outputs": 2})
    same_x, start, end, along, step = graph.inputs(flipped, "Slice")
    _require(x == whole == same_x and graph.integers(sizes) == [1, 1] and graph.integers(along) == [axis])
    _require([graph.integers(part) for part in (start, end, step)] == [[-1], [LEAST], [-1]])
    return Recognised(evaluate_sorted_pairs, x, options={"axis": axis, "descending": maker.kind == "Less"})


def evaluate_sorted_pairs(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    """The two entries along an axis in order."""
    if x.shape[axis] != 2:
        raise ValueError(f"Pairs are sorted along dimension {axis}, but the input is {tuple(x.shape)}.")
    return x.sort(dim=axis, descending=descending).values


def _reflected_pairs(graph: OnnxGraph, name: str) -> Recognised:
    """`x - 2 min(vᵀx, 0) v` for each pair."""
    x, change = graph.inputs(name, "Sub")
    share, v = graph.inputs(change, "Mul")
    condition, zero, twice = graph.inputs(share, "Where")
    dot, two = graph.inputs(twice, "Mul")
    same_dot, also_zero = graph.inputs(condition, "Greater")
    products, axes = graph.inputs(dot, "ReduceSum", keepdims=1, noop_with_empty_axes=0)
    same_v, same_x = graph.inputs(products, "Mul")
    _require(x == same_x and v == same_v and dot == same_dot)
    _require([graph.number(value) for value in (zero, also_zero, two)] == [0, 0, 2])
    vectors, (axis,) = graph.array(v), graph.integers(axes)
    _require(vectors.dtype in NUMBERS and axis >= 1 and vectors.ndim >= 2 and vectors.shape[1] == 2)
    _require(vectors.shape[2:] == (1,) * (vectors.ndim - 2))
    return Recognised(
        evaluate_reflected_pairs, x, (vectors.reshape(-1, 2),), {"axis": axis, "ndim": axis - 1 + vectors.ndim}
    )


def evaluate_reflected_pairs(x: Tensor, v: Tensor, *, axis: int, ndim: int) -> Tensor:
    """The pairs along an axis, reflected; the dimension before it numbers them."""
    if x.ndim != ndim or x.shape[axis] != 2 or x.shape[axis - 1] != len(v):
        raise ValueError(f"{len(v)} pairs are reflected along dimension {axis}, but the input is {tuple(x.shape)}.")
    return householder(x.flatten(axis - 1, axis), v, axis - 1).unflatten(axis - 1, (len(v), 2))


PATTERNS: dict[str, tuple[Callable[[OnnxGraph, str], Recognised], ...]] = {
    "Add": (_grid_spline, _free_knot_spline),
    "Where": (_sorted_pairs,),
    "Sub": (_reflected_pairs,),
}
"""What is looked for at each kind of operation that is the last one of an activation."""
