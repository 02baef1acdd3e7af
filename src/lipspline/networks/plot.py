"""Pictures of learned activations (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from lipspline._infra import checks
from lipspline.networks.curves import Curve, activation_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE, CONE, INK = "#1f4e79", "#eef1f4", "#4a4f55"


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
