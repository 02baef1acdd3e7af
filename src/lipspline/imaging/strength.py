r"""How strongly to denoise: the noise level of the denoiser and β, where the user leaves them to the program.

A denoiser trained for noise `s` moves an image by about `s² ∇ log p`, towards what is likely; β times it moves by
`β s² ∇ log p`. For data with noise `n` the most likely image is a fixed point of [eq:pnp_fbs] if each step `α = 1/‖H‖²`
moves by `α n² ∇ log p`. So the two agree where

.. math:: \beta s^2 = n^2 / \|H\|^2.

Denoisers remove more than that where little in the data holds against them, and `PRIOR` times the right side is better:
docs/choose.md has a table of it. `auto` solves this for whichever of `s` and β is not given. If neither is, β is
`USUAL_BETA`, or less where `s` would fall below the levels that a shipped denoiser was trained for. It is a rule of
thumb: with images like yours and a known truth, `pnp.tune` finds better numbers.

An energy at level s with its own strength λ(s) stands for what is known about images, `λ(s) R_s / s²`, so that data
with noise `n` are weighed right by `λ(s) n² / s²`, whatever H is; `ENERGY` times that is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, sqrt
from typing import Any, Literal

from torch import nn

from lipspline._infra import checks
from lipspline._infra.files import checksum
from lipspline.certification import certify
from lipspline.imaging.held_out import held_out, refined, refined_beta
from lipspline.imaging.problem import Iteration, Problem, solve_problem
from lipspline.operators.elementary import Selected
from lipspline.pnp import Progress
from lipspline.priors import COMPLEX_RANGE, FOLDED_RANGE, UNIT_RANGE, Energy, EnergyPrior, Prior, resolve
from lipspline.report import DataMisfit

Auto = Literal["auto"]

PRIOR = 0.3
"""The strength of the prior over that which the noise asks for."""
USUAL_BETA = 0.1
BETAS = (0.01, 0.5)
"""The least β that `auto` chooses, and the largest, up to which [eq:EstForward] holds."""
NOISES = (1.0, 25.0)
"""The same for the noise level, in units of 1/255."""


ENERGY = 0.5
"""The strength of an energy over that which the noise asks for."""
UNTRIED = 2.0
"""k-space wants an energy more than other data do; where nothing can be held out to tell how much, by this factor."""
ABOVE = 2.0
"""The noise level at which an energy is served, over that of the data: a little smoother than the noise asks for."""
ENERGY_NOISES = (4.0, 25.0)
"""The least and the largest noise level at which `auto` serves an energy, in units of 1/255."""
CONVEX = "ridge"
"""The energy by which the weight of one that is not convex is refined."""
FROM_HELD_OUT = "then from measurements held out"
QUIET = 0.5 / 255
"""Data with less noise than this, relative to the brightness of the image, are treated as if they had it."""


@dataclass(frozen=True)
class Strength:
    """A prior as it is used: at a noise level, for a range of values, with its weight."""

    prior: Prior
    served: nn.Module
    """The denoiser or the energy at the chosen noise level, for the values that occur in the images."""
    name: str
    """Of the prior with its noise level, such as "lls-15", or of the file."""
    weight: float
    """β of a denoiser, λ of an energy."""
    chosen: str
    """Who chose noise level and weight, in words."""
    noise: float | None = None
    """The noise level that the prior is served at; None for as it was trained."""
    range: tuple[float, float] = UNIT_RANGE
    """The values that it is served for."""

    @cached_property
    def upper(self) -> float:
        """The proven Lipschitz bound: of a denoiser, or of the gradient of an energy."""
        return proven_upper(self.served)

    @property
    def method(self) -> str:
        """What the reconstruction is called in print."""
        return (
            f"Minimum with {self.prior.name}"
            if isinstance(self.served, Energy)
            else f"Plug-and-play, {self.prior.name}"
        )

    def __str__(self) -> str:
        symbol = "λ" if isinstance(self.served, Energy) else "β"
        return f"{self.prior.kind} {self.name}, {symbol} = {self.weight:.3g} ({self.chosen})"


def proven_upper(served: nn.Module) -> float:
    """The Lipschitz bound of a denoiser, or of the gradient of an energy, proven from the weights."""
    return served.lipschitz if isinstance(served, Energy) else certify(served).upper


def describe_prior(
    source: str, prior: Prior, denoiser: nn.Module, noise: float | None, range: tuple[float, float], upper: float
) -> dict[str, Any]:
    """What a certificate says of its denoiser, enough to have it again and prove its bound again.

    Args:
        source: the name in the catalogue or the file that `prior` was resolved from.
        denoiser: `prior` at this noise level and range.
        upper: its certified Lipschitz bound; infinite for an energy with kinks, which is certified by duality.
    """
    return {
        "source": source,
        "name": prior.name,
        "noise": noise,
        "range": list(range),
        "certificate": known(upper),
        "sha256": checksum(denoiser.state_dict()),
        "file_sha256": prior.sha256,
    }


def known(bound: float) -> float | None:
    """A bound as JSON has it: None where there is none."""
    return bound if isfinite(bound) else None


def choose(
    model: str | Prior,
    noise: float | Auto,
    beta: float | Auto,
    problem: Problem,
    factor: float = 1.0,
    *,
    refine: bool = True,
    max_steps: int = 1000,
    watch: Callable[[Progress], None] | None = None,
) -> Strength:
    """A prior by name or file, at noise level `noise`, and its weight; what is "auto" follows from the data.

    Args:
        beta: the weight of a denoiser.
        factor: the strength of the regularisation relative to the automatic one.
        refine: choose the weight by measurements that are held out, if it is free; otherwise by the noise alone.
        max_steps: the most steps of a solve.
        watch: is told of every step of the solves that refine takes; what it raises ends them.
    """
    found = resolve(model)
    if isinstance(found, EnergyPrior):
        if beta != "auto":
            raise ValueError(f"beta is the weight of a denoiser, but {found.name} is an energy. Give strength instead.")
        return _choose_energy(found, noise, problem, factor, max_steps if refine else 0, watch)
    # in CT small β are tried too shortly to tell them apart: on a torso 31.8 dB instead of the 33.1 of the rule
    free = beta == "auto" and refine and problem.y.is_complex()
    chosen = _choose_denoiser(found, noise, beta, problem, 1.0 if free else factor)
    if not free:
        return chosen
    best = refined_beta(chosen.served, chosen.weight, BETAS, problem, max_steps, watch)
    if best is None:
        return chosen if factor == 1 else _choose_denoiser(found, noise, beta, problem, factor)
    weight = min(max(best * factor, BETAS[0]), BETAS[1])
    return replace(chosen, weight=weight, chosen=f"{_seen(problem, factor)}, {FROM_HELD_OUT}")


def _choose_energy(
    found: EnergyPrior,
    noise: float | Auto,
    problem: Problem,
    factor: float,
    max_steps: int,
    watch: Callable[[Progress], None] | None,
) -> Strength:
    """The energy at a noise level a little above that of the data, with the weight that the noise asks for."""
    norm = problem.H.norm_bounds()[1]
    data_noise = max(problem.total_noise, QUIET * norm)
    automatic = min(max(255 * ABOVE * data_noise / norm, ENERGY_NOISES[0]), ENERGY_NOISES[1])
    level = automatic if noise == "auto" else checks.positive("noise", noise)
    served, weight = found.at(level).to(problem.y.device), found.strength(level, 255 * data_noise)
    best = None
    if max_steps:
        trial, first = served, weight
        if served.weak_convexity:  # a convex energy says as surely how much the data want, and is solved in few steps
            convex = resolve(CONVEX)
            assert isinstance(convex, EnergyPrior)
            trial, first = convex.at(level).to(problem.y.device), convex.strength(level, 255 * data_noise)
        refined_weight = refined(trial, first, problem, max_steps, watch)
        best = None if refined_weight is None else weight * refined_weight / first
    seen = _seen(problem, factor)
    chosen = seen if best is None else f"{seen}, {FROM_HELD_OUT}"
    if best is None:
        best = ENERGY * weight * (UNTRIED if max_steps and problem.y.is_complex() else 1)
    name = f"{found.name}-{level:.3g}" if found.levels else found.name
    return Strength(found, served, name, best * factor, chosen, level)


def predicted(
    problem: Problem,
    strength: Strength,
    iteration: Iteration,
    progress: Callable[[Progress], None] | None = None,
) -> DataMisfit | None:
    """How far measurements that were held out are from what the image made of the others predicts for them.

    It tells priors apart where no truth is known. None if too few measurements could be held out.
    """
    kept = held_out(problem)
    if kept is None:
        return None
    part = replace(problem, y=problem.y * kept, H=Selected(problem.H, kept[:1]), start=None)
    x = solve_problem(strength.name, part, strength.served, strength.weight, iteration, progress=progress)[1].value
    missing = replace(problem, y=problem.y * ~kept, H=Selected(problem.H, ~kept[:1]))
    return missing.misfit(x)


def _choose_denoiser(
    found: Prior, noise: float | Auto, beta: float | Auto, problem: Problem, factor: float
) -> Strength:
    weight = None if beta == "auto" else checks.within("beta", beta, 0, 1)
    relative = relative_noise(problem, PRIOR * factor)
    words = "given" if weight and noise != "auto" else _seen(problem, factor)
    values = value_range(problem)
    if len(found.levels) < 2 and noise == "auto":  # one network: as it was trained
        if not found.levels and weight is None:
            raise ValueError(f"{found.name} does not say which noise level it was trained for. Give beta.")
        level = next(iter(found.levels), None)
        chosen = weight if weight or level is None else matching_beta(relative, level)
        assert chosen is not None
        served = found.at(level, range=values).to(problem.y.device)
        return Strength(found, served, found.name, chosen, "given" if weight else words, level, values)
    if noise == "auto":
        level = automatic_level(found.levels_for(values), relative, weight)
    else:
        level = checks.positive("noise", noise)
    chosen = weight or matching_beta(relative, level)
    served = found.at(level, range=values).to(problem.y.device)
    return Strength(found, served, f"{found.name}-{level:.3g}", chosen, words, level, values)


def _seen(problem: Problem, factor: float) -> str:
    """Who chose the weight, from which noise: `noise` of the slice in the certificate, and what it means for images."""
    times = "auto" if factor == 1 else f"{factor:g} times auto"
    data, image = f"{problem.noise:.3g}", f"{relative_noise(problem, 1):.3g}"
    seen = "" if data == image else f", which is {image} of the brightness of the image"
    some = problem.map_errors > problem.noise / 4
    maps = f" and at most {problem.map_errors:.3g} of errors of the coil maps" if some else ""
    return f"{times}, from noise {data} in the data{maps}{seen}"


def value_range(problem: Problem) -> tuple[float, float]:
    """The values that a denoiser is served for: those of real parts if images are complex."""
    if not problem.direct.is_complex():
        return UNIT_RANGE
    return COMPLEX_RANGE if problem.phase is None else FOLDED_RANGE


def relative_noise(problem: Problem, prior: float = PRIOR) -> float:
    """The noise that the denoiser is matched to: that of the data over ‖H‖, for images in [0, 1], times √prior."""
    return problem.total_noise * sqrt(prior) / problem.H.norm_bounds()[1]


def matching_beta(relative: float, noise: float) -> float:
    """The β at which a denoiser for this noise level is as strong as the noise in the data asks for, within `BETAS`.

    Example:
        >>> round(matching_beta(0.01, 8), 3), matching_beta(0.0, 8), matching_beta(1.0, 8)
        (0.102, 0.01, 0.5)
    """
    return min(max((255 * relative / noise) ** 2, BETAS[0]), BETAS[1])


def matching_noise(relative: float, beta: float) -> float:
    """The noise level at which a denoiser weighted with β is as strong as the data ask for, within `NOISES`.

    Example:
        >>> round(matching_noise(0.01, 0.1), 2), matching_noise(0.0, 0.1), matching_noise(1.0, 0.1)
        (8.06, 1.0, 25.0)
    """
    return min(max(255 * relative / sqrt(beta), NOISES[0]), NOISES[1])


def automatic_level(trained: tuple[float, ...], relative: float, weight: float | None = None) -> float:
    """The noise level that goes with β; where β is free too, not below those that the denoiser was trained for.

    Below them it would be averaged with the identity, which does what a smaller β does, and slows the iteration down.

    Example:
        >>> automatic_level((5, 15), 0.001), automatic_level((10, 30), 0.001), automatic_level((5, 15), 0.001, 0.1)
        (5, 10, 1.0)
    """
    level = matching_noise(relative, weight or USUAL_BETA)
    return max(level, min(trained)) if weight is None else level
