r"""How far what runs is from the exact function of the stored weights: forward error analysis, operation by operation.

Let f be a network in exact arithmetic, and g what runs. For each tensor we carry bounds on the Euclidean norm and on
the largest entry of what runs, and on the Euclidean distance e to the tensor of f. An operation with Lipschitz constant
L that commits a rounding error of at most d on the numbers it gets makes e into L e + d [docs/guarantee.md]. The gains
L are those of the rules of `operations`; the rules here bound d, by the standard model of floating-point arithmetic:
each operation is right up to a relative error u, or up to an absolute error where it underflows. A term of a sum that
passes k roundings has a relative error of at most (1 + u)^k - 1, whatever the order of summation, fused or not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx.node import map_arg

from lipspline.certification import graph
from lipspline.certification.certificate import RoundingBound, root_sum_of_squares_up
from lipspline.certification.flow import Flow, Map, Multiple
from lipspline.certification.moves import SAME_NAMES
from lipspline.certification.operations import OPERATIONS, Call, applied, new_source
from lipspline.nn.convolutions import Conv2d
from lipspline.nn.spline import LinearSpline

SLACK = 1 + 1e-9  # more than the float64 arithmetic of one rule may lose


def growth(count: int, unit: float) -> float:
    """`(1 + u)^k - 1`: the relative error of a term that is rounded k times, for any k."""
    return math.expm1(count * math.log1p(unit)) if count * unit < 700 else math.inf


def underflow(dtype: torch.dtype) -> float:
    """The absolute error of an operation whose result is too small; float16 keeps subnormal numbers, others may not."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps if dtype == torch.float16 else info.smallest_normal


def unit_roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


@dataclass(eq=False)
class Computed:
    """A tensor as it is computed: bounds on its norm, its largest entry, and its distance to the exact tensor.

    `step` is that of a tensor of integers (0 if it holds their exact product with weights). `wraps` is the image around
    which a circular padding put pixels, and the norm of the padding.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    size: float
    largest: float
    error: float
    step: float | None = None
    wraps: "tuple[Computed, list[tuple[int, int]], float] | None" = None

    @property
    def root(self) -> "Computed":
        return self if self.wraps is None else self.wraps[0]

    def flow(self, upper: float) -> Flow:
        """This tensor, or the image within its padding, as a source that moves by `upper`."""
        gain = 1.0 if self.wraps is None else self.wraps[2]
        terms: dict[int, tuple[Map, float]] = {next(new_source): (Multiple(1.0), gain * upper)}
        if self.wraps is None:
            return Flow(self.shape, self.dtype, terms)
        inner, pairs, _ = self.wraps
        return Flow(self.shape, self.dtype, terms, padded=("circular", pairs, inner.flow(upper)))


@dataclass
class Arithmetic:
    """In what precision a network runs, its sums are accumulated, and what it has that rounds in ways of its own."""

    accumulator: torch.dtype | None
    arithmetic: torch.dtype | None
    has_winograd: bool
    learns_splines: bool

    def dtype(self, output: torch.dtype) -> torch.dtype:
        return self.arithmetic or output


class Operation:
    """One operation on computed tensors: what its rule for rounding may ask for."""

    def __init__(self, call: Call, setting: Arithmetic):
        self.call, self.setting = call, setting
        self.inputs = [v for v in graph.flat(list(call.arguments.values())) if isinstance(v, Computed)]
        shape, dtype = call.outputs[0]
        self.dtype = setting.dtype(dtype)
        self.unit, self.tiny = unit_roundoff(self.dtype), underflow(self.dtype)
        self.root_n = math.sqrt(math.prod(shape)) * SLACK
        zeros = self._applied(lambda value: torch.zeros(value.shape, dtype=torch.float64))
        first = zeros[0] if isinstance(zeros, (list, tuple)) else zeros
        first = first.double() if isinstance(first, Tensor) and not first.is_complex() else torch.zeros(())
        self.at_zero = float(torch.linalg.vector_norm(first)) * SLACK
        self.largest_at_zero = float(first.abs().max()) * SLACK if first.numel() else 0.0
        self._gains: list[float] | None = None

    def __getitem__(self, name: str) -> Any:
        return self.call[name]

    @property
    def input(self) -> Computed:
        return self.inputs[0]

    def _applied(self, make: Callable[[Computed], Tensor]) -> Any:
        """The operation in float64 on constant tensors."""
        if self.call.name in CASTS:
            return torch.zeros(())

        def prepared(value: Any) -> Any:
            if isinstance(value, Computed):
                return make(value)
            if isinstance(value, (list, tuple)):
                return type(value)(prepared(v) for v in value)
            return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

        return self.call.operation(**{name: prepared(value) for name, value in self.call.arguments.items()})

    def moved(self, upper: Callable[[Computed], float]) -> list[float]:
        """How far each output moves when the inputs move so far; the rules of `operations` know."""
        moved = {id(value): value.flow(upper(value)) for value in self.inputs}

        def prepared(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(prepared(v) for v in value)
            return moved[id(value)] if isinstance(value, Computed) else value

        arguments = {name: prepared(value) for name, value in self.call.arguments.items()}
        call = Call(self.call.name, arguments, self.call.outputs, self.call.operation)
        result = applied(call)
        self.call.reason = call.reason
        if isinstance(result, Tensor):
            return [0.0]
        return [0.0 if flow is None else flow.upper for flow in (result if isinstance(result, list) else [result])]

    def gains(self) -> list[float]:
        """The Lipschitz constants of the outputs of an operation with one input (that within a padding)."""
        if self._gains is None:
            self._gains = self.moved(lambda value: 1.0)
        return self._gains

    def carried(self, of: Callable[[Computed], float]) -> list[float]:
        """`moved` by bounds of the inputs."""
        if len(self.inputs) == 1:
            return [gain * of(self.input.root) * SLACK for gain in self.gains()]
        return [upper * SLACK for upper in self.moved(of)]

    @property
    def exact_size(self) -> float:
        """The norm of what the operation would return in exact arithmetic, of the numbers it gets."""
        return self.at_zero + self.carried(lambda value: value.size)[0]

    def error_of_sums(self, roundings: int, terms: float) -> float:
        """The error of sums whose products pass so many roundings, `terms` being the norm of those of absolute values.

        In a finer accumulator; then the sum, and at most the bias once more, are rounded to the type of the output.
        """
        accumulator = self.setting.accumulator
        if accumulator is None or unit_roundoff(accumulator) >= self.unit:
            return growth(roundings, self.unit) * terms * SLACK
        inner = growth(roundings, unit_roundoff(accumulator)) * terms
        return (inner + growth(2, self.unit) * (self.exact_size + inner)) * SLACK


class Lost(NamedTuple):
    """What an operation does on the numbers it gets: its own error, its largest result, and what occurs on the way.

    Args:
        error: Euclidean norm of the rounding error.
        largest: the largest entry of the exact result.
        peak: the largest sum of absolute values on the way, if it exceeds `largest`.
    """

    error: float
    largest: float
    peak: float = 0.0


RoundingRule = Callable[[Operation], Lost]
_RULES: dict[str, RoundingRule] = {}
CASTS = ("aten._to_copy", "aten.to")
SAME = {f"aten.{name}" for name in SAME_NAMES.split()}
_ON_INTEGERS: set[str] = set()
"""Operations that do with integers what they do with the numbers these stand for."""


def rounding_rule(names: str, *, on_integers: bool = False) -> Callable[[RoundingRule], RoundingRule]:
    """Register what operations lose by rounding."""

    def register(rule: RoundingRule) -> RoundingRule:
        full = [name if "." in name else f"aten.{name}" for name in names.split()]
        _RULES.update(dict.fromkeys(full, rule))
        _ON_INTEGERS.update(full if on_integers else ())
        return rule

    return register


def rounding_bound(
    model: nn.Module,
    example: Tensor,
    input_bound: float,
    *,
    accumulator: torch.dtype | None = None,
    arithmetic: torch.dtype | None = None,
) -> RoundingBound:
    """Bound the distance between what a module computes and its exact function, for one input like the example.

    Args:
        model: any module that `torch.export` can trace, in eval mode.
        example: an input, with batch.
        input_bound: no entry of an input is larger.
        accumulator: the precision in which sums are accumulated; by default that of the network itself, which is true
            for any order of summation on any hardware that is no less precise.
        arithmetic: the precision of the network, if it is not that of its tensors.
    """
    parts = list(model.modules())
    has_winograd = any(isinstance(part, Conv2d) and part.has_algorithm for part in parts)
    learns_splines = any(isinstance(part, LinearSpline) for part in parts)
    setting = Arithmetic(accumulator, arithmetic, has_winograd, learns_splines)
    lowest = arithmetic or min((t.dtype for t in _numbers(model, example)), key=lambda dtype: torch.finfo(dtype).bits)
    sums = accumulator if accumulator and unit_roundoff(accumulator) < unit_roundoff(lowest) else lowest
    described = (
        f"{'integers and ' if arithmetic else ''}{str(lowest)[6:]}, sums accumulated in {str(sums)[6:]} or better"
    )
    try:
        error = _error_of(model, example[:1], input_bound, setting)
        return RoundingBound(error, input_bound, described)
    except ValueError as error:
        reason = str(error)
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:  # an operation that was called in an odd way
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return RoundingBound(None, input_bound, described, f"No rounding bound: {reason}")


def _numbers(model: nn.Module, example: Tensor) -> list[Tensor]:
    return [t for t in (*model.parameters(), *model.buffers(), example) if t.is_floating_point()]


def _error_of(model: nn.Module, example: Tensor, input_bound: float, setting: Arithmetic) -> float:
    _check_products_are_of_their_type(example)
    program, values = graph.traced_with_constants(model, example)
    size = input_bound * math.sqrt(example.numel()) * SLACK
    for node in program.graph.nodes:
        if node.op == "placeholder" and node not in values:
            values[node] = Computed(tuple(example.shape), example.dtype, size, input_bound, 0.0)
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "call_function":
                values[node] = _computed(node, values, setting)
            elif node.op == "output":
                results = graph.flat(map_arg(node.args[0], lambda n: values[n]))
                errors = [value.error for value in results if isinstance(value, Computed)]
                return root_sum_of_squares_up(*errors) * SLACK
    raise ValueError("it returns nothing.")


def _check_products_are_of_their_type(example: Tensor) -> None:
    """Refuse settings, and devices with such settings, under which torch multiplies in less than float32."""
    if example.device.type != "cpu":
        raise ValueError(f"rounding is known for the CPU, not for {example.device.type}.")
    kinds = [getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv")]
    if any(getattr(kind, "fp32_precision", "none") not in ("none", "ieee") for kind in kinds):
        raise ValueError(
            "torch may multiply float32 in a lower precision. Call torch.set_float32_matmul_precision('highest'), and "
            "leave torch.backends.mkldnn.conv.fp32_precision at 'none'."
        )


def _computed(node: Any, values: dict[Any, Any], setting: Arithmetic) -> Any:
    """The bounds of what an operation returns; its value if that does not depend on the input."""
    call = graph.call_of(node, values, Computed)
    if not isinstance(call, Call):
        if setting.arithmetic is not None and isinstance(call, Tensor) and "getitem" not in str(node.target):
            raise ValueError(f"{graph.where(node)}: it computes constants, in a network that runs in two precisions.")
        return call
    name = call.name
    if name not in _RULES or name not in OPERATIONS:
        raise ValueError(f"{graph.where(node)}: how it rounds is not known.")
    try:
        operation = Operation(call, setting)
        if any(value.step is not None for value in operation.inputs) and name not in _ON_INTEGERS:
            raise ValueError("how it rounds integers is not known")
        if name in SAME:
            operation.gains()  # which refuses what is random
            return operation.input
        local, largest, peak = _RULES[name](operation)
        if not math.isfinite(local):
            raise ValueError(
                f"its sums are too long for a bound in {str(operation.dtype)[6:]}. Name a finer accumulator"
            )
        if not (max(largest, peak) + local) * SLACK < torch.finfo(operation.dtype).max:
            raise ValueError(f"its values may exceed what {str(operation.dtype)[6:]} holds")
        largest = (min(largest, operation.exact_size) + local) * SLACK
        errors, sizes = (operation.carried(of) for of in (lambda value: value.error, lambda value: value.size))
    except ValueError as error:
        raise ValueError(f"{graph.where(node)}: {error}.".replace("..", ".")) from None
    results = [
        Computed(shape, dtype, size + operation.at_zero + local, largest, error + local)
        for (shape, dtype), size, error in zip(call.outputs, sizes, errors, strict=False)
    ]
    results[0] = _with_kind(operation, results[0])
    several = isinstance(node.meta["val"], (list, tuple))
    return [replace(r, step=results[0].step) for r in results] if several else results[0]


def _with_kind(operation: Operation, result: Computed) -> Computed:
    """What is known beside the bounds: whether integers are meant, and a circular padding."""
    call, before = operation.call, operation.input
    if call.name == "aten.pad" and call["mode"] == "circular" and before.wraps is None:
        pads = list(call["pad"])
        result.wraps = before, list(zip(pads[::2], pads[1::2], strict=True)), operation.gains()[0]
    if call.name in _ON_INTEGERS:
        result.step = before.step
    if call.name == "lipspline.rounded":
        result.step = call["step"] or None
    return result
