"""Rules of operations that move entries, show them more than once, or put several tensors together."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from lipspline.certification.certificate import add_up, multiply_up, root_sum_of_squares_up
from lipspline.certification.flow import Flow, Multiple, copies_root, joint_upper
from lipspline.certification.operations import Call, broadcast, new_source, operation

# Entries that only change their place


MOVE_NAMES = (
    "view reshape _unsafe_view permute transpose t flatten unflatten squeeze unsqueeze movedim moveaxis swapaxes "
    "swapdims slice select narrow flip roll expand expand_as repeat repeat_interleave index_select index gather unfold "
    "im2col pixel_shuffle pixel_unshuffle channel_shuffle diagonal rot90 tile view_as reshape_as mT numpy_T ravel "
    "split split_with_sizes chunk unbind tensor_split unsafe_chunk unsafe_split narrow_copy take "
    "slice_copy select_copy"
)


@operation(*(f"aten.{name}" for name in MOVE_NAMES.split()))
def _moved(call: Call) -> "Flow | list[Flow | None]":
    if call.name.endswith("_as") and isinstance(call["other"], Flow):
        call.arguments["other"] = torch.empty(call["other"].shape)  # only its shape is read
    flow = call.input()
    if call["dtype"] is not None:
        raise ValueError("it reads the bits of numbers as other numbers")
    # From 1 on, so that zeros that an operation puts between entries are none of them.
    numbered = torch.arange(1, math.prod(flow.shape) + 1, dtype=torch.float64).reshape(flow.shape)
    places = call.operation(**{name: numbered if value is flow else value for name, value in call.arguments.items()})
    single = isinstance(places, Tensor)
    results = [_picked(call, flow, place - 1, i) for i, place in enumerate([places] if single else places)]
    return results[0] if single else list(results)


def _picked(call: Call, flow: Flow, places: Tensor, output: int) -> Flow:
    indices = places.flatten().long()
    gain = copies_root(indices)
    shape, dtype = call.outputs[output]
    if shape == flow.shape and torch.equal(indices, torch.arange(len(indices))):
        return flow
    root, before = flow.picks or (flow, None)
    picks = root, (indices if before is None else torch.where(indices >= 0, before[indices.clamp(min=0)], -1))
    upper = min(multiply_up(flow.upper, gain), multiply_up(root.upper, copies_root(picks[1])))
    call.gain, call.reason = gain, "moves entries" if gain <= 1 else "shows entries more than once"
    return Flow(shape, dtype, {next(new_source): (Multiple(1.0), upper)}, picks=picks)


SAME_NAMES = (
    "clone detach alias contiguous dropout feature_dropout alpha_dropout feature_alpha_dropout lift_fresh_copy "
    "positive detach_ dropout_"
)


@operation(*(f"aten.{name}" for name in SAME_NAMES.split()))
def _same(call: Call) -> Flow:
    if call["train"]:
        raise ValueError("it is random. Call eval() of the network")
    return call.input()


@operation("aten._to_copy", "aten.to")
def _cast(call: Call) -> Flow:
    flow, (_, dtype) = call.input(), call.outputs[0]
    if not dtype.is_floating_point:
        raise ValueError(f"it rounds to {dtype}, and jumps")
    if dtype.itemsize < min(4, flow.dtype.itemsize):  # float64 to float32 counts as round-off
        raise ValueError(f"it rounds {flow.dtype} to {dtype}, in steps. Convert the whole network and its input")
    return replace(flow, dtype=dtype)


@operation(
    "aten.pad", "aten.constant_pad_nd", "aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d"
)
@operation("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def _pad(call: Call) -> Flow:
    flow = call["self"]
    mode = call["mode"] or next((m for m in ("reflect", "replic") if m in call.name), "constant")
    mode = "replicate" if mode == "replic" else mode
    numbered = torch.arange(math.prod(flow.shape), dtype=torch.float64).reshape(flow.shape)
    pads = list(call["pad"] if call["pad"] is not None else call["padding"])
    options = {"value": -1.0} if mode == "constant" else {}
    moved = torch.nn.functional.pad(numbered, pads, mode=mode, **options)
    result = _picked(call, flow, moved, 0)
    pairs = list(zip(pads[::2], pads[1::2], strict=True))
    call.reason = f"{mode} padding shows a pixel at most {round((call.gain or 1.0) ** 2)} time(s)"
    return result if result is flow else replace(result, padded=(mode, pairs, flow))


_FILLED = "zeros_like ones_like full_like new_zeros new_ones new_full"


@operation(*(f"aten.{name}" for name in _FILLED.split()))
def _filled(call: Call) -> Tensor:
    """A constant that takes only its shape and type from the input."""
    flow, (shape, dtype) = call["self"], call.outputs[0]
    value = call["fill_value"] if "full" in call.name else float("ones" in call.name)
    if not isinstance(flow, Flow) or isinstance(value, Flow):
        raise ValueError("it is filled with a value that depends on the input")
    return torch.full(shape, value, dtype=dtype)


# Several tensors together


@operation("aten.cat", "aten.concat", "aten.concatenate", "aten.stack", "aten.hstack", "aten.vstack")
def _concatenated(call: Call) -> Flow:
    flows = call.flows
    upper = min(joint_upper(flows), root_sum_of_squares_up(*(flow.upper for flow in flows)))
    return call.source(upper, None, f"root of the sum of squares of {len(flows)} part(s)")


def _pair(call: Call) -> "tuple[str, Flow, Flow] | None":
    """The two tensors of which the larger or smaller entries are taken along an axis with two of them."""
    flow, axis = call.input(), call["dim"]
    if axis is None or flow.shape[axis] != 2:
        return None
    root, places = flow.picks or (flow, torch.arange(math.prod(flow.shape)))
    halves = (half.flatten() for half in places.reshape(flow.shape).unbind(axis))
    one, other = (
        Flow(call.outputs[0][0], flow.dtype, {next(new_source): (Multiple(1.0), flow.upper)}, picks=(root, half))
        for half in halves
    )
    return call.name.removeprefix("aten."), one, other


@operation("aten.max", "aten.min", "aten.maximum", "aten.minimum", "aten.fmax", "aten.fmin")
def _larger(call: Call) -> "Flow | list[Flow | None]":
    if call["other"] is None:  # along an axis, with or without the places
        flow = call.stretched(call.input(), 1.0, "one entry of many", ordered=_pair(call))
        return [flow, None] if len(call.outputs) > 1 else flow
    flows, (shape, _) = call.flows, call.outputs[0]
    if len(flows) == 1:
        spread = broadcast(flows[0], shape)
        return call.stretched(spread, 1.0, "slopes 0 and 1", pointwise=(spread, 1.0))
    one, other = flows
    which = "max" if "max" in call.name else "min"
    if one.shape != shape or other.shape != shape:
        one, other = broadcast(one, shape), broadcast(other, shape)
    (root, a), (second, b) = one.root, other.root
    upper = joint_upper([one, other])
    if root is second:
        upper = min(upper, multiply_up(max(a, b), root.upper))
    return call.source(min(upper, add_up(one.upper, other.upper)), None, f"{which} of two", ordered=(which, one, other))
