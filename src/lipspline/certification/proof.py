"""Upper bounds on Lipschitz constants that are proofs: one rule a class of layers, an unknown class is an error.

Bounds hold in the Euclidean norm and in exact arithmetic, for real inputs of every size, and for the network in eval
mode with the very numbers it multiplies with: weights as their parametrizations compute them, in their own precision.
The rounding of the bound's own computation is added outward.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification.certificate import EVERY_SIZE, BoundProduct, Certificate, LayerBound
from lipspline.certification.graph import NoOperationRule, as_example, graph_bounds
from lipspline.certification.inspection import (
    LayerError,
    NoLayerRule,
    as_it_runs,
    check_has_values,
    class_that_runs,
    compiled_from,
    unwrapped,
)
from lipspline.certification.quantized import exact_function, is_quantized
from lipspline.certification.rounding import rounding_bound
from lipspline.certification.search import check_example, estimate_lower, mixes_inputs, tensors_in
from lipspline.nn.blocks import ConvexPotential
from lipspline.nn.fold import class_before
from lipspline.nn.inference import FreeKnotSpline, InferenceConv2d
from lipspline.nn.ridge import UnrolledRidge

Bound = tuple[float, str]
ChildBounds = Callable[[str, nn.Module], BoundProduct]
Rule = Callable[..., Bound | BoundProduct]


@dataclass(frozen=True)
class _Entry:
    rule: Rule
    composite: bool
    forward: Callable[..., Any]  # what the rule is about; a class whose forward was replaced since is another one


_RULES: dict[type[nn.Module], _Entry] = {}


def register_rule(*kinds: type[nn.Module], composite: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of a class of layers: a function from the layer to `(upper bound, the reason in a few words)`.

    Args:
        kinds: the classes; a subclass needs a rule of its own.
        composite: the layer is made of others, and the rule gets a second argument: `bounds(name, child)` gives the
            bounds of a child, whose product is `.upper`.

    Example:
        >>> class Half(nn.Module):
        ...     def forward(self, x):
        ...         return x / 2
        >>> @register_rule(Half)
        ... def _(layer):
        ...     return 0.5, "halves every difference"
        >>> class Twice(nn.Module):
        ...     def __init__(self, inner):
        ...         super().__init__()
        ...         self.inner = inner
        ...     def forward(self, x):
        ...         return self.inner(self.inner(x))
        >>> @register_rule(Twice, composite=True)
        ... def _(layer, bounds):
        ...     return bounds("inner", layer.inner).upper ** 2, "the square of what is applied twice"
        >>> certify(Twice(Half())).upper
        0.25
    """

    if not kinds or not all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in kinds):
        raise ValueError(f"register_rule needs classes of layers, subclasses of nn.Module, but got {kinds!r}.")

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            _RULES[kind] = _Entry(rule, composite, kind.forward)
        return rule

    return register


class Declared(nn.Module):
    """A callable with a Lipschitz bound that the user vouches for; made by `declare`."""

    def __init__(self, function: Callable[[Tensor], Tensor], upper: float, reason: str):
        super().__init__()
        if not callable(function):
            raise ValueError(f"declare needs a function of a tensor, but got a {type(function).__name__}.")
        self.function = function
        self.upper = checks.positive("upper", upper)
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(
                f"declare needs the reason for the bound {upper:g}, which certificates repeat; got {reason!r}."
            )
        self.reason = reason

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def declare(function: Callable[[Tensor], Tensor], upper: float, reason: str) -> Declared:
    """Give any callable a Lipschitz bound on your word; the certificate repeats the reason.

    Example:
        >>> soft = declare(lambda x: x - x.clamp(-0.1, 0.1), upper=1.0, reason="proximal operator of a norm")
        >>> certify(soft).layers[0].rule
        'declared: proximal operator of a norm'
    """
    return Declared(function, upper, reason)


@register_rule(Declared)
def _declared(layer: Declared) -> Bound:
    if isinstance(layer.function, nn.Module):
        for part in layer.function.modules():
            as_it_runs(part)  # without a bound, but its parameters must at least be numbers
    return layer.upper, f"declared: {layer.reason}"


def certify(
    model: nn.Module,
    input_shape: tuple[int, ...] | Tensor | None = None,
    *,
    input_bound: float | None = None,
    accumulator: torch.dtype | None = None,
) -> Certificate:
    """Bound the Lipschitz constant of a model in eval mode from above, by a proof.

    Networks of layers with a rule are bounded for inputs of every size. With an `input_shape`, any other module is
    traced by `torch.export` and bounded operation by operation, as a graph, for inputs of that shape: residual sums,
    branches, concatenations and operations that are no layers are known then. Given an example instead of a shape, both
    are done where possible, and the smaller bound is returned.

    What a traced module returns for one input must not depend on the others of its batch: this is tried, and refused.

    Models wrapped by `torch.compile`, `nn.DataParallel`, `DistributedDataParallel` or `AveragedModel` are looked into.
    The model is not changed.

    Args:
        model: built of layers with a rule (`register_rule` adds one), or any module that `torch.export` can trace.
        input_shape: shape of one input without batch, or an example input with batch. If given, the largest ratio of
            distances found around inputs like it stands beside the bound, as `lower`
            (`lipspline.certification.estimate_lower`).
        input_bound: the largest magnitude of an entry of an input. If given (with an `input_shape`), `rounding` of the
            certificate bounds how far what runs is from the network in exact arithmetic; networks of integers, which
            `torch.ao.quantization` made, are known then.
        accumulator: the precision in which sums are accumulated for `rounding`, such as torch.float32 for networks in
            half precision on hardware that does so. By default that of the network, which is true of any hardware.

    Example:
        >>> import lipspline, torch
        >>> layer = nn.Linear(2, 2, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        >>> certificate = lipspline.certify(layer, input_shape=(2,))
        >>> print(f"{certificate.lower:.3f} <= {certificate.upper:.3f}")
        3.000 <= 3.000
        >>> class Residual(nn.Module):
        ...     def forward(self, x):
        ...         return x - 0.5 * x.relu()
        >>> round(lipspline.certify(Residual(), torch.randn(1, 2)).upper, 6)
        1.5
    """
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        raise ValueError(
            "certify was called within torch.autocast, where layers run with rounded weights that it does not see. "
            "Leave the context, or certify a model converted with .to(torch.bfloat16)."
        )
    _check_input(input_shape)
    check_has_values(model)
    if accumulator is not None and (input_bound is None or not accumulator.is_floating_point):
        raise ValueError(f"accumulator is a floating-point type, beside an input_bound, but is {accumulator}.")
    if input_bound is None:
        return _certified(model, input_shape)
    return _certified_with_rounding(model, input_shape, input_bound, accumulator)


def _certified_with_rounding(
    model: nn.Module, input_shape: tuple[int, ...] | Tensor | None, bound: float, accumulator: torch.dtype | None
) -> Certificate:
    checks.positive("input_bound", bound)
    if input_shape is None or not isinstance(model, nn.Module):
        raise ValueError("Rounding is bounded for a module and inputs of one shape: give input_shape, too.")
    model = unwrapped(model)
    example, arithmetic = as_example(model, input_shape), None
    if is_quantized(model):
        model, example, arithmetic = exact_function(model, example), example.double(), torch.float32
        input_shape = example
    certificate = _certified(model, input_shape)
    rounding = rounding_bound(model, example, float(bound), accumulator=accumulator, arithmetic=arithmetic)
    silent = _rounding(model, input_shape) if rounding.error is not None else ""
    return replace(certificate, rounding=rounding, valid_for=certificate.valid_for.removesuffix(silent))


def _certified(model: nn.Module, input_shape: tuple[int, ...] | Tensor | None) -> Certificate:
    try:
        layers = _bounds("", model, (), within_eval=not model.training if isinstance(model, nn.Module) else False)
        certificate = Certificate(layers.upper, tuple(layers))
    except LayerError as error:
        if input_shape is None or not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
            raise
        certificate = _certified_graph(model, input_shape, instead_of=error)
    else:
        if isinstance(input_shape, Tensor):
            try:
                traced = _certified_graph(model, input_shape, instead_of=None)
            except ValueError:
                traced = certificate
            certificate = traced if traced.upper < certificate.upper else certificate
    if input_shape is not None:
        traced = certificate.valid_for != EVERY_SIZE
        lower = _lower(model, input_shape, traced=traced)
        if traced and lower is not None and lower <= certificate.upper * (1 + _recomputed(model)):
            lower = min(lower, certificate.upper)
        _check_not_refuted(model, certificate.upper, lower)
        certificate = replace(certificate, lower=lower)
    return replace(certificate, valid_for=certificate.valid_for + _rounding(model, input_shape))


def _check_input(given: object) -> None:
    one_shape = isinstance(given, (tuple, list)) and all(isinstance(size, int) and size > 0 for size in given)
    if given is not None and not one_shape and not isinstance(given, Tensor):
        parts = given if isinstance(given, (tuple, list)) else ()
        kinds = ", ".join(type(part).__name__ for part in parts)
        told = f"a {type(given).__name__}" + (f" of {kinds}" if kinds else "")
        said = told if hasattr(given, "__array__") or any(hasattr(part, "__array__") for part in parts) else repr(given)
        raise TypeError(
            f"input_shape must be the shape of one input without batch, such as (3, 32, 32), or an example with batch, "
            f"a tensor, but is {said}. (A model with several inputs needs a module around it that takes one.)"
        )
    if isinstance(given, Tensor):
        check_example(given)
        if given.is_complex():
            raise ValueError(
                f"The example is complex ({given.dtype}), but bounds hold for real inputs. Certify a module around the "
                f"model that takes real and imaginary parts as channels."
            )


def _rounding(model: nn.Module, input_shape: tuple[int, ...] | Tensor | None) -> str:
    """What the certificate of a network in half precision is silent about."""
    used = {tensor.dtype for tensor in (*model.parameters(), *model.buffers())}
    used |= {input_shape.dtype} if isinstance(input_shape, Tensor) else set()
    for half in (torch.float16, torch.bfloat16):
        if half in used:
            return f", but for the rounding of {half} to steps, which no constant bounds"
    return ""


def _lower(model: nn.Module, input_shape: tuple[int, ...] | Tensor, *, traced: bool) -> float | None:
    """The largest ratio seen; None for a traced module that does not run in float64, or returns several tensors.

    Also if the outputs of the model overflow: then no ratio was seen.
    """
    try:
        if isinstance(input_shape, Tensor):
            lower = estimate_lower(model, inputs=input_shape)
        else:
            lower = estimate_lower(model, input_shape)
        return None if math.isnan(lower) else lower
    except (RuntimeError, TypeError, AttributeError, ValueError):
        if traced:
            return None
        raise


def _recomputed(model: nn.Module) -> float:
    """How far weights that a module computes when it runs may come out otherwise in float64, where `lower` is found."""
    return max((16 * torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()), default=0.0)


def _check_not_refuted(model: nn.Module, upper: float, lower: float | None) -> None:
    """What was seen is true, whoever gave the bound."""
    if lower is None or lower <= upper:
        return
    words = [_leaf_bound(name, part) for name, part in unwrapped(model).named_modules() if _is_on_your_word(part)]
    named = "; ".join(f"{word.name or 'the model'}: {word.rule}" for word in words if word is not None)
    raise ValueError(
        f"The network stretches by {lower:.9g}, which was seen, so that the bound {upper:.9g} is wrong. "
        + (f"One of these, given by declare or register_rule, is too small: {named}." if named else "Please report it.")
    )


def _certified_graph(
    model: nn.Module, input_shape: tuple[int, ...] | Tensor, *, instead_of: ValueError | None
) -> Certificate:
    model = unwrapped(model)
    example = as_example(model, input_shape)
    try:
        upper, rows, output = graph_bounds(model, example, _leaf_bound)
    except NoOperationRule as error:
        if instead_of is None or isinstance(instead_of, NoLayerRule):
            raise ValueError(str(error)) from None
        raise instead_of from error
    if not math.isfinite(upper) or not all(bool(tensor.isfinite().all()) for tensor in tensors_in(output)):
        raise ValueError(
            "The model returns NaN or infinity for the example, or a number on the way is too large for its type: it "
            "has no Lipschitz bound. Look for such numbers among its parameters."
        )
    if mixes_inputs(model, example):
        raise ValueError(
            "The module mixes the inputs of a batch: what it returns for one of them depends on the others, or on how "
            "many there are, so that no constant of one input holds. If the first dimension is no batch, certify a "
            "module around it that takes inputs of shape (1, ...) and passes on x[0]."
        )
    return Certificate(upper, tuple(rows), valid_for=f"inputs of shape {tuple(example.shape)}")


def _leaf_bound(name: str, module: nn.Module) -> LayerBound | None:
    """The bound of a module whose class has a rule that was registered by its author, or that is opaque otherwise."""
    if not _is_on_your_word(module) and class_before(module) not in _OPAQUE:
        return None
    bounds = _bounds(name, module, (), within_eval=False)
    kind, rule = class_before(module).__name__, ", then ".join(dict.fromkeys(bound.rule for bound in bounds))
    return LayerBound(name, kind, rule, bounds.upper)


def _is_on_your_word(module: nn.Module) -> bool:
    """Whether the bound of a module is the user's, by `declare` or by `register_rule`."""
    entry = _RULES.get(class_before(module))
    ours = entry is None or entry.rule.__module__.startswith("lipspline.certification.")
    return not ours or class_before(module) is Declared


_OPAQUE: set[type[nn.Module]] = {FreeKnotSpline, InferenceConv2d, ConvexPotential, UnrolledRidge}
"""Layers whose operations say less than their class."""


def layer_bound(layer: nn.Module) -> LayerBound:
    """The bound of one layer that has a rule of its own."""
    return _bounds("", layer, (), within_eval=False)[0]


def _bounds(name: str, module: nn.Module, above: tuple[nn.Module, ...], *, within_eval: bool) -> BoundProduct:
    """The bounds whose product bounds `module`; `above` are the modules it is a part of."""
    try:
        if any(module is other for other in above):
            raise ValueError("is a part of itself, so it has no end.")
        inner = compiled_from(module)
        if inner is not None:
            return _bounds(name, inner, (*above, module), within_eval=within_eval)
        kind = class_that_runs(module, within_eval=within_eval)
        entry = _RULES.get(kind)
    except LayerError:
        raise
    except ValueError as error:
        raise LayerError(f"Layer {name or 'itself'!r} {error}") from None
    if kind.__module__.startswith(("torch.ao.nn.", "torch.nn.quantized", "torchao.")):
        raise LayerError(
            f"Layer {name or 'itself'!r} ({kind.__name__} of {kind.__module__}) rounds to integers: its output jumps, "
            f"so that it has no Lipschitz constant. Give input_shape and input_bound: then the exact function of these "
            f"weights is bounded, and how far what runs is from it."
        )
    if entry is None or kind.forward is not entry.forward:
        replaced = "" if entry is None else " with the forward it has now"
        raise NoLayerRule(
            f"certify has no rule for {kind.__name__}{replaced} (layer {name or 'itself'!r}), and will not guess one. "
            f"Give input_shape, or an example input, so that its operations are traced and bounded one by one. "
            f"Register one with lipspline.register_rule({kind.__name__}), or vouch for a bound with lipspline.declare."
        )

    def bounds(child_name: str, child: nn.Module) -> BoundProduct:
        return _bounds(f"{name}.{child_name}".strip("."), child, (*above, module), within_eval=within_eval)

    try:
        layer = as_it_runs(module)
        result = entry.rule(layer, bounds) if entry.composite else entry.rule(layer)
    except LayerError:
        raise
    except ValueError as error:
        raise LayerError(f"Layer {name!r} ({kind.__name__}): {error}" if name else str(error)) from error
    except Exception as error:  # whatever was written into a layer after its construction: no bound, but an answer
        raise LayerError(
            f"The rule for {kind.__name__} (layer {name or 'itself'!r}) ended with {type(error).__name__}: {error}. "
            f"Some attribute of the layer may not be as its class sets it."
        ) from error
    if isinstance(result, BoundProduct):
        return result
    upper, reason = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
    if not isinstance(upper, (int, float)) or not upper >= 0:
        raise LayerError(
            f"The rule for {kind.__name__} (layer {name or 'itself'!r}) gave {upper!r}, which bounds nothing."
        )
    if not reason:
        raise LayerError(
            f"The rule for {kind.__name__} (layer {name or 'itself'!r}) gave {upper!r} alone. Let it return the bound "
            f"and the reason in a few words."
        )
    return BoundProduct([LayerBound(name, kind.__name__, reason, float(upper))])
