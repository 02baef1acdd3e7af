"""The figures of the denoising experiments; what they need of a network is read from its weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.randomness import generator
from lipspline.formats.datasets import add_noise
from lipspline.functional.quality import psnr
from lipspline.networks.curves import plot_activations
from lipspline.networks.files import load

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


def _figure(size: tuple[float, float]) -> Any:
    checks.require("matplotlib", "plot", "Drawing the figures")
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")
