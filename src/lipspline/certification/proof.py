"""Upper bounds on Lipschitz constants that are proofs: one rule a layer, an unknown layer is an error.

Bounds hold in the Euclidean norm and in exact arithmetic, for the network in eval mode with the parameters it has, for
every image size. The rounding of the bound's own computation is added outward. What is estimated from below is
called `lower`: it is the largest ratio really seen.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification.search import lower_bound
from lipspline.functional.convolutions import conv_norm_upper
from lipspline.functional.matrices import spectral_norm_upper
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.combine import Averaged, Scaled
from lipspline.nn.convolutions import SampleUnshuffle
from lipspline.nn.fold import fold
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline, InferenceConv2d, InferenceSequential


@dataclass(frozen=True)
class LayerBound:
    """The bound of one layer and the rule that gave it."""

    name: str
    kind: str
    rule: str
    upper: float


@dataclass(frozen=True)
class Certificate:
    """A proof that a network is Lipschitz with constant `upper`, layer by layer.

    `lower` is the largest ratio of distances seen (None if not looked for), so `upper / lower` says how tight it is.
    """

    upper: float
    layers: tuple[LayerBound, ...]
    lower: float | None = None

    def to_json(self) -> str:
        """The certificate as a JSON document."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [("layer", "kind", "bound", "rule")]
        rows += [(bound.name, bound.kind, _nine_digits_up(bound.upper), bound.rule) for bound in self.layers]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        seen = "not measured" if self.lower is None else f"{self.lower:.9f}"
        return "\n".join(
            [*lines, "", f"Lipschitz constant <= {_nine_digits_up(self.upper)}   (largest ratio seen: {seen})"]
        )


def _nine_digits_up(bound: float) -> str:
    """A bound in print is a bound: 1 + 4e-10 is not 1.000000000."""
    text = f"{bound:.9f}"
    return text if float(text) >= bound else f"{float(text) + 1e-9:.9f}"


Bound = tuple[float, str]
Rule = Callable[[Any], Bound]
_RULES: dict[type[nn.Module], Rule] = {}


def register_rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register the rule of a layer: a function from the layer to `(upper bound, the reason in a few words)`.

    Example:
        >>> class Half(nn.Module):
        ...     def forward(self, x):
        ...         return x / 2
        >>> @register_rule(Half)
        ... def _(layer):
        ...     return 0.5, "halves every difference"
        >>> certify(Half()).upper
        0.5
    """

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            _RULES[kind] = rule
        return rule

    return register


class Declared(nn.Module):
    """A callable with a Lipschitz bound that the user vouches for; made by `declare`."""

    def __init__(self, function: Callable[[Tensor], Tensor], upper: float, reason: str):
        super().__init__()
        self.function = function
        self.upper = checks.positive("upper", upper)
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


def certify(
    model: nn.Module, input_shape: tuple[int, ...] | None = None, *, inputs: Tensor | None = None, steps: int = 20
) -> Certificate:
    """Bound the Lipschitz constant of a model from above, by a proof, and from below, by what is seen.

    Args:
        model: built of layers with a rule (`register_rule` adds one).
        input_shape: shape of one input, with or without batch; only `lower` needs it, and guesses it from the first
            layer.
        inputs: a batch around which `lower` is looked for; random ones if not given.
        steps: power iterations on the Jacobian for `lower`; 0 leaves it out.

    Example:
        >>> layer = nn.Linear(2, 2, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        >>> certificate = certify(layer)
        >>> print(f"{certificate.lower:.6f} <= {certificate.upper:.6f}")
        3.000000 <= 3.000000
    """
    folded = fold(model)
    _check_finite(folded)
    layers = tuple(_bounds("", folded))
    upper = multiply_up(*(bound.upper for bound in layers))
    return Certificate(upper, layers, lower_bound(folded, input_shape, inputs, steps) if steps else None)


def layer_bound(layer: nn.Module) -> LayerBound:
    """The bound of one folded layer that has a rule of its own."""
    return next(_bounds("", layer))


def multiply_up(*factors: float) -> float:
    """Product of nonnegative numbers, rounded upward."""
    product = 1.0
    for factor in factors:
        if factor != 1.0:
            product = math.nextafter(product * factor, math.inf) if product != 1.0 else factor
    return product


def add_up(*terms: float) -> float:
    """Sum of nonnegative numbers, rounded upward."""
    total = 0.0
    for term in terms:
        total = math.nextafter(total + term, math.inf) if total and term else total + term
    return total


def _check_finite(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            checks.finite(f"Parameter {name!r}", tensor, "A network with such parameters has no Lipschitz bound.")


def _bounds(name: str, module: nn.Module) -> Iterator[LayerBound]:
    """The bounds whose product bounds `module`."""
    kind = type(module)
    if module._forward_hooks or module._forward_pre_hooks:
        raise ValueError(
            f"Layer {name or 'itself'!r} has forward hooks, and certify cannot see what they do. Remove them."
        )
    if "forward" in vars(module):
        raise ValueError(
            f"Layer {name or 'itself'!r} has a forward that was set on the instance, and certify knows only that of "
            f"its class {kind.__name__}. Make it a class and register a rule for it."
        )
    if kind.forward in (nn.Sequential.forward, InferenceSequential.forward):
        for child_name, child in module._modules.items():  # named_children leaves out a layer's second place
            assert child is not None
            yield from _bounds(f"{name}.{child_name}".lstrip("."), child)
    elif kind is Averaged:
        assert isinstance(module, Averaged)
        inner = multiply_up(*(bound.upper for bound in _bounds("", module.inner)))
        upper = 1.0 if inner == 1.0 else add_up(multiply_up(module.beta, inner), math.nextafter(1.0 - module.beta, 1.0))
        yield LayerBound(name, kind.__name__, f"beta * {inner:.9g} + (1 - beta), beta = {module.beta:g}", upper)
    elif kind in _RULES:
        upper, rule = _RULES[kind](module)
        if not upper >= 0:
            raise ValueError(
                f"The rule for {kind.__name__} (layer {name or 'itself'!r}) gave {upper!r}, which bounds nothing."
            )
        yield LayerBound(name, kind.__name__, rule, upper)
    else:
        raise ValueError(
            f"certify has no rule for {kind.__name__} (layer {name or 'itself'!r}), and will not guess one. "
            f"Register one with lipspline.register_rule({kind.__name__}), or vouch for a bound with lipspline.declare."
        )


@register_rule(nn.Linear)
def _linear(layer: nn.Linear) -> Bound:
    return spectral_norm_upper(layer.weight), "largest singular value"


@register_rule(nn.Conv1d, nn.Conv2d, InferenceConv2d)
def _convolution(layer: nn.Conv1d | nn.Conv2d) -> Bound:
    _check_padding(layer)
    # Across the border of a circular image windows meet that never do on the plane, unless the stride divides its size;
    # the norm without stride holds there too, because leaving out pixels does not raise it.
    stride = 1 if layer.padding_mode == "circular" and any(layer.padding) else layer.stride
    upper = conv_norm_upper(layer.weight, stride=stride, dilation=layer.dilation, groups=layer.groups)
    return upper, f"operator norm over all frequencies, {layer.padding_mode} padding"


def _check_padding(layer: nn.Conv1d | nn.Conv2d) -> None:
    """Zero padding compresses the convolution on the plane; circular padding must not repeat pixels twice."""
    checks.one_of("padding_mode of a certified convolution", layer.padding_mode, ("zeros", "circular"))
    if layer.padding_mode == "circular" and not isinstance(layer.padding, str):
        for padding, size, dilation in zip(layer.padding, layer.kernel_size, layer.dilation, strict=True):
            if 2 * padding > dilation * (size - 1):
                raise ValueError(
                    f"A circular convolution with kernel {size} and padding {padding} repeats pixels, so its norm is "
                    f"not that of the kernel. Use padding at most {dilation * (size - 1) // 2}."
                )


@register_rule(nn.ConvTranspose1d, nn.ConvTranspose2d)
def _transposed_convolution(layer: nn.ConvTranspose1d | nn.ConvTranspose2d) -> Bound:
    upper = conv_norm_upper(layer.weight, stride=layer.stride, dilation=layer.dilation, groups=layer.groups)
    return upper, "operator norm of the convolution it is the adjoint of"


@register_rule(FoldedSpline)
def _spline(layer: FoldedSpline) -> Bound:
    if not bool((layer.scale > 0).all()):
        raise ValueError("The scales of a FoldedSpline must be positive, but some are not.")
    return _largest_slope(layer, defined_by="slopes, mean or scale")


@register_rule(FreeKnotSpline)
def _free_knot_spline(layer: FreeKnotSpline) -> Bound:
    if not bool((layer.knots.diff(dim=-1) >= 0).all()):
        raise ValueError("The knots of a FreeKnotSpline must ascend, but some do not.")
    return _largest_slope(layer, defined_by="slopes, knots or intercept")


def _largest_slope(layer: FoldedSpline | FreeKnotSpline, defined_by: str) -> Bound:
    """The largest slope of splines, whose intercepts must be those that make them continuous."""
    derived = copy.deepcopy(layer).refresh().b
    if not torch.allclose(layer.b, derived, rtol=1e-6, atol=1e-6 * float(derived.abs().max())):
        raise ValueError(
            f"The intercepts of a {type(layer).__name__} do not follow from its slopes, so it may jump. "
            f"Call refresh() after changing its {defined_by}."
        )
    return float(layer.slopes.abs().max()), "largest slope of the splines"


@register_rule(AbsoluteValue, GroupSort, MaxMin, Householder)
def _gradient_norm_preserving(_: nn.Module) -> Bound:
    return 1.0, "preserves gradient norms"


@register_rule(nn.ReLU, nn.Tanh, nn.Hardtanh, nn.Softshrink)
def _slope_at_most_one(_: nn.Module) -> Bound:
    return 1.0, "slopes between 0 and 1"


@register_rule(nn.Sigmoid)
def _sigmoid(_: nn.Sigmoid) -> Bound:
    return 0.25, "slopes between 0 and 1/4"


@register_rule(LipschitzPReLU)
def _lipschitz_prelu(_: LipschitzPReLU) -> Bound:
    return 1.0, "slopes clipped to [-1, 1]"


@register_rule(nn.PReLU)
def _prelu(layer: nn.PReLU) -> Bound:
    return max(float(layer.weight.abs().max()), 1.0), "max(1, |a|)"


@register_rule(nn.LeakyReLU)
def _leaky_relu(layer: nn.LeakyReLU) -> Bound:
    return max(abs(layer.negative_slope), 1.0), "max(1, |a|)"


@register_rule(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, SampleUnshuffle, nn.Dropout)
def _rearrangement(_: nn.Module) -> Bound:
    return 1.0, "keeps distances"


@register_rule(Scaled)
def _scaled(layer: Scaled) -> Bound:
    return abs(layer.factor), "absolute factor"


@register_rule(nn.AvgPool1d, nn.AvgPool2d)
def _average_pool(layer: nn.AvgPool1d | nn.AvgPool2d) -> Bound:
    dims = 1 if isinstance(layer, nn.AvgPool1d) else 2
    kernel, stride = _tuple(layer.kernel_size, dims), _tuple(layer.stride, dims)
    weight = torch.full((1, 1, *kernel), 1 / math.prod(kernel), dtype=torch.float64)
    partial = layer.ceil_mode or (not layer.count_include_pad and any(_tuple(layer.padding, dims)))
    if partial or getattr(layer, "divisor_override", None):
        raise ValueError(
            "certify knows average pooling only with one divisor for all windows: "
            "use count_include_pad=True, ceil_mode=False and no divisor_override."
        )
    return conv_norm_upper(weight, stride=stride), "operator norm of the averaging kernel"


@register_rule(nn.MaxPool1d, nn.MaxPool2d)
def _max_pool(layer: nn.MaxPool1d | nn.MaxPool2d) -> Bound:
    dims = 1 if isinstance(layer, nn.MaxPool1d) else 2
    sizes = (_tuple(size, dims) for size in (layer.kernel_size, layer.stride, layer.dilation))
    windows = math.prod(
        -(-kernel * math.gcd(stride, gap) // stride) for kernel, stride, gap in zip(*sizes, strict=True)
    )
    upper = 1.0 if windows == 1 else math.nextafter(math.sqrt(windows), math.inf)
    return upper, f"each pixel is in at most {windows} window(s)"


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d)
def _batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Bound:
    if layer.running_var is None:
        raise ValueError("Batch normalisation without running statistics has no Lipschitz bound.")
    gain = 1.0 if layer.weight is None else layer.weight.double().abs()
    factor = float((gain / (layer.running_var.double() + layer.eps).sqrt()).max())
    return factor * (1 + 1e-15), "largest gain of a channel, in eval mode"


@register_rule(Declared)
def _declared(layer: Declared) -> Bound:
    return layer.upper, f"declared: {layer.reason}"


def _tuple(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)
