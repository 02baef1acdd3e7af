r"""Training of unrolled ridge denoisers: the last steps have weights of their own, end to end.

The first steps are those of an energy that was trained before, and stay. The others begin with its weights, so that the
training begins as good as the energy is.

    python -m lipspline.training.unrolled train --start ridge.safetensors --images train400 --validation set12 \\
        --folder run --settings '{"warmup": 0, "adjoint_steps": 0, "top": 60, "minutes": 60}'
    python -m lipspline.training.unrolled export --folder run --start ridge.safetensors --file unrolled.safetensors
    python -m lipspline.training.unrolled score --images bsd68 --file unrolled.safetensors
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipspline.functional.ridge import hats, odd_tables
from lipspline.kernels import ridge as kernels
from lipspline.priors.ridge import RidgeEnergy
from lipspline.priors.ridge_files import file_format, load_ridge
from lipspline.priors.unrolled import FORMAT, UnrolledDenoiser, load_unrolled, save_unrolled
from lipspline.training.energies import EnergyTraining, command_line, mean_psnr, middle, newest_state, take_average
from lipspline.training.ridge import LearnedRidge, exported, ridge_groups

DIFFERENCE = 0.02
"""Derivatives by the image are difference quotients of gradients, this part of the noise apart: kinks are averaged."""

FREQUENCIES = 96  # samples an axis of the filters' power
LOUDNESS = 1e6
"""Factor of the derivatives, which are as small as what Adam adds to their size so as not to divide by zero."""


class LearnedSteps(nn.Module):
    """The last steps in training, each with the parameters of a ridge energy."""

    def __init__(self, settings: EnergyTraining):
        super().__init__()
        self.steps = nn.ModuleList(LearnedRidge(settings) for _ in range(settings.own_steps))


def sampled_norm(filters: Tensor) -> Tensor:
    """About n = ‖W‖² of a bank: the largest of its power at some frequencies."""
    return torch.fft.rfft2(filters[:, 0], s=(FREQUENCIES, FREQUENCIES)).abs().square().sum(dim=0).max()


def kept_weight(strength: Tensor, norm: Tensor) -> Tensor:
    """1 - τ for τ = 2/(2 + λn); then τλ = 2 (1 - τ) / n."""
    return strength * norm / (2 + strength * norm)


class PreparedStep:
    """One step x ← (1-τ)x + τy - τλ∇R(x), τ = 2/(2 + λn), n = ‖W‖², of images with noise, for the kernels in C."""

    def __init__(self, filters: Tensor, even: int, tables: Any, strength: Tensor):
        self.bank, self.tables = kernels.prepare_bank(filters, even), kernels.prepare_tables(*tables)
        norm = sampled_norm(filters.detach())
        self.norm = float(norm)
        self.kept = kept_weight(strength.detach(), norm).reshape(-1, 1, 1, 1)

    def gradient(self, x: Tensor) -> Tensor:
        return kernels.ridge_gradient(x, self.bank, self.tables)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self.kept * (x - 2 / self.norm * self.gradient(x)) + (1 - self.kept) * y

    def pulled_back(self, x: Tensor, gradient: Tensor, g: Tensor, noise: Tensor) -> Tensor:
        """The derivative of ⟨g, step(x)⟩ by x: about (1-τ)(g - 2/n ∇²R(x)g)."""
        size = g.square().mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1e-30)
        ratio = DIFFERENCE * noise.reshape(-1, 1, 1, 1) / size
        curved = (self.gradient(x + ratio * g) - gradient) / ratio
        return self.kept * (g - 2 / self.norm * curved)


def prepared(model: LearnedRidge, noise: Tensor) -> PreparedStep:
    """A step in training, for images with noise (B,)."""
    return PreparedStep(model.filters(), model.even, model.tables(noise), model.strength(noise))


class UnrolledLearner:
    """What is kept of a batch are the images after the first steps, and after each of the others.

    Args:
        first: the energy of the first steps.
        own: those that the last of the other steps begin with; the others begin with `first`.
    """

    def __init__(self, settings: EnergyTraining, first: RidgeEnergy, own: Sequence[RidgeEnergy] = ()):
        if len(own) > settings.own_steps:
            raise ValueError(
                f"The denoiser to begin with has {len(own)} steps with weights of their own, but own_steps is "
                f"{settings.own_steps}. It must be at least that."
            )
        self.settings, self.first, self.model = settings, first, LearnedSteps(settings)
        for step, energy in zip(self.learned, [first] * (settings.own_steps - len(own)) + [*own], strict=True):
            step.start_from(energy)

    @property
    def learned(self) -> list[LearnedRidge]:
        return list(self.model.steps)  # type: ignore[arg-type]

    def groups(self) -> list[dict[str, Any]]:
        return [group for step in self.learned for group in ridge_groups(step)]

    @torch.no_grad()
    def begin(self, y: Tensor, noise: Tensor) -> list[Tensor]:
        level, first = hats(noise, self.first.nodes), self.first
        scale = torch.exp(level @ first.log_scale.mT) / noise[:, None]
        tables = odd_tables(first.slopes, first.radius, scale)
        step, x = PreparedStep(first.filters, first.even, tables, torch.exp(level @ first.log_strength)), y
        for _ in range(self.settings.shared_steps):
            x = step(x, y)
        return [x]

    @torch.no_grad()
    def visit(self, kept: list[Tensor], y: Tensor, noise: Tensor, steps: int) -> tuple[list[Tensor], Tensor]:
        images = kept[:1]
        for step in self.learned:
            images.append(prepared(step, noise)(images[-1], y))
        return [*images, y], images[-1]

    def one_step(self, y: Tensor, noise: Tensor) -> Tensor:
        raise ValueError("An unrolled denoiser is trained without score matching. Set warmup to 0.")

    def carried(self, kept: Any, x: Tensor, y: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        raise ValueError("An unrolled denoiser has no minimiser to carry errors through. Set adjoint_steps to 0.")

    def derivative_of_loss(self, kept: list[Tensor], x: Tensor, error: Tensor, noise: Tensor) -> Tensor:
        """Back through the steps: each is linear in 1 - τ, in 2/n and in ∇R, which so take pairings with the error."""
        (*images, y), g, total = kept, error, error.new_zeros(())
        for number in reversed(range(len(self.learned))):
            step, before, after = self.learned[number], images[number], images[number + 1]
            ready, filters = prepared(step, noise), step.filters()
            norm, stepped = sampled_norm(filters), (after - y) / ready.kept + y  # x - 2/n ∇R(x)
            gradient = (before - stepped) * ready.norm / 2
            error = -2 / ready.norm * ready.kept * g
            by_gradient = kernels.ridge_pairing(error, before, filters, step.even, step.tables(noise)).sum()
            by_kept = kept_weight(step.strength(noise), norm) @ (g * (stepped - y)).sum(dim=(1, 2, 3))
            total = total + by_gradient + by_kept - 2 / norm * (ready.kept * g * gradient).sum()
            g = ready.pulled_back(before, gradient, g, noise)
        return LOUDNESS * total

    def validate(self, images: list[Tensor]) -> str:
        crops = [middle(image, 96) for image in images]

        def denoise(level: float, y: Tensor) -> Tensor:
            noise = torch.tensor([level / 255])
            return self.visit(self.begin(y, noise), y, noise, 0)[1]

        scores = " ".join(f"{mean_psnr(partial(denoise, level), crops, level):.3f}" for level in (5, 10, 15))
        strengths = " ".join(f"{float(step.strength(torch.tensor([10 / 255])).detach()):.1f}" for step in self.learned)
        return f"validation at 5/10/15: {scores}  strengths at 10: {strengths}"


@torch.no_grad()
def exported_steps(model: LearnedSteps, first: RidgeEnergy, provenance: dict[str, Any]) -> UnrolledDenoiser:
    """The denoiser that a model stands for, with plain weights and proven constants."""
    settings: EnergyTraining = model.steps[0].settings  # type: ignore[union-attr]
    own = [exported(step, {}) for step in model.steps]  # type: ignore[arg-type]
    trained = {"noise": list(settings.noise), "grey_values": [0.0, 1.0]}
    return UnrolledDenoiser(
        [first, *own], [settings.shared_steps, *[1] * len(own)], provenance={**provenance, "trained": trained}
    )


def score(denoiser: UnrolledDenoiser, images: list[Tensor], level: float, tol: float = 0.0) -> float:
    """Mean PSNR over images with noise of level / 255; the number of steps is fixed, so that `tol` does not matter."""
    return mean_psnr(denoiser.at(level / 255), images, level)


def newest(folder: Path, start: Path | None) -> UnrolledDenoiser:
    """The denoiser with the averaged weights of the newest checkpoint in a folder, after the steps of `start`."""
    settings, state, steps = newest_state(folder)
    model = LearnedSteps(settings)
    take_average(model, state)
    return exported_steps(model, _energies(start)[0], {"steps": steps, "minutes": round(state["minutes"], 1)})


def _energies(start: Path | None) -> list[RidgeEnergy]:
    """The energy of the first steps, and those of the others if the training begins with an unrolled denoiser."""
    if start is None:
        raise ValueError("An unrolled denoiser begins with the steps of an energy. Give the file of that as start.")
    return load_unrolled(start).parts() if file_format(start) == FORMAT else [load_ridge(start)]


def _learner(settings: EnergyTraining, start: Path | None) -> UnrolledLearner:
    first, *own = _energies(start)
    return UnrolledLearner(settings, first, own)


if __name__ == "__main__":
    command_line(_learner, newest, load_unrolled, save_unrolled, score)
