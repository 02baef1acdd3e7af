r"""A network evaluated in float64 with a bound on the round-off of the evaluation, layer by layer.

A layer `f` with Lipschitz bound `L` gets a `z` that is off by at most `E` and returns `f(z)` off by at most `e`, so
its output is off by at most `L E + e`. A sum of n products has `e <= n eps Σ |w_i| |z_i|`, in any order of
summation: it is bounded by the norms of `|W|` and `z`, so large numbers that cancel inside the network are counted.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lipspline.certification.linear_rules import padding_upper, pairs_of
from lipspline.certification.proof import layer_bound
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.blocks import InvertibleDownsampling, InvertibleUpsampling
from lipspline.nn.combine import Averaged, Concatenated, Scaled, Sum
from lipspline.nn.convolutions import Conv2d, SampleUnshuffle
from lipspline.nn.fold import freeze
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline, InferenceConv2d, InferenceSequential

EPS = torch.finfo(torch.float64).eps
Magnitude = Callable[[Any, Tensor], Tensor]
"""`(layer, z) -> (B,)`: the norm of what the layer adds up, times the number of additions and multiplications."""
_MAGNITUDES: dict[type[nn.Module], Magnitude] = {}
Evaluate = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
Composite = Callable[[Any, Tensor, Tensor, Evaluate], tuple[Tensor, Tensor]]
"""`(module, z, error of z, run) -> (output, error of the output)`, where `run` does the same for a child."""
_COMPOSITES: dict[type[nn.Module], Composite] = {}


class UnknownRoundOff(ValueError):
    """A layer whose round-off nobody has bounded."""


def register_magnitude(*kinds: type[nn.Module]) -> Callable[[Magnitude], Magnitude]:
    """Register how large the numbers are that a layer adds up; see `Magnitude`."""

    def register(rule: Magnitude) -> Magnitude:
        for kind in kinds:
            _MAGNITUDES[kind] = rule
        return rule

    return register


def register_composite(kind: type[nn.Module]) -> Callable[[Composite], Composite]:
    """Register how the round-off of a module follows from that of its children; see `Composite`."""

    def register(rule: Composite) -> Composite:
        _COMPOSITES[kind] = rule
        return rule

    return register


@torch.no_grad()
def evaluate_exactly(model: nn.Module, x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """`model(x)` in float64, and a bound `(B,)` on its distance to the exact value; the model is not changed.

    Raises `UnknownRoundOff` for a layer without a rule.

    Args:
        model: its weights, as they run, are taken as exact.
        x: real images `(B, ...)` of float64.
        error: bound `(B,)` on the distance of `x` to the images meant.

    Example:
        >>> y, error = evaluate_exactly(nn.ReLU(), torch.ones(1, 4, dtype=torch.float64), torch.zeros(1))
        >>> 0 <= float(error) < 1e-12
        True
    """
    return _run(freeze(model).double(), x, error.double())


def _run(module: nn.Module, x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    kind = type(module)
    if kind.forward in (nn.Sequential.forward, InferenceSequential.forward):
        for child in module._modules.values():
            assert child is not None
            x, error = _run(child, x, error)
        return x, error
    if kind in _COMPOSITES:
        return _COMPOSITES[kind](module, x, error, _run)
    if kind not in _MAGNITUDES:
        raise UnknownRoundOff(f"nobody has bounded the round-off of {kind.__name__}")
    magnitude = _MAGNITUDES[kind](module, x)
    bound = layer_bound(module).upper
    return module(x.clone()), bound * error + EPS * magnitude  # a layer may work in place


@register_composite(Averaged)
def _averaged(module: Averaged, x: Tensor, error: Tensor, run: Evaluate) -> tuple[Tensor, Tensor]:
    y, inner_error = run(module.inner, x, error)
    beta = abs(module.beta)  # β outside [0, 1] is certified too
    round_off = 4 * EPS * (1 + beta) * (_norms(x) + _norms(y))
    return torch.lerp(x, y, module.beta), beta * inner_error + abs(1 - module.beta) * error + round_off


@register_composite(Sum)
def _sum(module: Sum, x: Tensor, error: Tensor, run: Evaluate) -> tuple[Tensor, Tensor]:
    total, *terms = [run(branch, x, error) for branch in module.branches]
    value, inner_error = total
    size = _norms(value)
    for term, term_error in terms:
        value, inner_error, size = value + term, inner_error + term_error, size + _norms(term)
    return value, inner_error + len(terms) * EPS * size


@register_composite(Concatenated)
def _concatenated(module: Concatenated, x: Tensor, error: Tensor, run: Evaluate) -> tuple[Tensor, Tensor]:
    values, errors = zip(*(run(branch, x, error) for branch in module.branches), strict=True)
    return torch.cat(values, dim=module.dim), torch.stack(errors).square().sum(dim=0).sqrt()


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _ones(x: Tensor) -> Tensor:
    """The norm of an image of ones of the size of x, for each image."""
    return _norms(x).new_full((len(x),), math.sqrt(x[0].numel()))


@register_magnitude(nn.Linear)
def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    size = layer.weight.abs()
    norm = float(size.sum(0).max() * size.sum(1).max()) ** 0.5  # ‖A‖² <= ‖A‖_1 ‖A‖_∞
    inputs = layer.weight.shape[1]
    rows = x[0].numel() // inputs
    bias = 0.0 if layer.bias is None else float(layer.bias.norm()) * rows**0.5
    return (inputs + 2) * (norm * _norms(x) + bias)


@register_magnitude(nn.Conv1d, nn.Conv2d, Conv2d, InferenceConv2d)
def _convolution(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    size = layer.weight.abs().flatten(2).sum(2)  # (out, in / groups)
    parts = size.view(layer.groups, -1, size.shape[1])
    norm = float(parts.sum(2).max() * parts.sum(1).max()) ** 0.5
    if layer.padding_mode != "zeros":
        norm *= padding_upper(layer.padding_mode, pairs_of(layer._reversed_padding_repeated_twice))
    places = x[0, 0].numel()
    if not isinstance(layer.padding, str):
        places = math.prod(n + 2 * pad for n, pad in zip(x.shape[2:], layer.padding, strict=True))
    bias = 0.0 if layer.bias is None else float(layer.bias.norm()) * places**0.5
    return (layer.weight[0].numel() + 2) * (norm * _norms(x) + bias)


@register_magnitude(nn.ConvTranspose1d, nn.ConvTranspose2d)
def _transposed_convolution(layer: nn.ConvTranspose1d | nn.ConvTranspose2d, x: Tensor) -> Tensor:
    size = layer.weight.abs().flatten(2).sum(2)  # (in, out / groups)
    parts = size.view(layer.groups, -1, size.shape[1])
    norm = float(parts.sum(2).max() * parts.sum(1).max()) ** 0.5
    places = math.prod(
        (n - 1) * step + gap * (taps - 1) + 1 + extra
        for n, step, gap, taps, extra in zip(
            x.shape[2:], layer.stride, layer.dilation, layer.kernel_size, layer.output_padding, strict=True
        )
    )
    bias = 0.0 if layer.bias is None else float(layer.bias.norm()) * places**0.5
    return (len(parts[0]) * layer.weight[0, 0].numel() + 2) * (norm * _norms(x) + bias)


@register_magnitude(FoldedSpline)
def _spline(layer: FoldedSpline, x: Tensor) -> Tensor:
    """The tables come from sums over the regions; at a knot the region may be the wrong one by a rounding of x."""
    reach = float((layer.radius / layer.scale).max())
    return _of_splines(x, layer.slopes, layer.b, reach, layer.regions)


@register_magnitude(FreeKnotSpline)
def _free_knot_spline(layer: FreeKnotSpline, x: Tensor) -> Tensor:
    return _of_splines(x, layer.slopes, layer.b, float(layer.knots.abs().max()), layer.knots.shape[-1])


def _of_splines(x: Tensor, slopes: Tensor, intercepts: Tensor, reach: float, regions: int) -> Tensor:
    steepest = float(slopes.abs().max())
    level = float(intercepts.abs().max()) + steepest * reach
    return (regions + 20) * (steepest * _norms(x) + level * _ones(x))


@register_magnitude(nn.ReLU, nn.Hardtanh, nn.Softshrink, nn.Tanh, nn.Dropout, AbsoluteValue, LipschitzPReLU)
def _at_most_its_input(_: nn.Module, x: Tensor) -> Tensor:
    return 4 * _norms(x)


@register_magnitude(nn.Sigmoid, nn.SELU, nn.LogSigmoid)
def _smooth(_: nn.Module, x: Tensor) -> Tensor:
    return 16 * (_norms(x) + _ones(x))


@register_magnitude(nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Softsign, nn.Tanhshrink)
def _smooth_through_zero(_: nn.Module, x: Tensor) -> Tensor:
    return 16 * _norms(x)


@register_magnitude(nn.ELU)
def _elu(layer: nn.ELU, x: Tensor) -> Tensor:
    return 16 * (layer_bound(layer).upper * _norms(x) + abs(layer.alpha) * _ones(x))


@register_magnitude(nn.Softplus)
def _softplus(layer: nn.Softplus, x: Tensor) -> Tensor:
    return 16 * (_norms(x) + _ones(x) / abs(layer.beta))


@register_magnitude(nn.PReLU, nn.LeakyReLU, Scaled)
def _scaling(layer: nn.Module, x: Tensor) -> Tensor:
    return 4 * layer_bound(layer).upper * _norms(x)


@register_magnitude(Householder)
def _householder(_: Householder, x: Tensor) -> Tensor:
    return 40 * _norms(x)


@register_magnitude(
    *(GroupSort, MaxMin, nn.MaxPool1d, nn.MaxPool2d, SampleUnshuffle, InvertibleDownsampling, InvertibleUpsampling),
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample),
    *(nn.ConstantPad1d, nn.ReflectionPad1d, nn.ReplicationPad1d, nn.CircularPad1d),
    *(nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d, nn.ZeroPad2d),
)
def _only_moves_numbers(_: nn.Module, x: Tensor) -> Tensor:
    return torch.zeros_like(_norms(x))


@register_magnitude(nn.AvgPool1d, nn.AvgPool2d)
def _average_pool(layer: nn.AvgPool1d | nn.AvgPool2d, x: Tensor) -> Tensor:
    size = layer.kernel_size
    count = size if isinstance(size, int) else math.prod(size)
    if isinstance(layer, nn.AvgPool2d) and isinstance(size, int):
        count = size**2
    return (count + 2) * _norms(x)


@register_magnitude(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
def _adaptive_average_pool(layer: nn.AdaptiveAvgPool1d, x: Tensor) -> Tensor:
    return (x[0, 0].numel() + 2) * layer_bound(layer).upper * _norms(x)


@register_magnitude(nn.BatchNorm1d, nn.BatchNorm2d)
def _batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    assert layer.running_mean is not None
    gain = layer_bound(layer).upper
    level = gain * float(layer.running_mean.abs().max())
    level += 0.0 if layer.bias is None else float(layer.bias.abs().max())
    return 10 * (gain * _norms(x) + level * _ones(x))
