r"""Training of adaptive ridge energies: the energy of the second pass and the network of its weights, as a denoiser.

The first pass is an energy that was trained before, and stays.

    python -m lipspline.training.adaptive train --start ridge.safetensors --images train400 --validation set12 \\
        --folder run --settings '{"warmup": 0, "top": 40, "minutes": 100}'
    python -m lipspline.training.adaptive export --folder run --start ridge.safetensors --file adaptive.safetensors
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline.functional.ridge import Tables, hats, odd_tables
from lipspline.kernels import ridge as kernels
from lipspline.priors.adaptive import DILATION, AdaptiveRidge, WeightNetwork, load_adaptive, save_adaptive
from lipspline.priors.ridge import RidgeEnergy
from lipspline.priors.ridge_files import load_ridge
from lipspline.training.energies import (
    EnergyTraining,
    accelerated,
    command_line,
    mean_psnr,
    middle,
    newest_state,
    take_average,
)
from lipspline.training.ridge import (
    LearnedRidge,
    adjoint,
    cosine_filters,
    denoise,
    derivative_of_loss,
    exported,
    ridge_groups,
)

FIRST_PASS_STEPS = 40
SAMPLES = 10  # frequencies an axis at which the norm of a layer is sampled in training
SHARP = 1e-3  # root mean square of the last step of the first pass


class LearnedNetwork(nn.Module):
    """The unconstrained parameters of a `WeightNetwork`: each layer is divided by about its norm."""

    def __init__(self, channels: int, nodes: tuple[float, ...], middle: int = 32, gain: float = 3.0):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        filters = cosine_filters(middle, 7).unsqueeze(1)
        self.detect = nn.Parameter(filters / filters.flatten(1).norm(dim=1)[:, None, None, None])
        self.lift = nn.Parameter(torch.zeros(middle))
        combine, decide = torch.zeros(middle, middle, 3, 3), torch.zeros(channels, middle, 3, 3)
        combine[:, :, 1, 1] = torch.eye(middle)
        decide[:, :, 1, 1] = -torch.eye(channels, middle) / 2
        self.combine = nn.Parameter(combine + 0.02 * torch.randn(combine.shape, generator=generator))
        self.decide = nn.Parameter(decide + 0.05 * torch.randn(decide.shape, generator=generator) - 0.02)
        self.combine_bias, self.decide_bias = (
            nn.Parameter(torch.zeros(middle)),
            nn.Parameter(torch.full((channels,), 2.0)),
        )
        self.log_gain = nn.Parameter(torch.full((len(nodes),), math.log(gain)))
        self.nodes = torch.tensor(nodes)

    def layers(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three kernels with sampled norm 1, those of the first with mean zero."""
        detect = self.detect - self.detect.mean(dim=(2, 3), keepdim=True)
        return (
            detect / sampled_norm(detect, 24),
            self.combine / sampled_norm(self.combine),
            self.decide / sampled_norm(self.decide),
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        detect, combine, decide = self.layers()
        gain = (torch.exp(hats(noise, self.nodes) @ self.log_gain) / noise).reshape(-1, 1, 1, 1)
        z = (F.conv2d(x * gain, detect, padding=3).abs() + self.lift[:, None, None]).relu()
        z = F.conv2d(z, combine, self.combine_bias, padding=1).relu()
        return torch.sigmoid(F.conv2d(z, decide, self.decide_bias, padding=DILATION, dilation=DILATION))

    @torch.no_grad()
    def exported(self) -> WeightNetwork:
        """With plain weights."""
        detect, combine, decide = self.layers()
        biases = {"lift": self.lift, "combine_bias": self.combine_bias, "decide_bias": self.decide_bias}
        return WeightNetwork(
            detect=detect, combine=combine, decide=decide, log_gain=self.log_gain, nodes=self.nodes, **biases
        )


def sampled_norm(kernel: Tensor, samples: int = SAMPLES) -> Tensor:
    """About the norm of a convolution (c_out, c_in, k, k): the largest at some frequencies."""
    response = torch.fft.rfft2(kernel, s=(samples, samples)).flatten(2).permute(2, 0, 1)
    if kernel.shape[1] == 1:
        return response.abs().square().sum(dim=(1, 2)).max().sqrt()
    return torch.linalg.eigvalsh(response @ response.mH)[:, -1].max().sqrt()


class LearnedAdaptive(nn.Module):
    """The energy of the second pass and the network, in training."""

    def __init__(self, settings: EnergyTraining):
        super().__init__()
        self.ridge = LearnedRidge(settings)
        self.network = LearnedNetwork(settings.channels, settings.nodes)


class AdaptiveLearner:
    """What is kept of a batch are the images of the first pass, the weights, and the minimisers."""

    def __init__(self, settings: EnergyTraining, first: RidgeEnergy):
        self.settings, self.first, self.model = settings, first, LearnedAdaptive(settings)
        self.model.ridge.start_from(first)

    def groups(self) -> list[dict[str, Any]]:
        network = {"params": list(self.model.network.parameters()), "peak": self.settings.lr_network}
        return [*ridge_groups(self.model.ridge), network]

    @torch.no_grad()
    def begin(self, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        level = hats(noise, self.first.nodes)
        scale = torch.exp(level @ self.first.log_scale.mT) / noise[:, None]
        tables = kernels.prepare_tables(*Tables(*odd_tables(self.first.slopes, self.first.radius, scale)))
        bank = kernels.prepare_bank(self.first.filters, self.first.even)
        strength = torch.exp(level @ self.first.log_strength).reshape(-1, 1, 1, 1)
        x = accelerated(
            y,
            lambda x: x - y + strength * kernels.ridge_gradient(x, bank, tables),
            1 / (1 + strength),
            FIRST_PASS_STEPS,
            SHARP,
        )
        return x, None, x

    def visit(self, kept: Any, y: Tensor, noise: Tensor, steps: int) -> tuple[Any, Tensor]:
        first, _, x = kept
        weights = self.model.network(first, noise)
        x = denoise(self.model.ridge, y, noise, x, steps, weights.detach())
        return (first, weights, x), x

    def one_step(self, y: Tensor, noise: Tensor) -> Tensor:
        raise ValueError("An adaptive energy is trained without score matching. Set warmup to 0.")

    def carried(self, kept: Any, x: Tensor, y: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        return adjoint(self.model.ridge, x, y, error, noise, kept[1].detach())

    def derivative_of_loss(self, kept: Any, x: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        return derivative_of_loss(self.model.ridge, x, error, noise, kept[1])

    def validate(self, images: list[Tensor]) -> str:
        ridge = exported_adaptive(self.model, self.first, {})
        crops = [middle(image, 96) for image in images]
        scores = " ".join(f"{score(ridge, crops, level):.3f}" for level in (5, 15))
        gains = " ".join(f"{gain:.2f}" for gain in ridge.network.log_gain.exp().tolist())
        return f"validation at 5/15: {scores}  gains {gains}"


def exported_adaptive(model: LearnedAdaptive, first: RidgeEnergy, provenance: dict[str, Any]) -> AdaptiveRidge:
    """The energies and the network that a model stands for, with plain weights and proven constants."""
    second = exported(model.ridge, {})
    slopes = second.slopes.clone()
    slopes[:, -1] = 0  # bounded splines; trained ones are flat there to a few hundredths
    second = RidgeEnergy(
        second.filters,
        slopes,
        second.log_scale,
        second.log_strength,
        second.nodes,
        even=second.even,
        radius=second.radius,
    )
    return AdaptiveRidge(first, second, model.network.exported(), provenance=provenance)


def score(ridge: AdaptiveRidge, images: list[Tensor], level: float, tol: float = 1e-4) -> float:
    """Mean PSNR of the second pass over images with noise of level / 255."""
    return mean_psnr(lambda y: ridge.denoise(y, level / 255, tol=tol), images, level)


def newest(folder: Path, start: Path | None) -> AdaptiveRidge:
    """The energies with the averaged weights of the newest checkpoint in a folder, after the first pass in `start`."""
    settings, state, steps = newest_state(folder)
    model = LearnedAdaptive(settings)
    take_average(model, state)
    return exported_adaptive(model, _first(start), {"steps": steps, "minutes": round(state["minutes"], 1)})


def _first(start: Path | None) -> RidgeEnergy:
    if start is None:
        raise ValueError("An adaptive energy begins with the energy of its first pass. Give the file of that as start.")
    return load_ridge(start)


if __name__ == "__main__":
    command_line(
        lambda settings, start: AdaptiveLearner(settings, _first(start)), newest, load_adaptive, save_adaptive, score
    )
