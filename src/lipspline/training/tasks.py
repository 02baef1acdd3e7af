"""Tasks: what is minimised and how it is scored. The loop knows none of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from lipspline.data.bsd import NoisyImage
from lipspline.data.randomness import generator
from lipspline.nn import tv2
from lipspline.training import distributed
from lipspline.training.optim import Player


@dataclass(frozen=True)
class Minimize:
    """One player: minimise a loss plus λ·TV² over all splines of a model [eq:optim_network].

    Args:
        model: the network.
        lr: the learning rate η of its weights.
        loss: the data term of each step.
        score: the metrics of the model as it is.
        tv2_weight: λ.
    """

    model: nn.Module
    lr: float
    loss: Callable[[int], Tensor]
    score: Callable[[], Mapping[str, float]]
    tv2_weight: float = 0.0

    @property
    def players(self) -> Mapping[str, Player]:
        return {"model": Player(self.model, self.lr)}

    def updates(self, step: int) -> Iterator[tuple[str, Tensor]]:
        loss = self.loss(step)
        yield "model", loss + self.tv2_weight * tv2(self.model) if self.tv2_weight else loss

    def evaluate(self) -> Mapping[str, float]:
        return self.score()


class Patches(Protocol):
    """A source of clean patches, such as `RandomCrops` or `GridPatches`."""

    def batch(self, step: int, batch: int, rows: slice = ...) -> Tensor: ...


def denoising(
    model: nn.Module,
    patches: Patches,
    validation: Sequence[NoisyImage],
    *,
    noise: float,
    batch: int,
    lr: float,
    tv2_weight: float = 0.0,
    seed: int = 0,
) -> Minimize:
    """Remove white noise from patches: the mean squared error to the clean ones [sec:exp_pnp].

    Args:
        noise: standard deviation for values in [0, 1], such as 15 / 255; drawn anew in every step.
        batch: patches a step, over all processes.
    """
    device = next(model.parameters()).device
    rows = distributed.rows(batch)

    def loss(step: int) -> Tensor:
        clean = patches.batch(step, batch, rows)
        drawn = torch.randn(batch, *clean.shape[1:], generator=generator(seed, "noise", step))
        noisy = clean + noise * drawn[rows]
        return mse_loss(model(noisy.to(device)), clean.to(device))

    return Minimize(model, lr, loss, lambda: {"psnr": mean_psnr(model, validation)}, tv2_weight)


@torch.no_grad()
def mean_psnr(denoiser: Callable[[Tensor], Tensor], images: Sequence[NoisyImage]) -> float:
    """Mean PSNR in dB over images, output clipped to [0, 1], data range 1: the profile `paper` [table:performance]."""
    values = [_psnr(denoiser(image.noisy).clamp(0, 1), image.clean) for image in distributed.shard(images)]
    total = distributed.total(torch.tensor(values, dtype=torch.float64).sum())
    return total.item() / len(images)


def _psnr(image: Tensor, reference: Tensor) -> float:
    return -10 * torch.log10((image.double() - reference.double()).square().mean()).item()
