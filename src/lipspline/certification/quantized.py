"""Networks of integers, made by `torch.ao.quantization`: their exact function, and where they round.

The exact function has the weights that the integers stand for, the biases as they are stored, and clamps where integers
end; between them it is linear. A layer adds integers without error, so that what runs differs from it by at most half a
step wherever numbers become integers, and by a few roundings of float32 beside it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F

from lipspline.certification.flow import Flow
from lipspline.certification.operations import Call, operation
from lipspline.certification.rounding import Lost, Operation, rounding_rule, unit_roundoff
from lipspline.nn.fold import freeze

UNIT = unit_roundoff(torch.float32)
FEW = 32 * UNIT
"""More than the rounding of scales, their products and quotients, and of numbers of float32 between two integers."""
LEVELS = 127  # of numbers that a dynamic layer makes integers; some engines have twice as many
SMALLEST_STEP = 6.2e-5  # torch takes no smaller one there
INTEGERS = {torch.quint8: (0, 255), torch.qint8: (-128, 127)}
LARGEST_SUM = 2**31 // (255 * 128)
ADDING = 0.01  # of a step, more than the integers lose that some engines have for the quotients of steps
KNOWN = (
    "Quantize, DeQuantize, Linear, LinearReLU, Conv1d, Conv2d, ConvReLU1d, ConvReLU2d, QFunctional.add and add_relu, "
    "dynamic Linear, LinearReLU"
)
_PACKAGES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")

Steps = tuple[float, float, float, float, float]
"""The step, the smallest and the largest number, and the absolute and relative error beside half a step."""
UNBOUNDED = (-math.inf, math.inf)

_library = torch.library.Library("lipspline", "FRAGMENT")
_library.define("rounded(Tensor x, float step, float low, float high, float slack, float relative) -> Tensor")
_library.define("rounded_by_range(Tensor x) -> Tensor")
_library.impl("rounded", lambda x, step, low, high, *_: x.clamp(low, high), "CompositeExplicitAutograd")
_library.impl("rounded_by_range", lambda x: x.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("lipspline::rounded", lambda x, *_: torch.empty_like(x), lib=_library)
torch.library.register_fake("lipspline::rounded_by_range", torch.empty_like, lib=_library)


@operation("lipspline.rounded", "lipspline.rounded_by_range")
def _clamped(call: Call) -> Flow:
    return call.stretched(call.input(), 1.0, "clamps to the range of integers, if any; the rest is rounding")


@rounding_rule("lipspline.rounded", on_integers=True)
def _half_a_step(operation: Operation) -> Lost:
    step, low, high, slack, relative = (operation[name] for name in ("step", "low", "high", "slack", "relative"))
    largest = min(operation.input.largest, max(-low, high))
    return Lost((step / 2 + slack) * operation.root_n + relative * operation.exact_size, largest)


@rounding_rule("lipspline.rounded_by_range")
def _half_a_step_of_the_range(operation: Operation) -> Lost:
    """The step is the range of the numbers, and 0, over the levels; its shift to hold 0 exactly is half a step."""
    largest = operation.input.largest
    step = max(2 * largest / LEVELS, SMALLEST_STEP)
    return Lost((step / 2 + FEW * largest) * operation.root_n, largest)


class IntegerLayer(nn.Module):
    """The exact function of a layer that computes with integers, with the places where that rounds.

    Args:
        steps: of the integers that it returns; see `Steps`.
        function: of the input, the weight and the bias, if it has a weight.
        weight, bias: as real numbers, in float64.
        dynamic: the input is made of integers by its range.
        relu: the output is rectified.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        steps: Steps,
        function: Callable[..., Tensor] | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        dynamic: bool = False,
        relu: bool = False,
    ):
        super().__init__()
        self.steps, self.function, self.dynamic, self.relu = steps, function, dynamic, relu
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.ops.lipspline.rounded_by_range(x) if self.dynamic and is_compiling() else x
        x = x if self.function is None else self.function(x, self.weight, self.bias)
        x = _as_traced(x, self.steps)
        return x.relu() if self.relu else x


class IntegerSum(nn.Module):
    """The exact function of the sums of a `QFunctional`, which has methods in the place of a `forward`."""

    def __init__(self, steps: Steps):
        super().__init__()
        self.steps = steps

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.ao.nn.quantized.QFunctional, name) and not hasattr(nn.Module, name):
            raise ValueError(f"certify has no rule for integers in QFunctional.{name}; it has for {KNOWN}")
        return super().__getattr__(name)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return _as_traced(x + y, self.steps)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        step, low, *rest = self.steps
        return _as_traced(x + y, (step, max(low, 0.0), *rest))  # type: ignore[arg-type]


def _as_traced(x: Tensor, steps: Steps) -> Tensor:
    """A clamp, and in a graph a place where numbers are rounded, too."""
    return torch.ops.lipspline.rounded(x, *steps) if is_compiling() else x.clamp(*steps[1:3])


def is_quantized(module: object) -> bool:
    """Whether a module is a layer of torch for integers, or contains one."""
    return isinstance(module, nn.Module) and any(_is_of_integers(part) for part in module.modules())


def _is_of_integers(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_PACKAGES)


@torch.no_grad()
def exact_function(model: nn.Module, example: Tensor) -> nn.Module:
    """The exact function of a network of integers, in float64; the model is not changed.

    Args:
        model: made by `torch.ao.quantization`, static or dynamic.
        example: an input with batch, in float32. The steps of its integers do not depend on it.
    """
    frozen = freeze(model)
    steps: dict[nn.Module, list[float]] = {}

    def remember(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(inputs[0], Tensor) and inputs[0].is_quantized:
            steps.setdefault(layer, []).append(inputs[0].q_scale())

    parts = [part for part in frozen.modules() if _is_of_integers(part)]
    handles = [part.register_forward_pre_hook(remember) for part in parts]
    try:
        frozen(example.clone())
    except Exception as error:
        raise ValueError(f"The network of integers does not run ({type(error).__name__}: {error}).") from error
    for handle in handles:
        handle.remove()
    if _is_of_integers(frozen):
        return _exact(frozen, steps)
    for name, parent in list(frozen.named_modules()):
        for child_name, child in parent._modules.items():
            if child is not None and _is_of_integers(child) and not _is_of_integers(parent):
                try:
                    parent._modules[child_name] = _exact(child, steps)
                except ValueError as error:
                    raise ValueError(f"Layer {f'{name}.{child_name}'.strip('.')!r}: {error}.") from None
    exact = frozen.double()
    try:
        exact(example.double())
    except Exception as error:
        raise ValueError(f"The exact function of this network of integers is not known: {error}.") from error
    return exact


def _exact(layer: nn.Module, steps: dict[nn.Module, list[float]]) -> nn.Module:
    """The exact function of one layer; `steps` are those of its inputs."""
    import torch.ao.nn.intrinsic.quantized as fused
    import torch.ao.nn.intrinsic.quantized.dynamic as fused_dynamic
    import torch.ao.nn.quantized as plain
    import torch.ao.nn.quantized.dynamic as dynamic

    kind: Any = type(layer)
    if kind is plain.Quantize:
        return IntegerLayer(_steps(layer.scale, layer.zero_point, INTEGERS[layer.dtype]))  # type: ignore[index]
    if kind is plain.DeQuantize:
        return IntegerLayer((0.0, *UNBOUNDED, 0.0, 2 * UNIT))
    if kind is plain.QFunctional:
        sums: Any = layer
        return IntegerSum(_steps(sums.scale, sums.zero_point, INTEGERS[torch.quint8], ADDING * float(sums.scale)))
    if kind is plain.Dropout:
        return nn.Identity()
    known = (plain.Linear, fused.LinearReLU, plain.Conv1d, fused.ConvReLU1d, plain.Conv2d, fused.ConvReLU2d)
    known_dynamic = (dynamic.Linear, fused_dynamic.LinearReLU)
    if kind not in (*known, *known_dynamic):
        raise ValueError(
            f"certify has no rule for integers in {kind.__name__} of {kind.__module__}; it has for {KNOWN}"
        )
    integers: Any = layer
    weight, scales = _real(integers.weight())
    bias = integers.bias()
    bias = None if bias is None else bias.detach().double()
    level = 0.0 if bias is None else float(bias.abs().max())
    if kind in known_dynamic:
        steps_of_output = (0.0, *UNBOUNDED, FEW * level, FEW)
        relu = kind is fused_dynamic.LinearReLU
        return IntegerLayer(steps_of_output, F.linear, weight, bias, dynamic=True, relu=relu)
    function: Callable[..., Tensor] = F.linear
    if weight.ndim > 2:
        if integers.padding_mode != "zeros":
            raise ValueError(f"certify has no rule for integers with padding_mode={integers.padding_mode!r}")
        convolve = F.conv1d if weight.ndim == 3 else F.conv2d
        options = {name: getattr(integers, name) for name in ("stride", "padding", "dilation", "groups")}
        function = partial(convolve, **_for_axes(options, weight.ndim - 2))
    rectified = kind in (fused.LinearReLU, fused.ConvReLU1d, fused.ConvReLU2d)
    of_bias = 0.0 if bias is None else _error_of_bias(level, steps[layer], scales, weight / scales)
    output = _steps(integers.scale, integers.zero_point, INTEGERS[torch.quint8], FEW * level + of_bias, rectified)
    return IntegerLayer(output, function, weight, bias)


def _for_axes(options: dict[str, Any], axes: int) -> dict[str, Any]:
    """Layers for one axis may keep their sizes for two."""
    return {name: value[-axes:] if isinstance(value, tuple) else value for name, value in options.items()}


def _steps(
    scale: Any, zero_point: Any, integers: tuple[int, int], slack: float = 0.0, rectified: bool = False
) -> Steps:
    """Of integers q, which stand for `scale (q - zero_point)`; rectified, none is below zero."""
    step, zero = float(torch.as_tensor(scale, dtype=torch.float32)), int(zero_point)
    least = max(integers[0], zero) if rectified else integers[0]
    low, high = step * (least - zero), step * (integers[1] - zero)
    return step, low, high, slack + FEW * max(abs(step * (integers[0] - zero)), abs(high)), 0.0


def _real(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers that the integers of a weight stand for, and their steps, which can be divided by."""
    if not weight.is_quantized:
        raise ValueError(f"its weight is {weight.dtype}; certify knows only integers here")
    q = weight.int_repr().double()
    if weight.qscheme() == torch.per_tensor_affine:
        scale, zero = torch.tensor(weight.q_scale()), torch.tensor(float(weight.q_zero_point()))
    else:
        wide = [-1 if axis == weight.q_per_channel_axis() else 1 for axis in range(weight.ndim)]
        scale, zero = weight.q_per_channel_scales().reshape(wide), weight.q_per_channel_zero_points().reshape(wide)
    _check_sums(q)
    scale = scale.float().double()
    return scale * (q - zero.double()), scale


def _check_sums(q: Tensor) -> None:
    """Refuse sums of products that the processor may not hold."""
    rows = q.abs().flatten(1)
    if rows.shape[1] >= LARGEST_SUM:
        raise ValueError(f"it adds {rows.shape[1]} products, which may exceed 32 bits")
    exact = getattr(torch.cpu, "_is_vnni_supported", lambda: False)() or torch.backends.quantized.engine == "qnnpack"
    if not exact and rows.shape[1] > 1 and float(rows.topk(2).values.sum(1).max()) > 128:
        raise ValueError("this processor adds pairs of its products in 16 bits, which they may exceed")


def _error_of_bias(level: float, steps: list[float], scales: Tensor, q: Tensor) -> float:
    """Half the product of the steps of input and weight, of which an engine may make the bias a multiple.

    A bias that is more of these than 32 bits hold, beside the sums of products, is refused there.
    """
    largest = level / (min(steps) * float(scales.min()))
    sums = largest + 255 * float(q.abs().flatten(1).sum(1).max())
    if torch.backends.quantized.engine == "qnnpack" and not sums < 2**31 - 1:
        raise ValueError(
            f"its bias is {largest:.3g} times the product of the steps of input and weight, an integer that may exceed "
            f"32 bits"
        )
    return max(steps) * float(scales.max()) / 2
