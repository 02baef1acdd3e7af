"""Rules of operations of torch, as `torch.export` names them: what each does to the bound of its input.

A rule gets a `Call` and returns the `Flow` of the output (or several, for operations with several outputs). Arguments
that do not depend on the input are real tensors and numbers. A `ValueError` says why an operation has no rule.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lipspline.certification.certificate import multiply_up, root_up
from lipspline.certification.flow import (
    Convolution,
    Dense,
    Flow,
    Map,
    Multiple,
    add_maps,
    scaled_rows,
)
from lipspline.functional.convolutions import conv_norm_upper, dilated_kernel
from lipspline.functional.matrices import spectral_norm_upper

new_source = itertools.count()


@dataclass
class Call:
    """One operation: its name, its arguments by name, and the shapes and types of its outputs."""

    name: str
    arguments: dict[str, Any]
    outputs: list[tuple[tuple[int, ...], torch.dtype]]
    operation: Any = None
    gain: float | None = None
    reason: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def flows(self) -> list[Flow]:
        found = []
        for value in self.arguments.values():
            found += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, Flow)]
        return found

    def input(self) -> Flow:
        """The only argument that depends on the network's input."""
        flows = self.flows
        if len(flows) != 1:
            raise ValueError(MULTIPLIED)
        return flows[0]

    def source(self, upper: float, gain: float | None, reason: str, output: int = 0, **known: Any) -> Flow:
        """The output as a source of its own, with a bound from the network's input."""
        self.gain, self.reason = gain, reason
        shape, dtype = self.outputs[output]
        return Flow(shape, dtype, {next(new_source): (Multiple(1.0), upper)}, **known)

    def stretched(self, flow: Flow, gain: float, reason: str, output: int = 0, **known: Any) -> Flow:
        """The output of an operation that stretches distances by at most `gain`."""
        return self.source(multiply_up(flow.upper, gain), gain, reason, output, **known)

    def linear(self, terms: dict[int, tuple[Map, float]], reason: str) -> Flow:
        shape, dtype = self.outputs[0]
        self.reason = reason
        return Flow(shape, dtype, terms)


MULTIPLIED = (
    "it multiplies (or compares) two tensors that both depend on the input, so that its Lipschitz constant grows with "
    "the input. Attention, gates and normalisation by the input are of this kind"
)
NO_RULE = (
    "certify has no rule for this operation, and will not guess one. Put it into a module of its own, and give that "
    "a bound by lipspline.register_rule or lipspline.declare"
)
Rule = Callable[[Call], "Flow | list[Flow | None] | Tensor"]
OPERATIONS: dict[str, Rule] = {}
_SEVERAL: set[str] = set()


def operation(*names: str, several: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of operations by name, such as `aten.relu`; all overloads share it.

    `several` says that the rule reads every argument that may depend on the input.
    """

    def register(rule: Rule) -> Rule:
        OPERATIONS.update(dict.fromkeys(names, rule))
        _SEVERAL.update(names if several else ())
        return rule

    return register


def applied(call: Call) -> "Flow | list[Flow | None] | Tensor":
    """What the rule of an operation says, if it is about all that the operation does."""
    if any(dtype.is_complex for _, dtype in call.outputs):
        raise ValueError("it makes complex numbers, for which certify has no rules. Compute with two real tensors")
    result = OPERATIONS[call.name](call)
    if call.name not in _SEVERAL and len(call.flows) > 1:
        raise ValueError("its weight or bias depends on the input, too, for which certify has no rule. Add it after")
    return result


# Linear layers


@operation("aten.linear")
def _linear(call: Call) -> Flow:
    return dense(call, call["input"], constant_weight(call["weight"]))


@operation("aten.addmm")
def _addmm(call: Call) -> Flow:
    if call["beta"] not in (None, 1) or call["alpha"] not in (None, 1) or isinstance(call["self"], Flow):
        raise ValueError("addmm is known only as bias + input @ weight.")
    return dense(call, call["mat1"], constant_weight(call["mat2"]).mT)


@operation("aten.mm", "aten.matmul", "aten.bmm", "aten.mv")
def _matmul(call: Call) -> Flow:
    first, second = list(call.arguments.values())[:2]
    if isinstance(first, Flow) and isinstance(second, Flow):
        raise ValueError(MULTIPLIED)
    if isinstance(first, Flow) and second.ndim == 2 and len(first.shape) >= 2:
        return dense(call, first, constant_weight(second).mT)
    flow, weight = (first, second) if isinstance(first, Flow) else (second, first)
    weight = constant_weight(weight)
    if weight.ndim < 2:
        weight = weight[None]
    batch = torch.broadcast_shapes(flow.shape[:-2], weight.shape[:-2])
    copies = root_up(math.prod(batch) // max(math.prod(flow.shape[:-2]), 1))
    norm = max(spectral_norm_upper(matrix) for matrix in weight.reshape(-1, *weight.shape[-2:]))
    return call.stretched(flow, multiply_up(norm, copies), "largest singular value")


def dense(call: Call, flow: Flow, weight: Tensor) -> Flow:
    if not isinstance(flow, Flow):
        raise ValueError("its weight depends on the input, so that its Lipschitz constant grows with the input")
    if weight.ndim != 2:
        raise ValueError(f"its weight has the shape {tuple(weight.shape)}; only matrices have a rule")
    dense = Dense(weight.double())
    return call.linear(_followed_by(flow, dense), "largest singular value")


def _followed_by(flow: Flow, second: Dense | Convolution) -> dict[int, tuple[Map, float]]:
    """The maps of a tensor, followed by one more; from a source of its own where they do not compose."""
    terms: dict[int, tuple[Map, float]] = {}
    for source, (first, upper) in flow.terms.items():
        composed: Map | None = None
        if isinstance(first, Multiple) and first.known:
            composed = second if first.factor == 1 else second.times(first.factor)
        elif type(first) is type(second):
            composed = second.after(first)  # type: ignore[arg-type]
        if composed is None:
            return {next(new_source): (second, flow.upper)}
        terms[source] = composed, upper
    return terms


def constant_weight(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise ValueError("its weight depends on the input, so that its Lipschitz constant grows with the input")
    if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
        raise ValueError(f"its weight is not a finite real tensor (it is {value.dtype})")
    return value.detach().cpu()


@operation("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")
def _convolution(call: Call) -> "Flow | list[Flow | None] | Tensor":
    flow, weight = call["input"], constant_weight(call["weight"])
    if not isinstance(flow, Flow):
        raise ValueError("its weight depends on the input, so that its Lipschitz constant grows with the input")
    axes = weight.ndim - 2
    stride, dilation = (per_axis(call[name], axes) for name in ("stride", "dilation"))
    groups = call["groups"] or 1
    if call["transposed"]:
        return _transposed(call)
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    pads = call["padding"] if call["padding"] is not None else 0
    if isinstance(pads, str):
        before = [total // 2 if pads == "same" else 0 for total in reach]
        after = [total - left if pads == "same" else 0 for total, left in zip(reach, before, strict=True)]
    else:
        before = after = list(per_axis(pads, axes))
    border = any(before) or any(after)
    kernel = dilated_kernel(weight.double(), dilation)
    known = Convolution(kernel, stride, tuple(before), groups=groups, border=border)
    if flow.padded is not None and not border:
        return _padded_convolution(call, flow, known, reach)
    return call.linear(_followed_by(flow, known), f"operator norm over all frequencies{', zeros around' * border}")


def _padded_convolution(call: Call, flow: Flow, known: Convolution, reach: Sequence[int]) -> Flow:
    """A convolution of an image with pixels put around: with those of the other side it is a circular one."""
    assert flow.padded is not None
    mode, pairs, inner = flow.padded
    pairs = [*reversed(pairs)]
    axes = len(reach)
    around = pairs if len(pairs) == axes else None
    if any(pixels < 0 for pair in pairs for pixels in pair):
        around = None  # it crops, too
    if mode == "circular" and around is not None:
        exact = all(sum(pair) == taps for pair, taps in zip(around, reach, strict=True))
        wrapped = replace(known, wrapped=True, anchor=tuple(pair[0] for pair in around))
        if exact:
            return call.linear(_followed_by(inner, wrapped), "operator norm over all frequencies, circular")
        if all(sum(pair) <= taps for pair, taps in zip(around, reach, strict=True)):
            return call.stretched(inner, wrapped.upper, "operator norm over all frequencies, circular")
    if mode == "constant" and around is not None:
        zeros = replace(known, border=True, anchor=tuple(pair[0] for pair in around))
        return call.linear(_followed_by(inner, zeros), "operator norm over all frequencies, a constant around")
    return call.linear(_followed_by(flow, known), "operator norm over all frequencies")


@operation("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def _transposed(call: Call) -> Flow:
    flow, weight = call["input"], constant_weight(call["weight"])
    if not isinstance(flow, Flow):
        raise ValueError("its weight depends on the input, so that its Lipschitz constant grows with the input")
    axes = weight.ndim - 2
    stride, dilation = (per_axis(call[name], axes) for name in ("stride", "dilation"))
    upper = conv_norm_upper(weight, stride=stride, dilation=dilation, groups=call["groups"] or 1)
    return call.stretched(flow, upper, "operator norm of the convolution it is the adjoint of")


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    values = (1,) if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return tuple(values * axes if len(values) == 1 else values)


# Sums, differences and constant factors


@operation("aten.add", "aten.sub", "aten.rsub", "aten.add_", "aten.sub_", several=True)
def _add(call: Call) -> Flow:
    first, second = (call.arguments[name] for name in ("self", "other"))
    sign = -1.0 if "sub" in call.name else 1.0
    alpha = float(call["alpha"] if call["alpha"] is not None else 1)
    if call.name == "aten.rsub":
        first, second = second, first
        return _sum(call, [(first, 1.0), (second, -alpha)])
    if isinstance(second, Flow) and second.mean_of is not None and second.mean_of is first and sign * alpha == -1:
        return call.stretched(second.mean_of, 1.0, "removes a mean: an orthogonal projection")
    return _sum(call, [(first, 1.0), (second, sign * alpha)])


@operation("aten.lerp", several=True)
def _lerp(call: Call) -> Flow:
    weight = call["weight"]
    if isinstance(weight, Tensor) and weight.numel() == 1:
        weight = float(weight)
    if not isinstance(weight, (int, float)):
        raise ValueError("lerp is known only with one constant weight.")
    rest = 1.0 - float(weight)
    return _sum(call, [(call["self"], rest * (1 + 4e-16)), (call["end"], float(weight))])


def _sum(call: Call, parts: Iterable[tuple[Any, float]]) -> Flow:
    """`Σ factor * tensor`; maps of one source are added before their norm is bounded."""
    shape, dtype = call.outputs[0]
    total: dict[int, tuple[Map, float]] = {}
    flows = [(value, factor) for value, factor in parts if isinstance(value, Flow)]
    for flow, factor in flows:
        spread = broadcast(flow, shape)
        for source, (known, upper) in spread.terms.items():
            scaled = known if factor == 1 else known.times(factor)
            if source in total:
                scaled = add_maps(total[source][0], scaled, shape)
            total[source] = scaled, upper
    if len(flows) == 1 and flows[0][1] == 1 and flows[0][0].shape == shape:
        # A constant was added: differences stay what they are.
        return replace(flows[0][0], dtype=dtype, padded=None, function=None, shifted=True)
    call.reason = "sum"
    return Flow(shape, dtype, total)


def broadcast(flow: Flow, shape: tuple[int, ...]) -> Flow:
    if flow.shape == shape:
        return flow
    copies = math.prod(shape) // max(math.prod(flow.shape), 1)
    upper = multiply_up(flow.upper, root_up(copies))
    return Flow(shape, flow.dtype, {next(new_source): (Multiple(1.0), upper)})


@operation("aten.mul", "aten.div", "aten.neg", "aten.mul_", "aten.div_", "lipspline.scale", several=True)
def _multiply(call: Call) -> Flow:
    if call.name == "aten.neg":
        return _scaled(call, call.input(), -1.0)
    first, second = (call.arguments[name] for name in ("self", "other"))
    if isinstance(first, Flow) and isinstance(second, Flow):
        return _gated(call, first, second)
    if "div" in call.name:
        if not isinstance(first, Flow):
            raise ValueError("it divides by a tensor that depends on the input, which may come close to zero")
        if call["rounding_mode"] is not None:
            raise ValueError("it rounds, and jumps")
        second = 1 / torch.as_tensor(second, dtype=torch.float64)
        rounding = 1 + 3e-16
    else:
        rounding = 1.0
    flow, factor = (first, second) if isinstance(first, Flow) else (call.input(), first)
    if isinstance(factor, Tensor) and factor.numel() == 1 and factor.ndim <= len(flow.shape):
        factor = float(factor)
    if isinstance(factor, Tensor):
        return _by_tensor(call, flow, factor.double(), rounding)
    return _scaled(call, flow, float(factor) * rounding)


SILU = 1.0998394  # the largest slope of x sigmoid(x)


def _gated(call: Call, first: Flow, second: Flow) -> Flow:
    """`x * sigmoid(x)`, which exporters write for SiLU; no other product of two tensors has a rule."""
    for x, gate in ((first, second), (second, first)):
        if gate.function == "sigmoid" and gate.pointwise is not None and gate.pointwise[0] is x and "mul" in call.name:
            return call.stretched(x, SILU, "largest slope of the function", pointwise=(x, SILU))
    raise ValueError(MULTIPLIED)


def _scaled(call: Call, flow: Flow, factor: float) -> Flow:
    if not math.isfinite(factor):
        raise ValueError(f"it multiplies by {factor}")
    shape, dtype = call.outputs[0]
    call.gain, call.reason = abs(factor), "constant factor"
    spread = broadcast(flow, shape)
    terms = {source: (known.times(factor), upper) for source, (known, upper) in spread.terms.items()}
    slope = abs(factor)
    return Flow(shape, dtype, terms, pointwise=(flow, slope) if flow.shape == shape else None)


def _by_tensor(call: Call, flow: Flow, factors: Tensor, rounding: float) -> Flow:
    shape, _ = call.outputs[0]
    if not bool(torch.isfinite(factors).all()):
        raise ValueError("it multiplies by a constant that is not finite")
    spread = broadcast(flow, shape)
    factors = factors.cpu().reshape(*[1] * (len(shape) - factors.ndim), *factors.shape)
    wide = [i for i, n in enumerate(factors.shape) if n > 1]
    largest = multiply_up(float(factors.abs().max()), rounding)
    if len(wide) == 1:
        terms: dict[int, tuple[Map, float]] = {}
        for source, (known, upper) in spread.terms.items():
            scaled = scaled_rows(known, factors.flatten(), wide[0], len(shape))
            if scaled is None:
                break
            terms[source] = scaled, upper
        else:
            call.gain = largest
            return call.linear(terms, "a factor for each channel")
    return call.stretched(spread, largest, "largest factor", pointwise=(flow, largest) if flow.shape == shape else None)


@operation("aten._native_batch_norm_legit_no_training", "aten.batch_norm", "aten.cudnn_batch_norm")
def _batch_norm(call: Call) -> "Flow | list[Flow | None]":
    if call["training"] or call["running_var"] is None:
        raise ValueError("it normalises by the statistics of the batch, so that it has no Lipschitz bound")
    variance, eps = constant_weight(call["running_var"]).double(), float(call["eps"])
    if eps < 0 or bool((variance < 0).any()) or bool((variance + eps == 0).any()):
        raise ValueError("it divides by the root of a variance that is not positive")
    weight = call["weight"]
    gain = torch.ones_like(variance) if weight is None else constant_weight(weight).double()
    flow = _by_tensor(call, call["input"], _channel(gain / (variance + eps).sqrt(), call), 1 + 1e-15)
    call.reason = "largest gain of a channel"
    return flow if call.name == "aten.batch_norm" else [flow, None, None]


def _channel(gains: Tensor, call: Call) -> Tensor:
    return gains.reshape(-1, *[1] * (len(call.outputs[0][0]) - 2))
