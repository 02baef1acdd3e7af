"""Rules of operations of torch that are not linear, and of pooling and resizing; and why some have none."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lipspline.certification.certificate import multiply_up, root_up
from lipspline.certification.flow import Flow
from lipspline.certification.operations import MULTIPLIED, NO_RULE, SILU, Call, constant_weight, operation, per_axis
from lipspline.functional.matrices import spectral_norm_upper

HARMLESS_THRESHOLD = 37.0  # where log(1 + exp(-x)) is less than half a unit in the last place of x in float64

# Functions of one variable, entry by entry: the largest slope


SLOPES: dict[str, float] = {
    **dict.fromkeys(("relu", "relu_", "relu6", "hardtanh", "hardtanh_", "tanh", "abs", "clamp", "clamp_min"), 1.0),
    **dict.fromkeys(("clamp_max", "clamp_", "softshrink", "log_sigmoid", "atan", "sin", "cos", "asinh"), 1.0),
    **dict.fromkeys(("tanh_", "abs_"), 1.0),
    "sigmoid": 0.25,
    "hardsigmoid": math.nextafter(1 / 6, 1),
    "hardswish": 1.5,
    "silu": SILU,
    "mish": 1.0885,
    "selu": 1.7580994,
    "erf": math.nextafter(2 / math.sqrt(math.pi), 2),
}


@operation(*(f"aten.{name}" for name in SLOPES))
def _function(call: Call) -> Flow:
    return _pointwise(call, SLOPES[call.name.removeprefix("aten.")])


def _pointwise(call: Call, slope: float) -> Flow:
    flow = call.input()
    if flow.shape != call.outputs[0][0]:
        raise ValueError("it spreads its input over more entries. Write that as an expand of its own")
    name = call.name.removeprefix("aten.")
    return call.stretched(flow, slope, "largest slope of the function", pointwise=(flow, slope), function=name)


@operation("aten.gelu")
def _gelu(call: Call) -> Flow:
    return _pointwise(call, 1.1290 if call["approximate"] == "tanh" else 1.1289043)


@operation("aten.leaky_relu", "aten.leaky_relu_")
def _leaky_relu(call: Call) -> Flow:
    slope = 0.01 if call["negative_slope"] is None else float(call["negative_slope"])
    return _pointwise(call, max(1.0, abs(slope)))


@operation("aten.elu", "aten.elu_")
def _elu(call: Call) -> Flow:
    alpha, scale, input_scale = (float(1 if call[name] is None else call[name]) for name in _ELU)
    return _pointwise(call, multiply_up(abs(scale), max(1.0, multiply_up(abs(alpha), abs(input_scale)))))


_ELU = ("alpha", "scale", "input_scale")


@operation("aten.celu")
def _celu(call: Call) -> Flow:
    if not float(1 if call["alpha"] is None else call["alpha"]) > 0:
        raise ValueError("a CELU with an alpha that is not positive has no rule")
    return _pointwise(call, 1.0)


@operation("aten.prelu", "aten._prelu_kernel")
def _prelu(call: Call) -> Flow:
    return _pointwise(call, max(1.0, float(constant_weight(call["weight"]).abs().max())))


@operation("aten.softplus")
def _softplus(call: Call) -> Flow:
    beta, threshold = (
        float(default if call[n] is None else call[n]) for n, default in (("beta", 1), ("threshold", 20))
    )
    if beta == 0 or threshold < HARMLESS_THRESHOLD:
        raise ValueError(
            "softplus goes over to the identity where beta x = threshold, and jumps there (by 2e-9 with the default "
            "threshold 20): it has no Lipschitz constant. Give it threshold=40"
        )
    return _pointwise(call, 1.0)


# Functions of several entries


@operation("aten.sort", "aten.topk", "aten.msort")
def _sort(call: Call) -> "Flow | list[Flow | None]":
    flow = call.stretched(call.input(), 1.0, "sorts")
    return [flow, None] if len(call.outputs) > 1 else flow


@operation("aten.amax", "aten.amin", "aten.logsumexp", "aten.kthvalue", "aten.median")
def _one_of_many(call: Call) -> "Flow | list[Flow | None]":
    flow = call.stretched(call.input(), 1.0, "gradient of length at most 1 in each group")
    return [flow, None] if len(call.outputs) > 1 else flow


@operation("aten.linalg_vector_norm", "aten.norm", "aten.frobenius_norm")
def _norm(call: Call) -> Flow:
    order = next((call[name] for name in ("ord", "p") if call[name] is not None), 2)
    if float(order) not in (2.0, math.inf):
        raise ValueError(f"the norm of order {order} has no rule; that of order 2 has")
    return call.stretched(call.input(), 1.0, "length of a vector")


@operation("aten.sum", "aten.mean")
def _sum(call: Call) -> Flow:
    flow, (shape, _) = call.input(), call.outputs[0]
    count = math.prod(flow.shape) // max(math.prod(shape), 1)
    mean = call.name == "aten.mean"
    root = root_up(count)
    gain = multiply_up(root, math.nextafter(1 / count, 1)) if mean else root
    kept = flow if mean and call["keepdim"] else None
    reason = f"{'mean' if mean else 'sum'} of {count} entries"
    return call.stretched(flow, min(gain, 1.0) if mean else gain, reason, mean_of=kept)


@operation("aten.std")
def _std(call: Call) -> Flow:
    """The length of what is left without the mean, divided by the root of n, or of n - 1."""
    flow, (shape, _) = call.input(), call.outputs[0]
    count = math.prod(flow.shape) // max(math.prod(shape), 1)
    correction = float(bool(call["unbiased"])) if "unbiased" in call.arguments else call["correction"]
    left = count - (1.0 if correction is None else float(correction))
    if not left > 0:
        raise ValueError(f"it divides the spread of {count} entries by {max(left, 0):g}")
    gain = math.nextafter(1 / math.nextafter(math.sqrt(left), 0), math.inf)
    return call.stretched(flow, gain, f"spread of {count} entries")


@operation("aten.bilinear", "aten.addcmul", "aten.addcdiv", "aten.baddbmm", "aten.cdist")
def _products(call: Call) -> Flow:
    raise ValueError(MULTIPLIED if len(call.flows) > 1 else NO_RULE)


@operation("aten.softmax", "aten._softmax")
def _softmax(call: Call) -> Flow:
    return call.stretched(call.input(), 0.5, "largest eigenvalue of diag(p) - p pᵀ")


@operation("aten.log_softmax", "aten._log_softmax")
def _log_softmax(call: Call) -> Flow:
    flow = call.input()
    classes = flow.shape[call["dim"]] if flow.shape else 1
    return call.stretched(flow, root_up(classes), "norm of the projection I - 1 pᵀ")


# Pooling and resizing act on one axis after the other


@operation(*(f"aten.max_pool{axes}d{rest}" for axes in (1, 2, 3) for rest in ("", "_with_indices")))
def _max_pool(call: Call) -> "Flow | list[Flow | None]":
    axes = int(call.name.split("pool")[1][0])
    kernel = per_axis(call["kernel_size"], axes)
    stride = per_axis(call["stride"], axes) if call["stride"] else kernel
    dilation = per_axis(call["dilation"], axes)
    windows = math.prod(
        -(-size * math.gcd(step, gap) // step) for size, step, gap in zip(kernel, stride, dilation, strict=True)
    )
    flow = call.stretched(call.input(), root_up(windows), f"each pixel is in at most {windows} window(s)")
    return [flow, None] if len(call.outputs) > 1 else flow


@operation(*(f"aten.adaptive_max_pool{axes}d" for axes in (1, 2, 3)))
def _adaptive_max_pool(call: Call) -> "list[Flow | None]":
    axes = int(call.name[-2])
    flow = call.input()
    windows = 1
    for n, m in zip(flow.shape[-axes:], per_axis(call["output_size"], axes), strict=True):
        seen = torch.zeros(n, dtype=torch.long)
        for i in range(m):
            seen[i * n // m : -(-(i + 1) * n // m)] += 1
        windows *= int(seen.max())
    return [call.stretched(flow, root_up(windows), f"each pixel is in at most {windows} window(s)"), None]


@operation(*(f"aten.avg_pool{axes}d" for axes in (1, 2, 3)))
def _average_pool(call: Call) -> Flow:
    axes = int(call.name[-2])
    kernel = per_axis(call["kernel_size"], axes)
    stride = per_axis(call["stride"], axes) if call["stride"] else kernel
    padding = per_axis(0 if call["padding"] is None else call["padding"], axes)
    rest = (bool(call["ceil_mode"]), call["count_include_pad"] is not False)

    def along(axis: int, x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool1d(x, kernel[axis], stride[axis], padding[axis], *rest)

    gain = _axis_by_axis(call.input(), axes, along)
    if call["divisor_override"] is not None:
        if not rest[1] or rest[0]:
            raise ValueError("average pooling with a divisor of its own is known only with whole windows")
        gain = multiply_up(gain, math.prod(kernel) / abs(call["divisor_override"]) * (1 + 1e-15))
    return call.stretched(call.input(), gain, "norm of the averages, axis by axis")


@operation(*(f"aten.adaptive_avg_pool{axes}d" for axes in (1, 2, 3)))
def _adaptive_average_pool(call: Call) -> Flow:
    axes = int(call.name[-2])
    sizes = per_axis(call["output_size"], axes)
    gain = _axis_by_axis(call.input(), axes, lambda axis, x: torch.nn.functional.adaptive_avg_pool1d(x, sizes[axis]))
    return call.stretched(call.input(), gain, "norm of the averages, axis by axis")


_RESIZES = {
    "nearest": (1, 2, 3),
    "_nearest_exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
}


@operation(
    *(
        f"aten.{'' if kind[0] != '_' else '_'}upsample_{kind.strip('_')}{axes}d"
        for kind, all_ in _RESIZES.items()
        for axes in all_
    )
)
def _resize(call: Call) -> Flow:
    """The matrix of each axis, as torch computes it in the type of the image."""
    flow = call.input()
    axes = int(call.name[-2])
    target = call.outputs[0][0][-axes:]
    mode = call.name.split("upsample_")[1][:-2].replace("nearest_exact", "nearest-exact")
    scales = call["scale_factors"] or [call[name] for name in ("scales_d", "scales_h", "scales_w", "scales")][-axes:]
    function = torch.nn.functional.interpolate

    def along(axis: int, x: Tensor) -> Tensor:
        shape = [1] * axes
        shape[axis] = x.shape[-1]
        x = x.to(flow.dtype).reshape(-1, 1, *shape)
        size = [1] * axes
        size[axis] = target[axis]
        options: dict[str, Any] = {} if "nearest" in mode else {"align_corners": bool(call["align_corners"])}
        factor = scales[axis] if scales and scales[axis] is not None else None
        if factor is not None and call["scale_factors"]:
            factors = [1.0] * axes
            factors[axis] = factor
            result = function(x, scale_factor=factors, mode=mode, recompute_scale_factor=False, **options)
        else:
            result = function(x, size=size, mode=mode, **options)
        return result.reshape(len(x), 1, -1).double()

    if not call["scale_factors"] and any(scale is not None for scale in scales):
        raise ValueError("resizing by explicit scales has no rule in this form; use torch.nn.functional.interpolate")
    return call.stretched(flow, _axis_by_axis(flow, axes, along), f"norm of {mode} resizing, axis by axis")


LONGEST = 4096


def _axis_by_axis(flow: Flow, axes: int, along: Callable[[int, Tensor], Tensor]) -> float:
    """The norm of a map that acts on the last `axes` axes one after the other: `along` for the (n, 1, n) basis."""
    gain = 1.0
    for axis in range(axes):
        n = flow.shape[axis - axes]
        if n > LONGEST:
            raise ValueError(f"it pools or resizes an axis of {n} entries; at most {LONGEST} have a rule")
        matrix = along(axis, torch.eye(n, dtype=torch.float64)[:, None]).squeeze(1)
        norm = spectral_norm_upper(matrix)
        flat = multiply_up(math.sqrt(float(matrix.abs().sum(0).max() * matrix.abs().sum(1).max())), 1 + 1e-13)
        gain = multiply_up(gain, min(norm, flat), 1 + 1e-15)  # entries such as 1 / 9 were rounded
    return gain


# The library's own kernels


@operation("lipspline.piecewise_affine", "lipspline.overwrite_piecewise_affine")
def _piecewise_affine(call: Call) -> Flow:
    b, slopes, scale = (constant_weight(call[name]).double() for name in ("b", "s", "scale"))
    eps = torch.finfo(call["s"].dtype).eps
    if not bool((scale > 0).all()):
        raise ValueError("the scales of its splines must be positive")
    regions = slopes.shape[-1]
    knots = (torch.arange(1, regions, dtype=torch.float64) - float(call["offset"])) / scale[..., None]
    jumps = (b[..., 1:] - b[..., :-1] + (slopes[..., 1:] - slopes[..., :-1]) * knots).abs()
    if regions > 1:  # each spline by itself: large values in one channel excuse no jump in another
        size = b.abs().amax(-1, keepdim=True) + (slopes[..., 1:].abs() * knots.abs()).amax(-1, keepdim=True)
        if bool((jumps > 64 * eps * size).any()):
            raise ValueError(f"its splines jump, by up to {float(jumps.max()):.2g}")
    return _pointwise(call, float(slopes.abs().max()))


@operation("lipspline.householder")
def _householder(call: Call) -> Flow:
    square = float(constant_weight(call["v"]).double().square().sum(-1).max())
    gain = max(1.0, math.nextafter(2 * math.nextafter(square, math.inf) - 1, math.inf))
    return call.stretched(call["x"], gain, "reflects pairs of channels")


@operation("lipspline.swap_pairs", several=True)
def _sort_pairs(call: Call) -> Flow:
    if call["g"] is not call["x"]:
        raise ValueError(MULTIPLIED)
    return call.stretched(call["g"], 1.0, "sorts pairs of channels")


# Operations that have no rule, and why


def _refuse(reason: str, names: str) -> None:
    @operation(*(f"aten.{name}" for name in names.split()))
    def refuse(call: Call) -> Flow:
        raise ValueError(reason)


_refuse(
    "it divides by the spread of its own input, so that it stretches small differences by up to 1/sqrt(eps). Use batch "
    "normalisation, whose statistics are fixed in eval mode",
    "layer_norm native_layer_norm group_norm native_group_norm instance_norm rms_norm _fused_rms_norm",
)
_refuse(
    MULTIPLIED,
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu glu prod cosine_similarity",
)
_refuse(
    "it jumps. Functions with kinks are known as relu, leaky_relu, clamp, abs, maximum and minimum",
    "round floor ceil trunc sign sgn heaviside hardshrink threshold threshold_ eq ne lt le gt ge where argmax argmin "
    "quantize_per_tensor quantize_per_channel fake_quantize_per_tensor_affine fake_quantize_per_channel_affine "
    "bucketize searchsorted fmod remainder floor_divide one_hot bernoulli nonzero isnan logical_not masked_fill",
)
_refuse(
    "its slope has no bound (it grows with the input, or near zero)",
    "exp exp2 expm1 pow square sqrt rsqrt reciprocal log log2 log10 log1p tan sinh cosh cumprod xlogy asin acos acosh "
    "atanh var var_mean logit erfinv",
)
