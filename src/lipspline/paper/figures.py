"""The figures of the experiments: functions of plain numbers, or of weights, that return a matplotlib figure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.randomness import generator
from lipspline.formats.datasets import add_noise
from lipspline.functional.quality import psnr
from lipspline.networks.curves import plot_activations
from lipspline.networks.files import load

COLORS = {
    "relu": "tab:gray",
    "av": "tab:orange",
    "prelu": "tab:olive",
    "gs": "tab:green",
    "hh": "tab:purple",
    "lls": "tab:red",
    "lls-new": "tab:red",
    "lls-old": "tab:blue",
}


def quartile_panels(panels: Mapping[str, Mapping[str, Mapping[str, Any]]], columns: int) -> Any:
    """Median (red) and quartiles (black bars) of the errors of each network, a panel each [fig:1d_performances]."""
    figure, axes = _grid(panels, columns, (3.6, 2.6))
    for ax, (title, row) in zip(axes, panels.items(), strict=True):
        for place, scores in enumerate(row.values()):
            ax.vlines(place, scores["lower"], scores["upper"], color="black", linewidth=2)
            ax.hlines([scores["lower"], scores["upper"]], place - 0.18, place + 0.18, color="black", linewidth=1)
            ax.plot(place, scores["median"], "o", color="tab:red", markersize=5)
        ax.set_xticks(range(len(row)), list(row), rotation=45, ha="right")
        ax.set_yscale("log")
        ax.set_title(title, fontsize=10)
        ax.grid(axis="y", alpha=0.3)
    figure.supylabel("test MSE")
    return figure


def curve_panels(
    x: Sequence[float],
    targets: Mapping[str, Sequence[float]],
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    columns: int,
) -> Any:
    """The target (gray) and the median fit of each network, a panel each [fig:1d_functions]."""
    figure, axes = _grid(targets, columns, (4.2, 2.6))
    for ax, (title, target) in zip(axes, targets.items(), strict=True):
        ax.plot(x, target, color="0.75", linewidth=4)
        for name, values in curves[title].items():
            ax.plot(x, values, color=COLORS.get(name), linewidth=1, label=name)
        ax.set_title(title, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def lines(
    panels: Mapping[str, Mapping[str, Mapping[str, float]]], xlabel: str, ylabel: str, *, log: bool = False
) -> Any:
    """A line a column of a table over its rows, a panel a table: `panels[title][row][column]`."""
    figure, axes = _grid(panels, len(panels), (4.2, 3.2))
    for ax, (title, rows) in zip(axes, panels.items(), strict=True):
        places = [float(row) for row in rows]
        for name in next(iter(rows.values())):
            ax.plot(
                places, [row[name] for row in rows.values()], "o-", color=COLORS.get(name), label=name, markersize=4
            )
        ax.set_xticks(places, _apart(places, list(rows)))
        ax.set_xlabel(xlabel)
        ax.set_title(title, fontsize=10)
        ax.grid(alpha=0.3)
        if log:
            ax.set_yscale("log")
    axes[0].set_ylabel(ylabel)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _apart(places: list[float], labels: list[str]) -> list[str]:
    """The labels, without those that would cover the one before."""
    last, width, shown = -math.inf, (max(places) - min(places)) / 7, []
    for place, label in zip(places, labels, strict=True):
        free = place - last >= width
        shown.append(label if free else "")
        last = place if free else last
    return shown


def digit_grids(grids: Mapping[str, Tensor], columns: int = 3) -> Any:
    """Generated digits `(n, 28, 28)` of each network as a square of pictures [fig:gan_samples]."""
    figure, axes = _grid(grids, columns, (3.0, 3.2))
    for ax, (title, digits) in zip(axes, grids.items(), strict=True):
        side = int(len(digits) ** 0.5)
        rows = [torch.cat(list(digits[i * side : (i + 1) * side]), dim=1) for i in range(side)]
        ax.imshow(torch.cat(rows).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_title(title, fontsize=10)
        ax.axis("off")
    return figure


def picture_rows(rows: Mapping[str, Mapping[str, Tensor]]) -> Any:
    """Pictures `(H, W)` side by side, a row for each key: `rows[row][title]` [fig:mri, fig:multi_mri, fig:ct]."""
    pictures = {f"{row}\n{title}": picture for row, titled in rows.items() for title, picture in titled.items()}
    columns = max(len(titled) for titled in rows.values())
    height, width = next(iter(pictures.values())).shape
    figure, axes = _grid(pictures, columns, (2.6, 2.6 * height / width + 0.5))
    for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
        ax.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    return figure


DETAIL = (slice(80, 240), slice(170, 330))  # of the photograph: head and camera
ERROR = 0.1  # the largest error that the maps tell from larger ones


def against_weight(curves: Mapping[int, Mapping[float, float]]) -> Any:
    """PSNR against λ, a line a noise level above its best: `curves[noise][λ]`."""
    figure = _figure((5.0, 3.4))
    ax = figure.subplots()
    weights = sorted({weight for row in curves.values() for weight in row})
    for noise, row in curves.items():
        places = [weights.index(weight) for weight in sorted(row)]
        ax.plot(places, [row[weight] for weight in sorted(row)], "o-", markersize=4, label=f"noise {noise}")
    ax.set_xticks(range(len(weights)), [f"{weight:g}" for weight in weights])
    ax.set_xlabel("λ")
    ax.set_ylabel("PSNR on BSD68 (dB)")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)
    return figure


def learned_activations(weights: str) -> Any:
    """Some of the splines of a trained denoiser."""
    return plot_activations(load(weights), per_layer=8)


@torch.no_grad()
def photograph(weights: Mapping[str, str], noise: int) -> Any:
    """A detail of a photograph (scikit-image's, CC0), noisy and denoised, above maps of the error."""
    clean = _photograph()
    noisy = add_noise(clean, noise / 255, generator(0, "photograph"))
    pictures = {f"noise {noise}": noisy, **{name: load(path)(noisy) for name, path in weights.items()}}
    figure = _figure((2.3 * len(pictures) + 2.3, 4.9))
    axes = figure.subplots(2, len(pictures) + 1)
    _show(axes[0][0], clean, "clean")
    axes[1][0].axis("off")
    for (upper, lower), (name, picture) in zip(axes.T[1:], pictures.items(), strict=True):
        _show(upper, picture, f"{name}, {psnr(picture, clean).item():.2f} dB")
        _show(lower, (picture - clean).abs() / ERROR, f"error, white is {ERROR:g} or more")
    return figure


def _photograph() -> Tensor:
    """The cameraman, `(1, 1, 512, 512)` in [0, 1]."""
    pixels = checks.require("skimage.data", "images", "The photograph").camera()
    return torch.from_numpy(pixels).float()[None, None] / 255


def _show(ax: Any, picture: Tensor, title: str) -> None:
    ax.imshow(picture[0, 0][DETAIL].numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    ax.set_title(title, fontsize=8)
    ax.axis("off")


def _grid(panels: Mapping[str, Any], columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with a panel for each key."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure((columns * size[0], rows * size[1]))
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in axes[len(panels) :]:
        unused.axis("off")
    return figure, axes[: len(panels)]


def _figure(size: tuple[float, float]) -> Any:
    """An empty figure, `size` in inches."""
    checks.require("matplotlib", "plot", "Drawing the figures")
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")
