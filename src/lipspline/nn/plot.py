"""Pictures of learned activations (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lipspline import _checks
from lipspline.functional.knots import FreeKnots, free_knot_spline
from lipspline.functional.spline import difference
from lipspline.nn.activations import LipschitzPReLU
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.free_knot_spline import FreeKnotSpline
from lipspline.nn.linear_spline import LinearSpline
from lipspline.nn.sparsify import VISIBLE, free_knots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Learned = LinearSpline | FoldedSpline | FreeKnotSpline | LipschitzPReLU
LINE, CONE, INK = "#1f4e79", "#eef1f4", "#4a4f55"
MARGIN = 1.3  # the picture shows this much beyond the outermost knot
FLAT = 1.0  # what it shows of activations whose only knot is zero


@torch.no_grad()
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
    _checks.at_least("columns", columns, 1)
    _checks.at_least("per_layer", per_layer, 1)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Learned)}
    if not layers:
        raise ValueError(
            "plot_activations draws LinearSpline, FoldedSpline, FreeKnotSpline and LipschitzPReLU layers, but the "
            "model has none."
        )
    panels = [panel for name, layer in layers.items() for panel in _panels(name, layer, columns, per_layer)]
    rows = len(panels) // columns
    figure = _checks.require("matplotlib.figure", "plot", "plot_activations").Figure(
        figsize=(1.35 * columns, 1.5 * rows), layout="constrained"
    )
    for ax, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        _draw(ax, panel)
    return figure


def _panels(name: str, layer: Learned, columns: int, per_layer: int) -> list[tuple[str, FreeKnots] | None]:
    """Title and spline of the channels of one layer that are shown, filled up with None to whole rows."""
    splines = _prelu_splines(layer) if isinstance(layer, LipschitzPReLU) else free_knots(layer)
    count = len(splines.intercept)
    shown = sorted(set(torch.linspace(0, count - 1, min(count, per_layer)).round().long().tolist()))
    title = name or type(layer).__name__
    panels: list[tuple[str, FreeKnots] | None] = [
        (f"{title} [{'shared' if count == 1 < layer.channels else row}]", FreeKnots(*(part[row] for part in splines)))
        for row in shown
    ]
    return panels + [None] * (-len(panels) % columns)


def _prelu_splines(layer: LipschitzPReLU) -> FreeKnots:
    """PReLUs as splines with one knot in zero."""
    a = layer.slopes().double()
    return FreeKnots(torch.zeros_like(a)[:, None], torch.stack([a, torch.ones_like(a)], dim=-1), torch.zeros_like(a))


def _draw(ax: Axes, panel: tuple[str, FreeKnots] | None) -> None:
    """One activation: the curve, its knots, and the cone of slopes ±1 around its middle."""
    if panel is None:
        ax.set_axis_off()
        return
    title, spline = panel
    knots = spline.knots[difference(spline.slopes).abs() > VISIBLE]
    outermost = spline.knots.abs().max().item()
    reach = MARGIN * outermost if outermost > VISIBLE else FLAT
    ends = knots.new_tensor([-reach, 0.0, reach])
    x = torch.cat([knots, ends]).sort().values
    middle = free_knot_spline(ends, spline)[1].item()
    cone = ends.abs().numpy()
    ax.fill_between(ends.numpy(), middle - cone, middle + cone, color=CONE, linewidth=0)
    ax.plot(x.numpy(), free_knot_spline(x, spline).numpy(), color=LINE, linewidth=1.4, solid_joinstyle="round")
    ax.plot(knots.numpy(), free_knot_spline(knots, spline).numpy(), "o", color=LINE, markersize=2.2)
    ax.set_box_aspect(1)
    ax.set_xlim(-reach, reach)
    ax.set_ylim(middle - reach, middle + reach)
    ax.set_title(title, fontsize=7, color=INK, pad=3)
    ax.set_xticks([-reach, reach], labels=[f"{-reach:.2g}", f"{reach:.2g}"])
    ax.set_yticks([middle - reach, middle + reach], labels=[f"{middle - reach:.2g}", f"{middle + reach:.2g}"])
    ax.tick_params(labelsize=5, colors=INK, length=0, pad=2)
    for spine in ax.spines.values():
        spine.set_visible(False)
