r"""Training of ridge energies as denoisers.

First the one-step denoiser :math:`y - \lambda \nabla R(y)` is fitted (score matching), then the minimiser itself.

    python -m lipspline.training.ridge train --images train400 --validation set12 --folder run \\
        --settings '{"minutes": 90}'
    python -m lipspline.training.ridge score --images bsd68 --file ridge.safetensors
    python -m lipspline.training.ridge export --folder run --file ridge.safetensors
"""

# pyright: reportIncompatibleMethodOverride=false

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline.functional.ridge import Tables, hats, odd_tables
from lipspline.kernels import ridge as kernels
from lipspline.priors.ridge import RidgeEnergy, normalised
from lipspline.priors.ridge_files import load_ridge, save_ridge
from lipspline.training.energies import (
    EnergyTraining,
    accelerated,
    command_line,
    mean_psnr,
    middle,
    newest_state,
    take_average,
)

FREQUENCIES = 48  # samples an axis of the filters' power, for the normalisation in training
SHARPNESS = 64


class LearnedRidge(nn.Module):
    """The unconstrained parameters of a ridge energy, and the energy that they stand for.

    Filters have mean zero and are divided by about the root of their largest sampled power. Slopes lie in [-ρ, 1] with
    ρ = convexity / top, and the strength λ(s) stays below `top`.
    """

    def __init__(self, settings: EnergyTraining):
        super().__init__()
        self.settings = settings
        channels, kernel = settings.channels, settings.kernel
        generator = torch.Generator().manual_seed(settings.seed)
        self.even, self.nodes = channels // 2, torch.tensor(settings.nodes)
        weight = cosine_filters(channels, kernel)
        self.weight = nn.Parameter(weight + 0.01 * torch.randn(weight.shape, generator=generator))
        knots = torch.arange(settings.regions) * settings.radius / settings.regions
        self.slopes = nn.Parameter((knots < 0.4).float().repeat(channels, 1))
        response = self.filters().detach().flatten(1).norm(dim=1)
        self.log_scale = nn.Parameter(-response.log()[:, None].repeat(1, len(settings.nodes)))
        start = math.log(settings.top / settings.strength - 1)  # sigmoid(-start) = strength / top
        self.gap = nn.Parameter(torch.full((len(settings.nodes),), start))

    @torch.no_grad()
    def start_from(self, energy: RidgeEnergy) -> None:
        """Take the parameters of an energy with the same splines and nodes; further filters begin weak and random."""
        if energy.radius != self.settings.radius or energy.slopes.shape[1] != self.settings.regions:
            raise ValueError(
                f"The energy has {energy.slopes.shape[1]} regions up to {energy.radius:g}, but the settings say "
                f"{self.settings.regions} up to {self.settings.radius:g}. They must agree."
            )
        even, count = energy.even, len(energy.filters)
        if even > self.even or count - even > len(self.weight) - self.even:
            raise ValueError(f"The energy has {count} filters, more than the {len(self.weight)} of the settings.")
        rows = [*range(even), *range(self.even, self.even + count - even)]
        generator = torch.Generator().manual_seed(self.settings.seed)
        size = float(energy.filters.square().mean().sqrt())
        self.weight.copy_(0.05 * size * torch.randn(self.weight.shape, generator=generator))
        self.weight[rows] = energy.filters.squeeze(1)
        self.slopes[rows] = energy.slopes
        self.log_scale.copy_(energy.log_scale.mean(dim=0).expand_as(self.log_scale))
        self.log_scale[rows] = energy.log_scale
        grown = float(self.filters()[rows].norm() / energy.filters.norm())  # by the normalisation of the parameters
        self.log_scale -= math.log(grown)
        missing = (math.log(self.settings.top) - energy.log_strength + 2 * math.log(grown)).clamp_min(1e-3)
        self.gap.copy_(torch.log(torch.expm1(missing)))

    def filters(self) -> Tensor:
        """The bank (C, 1, k, k): the first half even, the second odd, mean zero, sampled norm 1."""
        even, odd = self.weight.split(self.even)
        even, odd = (even + even.flip(1, 2)) / 2, (odd - odd.flip(1, 2)) / 2
        w = torch.cat([even - even.mean(dim=(1, 2), keepdim=True), odd])
        power = torch.fft.rfft2(w, s=(FREQUENCIES, FREQUENCIES)).abs().square().sum(dim=0)
        # nearly the maximum, but every frequency that is close to it has a say
        top = power.max().detach()
        norm = top * (power / top).pow(SHARPNESS).mean().pow(1 / SHARPNESS)
        return (w / norm.sqrt()).unsqueeze(1)

    def constrained_slopes(self) -> Tensor:
        """Slopes (C, M) in [-ρ, 1], of splines that stay nonnegative on the right, the last slope too."""
        slopes = clip(self.slopes, self.slopes.new_tensor(-self.settings.convexity / self.settings.top))
        if self.settings.convexity == 0:
            return slopes
        values = F.pad(slopes.cumsum(dim=1), (1, 0)).relu()
        slopes = values.diff(dim=1)
        return torch.cat([slopes[:, :-1], slopes[:, -1:].relu()], dim=1)

    def scale(self, noise: Tensor) -> Tensor:
        """a_c(s), (B, C)."""
        return torch.exp(hats(noise, self.nodes) @ self.log_scale.mT) / noise[:, None]

    def strength(self, noise: Tensor) -> Tensor:
        """λ(s), (B,)."""
        return torch.exp(math.log(self.settings.top) - hats(noise, self.nodes) @ F.softplus(self.gap))

    def tables(self, noise: Tensor) -> Tables:
        return odd_tables(self.constrained_slopes(), self.settings.radius, self.scale(noise))


class _Clip(torch.autograd.Function):
    """Clip to [low, 1]; derivatives that would move a clipped value back inside pass."""

    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x, low)
        return torch.minimum(torch.maximum(x, low), torch.ones_like(low))

    @staticmethod
    def backward(ctx, g):
        x, low = ctx.saved_tensors
        passes = ((x >= low) | (g < 0)) & ((x <= 1) | (g > 0))
        return g * passes, None


def clip(slopes: Tensor, low: Tensor) -> Tensor:
    """Slopes clipped to [low, 1], such that a clipped slope can still be learned."""
    return _Clip.apply(slopes, low)  # type: ignore[return-value]


def cosine_filters(channels: int, kernel: int) -> Tensor:
    """Discrete cosines of low frequency, but not zero, in the middle of kernels (C, k, k): even ones, then odd ones."""
    n = math.isqrt(channels) + 1
    n += 1 - n % 2  # an odd size has a middle
    t = torch.arange(n) + 0.5
    basis = torch.stack([torch.cos(math.pi * k * t / n) for k in range(n)])
    basis = basis / basis.norm(dim=1, keepdim=True)
    order = sorted(((i, j) for i in range(n) for j in range(n) if i or j), key=lambda f: (f[0] ** 2 + f[1] ** 2, f))
    even, odd = ([f for f in order if sum(f) % 2 == parity][: channels // 2] for parity in (0, 1))
    small = torch.stack([torch.outer(basis[i], basis[j]) for i, j in even + odd]) / n
    return F.pad(small, ((kernel - n) // 2,) * 4)


@torch.no_grad()
def denoise(
    model: LearnedRidge, y: Tensor, noise: Tensor, start: Tensor, steps: int, weights: Tensor | None = None
) -> Tensor:
    """Approximate minimisers for y (B, 1, H, W) with noise (B,), from `start`; `weights` (B, C, H, W) of responses."""
    bank = kernels.prepare_bank(model.filters(), model.even)
    tables = kernels.prepare_tables(*model.tables(noise))
    strength = model.strength(noise).reshape(-1, 1, 1, 1)
    return accelerated(
        start,
        lambda x: x - y + strength * kernels.ridge_gradient(x, bank, tables, weights),
        1 / (1 + strength),
        steps,
    )


def adjoint(
    model: LearnedRidge, x: Tensor, y: Tensor, error: Tensor, noise: Tensor, weights: Tensor | None = None
) -> Tensor:
    r"""Approximately :math:`(I + \lambda \nabla^2 R(x))^{-1}` error: how the minimiser x moves if y moves by the error.

    It is a difference quotient of the minimiser, so that it also averages over the kinks of the splines nearby.
    """
    settings = model.settings
    moved = denoise(model, y + settings.adjoint_size * error, noise, x, settings.adjoint_steps, weights)
    return (moved - x) / settings.adjoint_size


def derivative_of_loss(
    model: LearnedRidge, x: Tensor, error: Tensor, noise: Tensor, weights: Tensor | None = None
) -> Tensor:
    r"""A function with the derivative of half the squared error of y - λ ∇R(x), for fixed x.

    The estimate is linear in :math:`\lambda \nabla R`, so that it takes only the pairing of that with the error.
    """
    pairing = kernels.ridge_pairing(error, x, model.filters(), model.even, model.tables(noise), weights)
    return -(model.strength(noise) * pairing).sum()


class RidgeLearner:
    """A ridge energy in training; what is kept of a batch are its minimisers."""

    def __init__(self, settings: EnergyTraining, start: RidgeEnergy | None = None):
        self.settings, self.model = settings, LearnedRidge(settings)
        if start is not None:
            self.model.start_from(start)

    def groups(self) -> list[dict[str, Any]]:
        return ridge_groups(self.model)

    def begin(self, y: Tensor, noise: Tensor) -> Tensor:
        return y

    def visit(self, kept: Tensor, y: Tensor, noise: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        x = denoise(self.model, y, noise, kept, steps)
        return x, x

    @torch.no_grad()
    def one_step(self, y: Tensor, noise: Tensor) -> Tensor:
        """y - λ ∇R(y)."""
        bank = kernels.prepare_bank(self.model.filters(), self.model.even)
        gradient = kernels.ridge_gradient(y, bank, kernels.prepare_tables(*self.model.tables(noise)))
        return y - self.model.strength(noise).reshape(-1, 1, 1, 1) * gradient

    def carried(self, kept: Tensor, x: Tensor, y: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        return adjoint(self.model, x, y, error, noise)

    def derivative_of_loss(self, kept: Tensor, x: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        return derivative_of_loss(self.model, x, error, noise)

    def validate(self, images: list[Tensor]) -> str:
        energy = exported(self.model, {})
        crops = [middle(image, 96) for image in images]
        scores = " ".join(f"{score(energy, crops, level):.3f}" for level in (5, 15))
        strengths = " ".join(f"{energy.strength(s):.2f}" for s in self.settings.nodes)
        return f"validation at 5/15: {scores}  strength {strengths}"


def ridge_groups(model: LearnedRidge) -> list[dict[str, Any]]:
    """The parameters of a ridge energy with the largest rate of each."""
    curves = [model.slopes, model.log_scale, model.gap]
    settings = model.settings
    return [{"params": [model.weight], "peak": settings.lr}, {"params": curves, "peak": settings.lr_curves}]


def score(energy: RidgeEnergy, images: list[Tensor], level: float, tol: float = 1e-4) -> float:
    """Mean PSNR of the minimisers over images with noise of level / 255."""
    return mean_psnr(lambda y: energy.denoise(y, level / 255, tol=tol).value, images, level)


@torch.no_grad()
def exported(model: LearnedRidge, provenance: dict[str, Any]) -> RidgeEnergy:
    """The energy that a model stands for, with plain weights and its bank proven to have norm at most 1."""
    strength = model.strength(model.nodes)
    trained = {"noise": list(model.settings.noise), "grey_values": [0.0, 1.0], "convexity": model.settings.convexity}
    energy = RidgeEnergy(
        model.filters(),
        model.constrained_slopes(),
        model.log_scale,
        strength.log(),
        model.nodes,
        even=model.even,
        radius=model.settings.radius,
        provenance={**provenance, "trained": trained},
    )
    energy = normalised(energy)
    if energy.denoising_convexity <= 0:
        raise ValueError(
            f"The denoising problem is not proven convex: its constant is {energy.denoising_convexity:.3g}."
        )
    return energy


def newest(folder: Path) -> RidgeEnergy:
    """The energy with the averaged weights of the newest checkpoint in a folder."""
    settings, state, steps = newest_state(folder)
    model = LearnedRidge(settings)
    take_average(model, state)
    return exported(model, {"steps": steps, "minutes": round(state["minutes"], 1)})


if __name__ == "__main__":
    command_line(
        lambda settings, start: RidgeLearner(settings, load_ridge(start) if start else None),
        lambda folder, _: newest(folder),
        load_ridge,
        save_ridge,
        score,
    )
