r"""Descent to a minimiser of a smooth J over a box: quasi-Newton steps, each of them proven to lower J.

A candidate x' is taken if, with `Δ = x - x'` and the gradient g' at x',

    ⟨g', Δ⟩ + ½‖HΔ‖² + (e/2)‖Δ‖² >= c ‖Δ‖²        and        ‖g'‖ <= b ‖Δ‖ (reduced by the box)

or, if `e = ε - λρ` is negative, `J(x) - J(x') >= c ‖Δ‖²` by more than round-off instead of the first. The left side of
the first is a lower bound on `J(x) - J(x')`, since `J - ½‖H·‖² - (e/2)‖·‖²` is convex: no value of J is needed, and
nothing cancels. A plain step `x - g/t` passes for `t >= L + (λρ - ε)₊/2 + c`. So J falls by at least `c‖Δ‖²` each step
and gradients vanish with the steps; J is piecewise quadratic or otherwise tame, so the whole sequence converges to a
critical point, which is the minimiser if J is strongly convex (docs/guarantee.md).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lipspline.pnp.batch import Clock, ImageRun, Progress, Status, inner, norms, pick, scale, stop
from lipspline.pnp.guarantee import ObjectiveSetting

MEMORY = 10
# The decrease c of J, and the bound b on gradients, in units of the curvature L.
DECREASE, GRADIENT = 1e-6, 10.0
# Round-off of a value of J, in units of eps J.
VALUE_NOISE = 20.0
# Shorter steps along one direction, before a plain step is taken.
TRIALS = 3
# A residual below so many eps that has not fallen by a tenth over so many calls is round-off.
ROUGH, PATIENCE, FALL = 100.0, 60, 0.9


class Slope(NamedTuple):
    """The gradient of J and the data `Hx` at some images."""

    gradient: Tensor
    data: Tensor


class Box(NamedTuple):
    """`low <= x <= high`, pixel by pixel."""

    low: float
    high: float

    def clip(self, x: Tensor) -> Tensor:
        """The nearest image in the box."""
        return x if self == EVERYTHING else x.clamp(self.low, self.high)

    def reduced(self, x: Tensor, gradient: Tensor) -> Tensor:
        """The shortest `gradient + n` with n in the normal cone of the box at x: what a step in the box can use."""
        return self.free(x, gradient, gradient)

    def free(self, x: Tensor, gradient: Tensor, values: Tensor) -> Tensor:
        """The values, with zeros where the box keeps a pixel from following the gradient."""
        if self == EVERYTHING:
            return values
        blocked = ((x <= self.low) & (gradient > 0)) | ((x >= self.high) & (gradient < 0))
        return torch.where(blocked, 0, values)


EVERYTHING = Box(-math.inf, math.inf)


@torch.no_grad()
def descend(
    slope: Callable[[Tensor, Tensor], Slope],
    value: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    setting: ObjectiveSetting,
    *,
    box: Box = EVERYTHING,
    tol: float,
    max_steps: int,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Tensor, list[ImageRun]]:
    """Go down from each image of `start` until the reduced gradient is at most `tol ‖H‖² ‖x‖`.

    Args:
        slope: `(x, rows) -> Slope` at the images `rows` of the batch.
        value: `(x, Hx) -> (B,)`, the values of J at all images; asked for where gradients do not prove descent.
        max_steps: the largest number of calls of `slope`.
    """
    state, clock, calls = _Descent(slope, value, box.clip(start), setting, box, tol), Clock(tol, max_steps, progress), 1
    while True:
        state.record()
        clock.tick(state.runs, state.running, calls, state.x)
        if calls == max_steps or not state.running.any():
            return state.x, state.finish()
        state.step()
        calls += 1


class _Descent:
    """The current images, their slopes, and the candidates along `direction`; trial number TRIALS is a plain step."""

    def __init__(
        self,
        slope: Callable[[Tensor, Tensor], Slope],
        value: Callable[[Tensor, Tensor], Tensor],
        x: Tensor,
        setting: ObjectiveSetting,
        box: Box,
        tol: float,
    ):
        self.slope, self.value, self.x, self.setting, self.box, self.tol = slope, value, x, setting, box, tol
        self.least = DECREASE * setting.curvature
        self.plain = 1 / (setting.curvature + max(-setting.excess, 0.0) / 2 + self.least)
        self.runs = [ImageRun(tol) for _ in x]
        self.running = torch.ones(len(x), dtype=torch.bool, device=x.device)
        self.here = slope(x, torch.arange(len(x), device=x.device))
        self.force = box.reduced(x, self.here.gradient)
        self.unit, self.eps = setting.norm[1] ** 2, torch.finfo(x.dtype).eps
        self.floor = self.eps * torch.maximum(norms(x), norms(self.here.gradient) / self.unit)
        self.secants = _Secants(x)
        self.trial = torch.full((len(x),), TRIALS, device=x.device)
        self.direction, self.length = -self.plain * self.force, torch.ones_like(self.floor)
        self.level: Tensor | None = None  # the values of J at x, if they are known

    def record(self) -> None:
        """Note the residuals, and stop the images that have arrived or turned bad."""
        size = norms(self.force)
        residual = size / (self.unit * torch.maximum(norms(self.x), self.floor))
        for row in self.running.nonzero().squeeze(1).tolist():
            run = self.runs[row]
            run.residuals.append(float(residual[row]))
            run.change = float(size[row]) / self.unit
            if not math.isfinite(run.change):
                run.status = Status.NOT_FINITE
            elif run.residuals[-1] <= self.tol:
                run.status = Status.CONVERGED
            elif self._stalls(run.residuals):
                run.status = Status.ROUND_OFF
            self.running[row] = run.status is Status.RUNNING

    def _stalls(self, residuals: list[float]) -> bool:
        """Whether gradients are round-off: tiny, and no shorter than they were long ago."""
        if len(residuals) <= PATIENCE or residuals[-1] > ROUGH * self.eps:
            return False
        return min(residuals[-PATIENCE:]) > FALL * min(residuals[:-PATIENCE])

    def step(self) -> None:
        """Try one candidate for each running image: take it, or propose a shorter step, or a plain one."""
        rows = self.running.nonzero().squeeze(1)
        candidate = self.box.clip(self.x + scale(self.length, self.direction))
        if len(rows) == len(candidate):
            there = self.slope(candidate, rows)
        else:
            found = self.slope(candidate[rows], rows)
            there = Slope(*(old.index_copy(0, rows, new) for old, new in zip(self.here, found, strict=True)))
        force = self.box.reduced(candidate, there.gradient)
        taken = self._lower(candidate, there, force)
        self._count(taken)
        step, change = candidate - self.x, there.gradient - self.here.gradient
        free = [self.box.free(candidate, there.gradient, part) for part in (step, change)]
        self.secants.learn(free[0], free[1], taken)
        before, after = inner(self.here.gradient, self.direction), inner(there.gradient, self.direction)
        shorter = (before / (before - after)).nan_to_num(0.5).clamp(0.1, 0.7)
        self.x, self.force = pick(taken, candidate, self.x), pick(taken, force, self.force)
        self.here = Slope(*(pick(taken, new, old) for new, old in zip(there, self.here, strict=True)))
        self.trial = torch.where(taken, 0, self.trial + 1)
        self.secants.forget(self.trial >= TRIALS)
        self._aim(taken, shorter)

    def finish(self) -> list[ImageRun]:
        """The record of each image."""
        stop(self.runs, self.running, Status.OUT_OF_STEPS)
        return self.runs

    def _lower(self, candidate: Tensor, there: Slope, force: Tensor) -> Tensor:
        """Where a candidate is proven to lower J, and to bring the gradient down with the steps."""
        moved = self.x - candidate
        far, size = norms(moved), norms(force)
        fall = inner(there.gradient, moved) + norms(self.here.data - there.data) ** 2 / 2
        fall = fall + self.setting.excess / 2 * far**2
        # near the end the fall drowns in round-off: there a step that shortens the gradient is taken for one
        noise = self.eps * (norms(self.here.gradient) + self.unit * norms(self.x)) * far
        lower = (fall >= self.least * far**2) | ((fall >= -noise) & (size < norms(self.force)))
        levels: tuple[Tensor, Tensor] | None = None
        if self.setting.excess < 0 and not bool(lower[self.running].all()):
            # the bound by gradients counts the worst curvature -λρ along the whole way: values may know better
            here = self.value(self.x, self.here.data) if self.level is None else self.level
            levels = here, self.value(candidate, there.data)
            margin = self.least * far**2 + VALUE_NOISE * self.eps * (here.abs() + levels[1].abs())
            lower = lower | (here - levels[1] >= margin)
        taken = self.running & lower & (size <= GRADIENT / self.plain * far)
        if levels is not None:
            self.level = torch.where(taken, levels[1], levels[0])
        elif taken.any():
            self.level = None
        return taken

    def _count(self, taken: Tensor) -> None:
        for row in taken.nonzero().squeeze(1).tolist():
            self.runs[row].steps += 1
            self.runs[row].accelerated += int(self.trial[row]) < TRIALS
        stuck = self.running & ~taken & (self.trial >= TRIALS)
        stop(self.runs, stuck, Status.ROUND_OFF)
        self.running = self.running & ~stuck

    def _aim(self, taken: Tensor, shorter: Tensor) -> None:
        """The next direction where a step was taken, a shorter one where it was not, a plain step after TRIALS."""
        ahead = -self.box.free(self.x, self.here.gradient, self.secants.times(self.force))
        steep = inner(ahead, self.force) < 0
        self.trial = torch.where(taken & ~steep, TRIALS, self.trial)
        simple = self.trial >= TRIALS
        self.direction = pick(simple, -self.plain * self.force, pick(taken, ahead, self.direction))
        self.length = torch.where(taken | simple, 1.0, self.length * shorter)


class _Secants:
    """The limited-memory BFGS matrix of each image: steps and changes of the gradient, as rows `(B, 2m, N)`.

    What is computed from inner products alone, a few hundred numbers, is left to numpy, whose calls cost less.
    """

    def __init__(self, like: Tensor):
        flat = _flat(like)
        images = len(flat)
        self.rows = flat.new_zeros(images, 2 * MEMORY, flat.shape[1])
        self.gram = np.zeros((images, 2 * MEMORY, 2 * MEMORY))
        self.valid = np.zeros((images, MEMORY), dtype=bool)
        self.newest = np.zeros(images, dtype=np.int64)
        self.learned = 0

    def _products(self, vector: Tensor) -> np.ndarray:
        """The inner products `(B, 2m)` of all rows with one vector of each image."""
        return (self.rows @ vector.unsqueeze(2)).squeeze(2).double().cpu().numpy()

    @np.errstate(all="ignore")
    def learn(self, step: Tensor, change: Tensor, taken: Tensor) -> None:
        """Replace the oldest pair where a step was taken; a pair without positive curvature is not used."""
        if not taken.any():
            return
        slot = self.learned % MEMORY
        self.learned += 1
        for row, new in ((slot, _flat(step)), (MEMORY + slot, _flat(change))):
            self.rows[:, row] = pick(taken, new, self.rows[:, row])
            self.gram[:, row] = self.gram[:, :, row] = self._products(self.rows[:, row])
        sizes = self.gram[:, slot, slot] * self.gram[:, MEMORY + slot, MEMORY + slot]
        curved = self.gram[:, slot, MEMORY + slot] > 1e-10 * np.sqrt(sizes)
        replaced = taken.cpu().numpy()
        self.valid[:, slot] = np.where(replaced, curved, self.valid[:, slot])
        self.newest = np.where(replaced & curved, slot, self.newest)

    def forget(self, which: Tensor) -> None:
        """Begin again for some images."""
        self.valid &= ~which.cpu().numpy()[:, None]

    @np.errstate(all="ignore")
    def times(self, g: Tensor) -> Tensor:
        """The inverse matrix times g, by the two loops of Nocedal on coefficients; 0 where nothing is known."""
        products, gram = self._products(_flat(g)), self.gram
        steps, changes = np.arange(MEMORY), np.arange(MEMORY, 2 * MEMORY)
        order = [(self.learned + i) % MEMORY for i in range(MEMORY)]  # from the oldest on
        curvature = gram[:, steps, changes]
        inverse = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=self.valid)
        gains = np.divide(curvature, gram[:, changes, changes], out=np.zeros_like(curvature), where=self.valid)
        gain = gains[np.arange(len(gains)), self.newest]
        weights = np.zeros_like(products)  # of the rows in the result; of g itself it is `gain`
        first = np.zeros_like(inverse)
        for j in reversed(order):
            first[:, j] = inverse[:, j] * (products[:, j] + (weights * gram[:, j]).sum(axis=1))
            weights[:, MEMORY + j] -= first[:, j]
        weights *= gain[:, None]
        for j in order:
            along = gain * products[:, MEMORY + j] + (weights * gram[:, MEMORY + j]).sum(axis=1)
            weights[:, j] += np.where(self.valid[:, j], first[:, j] - inverse[:, j] * along, 0.0)
        of_rows = torch.from_numpy(weights).to(self.rows).unsqueeze(1)
        result = scale(torch.from_numpy(gain).to(self.rows), _flat(g)) + (of_rows @ self.rows).squeeze(1)
        return _like(result, g)


def _flat(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).flatten(1)


def _like(flat: Tensor, x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.view_as_complex(flat.reshape(*x.shape, 2))
    return flat.reshape(x.shape)
