"""Learned activations as curves, and their pictures (extra `plot`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.functional.knots import FreeKnots, free_knot_spline
from lipspline.functional.spline import difference
from lipspline.networks.complexity import VISIBLE, free_knots
from lipspline.nn.activations import LipschitzPReLU
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline
from lipspline.nn.spline import LinearSpline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Learned = LinearSpline | FoldedSpline | FreeKnotSpline | LipschitzPReLU
MARGIN = 1.3  # a curve is shown this much beyond its outermost knot
LINE, CONE, INK = "#1f4e79", "#eef1f4", "#4a4f55"
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
    checks.module("activation_curves", model)
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


def plot_activations(model: nn.Module, *, columns: int = 8, per_layer: int = 16) -> Figure:
    """Draw the learned activations of a model as small multiples, layer by layer.

    Each picture shows one channel up to just beyond its outermost knot, with a dot where the slope changes. The shaded
    cone is where a 1-Lipschitz function through the middle of the curve can go.

    Args:
        model: any module with `LinearSpline`, `FoldedSpline`, `FreeKnotSpline` or `LipschitzPReLU` layers.
        columns: pictures in a row.
        per_layer: at most this many channels of each layer, spread evenly.

    Returns:
        A matplotlib figure, to show or to save; no window is opened.
    """
    checks.at_least("columns", columns, 1)
    layers = activation_curves(model, per_layer=per_layer)
    if not layers:
        raise ValueError(
            "plot_activations draws LinearSpline, FoldedSpline, FreeKnotSpline and LipschitzPReLU layers, but the "
            "model has none."
        )
    names = {name: name or type(model).__name__ for name in layers}
    panels = [panel for name, curves in layers.items() for panel in _whole_rows(names[name], curves, columns)]
    rows = len(panels) // columns
    figure = checks.require("matplotlib.figure", "plot", "plot_activations").Figure(
        figsize=(1.35 * columns, 1.5 * rows), layout="constrained"
    )
    for ax, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        _draw(ax, panel)
    return figure


def _whole_rows(title: str, curves: list[Curve], columns: int) -> list[tuple[str, Curve] | None]:
    """Titles and curves of one layer, filled up with None to whole rows."""
    panels: list[tuple[str, Curve] | None] = [(f"{title} [{curve.channel}]", curve) for curve in curves]
    return panels + [None] * (-len(panels) % columns)


def _draw(ax: Axes, panel: tuple[str, Curve] | None) -> None:
    """One activation: the curve, its knots, and the cone of slopes ±1 around its middle."""
    if panel is None:
        ax.set_axis_off()
        return
    title, curve = panel
    reach, middle = curve.reach, curve.middle
    cone = np.array([reach, 0.0, reach])
    ax.fill_between([-reach, 0.0, reach], middle - cone, middle + cone, color=CONE, linewidth=0)
    ax.plot(curve.x.numpy(), curve.y.numpy(), color=LINE, linewidth=1.4, solid_joinstyle="round")
    ax.plot(curve.knots.numpy(), curve.heights.numpy(), "o", color=LINE, markersize=2.2)
    ax.set_box_aspect(1)
    ax.set_xlim(-reach, reach)
    ax.set_ylim(middle - reach, middle + reach)
    ax.set_title(title, fontsize=7, color=INK, pad=3)
    ax.set_xticks([-reach, reach], labels=[f"{-reach:.2g}", f"{reach:.2g}"])
    ax.set_yticks([middle - reach, middle + reach], labels=[f"{middle - reach:.2g}", f"{middle + reach:.2g}"])
    ax.tick_params(labelsize=5, colors=INK, length=0, pad=2)
    for spine in ax.spines.values():
        spine.set_visible(False)
