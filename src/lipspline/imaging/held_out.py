"""Measurements that are held out, to choose a strength by how well it predicts them."""

from collections.abc import Callable, Mapping
from math import inf

import torch
from torch import Tensor, nn

from lipspline.imaging.problem import Problem
from lipspline.operators import LinearOperator
from lipspline.operators.elementary import Selected
from lipspline.pnp import Progress, fbs, minimize
from lipspline.priors import Energy
from lipspline.priors.energy import AdaptiveEnergy, AnalysisEnergy

HELD, LEAST_HELD = 6, 4
"""One readout or projection in so many is held out, and at least so many, or the weight is not refined."""
CENTRE = 0.05
"""Readouts nearer to the strongest one than this, as a fraction of all, are never held out."""
MOST_TRIALS = 6
DENOISER_TRIALS = (1e-3, 60)
"""How far a weight of a denoiser on trial is solved: tolerance, most steps."""
Watch = Callable[[Progress], None]
Solve = Callable[[Tensor, LinearOperator, float, Tensor | None], Tensor]
"""The image for data, an operator, a weight, and an image for another weight to start from."""


def held_out(problem: Problem) -> Tensor | None:
    """Which measurements are kept, like y; None if too few could be held out.

    Whole readouts or projections are held out: every so many of those that are there, but for the strongest ones in
    k-space, without which there is no image.
    """
    if problem.along is None:
        return None
    moduli = problem.y.abs().movedim(problem.along, 0).flatten(1).sum(dim=1).view(-1, problem.samples).sum(dim=1)
    there = moduli.nonzero().squeeze(1)
    if problem.y.is_complex():
        count = len(moduli)
        away = (there - int(moduli.argmax()) + count // 2).remainder(count) - count // 2
        there = there[away.abs() > CENTRE * count]
    held = there[HELD // 2 :: HELD]
    if len(held) < LEAST_HELD:
        return None
    kept = torch.ones(len(moduli), dtype=torch.bool, device=problem.y.device)
    kept[held] = False
    shape = [1] * problem.y.ndim
    shape[problem.along] = len(moduli) * problem.samples
    return kept.repeat_interleave(problem.samples).reshape(shape).expand_as(problem.y)


class Trials:
    """Tells which trial of a strength is under way, if it is told of every step; each trial begins with its first."""

    def __init__(self, tell: Callable[[int], None]):
        self._tell, self.number = tell, 0

    def __call__(self, progress: Progress) -> None:
        """A step of a trial."""
        self.number += progress.calls == 1
        self._tell(self.number)


@torch.no_grad()
def refined(
    served: Energy, weight: float, problem: Problem, max_steps: int = 1000, watch: Watch | None = None
) -> float | None:
    """The weight with which an energy predicts measurements best that were held out, near a first guess."""
    energy, factor = served, 1.0
    if isinstance(served, AdaptiveEnergy):  # the first pass tells as much, at less than half of the cost
        energy, factor = served.first_pass, served.first_strength
    # primal-dual steps that begin at the image for another weight are short, and so look like an end
    cold = isinstance(energy, AnalysisEnergy)

    def solve(y: Tensor, H: LinearOperator, weight: float, start: Tensor | None) -> Tensor:
        return minimize(
            y,
            H,
            energy,
            weight * factor,
            positive=problem.positive,
            tol=problem.trials[0],
            max_steps=min(max_steps, problem.trials[1]),
            start=None if cold else start,
            progress=watch,
        ).value

    return _best(solve, weight, problem, (0.0, inf))


@torch.no_grad()
def refined_beta(
    denoiser: nn.Module,
    beta: float,
    bounds: tuple[float, float],
    problem: Problem,
    max_steps: int = 1000,
    watch: Watch | None = None,
) -> float | None:
    """The same for β of a denoiser, within bounds."""
    tol, steps = DENOISER_TRIALS

    def solve(y: Tensor, H: LinearOperator, weight: float, start: Tensor | None) -> Tensor:
        options = {"tol": tol, "max_steps": min(max_steps, steps), "accelerate": True}
        return fbs(y, H, denoiser, weight, start=start, progress=watch, **options).value

    return _best(solve, beta, problem, bounds)


def _best(solve: Solve, weight: float, problem: Problem, bounds: tuple[float, float]) -> float | None:
    """The weight that predicts best what is held out; None if too little can be.

    Weights are tried in steps of a factor 2 until one is better than both its neighbours; the minimum of the parabola
    through the three is taken.
    """
    kept = held_out(problem)
    if kept is None:
        return None
    H, y = Selected(problem.H, kept[:1]), problem.y * kept
    image = None  # not `problem.start`, which may know what is held out
    errors: dict[int, float] = {}

    def error(k: int) -> float:
        nonlocal image
        if k not in errors:
            errors[k] = inf
            if k == 0 or bounds[0] <= weight * 2.0**k <= bounds[1]:
                image = solve(y, H, weight * 2.0**k, image)
                errors[k] = float(((problem.H.forward(image) - problem.y) * ~kept).norm())
        return errors[k]

    best = 0 if error(0) <= error(-1) else -1
    while sum(found < inf for found in errors.values()) < MOST_TRIALS:
        other = best + 1 if best + 1 not in errors else best - 1
        if other in errors:
            break
        if error(other) < errors[best]:
            best = other
    return weight * 2.0 ** (best + vertex(errors, best))


def vertex(errors: Mapping[int, float], best: int) -> float:
    """How far the minimum of the parabola through the best error and its neighbours lies from the best.

    Example:
        >>> vertex({-1: 2.25, 0: 0.25, 1: 0.25}, 0), vertex({0: 1.0, 1: 2.0}, 0)
        (0.5, 0.0)
    """
    if best - 1 not in errors or best + 1 not in errors:
        return 0.0
    left, middle, right = errors[best - 1], errors[best], errors[best + 1]
    bend = left - 2 * middle + right
    return 0.0 if bend <= 0 or bend == inf else min(max((left - right) / (2 * bend), -0.5), 0.5)
