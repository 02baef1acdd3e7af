"""Learned activations as curves: what a picture of them shows, whoever draws it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.functional.knots import FreeKnots, free_knot_spline
from lipspline.functional.spline import difference
from lipspline.networks.sparsify import VISIBLE, free_knots
from lipspline.nn.activations import LipschitzPReLU
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.free_knot_spline import FreeKnotSpline
from lipspline.nn.linear_spline import LinearSpline

Learned = LinearSpline | FoldedSpline | FreeKnotSpline | LipschitzPReLU
MARGIN = 1.3  # a curve is shown this much beyond its outermost knot
FLAT = 1.0  # what is shown of activations whose only knot is zero


@dataclass(frozen=True)
class Curve:
    """One activation as a polygon on `[-reach, reach]`, all in float64."""

    channel: str
    """Its number, or "shared" if all channels have this one."""
    reach: float
    middle: float
    """The value in zero: a 1-Lipschitz function stays in the cone `|y - middle| <= |x|`."""
    x: Tensor
    y: Tensor
    knots: Tensor
    """Where the slope visibly changes, `(k,)`, and the values there."""
    heights: Tensor


@torch.no_grad()
def activation_curves(model: nn.Module, *, per_layer: int = 16) -> dict[str, list[Curve]]:
    """The learned activations of a model, layer by layer; empty if none of its activations is learned.

    Args:
        model: any module; `LinearSpline`, `FoldedSpline`, `FreeKnotSpline` and `LipschitzPReLU` are learned.
        per_layer: at most this many channels of each layer, spread evenly.

    Example:
        >>> (curve,) = activation_curves(LinearSpline(1, regions=2, radius=1.0, init="relu"))[""]
        >>> curve.x.tolist(), curve.knots.tolist(), curve.reach
        ([-1.0, 0.0, 0.0, 1.0], [0.0], 1.0)
    """
    checks.at_least("per_layer", per_layer, 1)
    layers = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, Learned))
    return {name: _layer_curves(layer, per_layer) for name, layer in layers}


def _layer_curves(layer: Learned, per_layer: int) -> list[Curve]:
    splines = _prelu_splines(layer) if isinstance(layer, LipschitzPReLU) else free_knots(layer)
    count = len(splines.intercept)
    shown = sorted(set(torch.linspace(0, count - 1, min(count, per_layer)).round().long().tolist()))
    return [
        _curve("shared" if count == 1 < layer.channels else str(row), FreeKnots(*(part[row] for part in splines)))
        for row in shown
    ]


def _prelu_splines(layer: LipschitzPReLU) -> FreeKnots:
    """PReLUs as splines with one knot in zero."""
    a = layer.slopes().double()
    return FreeKnots(torch.zeros_like(a)[:, None], torch.stack([a, torch.ones_like(a)], dim=-1), torch.zeros_like(a))


def _curve(channel: str, spline: FreeKnots) -> Curve:
    knots = spline.knots[difference(spline.slopes).abs() > VISIBLE]
    outermost = spline.knots.abs().max().item()
    reach = MARGIN * outermost if outermost > VISIBLE else FLAT
    ends = knots.new_tensor([-reach, 0.0, reach])
    x = torch.cat([knots, ends]).sort().values
    middle = free_knot_spline(ends, spline)[1].item()
    return Curve(channel, reach, middle, x, free_knot_spline(x, spline), knots, free_knot_spline(knots, spline))
