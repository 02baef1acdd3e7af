"""Tasks: what is minimised and how it is scored. The loop knows none of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import parametrize

from lipspline._infra import ranks
from lipspline._infra.randomness import generator, shuffled
from lipspline.formats.datasets import NoisyImage
from lipspline.functional.quality import psnr, ssim
from lipspline.functional.transport import dual_gap
from lipspline.networks import tv2
from lipspline.training.optim import COEFFICIENTS, SLOPES, Player

Score = Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Minimize:
    """One player: minimise a loss plus λ·TV² over all splines of a model [eq:optim_network].

    Args:
        model: the network.
        lr: the learning rate η of its weights.
        loss: the data term of each step.
        score: the metrics of the model as it is.
        tv2_weight: λ.
        coefficients, slopes, rotations: as for `Player`.
        tv2_prox: minimise TV² by its proximal step instead of its subgradient; splines must learn slopes.
        rowwise: as for `Player`.
    """

    model: nn.Module
    lr: float
    loss: Callable[[int], Tensor]
    score: Score
    tv2_weight: float = 0.0
    coefficients: float = COEFFICIENTS
    slopes: float = SLOPES
    rotations: float | None = None
    tv2_prox: bool = False
    rowwise: bool = False

    @property
    def players(self) -> Mapping[str, Player]:
        rates = {"coefficients": self.coefficients, "slopes": self.slopes, "rotations": self.rotations}
        prox = self.tv2_weight if self.tv2_prox else 0.0
        return {"model": Player(self.model, self.lr, **rates, tv2_prox=prox, rowwise=self.rowwise)}

    def updates(self, step: int) -> Iterator[tuple[str, Tensor]]:
        yield "model", regularized(self.loss(step), self.model, 0.0 if self.tv2_prox else self.tv2_weight)

    def evaluate(self) -> Mapping[str, float]:
        return self.score()


def regularized(loss: Tensor, model: nn.Module, tv2_weight: float) -> Tensor:
    """The objective `loss + λ Σ TV²(σ)` [eq:optim_network]."""
    return loss + tv2_weight * tv2(model) if tv2_weight else loss


@dataclass(frozen=True)
class Pairs:
    """Inputs `x` and targets `y` with equal first dimension."""

    x: Tensor
    y: Tensor

    def __post_init__(self):
        if len(self.x) != len(self.y) or len(self.x) == 0:
            raise ValueError(f"Pairs need as many targets as inputs, at least one: {len(self.x)} x, {len(self.y)} y.")

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, step: int, batch: int, seed: int) -> "Pairs":
        """This process's rows of batch number `step`, in shuffled epochs."""
        rows = shuffled(len(self), step, batch, seed)[ranks.rows(batch)].to(self.x.device)
        return Pairs(self.x[rows], self.y[rows])


def regression(
    model: nn.Module,
    training: Pairs,
    test: Pairs,
    *,
    batch: int,
    lr: float,
    tv2_weight: float = 0.0,
    seed: int = 0,
) -> Minimize:
    """Fit targets in the mean square [sec:EvalExp]; the metric is the mean squared error on the test pairs."""

    def loss(step: int) -> Tensor:
        pairs = training.batch(step, batch, seed)
        return mse_loss(model(pairs.x), pairs.y)

    return Minimize(model, lr, loss, lambda: {"mse": mse_loss(model(test.x), test.y).item()}, tv2_weight)


def classification(model: nn.Module, training: Pairs, test: Pairs, *, batch: int, lr: float, seed: int = 0) -> Minimize:
    """Learn classes by cross-entropy; the metric is the accuracy on the test pairs."""

    def loss(step: int) -> Tensor:
        pairs = training.batch(step, batch, seed)
        return cross_entropy(model(pairs.x), pairs.y)

    return Minimize(model, lr, loss, lambda: {"accuracy": _accuracy(model, test)})


def _accuracy(model: nn.Module, test: Pairs) -> float:
    right = [(model(x).argmax(dim=1) == y).sum() for x, y in zip(test.x.split(1000), test.y.split(1000), strict=True)]
    return torch.stack(right).sum().item() / len(test)


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
    coefficients: float = COEFFICIENTS,
    slopes: float = SLOPES,
    rotations: float | None = None,
    tv2_prox: bool = False,
    rowwise: bool = False,
    seed: int = 0,
) -> Minimize:
    """Remove white noise from patches: the mean squared error to the clean ones [sec:exp_pnp].

    Args:
        noise: standard deviation for values in [0, 1], such as 15 / 255; drawn anew in every step.
        batch: patches a step, over all processes.
        coefficients, slopes, rotations, rowwise: as for `Player`.
        tv2_prox: as for `Minimize`.
    """
    device = next(model.parameters()).device
    rows = ranks.rows(batch)

    def loss(step: int) -> Tensor:
        clean = patches.batch(step, batch, rows)
        drawn = torch.randn(batch, *clean.shape[1:], generator=generator(seed, "noise", step))
        noisy = clean + noise * drawn[rows]
        return mse_loss(model(noisy.to(device)), clean.to(device))

    def score() -> Mapping[str, float]:
        return mean_quality(lambda noisy: model(noisy.to(device)).cpu(), validation)

    return Minimize(model, lr, loss, score, tv2_weight, coefficients, slopes, rotations, tv2_prox, rowwise)


@torch.no_grad()
def mean_quality(denoiser: Callable[[Tensor], Tensor], images: Sequence[NoisyImage]) -> dict[str, float]:
    """Mean PSNR in dB and SSIM of a denoiser over images, profile `paper` [table:performance].

    Each process takes its share of the images.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    for image in ranks.shard(images):
        estimate = denoiser(image.noisy)
        sums += torch.cat([psnr(estimate, image.clean), ssim(estimate, image.clean)])
    mean = ranks.total(sums) / len(images)
    return {"psnr": mean[0].item(), "ssim": mean[1].item()}


class Sampler(Protocol):
    """Draws `count` independent samples of both distributions, `(count, ...)` each, from a generator."""

    def __call__(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]: ...


def kantorovich(
    model: nn.Module,
    sampler: Sampler,
    *,
    batch: int,
    lr: float,
    test_samples: int = 100_000,
    tv2_weight: float = 0.0,
    rotations: float | None = None,
    seed: int = 0,
) -> Minimize:
    """Learn a Kantorovich potential: maximise the dual of W1 over a 1-Lipschitz network [wasserstein].

    The metric `w1` is the dual estimate on fresh samples, which no step of the training has seen. `rotations` is as
    for `Player`.
    """
    device = next(model.parameters()).device
    rows = ranks.rows(batch)

    def loss(step: int) -> Tensor:
        x1, x2 = sampler(batch, generator(seed, "samples", step))
        return -_potential_gap(model, x1[rows].to(device), x2[rows].to(device))

    def score() -> Mapping[str, float]:
        return {"w1": dual_estimate(model, *sampler(test_samples, generator(seed, "test samples")))}

    return Minimize(model, lr, loss, score, tv2_weight, rotations=rotations)


def _potential_gap(model: nn.Module, x1: Tensor, x2: Tensor) -> Tensor:
    """The dual estimate of a batch; constrained weights cost more than a pass and are computed once."""
    with parametrize.cached():
        return dual_gap(model(x1), model(x2))


@torch.no_grad()
def dual_estimate(model: nn.Module, x1: Tensor, x2: Tensor, chunk: int = 4096) -> float:
    """The dual estimate of W1 with a network as the potential [wasserstein], evaluated in chunks."""
    device = next(model.parameters()).device
    f1, f2 = (torch.cat([model(part.to(device)).double() for part in x.split(chunk)]) for x in (x1, x2))
    return dual_gap(f1, f2).item()


@dataclass(frozen=True)
class WassersteinGAN:
    """Two players: a 1-Lipschitz critic estimates W1 between images and a generator's, which makes it small [sec:WGAN].

    Args:
        critic: maximises the dual of W1 [wasserstein]; its splines are regularised by λ = `tv2_weight`.
        generator: an unconstrained network from latent vectors `(B, latent)` to images.
        images: the real images `(M, ...)`.
        batch: images of either kind in an update.
        critic_steps: updates of the critic before each of the generator's.
        score: the metrics of the two networks as they are.
    """

    critic: Player
    generator: Player
    images: Tensor
    latent: int
    score: Score
    batch: int = 64
    critic_steps: int = 5
    tv2_weight: float = 0.0
    seed: int = 0

    @property
    def players(self) -> Mapping[str, Player]:
        return {"critic": self.critic, "generator": self.generator}

    def updates(self, step: int) -> Iterator[tuple[str, Tensor]]:
        critic, generate = self.critic.module, self.generator.module
        for update in range(step * self.critic_steps, (step + 1) * self.critic_steps):
            with torch.no_grad():
                fake = generate(self._latent("critic", update))
            gap = _potential_gap(critic, self._real(update), fake)
            yield "critic", regularized(-gap, critic, self.tv2_weight)
        yield "generator", -critic(generate(self._latent("generator", step))).mean()

    def evaluate(self) -> Mapping[str, float]:
        return self.score()

    def _real(self, update: int) -> Tensor:
        rows = shuffled(len(self.images), update, self.batch, self.seed)[ranks.rows(self.batch)]
        return self.images[rows.to(self.images.device)]

    def _latent(self, player: str, update: int) -> Tensor:
        drawn = torch.randn(self.batch, self.latent, generator=generator(self.seed, player, update))
        return drawn[ranks.rows(self.batch)].to(self.images.device)
