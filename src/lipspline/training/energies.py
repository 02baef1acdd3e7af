r"""What the trainings of energies share: crops with noise, minimisers, and the loop.

An energy is trained as a denoiser, :math:`x(y) = \arg\min_x \tfrac12\|x - y\|^2 + \lambda(s) R_s(x)`. The derivative of
the loss by the parameters is that of the last step (Jacobian-free backpropagation, Fung et al. 2022): at the minimiser
:math:`x = y - \lambda \nabla R(x)`, and the right side is differentiated with x held fixed, in the direction that the
error has after it was carried through the minimiser. A batch stays for a few visits, and each visit continues from the
minimiser found by the one before.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from lipspline.training.checkpoint import Checkpoint, Checkpoints
from lipspline.training.loop import WeightAverage


@dataclass(frozen=True)
class EnergyTraining:
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
    lr_network: float = 3e-3  # of the network of weights, if there is one
    own_steps: int = 8  # of an unrolled denoiser, those with weights of their own
    shared_steps: int = 24  # and those before, with the weights of an energy
    average: float = 0.999
    seed: int = 0


class Learner(Protocol):
    """What is trained: parameters, and how a batch is solved and scored with them."""

    @property
    def settings(self) -> EnergyTraining: ...

    @property
    def model(self) -> nn.Module: ...

    def groups(self) -> list[dict[str, Any]]:
        """Parameters with the largest rate of each, `peak`."""
        ...

    def begin(self, y: Tensor, noise: Tensor) -> Any:
        """What is kept of a batch from visit to visit, the minimisers so far among it."""
        ...

    def visit(self, kept: Any, y: Tensor, noise: Tensor, steps: int) -> tuple[Any, Tensor]:
        """Continue for some steps: what is kept then, and the minimisers."""
        ...

    def one_step(self, y: Tensor, noise: Tensor) -> Tensor:
        """The denoiser of score matching."""
        ...

    def carried(self, kept: Any, x: Tensor, y: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        """The error carried through the minimiser: how x moves if y moves by it."""
        ...

    def derivative_of_loss(self, kept: Any, x: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        """A function with the derivative of half the squared error."""
        ...

    def validate(self, images: list[Tensor]) -> str:
        """How good it is, in words."""
        ...


def train(learner: Learner, images: Tensor, validation: list[Tensor], folder: Path, save_every: float = 3.0) -> None:
    """Train until the minutes of the settings are used, or go on from the newest checkpoint in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings, model = learner.settings, learner.model
    optimizer = torch.optim.Adam(learner.groups(), betas=(0.9, 0.99))
    average = WeightAverage(list(model.parameters()), settings.average)
    checkpoints, step, minutes = Checkpoints(folder), 0, 0.0
    if found := checkpoints.load():
        step, minutes = found.step, found.state["minutes"]
        model.load_state_dict(found.state["model"])
        optimizer.load_state_dict(found.state["optimizer"])
        average.load(found.state["average"])
    crops, begun, before, saved = Crops(images, settings), time.monotonic(), minutes, minutes
    pool: list[tuple[Tensor, Tensor, Tensor, Any] | None] = [None] * settings.groups
    frame = border_weights(settings.size, settings.kernel // 2)
    losses: list[float] = []
    while minutes < settings.minutes:
        matching = minutes < settings.warmup
        _set_rates(optimizer, minutes, settings)
        group, visit = step % settings.groups, step // settings.groups
        entry, steps = pool[group], settings.later_steps
        if matching or entry is None or (visit + group) % settings.visits == 0:
            clean, y, noise = crops(step)
            kept, steps = None if matching else learner.begin(y, noise), settings.first_steps
        else:
            clean, y, noise, kept = entry
        if matching:
            x, error = y, learner.one_step(y, noise) - clean
        else:
            kept, x = learner.visit(kept, y, noise, steps)
            error = x - clean
        pool[group] = None if matching else (clean, y, noise, kept)
        direction = frame * error
        if settings.adjoint_steps and not matching:
            direction = learner.carried(kept, x, y, direction, noise)
        weights = noise_weights(noise)
        optimizer.zero_grad()
        learner.derivative_of_loss(kept, x, weights * direction / error.numel(), noise).backward()
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
                print(f"{minutes:6.1f} min  step {step}  {learner.validate(validation)}", flush=True)


def _set_rates(optimizer: torch.optim.Optimizer, minutes: float, settings: EnergyTraining) -> None:
    """A short rise at the beginning, then half a cosine down to a fiftieth."""
    progress = min(1.0, minutes / settings.minutes)
    factor = min(1.0, minutes / 0.5 + 0.02) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def newest_state(folder: Path) -> tuple[EnergyTraining, dict[str, Any], int]:
    """Settings, state and step of the newest checkpoint in a folder."""
    found = Checkpoints(folder).load()
    if found is None:
        raise FileNotFoundError(f"{folder} has no checkpoint to read. Train first, or give the folder of a run.")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in found.state["settings"].items()}
    return EnergyTraining(**values), found.state, found.step


@torch.no_grad()
def take_average(model: nn.Module, state: dict[str, Any]) -> None:
    """Put the averaged parameters of a checkpoint into a model."""
    for parameter, value in zip(model.parameters(), state["average"], strict=True):
        parameter.copy_(value)


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


class Crops:
    """Random crops of a stack of images, turned and mirrored, with noise; what comes depends on seed and number."""

    def __init__(self, images: Tensor, settings: EnergyTraining):
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


def middle(image: Tensor, size: int) -> Tensor:
    """The square in the middle of an image (H, W)."""
    i, j = ((n - size) // 2 for n in image.shape)
    return image[i : i + size, j : j + size]


def noisy(image: Tensor, level: float, number: int) -> tuple[Tensor, Tensor]:
    """An image with grey values in [0, 1], and with fixed Gaussian noise of level / 255, nothing clipped."""
    clean = image.float()[None, None] / 255
    return clean, clean + level / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(number))


def mean_psnr(denoise: Callable[[Tensor], Tensor], images: list[Tensor], level: float) -> float:
    """Mean PSNR of a denoiser over images with noise of level / 255."""
    scores = []
    for number, image in enumerate(images):
        clean, y = noisy(image, level, number)
        scores.append(-10 * math.log10(float((denoise(y) - clean).square().mean())))
    return sum(scores) / len(scores)


def command_line(
    learner: Callable[[EnergyTraining, Path | None], Learner],
    newest: Callable[[Path, Path | None], Any],
    load: Callable[[Path], Any],
    save: Callable[[Any, Path], None],
    score: Callable[[Any, list[Tensor], float, float], float],
) -> None:
    """Train, score and export one kind of energy."""
    parser = argparse.ArgumentParser(description="Train, score and export energies.")
    parser.add_argument("command", choices=["train", "score", "export"])
    parser.add_argument("--folder", type=Path, help="of the run: checkpoints are here")
    parser.add_argument("--images", type=Path, help="folder of PNG images to train with or to score")
    parser.add_argument("--validation", type=Path, help="folder of PNG images scored during training")
    parser.add_argument("--start", type=Path, help="an exported energy to begin the training with")
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
        trained = learner(EnergyTraining(**arguments.settings), arguments.start)
        train(trained, images, read_images(arguments.validation), arguments.folder)
    elif arguments.command == "export":
        energy = newest(arguments.folder, arguments.start)
        save(energy, arguments.file)
        print(f"{arguments.file}: {energy!r}")
    else:
        energy = load(arguments.file) if arguments.file else newest(arguments.folder, arguments.start)
        images = read_images(arguments.images)[:: arguments.every]
        for level in arguments.levels:
            print(f"{level:g}: {score(energy, images, level, arguments.tol):.3f} dB", flush=True)
