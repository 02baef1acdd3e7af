"""What operations lose by rounding: one rule for each, by name, for `lipspline.certification.rounding`."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lipspline.certification import graph
from lipspline.certification.moves import MOVE_NAMES, SAME_NAMES
from lipspline.certification.operations import constant_weight, per_axis
from lipspline.certification.rounding import (
    CASTS,
    SLACK,
    Computed,
    Lost,
    Operation,
    growth,
    rounding_rule,
    unit_roundoff,
)
from lipspline.functional.matrices import spectral_norm_upper
from lipspline.nn.convolutions import FEWEST

WINOGRAD = 8.581**2
"""Norm of |A|ᵀ diag(|G| e_p) |B|ᵀ over overlapping tiles of 4, for each of the three taps p, in both directions."""
TRANSFORMS = 30  # more than the roundings in both transforms of Winograd's algorithm, beside a sum over the channels

# Operations that return some of the numbers they get, or their absolute values


@rounding_rule(
    f"{MOVE_NAMES} {SAME_NAMES} relu " + " ".join(f"max_pool{n}d max_pool{n}d_with_indices" for n in "123"),
    on_integers=True,
)
def _exact(operation: Operation) -> Lost:
    return Lost(0.0, max(operation.largest_at_zero, *(value.largest for value in operation.inputs)))


@rounding_rule(
    "abs neg sort topk msort amax amin kthvalue cat concat concatenate stack hstack vstack max min maximum minimum "
    "fmax fmin adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
    "lipspline.swap_pairs"
)
@rounding_rule(" ".join(CASTS))
def _exact_in_their_type(operation: Operation) -> Lost:
    """Exact, but that numbers of another type than the result's, also such as stand alone, become numbers of that."""
    return Lost(_converted(operation), _exact(operation).largest)


def _converted(operation: Operation) -> float:
    """The error of numbers that become numbers of the type of the result before."""
    lost, spread = 0.0, _spread(operation)
    for value in graph.flat(list(operation.call.arguments.values())):
        if isinstance(value, Computed):
            size, given = spread(value), operation.setting.dtype(value.dtype)
        elif isinstance(value, Tensor) and value.numel() and value.dtype != torch.bool:
            size, given = float(value.double().abs().max()) * operation.root_n, operation.setting.dtype(value.dtype)
        else:
            continue
        lost += _conversion_error(operation, given, size)
    return lost * SLACK


def _conversion_error(operation: Operation, given: torch.dtype, size: float) -> float:
    if not given.is_floating_point:
        return operation.unit * size
    to, of = torch.finfo(operation.dtype), torch.finfo(given)
    rounds = operation.unit * size if to.eps > of.eps else 0.0
    return rounds + (operation.tiny * operation.root_n if to.smallest_normal > of.smallest_normal or rounds else 0.0)


@rounding_rule("pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d")
@rounding_rule("replication_pad1d replication_pad2d replication_pad3d relu6 hardtanh clamp clamp_min clamp_max")
def _with_a_constant(operation: Operation) -> Lost:
    """Exact, but for the constants themselves, which are rounded to the type of the tensor."""
    numbers = [operation[name] for name in ("value", "min", "max", "min_val", "max_val")]
    level = max((abs(float(number)) for number in numbers if isinstance(number, (int, float))), default=0.0)
    lost = (operation.unit * level + (operation.tiny if level else 0.0)) * operation.root_n + _converted(operation)
    return Lost(lost * SLACK, max(_exact(operation).largest, level))


# Operations entry by entry


@rounding_rule("add", on_integers=True)
@rounding_rule("sub rsub lerp")
def _sum_of_two(operation: Operation) -> Lost:
    """One rounding, or up to eight with factors or with constants that are not of the tensor's type."""
    call = operation.call
    weight = operation["weight"] if call.name == "aten.lerp" else operation["alpha"]
    factor = 1.0 if weight is None else 1 + 2 * abs(float(weight))  # of lerp, also its complement
    largest = factor * sum(value.largest for value in operation.inputs) + operation.largest_at_zero
    of_integers = any(value.step is not None for value in operation.inputs)
    if call.name != "aten.lerp" and weight in (None, 1) and _is_of_one_type(operation) and not of_integers:
        return Lost(_rounded(operation, 1), largest)
    terms = factor * (sum(map(_spread(operation), operation.inputs)) + operation.at_zero)
    return Lost(growth(8, operation.unit) * terms * SLACK + 8 * operation.tiny * operation.root_n, largest)


def _spread(operation: Operation) -> Callable[[Computed], float]:
    """The norm of an input, shown as often as the output has entries for it."""
    n = math.prod(operation.call.outputs[0][0])
    return lambda value: value.size * math.sqrt(n / max(math.prod(value.shape), 1)) * SLACK


def _is_of_one_type(operation: Operation) -> bool:
    constants = [operation[name] for name in ("self", "other")]
    return all(
        value.dtype == operation.call.outputs[0][1] if isinstance(value, (Tensor, Computed)) else False
        for value in constants
    )


def _rounded(operation: Operation, count: int) -> float:
    """The error of results that are right up to so many roundings."""
    return growth(count, operation.unit) * operation.exact_size + count * operation.tiny * operation.root_n


@rounding_rule("mul div leaky_relu prelu _prelu_kernel lipspline.scale")
def _factor(operation: Operation) -> Lost:
    """A product with a constant, which may have to be rounded, and inverted, first."""
    count = 1 if operation.call.name in ("aten.mul", "aten.prelu") and _is_of_one_type(operation) else 4
    gain, value = operation.gains()[0], operation.input
    _check_constants(operation)
    lost = _rounded(operation, count) + 4 * operation.tiny * _spread(operation)(value)  # of what may underflow before
    return Lost(lost * SLACK, gain * value.largest + operation.largest_at_zero)


def _check_constants(operation: Operation) -> None:
    """Refuse constants that are infinite in the type of the tensor, or zero where something is divided by them."""
    info = torch.finfo(operation.dtype)
    for value in operation.call.arguments.values():
        if _is_number(value) or (isinstance(value, Tensor) and value.is_floating_point() and value.numel()):
            sizes = torch.as_tensor(value, dtype=torch.float64).abs()
            small = operation.call.name == "aten.div" and float(sizes.min()) < info.smallest_normal
            if small or float(sizes.max()) > info.max:
                raise ValueError(f"a constant of it is too small or too large for {str(operation.dtype)[6:]}")


@rounding_rule("tanh sigmoid gelu silu mish selu elu celu erf softplus log_sigmoid hardswish hardsigmoid softshrink")
@rounding_rule("atan sin cos asinh")
def _smooth(operation: Operation) -> Lost:
    """Computed in float32 at least, to a few units in the last place of the numbers that occur, and rounded once."""
    unit, gain, value = min(operation.unit, unit_roundoff(torch.float32)), operation.gains()[0], operation.input
    level = 1.0 + sum(abs(float(operation[n])) for n in ("alpha", "scale", "lambd") if _is_number(operation[n]))
    level += 1 / abs(float(operation["beta"])) if _is_number(operation["beta"]) and operation["beta"] else 0.0
    inside = 16 * unit * (max(gain, 1.0) * value.size + level * operation.root_n)
    outside = operation.unit * operation.exact_size + 4 * operation.tiny * operation.root_n
    return Lost((inside + outside) * SLACK, operation.largest_at_zero + gain * value.largest)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@rounding_rule("_native_batch_norm_legit_no_training batch_norm cudnn_batch_norm")
def _batch_norm(operation: Operation) -> Lost:
    """`(x - mean) * gain + bias`, in any order, with a gain that is the quotient of a weight and a root."""
    gain, shape = operation.gains()[0], operation.call.outputs[0][0]
    mean, bias = (operation[name] for name in ("running_mean", "bias"))
    level = 0.0 if mean is None else gain * float(mean.double().norm())
    level += 0.0 if bias is None else float(bias.double().norm())
    places = math.sqrt(math.prod(shape) / shape[1])
    lost = growth(10, operation.unit) * (gain * operation.input.size + level * places)
    lost += 10 * operation.tiny * (operation.root_n * (1 + gain) + operation.input.size)
    return Lost(lost * SLACK, gain * operation.input.largest + level, peak=gain)


# Sums of products


def _products(
    operation: Operation, value: Computed, terms: int, norm: float, row_sum: float, row: float, losing: float = 1.0
) -> Lost:
    """`W x + b`: each product passes its own rounding, at most one for each of the other terms, and the bias.

    Args:
        terms: products in a sum.
        norm: bounds the spectral norm of |W|.
        row_sum: the largest sum of |W| along a row.
        row: the largest Euclidean norm of a row.
        losing: by how much an algorithm that does not sum products loses more.
    """
    # Products, sums and numbers that are read may all be taken for zero.
    small = operation.tiny * (2 * (terms + 2) + row_sum + terms * value.largest) * operation.root_n
    sums = norm * value.size + operation.at_zero + small
    lost = losing * (operation.error_of_sums(terms + 2, sums) + small)
    largest = min(row_sum * value.largest, row * value.size) * SLACK + operation.largest_at_zero
    return Lost(lost * SLACK, largest)


@rounding_rule("linear", on_integers=True)
@rounding_rule("addmm mm matmul")
def _dense(operation: Operation) -> Lost:
    name = {"linear": "weight", "addmm": "mat2", "mm": "mat2", "matmul": "other"}[operation.call.name[5:]]
    weight = operation[name]
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise ValueError("how it rounds is not known, unless a tensor is multiplied with a constant matrix")
    size = constant_weight(weight).double().abs()
    size = size if name == "weight" else size.mT
    row_sum, row = float(size.sum(1).max()), float(size.norm(dim=1).max())
    return _products(operation, operation.input, size.shape[1], spectral_norm_upper(size), row_sum, row)


@rounding_rule("conv1d conv2d conv3d convolution", on_integers=True)
def _convolution(operation: Operation) -> Lost:
    if operation["transposed"]:
        return _transposed(operation)
    size = constant_weight(operation["weight"]).double().abs()
    groups, taps = operation["groups"] or 1, size.flatten(2).sum(2)  # at frequency zero |W| has its norm
    norm = max(spectral_norm_upper(part) for part in taps.chunk(groups))
    row_sum, row = float(taps.sum(1).max()), float(size.flatten(1).norm(dim=1).max())
    operation.gains()
    value = operation.input.root if operation.call.reason.endswith("circular") else operation.input
    direct = _products(operation, value, size[0].numel(), norm, row_sum, row)
    if not (operation.setting.has_winograd and _may_run_winograd(operation, size)):
        return direct
    norm = sum(spectral_norm_upper(tap) for tap in size.flatten(2).unbind(2))
    fast = _products(operation, value, size.shape[1] + TRANSFORMS, norm, row_sum, row, WINOGRAD)
    return max(direct, fast)


def _may_run_winograd(operation: Operation, size: Tensor) -> bool:
    return size.shape[2:] == (3, 3) and min(size.shape[:2]) >= FEWEST and operation.dtype == torch.float32


@rounding_rule("conv_transpose1d conv_transpose2d conv_transpose3d")
def _transposed(operation: Operation) -> Lost:
    size = constant_weight(operation["weight"]).double().abs()  # (in, out / groups, *taps)
    parts = size.chunk(operation["groups"] or 1)
    taps = [part.flatten(2).sum(2) for part in parts]
    norm = max(map(spectral_norm_upper, taps))
    row_sum = max(float(part.sum(0).max()) for part in taps)
    row = max(float(part.transpose(0, 1).flatten(1).norm(dim=1).max()) for part in parts)
    operation.setting = replace(operation.setting, accumulator=None)  # overlapping windows are added in the output
    return _products(operation, operation.input, parts[0].numel() // size.shape[1], norm, row_sum, row)


@rounding_rule("sum mean")
def _sums(operation: Operation) -> Lost:
    value, shape = operation.input, operation.call.outputs[0][0]
    count = math.prod(value.shape) // max(math.prod(shape), 1)
    return _average(operation, count, largest=value.largest * (1 if operation.call.name == "aten.mean" else count))


@rounding_rule("avg_pool1d avg_pool2d avg_pool3d", on_integers=True)
def _average_pool(operation: Operation) -> Lost:
    if operation["divisor_override"] is not None:
        raise ValueError("how it rounds with a divisor of its own is not known")
    axes = int(operation.call.name[-2])
    return _average(operation, math.prod(per_axis(operation["kernel_size"], axes)), operation.input.largest)


@rounding_rule("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", on_integers=True)
def _adaptive_average_pool(operation: Operation) -> Lost:
    axes = int(operation.call.name[-2])
    sizes = zip(operation.input.shape[-axes:], operation.call.outputs[0][0][-axes:], strict=True)
    return _average(operation, math.prod(-(-n // m) + 1 for n, m in sizes), operation.input.largest)


def _average(operation: Operation, count: int, largest: float) -> Lost:
    """Weights are not negative, so that the norm of the map is that for absolute values; one step more of integers."""
    small = operation.tiny * (2 * count + 4) * operation.root_n
    lost = operation.error_of_sums(count + 4, operation.exact_size + small) + small
    lost += (operation.input.step or 0.0) * operation.root_n
    return Lost(lost * SLACK, largest, peak=count * operation.input.largest)


# The library's own kernels


@rounding_rule("lipspline.piecewise_affine lipspline.overwrite_piecewise_affine")
def _splines(operation: Operation) -> Lost:
    """Two roundings; near a knot the region may be the wrong one; and the tables may jump, or be sums over regions."""
    b, slopes, scale = (constant_weight(operation[name]).double() for name in ("b", "s", "scale"))
    value, regions, offset = operation.input, slopes.shape[-1], float(operation["offset"])
    knots = (torch.arange(1, regions, dtype=torch.float64) - offset) / scale[..., None]
    jumps = (b[..., 1:] - b[..., :-1] + (slopes[..., 1:] - slopes[..., :-1]) * knots).cumsum(-1)
    coarsest, steepest = float(scale.min()), float(slopes.abs().max())
    reach = max(abs(offset), abs(regions - offset)) / coarsest
    level = float(b.abs().max()) + steepest * reach
    lost = growth(8, operation.unit) * (steepest * value.size + level * operation.root_n) + operation.tiny * value.size
    # The position is right to 12 u times the reach; the lines of two regions part from their knot by both slopes.
    each = 24 * operation.unit * steepest * reach + (float(jumps.abs().max()) if regions > 1 else 0.0)
    each += 2 * (regions + 20) * operation.unit * level if operation.setting.learns_splines else 0.0
    each += operation.tiny * (4 + 4 * steepest / coarsest)
    return Lost((lost + each * operation.root_n) * SLACK, steepest * value.largest + level)


@rounding_rule("lipspline.householder")
def _householder(operation: Operation) -> Lost:
    """`x - 2 min(vᵀx, 0) v` of pairs: a product of two vectors, three more products and a difference."""
    square, value = float(constant_weight(operation["v"]).double().square().sum(-1).max()), operation.input
    lost = 20 * operation.unit * (1 + square) * value.size + 16 * operation.tiny * (1 + square) * operation.root_n
    return Lost(lost * SLACK, (1 + 2 * square) * value.largest * math.sqrt(2))
