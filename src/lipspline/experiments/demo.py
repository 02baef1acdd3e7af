"""The embedded default: a small network, its fit, its activations and its certificate, in seconds."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipspline import _checks
from lipspline.certify import Certificate, certify
from lipspline.models.export import plain
from lipspline.models.mlp import mlp
from lipspline.nn.complexity import effective_regions, tv2
from lipspline.nn.plot import plot_activations
from lipspline.training.optim import param_groups

STEPS = 3000


@dataclass(frozen=True)
class DemoResult:
    """What the demo found: the error of the fit, the regions learned, the proof, the pictures."""

    mse: float
    regions: float
    certificate: Certificate
    pictures: tuple[Path, ...]

    def document(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "mse": self.mse,
            "average_effective_regions": self.regions,
            "certificate": json.loads(self.certificate.to_json()),
            "pictures": [str(path) for path in self.pictures],
        }

    def __str__(self) -> str:
        return (
            f"{self.certificate}\n\n"
            f"Mean squared error of the fit: {self.mse:.2e}; linear regions per activation: {self.regions:.2f}\n"
            f"Pictures: {', '.join(map(str, self.pictures))}"
        )


def target(x: Tensor) -> Tensor:
    """The 1-Lipschitz function `f_3(x) = sin(7πx) / 7π` of [fig:1d_functions]."""
    return torch.sin(7 * torch.pi * x) / (7 * torch.pi)


def run_demo(folder: Path, say: Callable[[str], None]) -> DemoResult:
    """Fit `f_3` with an orthonormal LLS network of 4 layers and 10 neurons, as in [fig:1d_performances]."""
    _checks.require("matplotlib", "plot", "Drawing the demo")
    say("Training a 1-Lipschitz network with learned activations on sin(7πx)/7π ...")
    network = mlp(1, 1, width=10, depth=4, activation_options={"radius": 0.5, "regions": 100, "init": "relu"})
    optimizer = torch.optim.Adam(param_groups(network, lr=4e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        x = 2 * torch.rand(100, 1) - 1
        optimizer.zero_grad()
        loss = (network(x) - target(x)).square().mean() + 1e-7 * tv2(network)
        loss.backward()
        optimizer.step()
        schedule.step()
    x = torch.linspace(-1, 1, 10000).unsqueeze(1)
    final = plain(network)
    mse = (final(x) - target(x)).square().mean().item()
    pictures = (_draw_fit(folder, x, final(x)), _draw_activations(folder, network))
    return DemoResult(mse, effective_regions(network).overall, certify(final), pictures)


def _draw_fit(folder: Path, x: Tensor, y: Tensor) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(x, target(x), color="0.6", linewidth=4, label="sin(7πx) / 7π")
    axes.plot(x, y, color="tab:red", linewidth=1.2, label="1-Lipschitz LLS network")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axes.set_xlabel("x")
    return _save(figure, folder / "fit.png")


def _draw_activations(folder: Path, network: torch.nn.Module) -> Path:
    return _save(plot_activations(network), folder / "activations.png")


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
