r"""Training of ridge energies as denoisers: :math:`x(y) = \arg\min_x \tfrac12\|x - y\|^2 + \lambda(s) R_s(x)`.

First the one-step denoiser :math:`y - \lambda \nabla R(y)` is fitted (score matching), then the minimiser itself, with
the derivative of the last step only (Jacobian-free backpropagation, Fung et al. 2022): at the minimiser
:math:`x = y - \lambda \nabla R(x)`, and the right side is differentiated with x held fixed. A batch stays for a few
visits, and each visit continues from the minimiser found by the one before.

    python -m lipspline.training.ridge train --images train400 --validation set12 --folder run --minutes 90
    python -m lipspline.training.ridge score --images bsd68 --file ridge.safetensors
    python -m lipspline.training.ridge export --folder run --file ridge.safetensors
"""

# pyright: reportIncompatibleMethodOverride=false

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline.functional.ridge import Tables, hats, odd_tables
from lipspline.kernels import ridge as kernels
from lipspline.priors.ridge import RidgeEnergy, load_ridge, normalised, save_ridge
from lipspline.training.checkpoint import Checkpoint, Checkpoints
from lipspline.training.loop import WeightAverage

FREQUENCIES = 48  # samples an axis of the filters' power, for the normalisation in training
SHARPNESS = 64


@dataclass(frozen=True)
class RidgeTraining:
    """One training run. Noise levels are standard deviations of grey values in [0, 1]."""

    channels: int = 32
    kernel: int = 13
    regions: int = 32
    radius: float = 4.0
    nodes: tuple[float, ...] = tuple(2.0**k / 255 for k in range(6))
    noise: tuple[float, float] = (1 / 255, 30 / 255)
    convexity: float = 0.0  # the largest λρ: 0 for convex energies, below 1 for weakly convex ones
    strength: float = 4.0
    top: float = 10.0  # λ stays below: the larger it is, the more steps a minimiser takes
    minutes: float = 90.0
    warmup: float = 4.0  # minutes of score matching
    batch: int = 16
    size: int = 48
    groups: int = 4
    visits: int = 5
    first_steps: int = 14
    later_steps: int = 4
    adjoint_steps: int = 6  # 0: the derivative of the last step only
    adjoint_size: float = 0.5
    lr: float = 5e-4  # of the filters
    lr_curves: float = 3e-3  # of slopes, scales and strengths
    average: float = 0.999
    seed: int = 0


class LearnedRidge(nn.Module):
    """The unconstrained parameters of a ridge energy, and the energy that they stand for.

    Filters have mean zero and are divided by about the root of their largest sampled power. Slopes lie in [-ρ, 1] with
    ρ = convexity / top, and the strength λ(s) stays below `top`.
    """

    def __init__(self, settings: RidgeTraining):
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


def accelerated(x: Tensor, gradient: Callable[[Tensor], Tensor], step: Tensor, steps: int, tol: float = 0.0) -> Tensor:
    """Accelerated gradient steps with restarts (O'Donoghue and Candès 2015), image by image."""
    v, t = x, torch.ones_like(step)
    for _ in range(steps):
        new = v - step * gradient(v)
        restart = ((v - new) * (new - x)).sum(dim=(1, 2, 3), keepdim=True) > 0
        t_new = (1 + torch.sqrt(1 + 4 * t * t)) / 2
        v = torch.where(restart, new, new + (t - 1) / t_new * (new - x))
        t = torch.where(restart, torch.ones_like(t), t_new)
        change = (new - x).square().mean().sqrt()
        x = new
        if change < tol:
            break
    return x


@torch.no_grad()
def denoise(model: LearnedRidge, y: Tensor, noise: Tensor, start: Tensor, steps: int, tol: float = 0.0) -> Tensor:
    """Approximate minimisers for y (B, 1, H, W) with noise (B,), from `start`."""
    bank = kernels.prepare_bank(model.filters(), model.even)
    tables = kernels.prepare_tables(*model.tables(noise))
    strength = model.strength(noise).reshape(-1, 1, 1, 1)
    return accelerated(
        start, lambda x: x - y + strength * kernels.ridge_gradient(x, bank, tables), 1 / (1 + strength), steps, tol
    )


@torch.no_grad()
def one_step(model: LearnedRidge, y: Tensor, noise: Tensor) -> Tensor:
    """y - λ ∇R(y)."""
    bank = kernels.prepare_bank(model.filters(), model.even)
    gradient = kernels.ridge_gradient(y, bank, kernels.prepare_tables(*model.tables(noise)))
    return y - model.strength(noise).reshape(-1, 1, 1, 1) * gradient


def adjoint(model: LearnedRidge, x: Tensor, y: Tensor, error: Tensor, noise: Tensor) -> Tensor:
    r"""Approximately :math:`(I + \lambda \nabla^2 R(x))^{-1}` error: how the minimiser x moves if y moves by the error.

    It is a difference quotient of the minimiser, so that it also averages over the kinks of the splines nearby.
    """
    settings = model.settings
    moved = denoise(model, y + settings.adjoint_size * error, noise, x, settings.adjoint_steps)
    return (moved - x) / settings.adjoint_size


def derivative_of_loss(model: LearnedRidge, x: Tensor, error: Tensor, noise: Tensor) -> Tensor:
    r"""A function with the derivative of half the squared error of y - λ ∇R(x), for fixed x.

    The estimate is linear in :math:`\lambda \nabla R`, so that it takes only the pairing of that with the error.
    """
    pairing = kernels.ridge_pairing(error, x, model.filters(), model.even, model.tables(noise))
    return -(model.strength(noise) * pairing).sum()


class Crops:
    """Random crops of a stack of images, turned and mirrored, with noise; what comes depends on seed and number."""

    def __init__(self, images: Tensor, settings: RidgeTraining):
        self.images, self.settings = images, settings

    def __call__(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Clean and noisy batches (B, 1, P, P) and noise levels (B,)."""
        g = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        size, batch = self.settings.size, self.settings.batch
        count, height, width = self.images.shape
        crops = []
        for _ in range(batch):
            n, i, j, turn = (
                int(torch.randint(m, (), generator=g)) for m in (count, height - size + 1, width - size + 1, 8)
            )
            crop = self.images[n, i : i + size, j : j + size].float() / 255
            crop = crop.rot90(turn % 4)
            crops.append(crop.flip(0) if turn >= 4 else crop)
        clean = torch.stack(crops).unsqueeze(1)
        low, high = (math.sqrt(s) for s in self.settings.noise)
        noise = (low + (high - low) * torch.rand(batch, generator=g)).square()
        return clean, clean + noise.reshape(-1, 1, 1, 1) * torch.randn(clean.shape, generator=g), noise


def border_weights(size: int, margin: int) -> Tensor:
    """Weights of the pixels of a crop: little at the border, which is no border of an image."""
    frame = torch.full((size, size), 0.25)
    frame[margin:-margin, margin:-margin] = 1.0
    return frame


def noise_weights(noise: Tensor) -> Tensor:
    """Weights of images: about one over the squared error that a denoiser leaves at their noise."""
    return (noise * 255).pow(-1.35).reshape(-1, 1, 1, 1)


def read_images(folder: Path) -> list[Tensor]:
    """Grey images (H, W) of a folder as 8-bit tensors, in the order of their names."""
    return [torch.from_numpy(np.array(Image.open(path).convert("L"))) for path in sorted(folder.glob("*.png"))]


def mean_psnr(energy: RidgeEnergy, images: list[Tensor], level: float, tol: float = 1e-4) -> float:
    """Mean PSNR over images with fixed Gaussian noise of level / 255, nothing clipped."""
    scores = []
    for number, image in enumerate(images):
        clean = image.float()[None, None] / 255
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(number))
        x = energy.denoise(clean + level / 255 * noise, level / 255, tol=tol).value
        scores.append(-10 * math.log10(float((x - clean).square().mean())))
    return sum(scores) / len(scores)


def middle(image: Tensor, size: int) -> Tensor:
    """The square in the middle of an image (H, W)."""
    i, j = ((n - size) // 2 for n in image.shape)
    return image[i : i + size, j : j + size]


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


def train(
    settings: RidgeTraining, images: Tensor, validation: list[Tensor], folder: Path, save_every: float = 3.0
) -> None:
    """Train until the minutes of the settings are used, or go on from the newest checkpoint in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model = LearnedRidge(settings)
    curves = [model.slopes, model.log_scale, model.gap]
    optimizer = torch.optim.Adam(
        [{"params": [model.weight], "peak": settings.lr}, {"params": curves, "peak": settings.lr_curves}],
        betas=(0.9, 0.99),
    )
    average = WeightAverage(list(model.parameters()), settings.average)
    checkpoints, step, minutes = Checkpoints(folder), 0, 0.0
    if found := checkpoints.load():
        step, minutes = found.step, found.state["minutes"]
        model.load_state_dict(found.state["model"])
        optimizer.load_state_dict(found.state["optimizer"])
        average.load(found.state["average"])
    crops, begun, before, saved = Crops(images, settings), time.monotonic(), minutes, minutes
    pool: list[tuple[Tensor, Tensor, Tensor, Tensor] | None] = [None] * settings.groups
    losses: list[float] = []
    while minutes < settings.minutes:
        matching = minutes < settings.warmup
        _set_rates(optimizer, minutes, settings)
        group, visit = step % settings.groups, step // settings.groups
        entry = pool[group]
        if matching or entry is None or (visit + group) % settings.visits == 0:
            clean, y, noise = crops(step)
            x = y if matching else denoise(model, y, noise, y, settings.first_steps)
        else:
            clean, y, noise, x = entry
            x = denoise(model, y, noise, x, settings.later_steps)
        pool[group] = None if matching else (clean, y, noise, x)
        error = (one_step(model, y, noise) if matching else x) - clean
        frame = border_weights(settings.size, settings.kernel // 2)
        direction = frame * error
        if settings.adjoint_steps and not matching:
            direction = adjoint(model, x, y, direction, noise)
        weights = noise_weights(noise)
        optimizer.zero_grad()
        derivative_of_loss(model, x, weights * direction / error.numel(), noise).backward()
        optimizer.step()
        step += 1
        average.update(step)
        losses.append(float((weights * frame * error.square()).mean()))
        minutes = before + (time.monotonic() - begun) / 60
        if step % 200 == 0:
            recent = sum(losses[-200:]) / len(losses[-200:])
            print(f"{minutes:6.1f} min  step {step}  loss {recent:.4e}", flush=True)
        if minutes - saved >= save_every or minutes >= settings.minutes:
            saved = minutes
            state = {
                "settings": asdict(settings),
                "minutes": minutes,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "average": average.values,
            }
            checkpoints.save(Checkpoint(step, state))
            with average.applied():
                energy = exported(model, {})
            crops_of = [middle(image, 96) for image in validation]
            scores = [mean_psnr(energy, crops_of, level) for level in (5, 15)]
            strengths = " ".join(f"{energy.strength(s):.2f}" for s in settings.nodes)
            print(
                f"{minutes:6.1f} min  step {step}  validation at 5/15: {scores[0]:.3f} {scores[1]:.3f}  strength "
                f"{strengths}",
                flush=True,
            )


def _set_rates(optimizer: torch.optim.Optimizer, minutes: float, settings: RidgeTraining) -> None:
    """A short rise at the beginning, then half a cosine down to a fiftieth."""
    progress = min(1.0, minutes / settings.minutes)
    factor = min(1.0, minutes / 0.5 + 0.02) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def newest(folder: Path) -> RidgeEnergy:
    """The energy with the averaged weights of the newest checkpoint in a folder."""
    found = Checkpoints(folder).load()
    if found is None:
        raise FileNotFoundError(f"{folder} has no checkpoint to read. Train first, or give the folder of a run.")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in found.state["settings"].items()}
    model = LearnedRidge(RidgeTraining(**values))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), found.state["average"], strict=True):
            parameter.copy_(value)
    return exported(model, {"steps": found.step, "minutes": round(found.state["minutes"], 1)})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, score and export ridge energies.")
    parser.add_argument("command", choices=["train", "score", "export"])
    parser.add_argument("--folder", type=Path, help="of the run: checkpoints are here")
    parser.add_argument("--images", type=Path, help="folder of PNG images to train with or to score")
    parser.add_argument("--validation", type=Path, help="folder of PNG images scored during training")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings that differ, as JSON")
    parser.add_argument("--file", type=Path, help="the exported energy, to write or to score")
    parser.add_argument("--levels", type=float, nargs="+", default=[5.0, 10.0, 15.0], help="noise levels / 255")
    parser.add_argument("--every", type=int, default=1, help="score every n-th image only")
    parser.add_argument("--tol", type=float, default=1e-4, help="distance to the minimiser when scoring")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.command == "train":
        images = torch.stack(read_images(arguments.images))
        train(RidgeTraining(**arguments.settings), images, read_images(arguments.validation), arguments.folder)
    elif arguments.command == "export":
        energy = newest(arguments.folder)
        save_ridge(energy, arguments.file)
        print(f"{arguments.file}: {energy!r}, Lipschitz constant of the gradient {energy.upper:.6f}")
    else:
        energy = load_ridge(arguments.file) if arguments.file else newest(arguments.folder)
        images = read_images(arguments.images)[:: arguments.every]
        for level in arguments.levels:
            print(f"{level:g}: {mean_psnr(energy, images, level, arguments.tol):.3f} dB", flush=True)


if __name__ == "__main__":
    main()
