"""Rules of affine layers: dense, convolutions, average pooling, batch normalisation, padding, upsampling.

The norms are functions of tensors and sizes; the rules only read them from the layers, the way `forward` does.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification.certificate import multiply_up, root_up
from lipspline.certification.inspection import axes_of, number_of, sizes_of, weight_of
from lipspline.certification.proof import Bound, register_rule
from lipspline.functional.convolutions import conv_norm_upper
from lipspline.functional.matrices import spectral_norm_upper
from lipspline.kernels.winograd import prepare
from lipspline.nn.combine import Scaled
from lipspline.nn.convolutions import Conv2d
from lipspline.nn.inference import InferenceConv2d

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Paddings = list[tuple[int, int]]
"""Pixels before and after an image along each axis, the last axis first, as torch counts them."""


@register_rule(nn.Linear)
def _linear(layer: nn.Linear) -> Bound:
    _check_bias(layer)
    return spectral_norm_upper(weight_of(layer, "weight", ndim=2)), "largest singular value"


def _check_bias(layer: nn.Linear | Convolution) -> None:
    if layer.bias is not None and (not isinstance(layer.bias, Tensor) or layer.bias.ndim != 1):
        raise ValueError("bias must be a vector or None.")


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, Conv2d)
def _convolution(layer: Convolution) -> Bound:
    return _convolution_bound(layer)


def _convolution_bound(layer: Convolution) -> Bound:
    _check_bias(layer)
    axes = axes_of(layer)
    weight = weight_of(layer, "weight", ndim=axes + 2)
    stride, dilation = (sizes_of(name, getattr(layer, name), axes) for name in ("stride", "dilation"))
    mode = checks.one_of("padding_mode of a certified convolution", layer.padding_mode, ("zeros", *_COPIES))
    # Zeros around an image only compress the convolution on the plane. The others are put there by torch's pad.
    padding = [] if mode == "zeros" else pairs_of(layer._reversed_padding_repeated_twice)
    upper = convolution_upper(weight, stride, dilation, layer.groups, mode, padding)
    return upper, f"operator norm over all frequencies, {mode} padding"


@register_rule(InferenceConv2d)
def _inference_convolution(layer: InferenceConv2d) -> Bound:
    if layer.is_prepared and not torch.equal(layer._transformed(), prepare(layer.weight)):
        raise ValueError("The transformed kernels that were kept are not those of the weight.")
    return _convolution_bound(layer)


def convolution_upper(
    weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int, mode: str, padding: Paddings
) -> float:
    """The norm of a padded convolution: that of the kernel, times the one of the padding if it shows pixels twice."""

    def kernel_norm(strides: int | tuple[int, ...]) -> float:
        return conv_norm_upper(weight, stride=strides, dilation=dilation, groups=groups)

    copied = padding_upper(mode, padding)
    if copied == 1:
        return kernel_norm(stride)
    reach = [d * (k - 1) for d, k in zip(reversed(dilation), reversed(weight.shape[2:]), strict=True)]
    if mode == "circular" and all(sum(pair) <= taps for pair, taps in zip(padding, reach, strict=True)):
        # Each output is one of the circular convolution's, with stride 1: windows that overlap around the border of a
        # circular image may never do so on the plane.
        return kernel_norm(1)
    return multiply_up(copied, kernel_norm(stride))


def _reflected(before: int, after: int) -> int:
    return 1 + (before > 0) + (after > 0)


_COPIES = {"circular": _reflected, "reflect": _reflected, "replicate": lambda before, after: 1 + before + after}
"""How often a pixel is seen at most, in images of any size, behind a padding with so many pixels on both sides."""


def padding_upper(mode: str, padding: Paddings) -> float:
    """The norm of a padding, for all image sizes: the root of how often it shows a pixel; one axis after the other."""
    if mode != "constant" and any(pixels < 0 for pair in padding for pixels in pair):
        raise ValueError(f"A {mode} padding of less than nothing has no rule. Crop in a layer of its own.")
    return 1.0 if mode == "constant" else root_up(math.prod(_COPIES[mode](*pair) for pair in padding))


def pairs_of(padding: object) -> Paddings:
    """Numbers of pixels in pairs, as `torch.nn.functional.pad` takes them."""
    values = tuple(padding) if isinstance(padding, (tuple, list)) else ()
    if not values or len(values) % 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ValueError(f"padding must hold two integers for each axis, but is {padding!r}.")
    return list(zip(values[::2], values[1::2], strict=True))


@register_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _transposed_convolution(layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d) -> Bound:
    axes = axes_of(layer)
    weight = weight_of(layer, "weight", ndim=axes + 2)
    stride, dilation = (sizes_of(name, getattr(layer, name), axes) for name in ("stride", "dilation"))
    upper = conv_norm_upper(weight, stride=stride, dilation=dilation, groups=layer.groups)
    return upper, "operator norm of the convolution it is the adjoint of"


def _padding_rule(mode: str, *kinds: type[nn.Module]) -> None:
    def rule(layer: nn.ReflectionPad2d) -> Bound:
        return padding_upper(mode, pairs_of(layer.padding)), f"{mode} padding, by how often it shows a pixel"

    register_rule(*kinds)(rule)


_padding_rule("constant", nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
_padding_rule("constant", nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
_padding_rule("reflect", nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d)
_padding_rule("replicate", nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d)
_padding_rule("circular", nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d)


@register_rule(nn.Upsample, nn.UpsamplingNearest2d)
def _upsample(layer: nn.Upsample) -> Bound:
    checks.one_of("mode of a certified nn.Upsample", layer.mode, ("nearest", "nearest-exact"))
    factors: Any = layer.scale_factor if isinstance(layer.scale_factor, (tuple, list)) else [layer.scale_factor] * 3
    if layer.size is not None or any(f is None or f < 1 or f != int(f) for f in factors):
        raise ValueError("certify knows upsampling only by whole factors: give scale_factor, and not size.")
    copies = [_copies(int(factor), layer.mode) for factor in factors]
    unknown = "" if isinstance(layer.scale_factor, (tuple, list)) else " (of up to three axes: a tuple says how many)"
    return root_up(math.prod(copies)), f"repeats each pixel {math.prod(copies)} times{unknown}"


def _copies(factor: int, mode: str) -> int:
    """How often torch repeats a pixel: where 1 / factor was rounded down, a window begins one place too late."""
    rounded = Fraction(float(torch.tensor(1 / factor, dtype=torch.float32)))  # whatever the type of the image
    return factor if mode == "nearest-exact" or rounded >= Fraction(1, factor) else factor + 1


@register_rule(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
def _average_pool(layer: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d) -> Bound:
    axes = axes_of(layer)
    kernel = sizes_of("kernel_size", layer.kernel_size, axes)
    stride = kernel if layer.stride is None else sizes_of("stride", layer.stride, axes)
    partial = layer.ceil_mode or (
        not layer.count_include_pad and any(sizes_of("padding", layer.padding, axes, least=0))
    )
    if partial or getattr(layer, "divisor_override", None) is not None:
        raise ValueError(
            "certify knows average pooling only with one divisor for all windows: "
            "use count_include_pad=True, ceil_mode=False and no divisor_override."
        )
    weight = torch.full((1, 1, *kernel), 1 / math.prod(kernel), dtype=torch.float64)
    upper = multiply_up(conv_norm_upper(weight, stride=stride), 1 + 2**-52)  # 1 / 9 was rounded
    return upper, "operator norm of the averaging kernel"


@register_rule(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_average_pool(layer: nn.AdaptiveAvgPool2d) -> Bound:
    axes = axes_of(layer)
    return adaptive_pool_upper(layer.output_size, axes), "an image of one pixel becomes as many as there are outputs"


def adaptive_pool_upper(output_size: object, axes: int) -> float:
    """The norm of pooling to a given size, for all input sizes: rows sum to 1, columns at most to the outputs."""
    sizes: Sequence[object] = output_size if isinstance(output_size, (tuple, list)) else [output_size] * axes
    return root_up(math.prod(1 if size is None else sizes_of("output_size", size, 1)[0] for size in sizes))


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> Bound:
    if layer.running_var is None or layer.running_mean is None:
        raise ValueError("Batch normalisation without running statistics has no Lipschitz bound.")
    variance, eps = weight_of(layer, "running_var").double(), number_of(layer, "eps")
    if eps < 0 or bool((variance < 0).any()):
        raise ValueError("Batch normalisation with a negative variance or eps has no Lipschitz bound.")
    gain = torch.ones(()) if layer.weight is None else weight_of(layer, "weight").double().abs()
    factor = float((gain / (variance + eps).sqrt()).max())
    return factor * (1 + 1e-15), "largest gain of a channel, in eval mode"


@register_rule(Scaled)
def _scaled(layer: Scaled) -> Bound:
    return abs(number_of(layer, "factor")), "absolute factor"
