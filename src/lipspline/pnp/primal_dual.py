r"""Minimisers with an energy that has kinks, `J(x) = f(x) + λ Σ w_i ‖(Dx)_i‖`, and a dual certificate for any x.

For every p with `‖p_i‖ <= λ w_i`, `λ R(z) >= ⟨p, Dz⟩`. So, with `q = ∇f(x) + Dᵀp` reduced by the box, for all z in it

    J(z) >= J(x) - A + ⟨q, z - x⟩ + (μ/2)‖z - x‖² ,        A = λ R(x) - ⟨p, Dx⟩ >= 0

and the distance t of x to the minimiser obeys `μt² <= A + ‖q‖t` (`ObjectiveSetting.distance`). The steps are those of
FISTA with restarts; the proximal step is taken in p, by a few accelerated steps from the p of the step before.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipspline.pnp.batch import Clock, ImageRun, Progress, Status, inner, norms, scale, stop
from lipspline.pnp.descent import Box
from lipspline.pnp.guarantee import ObjectiveSetting
from lipspline.priors.energy import AnalysisEnergy

Gradient = Callable[[Tensor, Tensor], Tensor]
# Steps in p for each step in x, at first and at most; more where fewer do not help.
INNER, MOST_INNER = 4, 64
# After this many steps without progress the steps in p are doubled.
PATIENCE = 30


class PrimalDual:
    """The running state of a batch; `solve` returns images, their records and the dual variables.

    Args:
        gradient: `(x, rows) -> ∇f(x)`, affine in x and zero outside the support.
        supported: sets pixels outside the support to zero.
    """

    def __init__(
        self,
        gradient: Gradient,
        supported: Callable[[Tensor, Tensor], Tensor],
        energy: AnalysisEnergy,
        setting: ObjectiveSetting,
        box: Box,
    ):
        self.gradient, self.supported, self.energy, self.setting, self.box = gradient, supported, energy, setting, box
        self.step = 1 / (setting.norm[1] ** 2 + setting.convexity)

    @torch.no_grad()
    def solve(
        self, start: Tensor, *, tol: float, max_steps: int, progress: Callable[[Progress], None] | None
    ) -> tuple[Tensor, list[ImageRun], Tensor]:
        """Step until the residual `(‖q‖ + √(‖q‖² + 4μA)) / 2` is at most `tol ‖H‖² ‖x‖`, each image for itself."""
        rows = torch.arange(len(start), device=start.device)
        x = self.box.clip(start)
        slope = self.gradient(x, rows)
        p = torch.zeros_like(self.energy.analyse(x))
        runs, running = [ImageRun(tol) for _ in x], torch.ones(len(x), dtype=torch.bool, device=x.device)
        ahead, ahead_slope, momentum = x, slope, torch.ones_like(norms(x))
        best, since, inner_steps, calls = math.inf, 0, INNER, 1
        clock = Clock(tol, max_steps, progress)
        self._record(runs, running, x, self._residual(x, slope, p), tol)
        while True:
            clock.tick(runs, running, calls, x)
            if calls == max_steps or not running.any():
                break
            calls += 1
            rows = running.nonzero().squeeze(1)
            here, dual = self._proximal(ahead[rows] - self.step * ahead_slope[rows], p[rows], rows, inner_steps)
            after = self.gradient(here, rows)
            fine = torch.isfinite(norms(here) + norms(after) + norms(dual))
            broken = torch.zeros_like(running).index_fill(0, rows[~fine], True)
            stop(runs, broken, Status.NOT_FINITE)
            running = running & ~broken
            rows, here, dual, after = rows[fine], here[fine], dual[fine], after[fine]
            new, new_p, new_slope = (
                old.index_copy(0, rows, part) for old, part in ((x, here), (p, dual), (slope, after))
            )
            restart = inner(ahead - new, new - x) > 0
            following = torch.where(restart, 1.0, (1 + (1 + 4 * momentum**2).sqrt()) / 2)
            weight = torch.where(restart, 0.0, (momentum - 1) / following)
            ahead, ahead_slope = new + scale(weight, new - x), new_slope + scale(weight, new_slope - slope)
            x, slope, p, momentum = new, new_slope, new_p, following
            residual = self._residual(x, slope, p)
            running = self._record(runs, running, x, residual, tol)
            worst = float(residual.max())
            best, since = (worst, 0) if worst < 0.9 * best else (best, since + 1)
            if since > PATIENCE and inner_steps < MOST_INNER:
                inner_steps, since = 2 * inner_steps, 0
        stop(runs, running, Status.OUT_OF_STEPS)
        return x, runs, p

    def slack(self, x: Tensor, p: Tensor) -> Tensor:
        """`A = λ R(x) - ⟨p, Dx⟩` of each image, in float64."""
        value = self.setting.strength * self.energy(x).double() - inner(p, self.energy.analyse(x))
        return value.clamp_min(0)

    def residual(self, x: Tensor, slope: Tensor, p: Tensor, rows: Tensor) -> Tensor:
        """`q = ∇f(x) + Dᵀp`, reduced by the box and zero outside the support."""
        return self.box.reduced(x, self.supported(slope + self.energy.synthesise(p), rows))

    def _residual(self, x: Tensor, slope: Tensor, p: Tensor) -> Tensor:
        rows = torch.arange(len(x), device=x.device)
        size = norms(self.residual(x, slope, p, rows))
        whole = (size + (size**2 + 4 * self.setting.modulus * self.slack(x, p)).sqrt()) / 2
        scale_of_image = norms(x).clamp_min(torch.finfo(torch.float64).tiny)
        return torch.where(whole > 0, whole / (self.setting.norm[1] ** 2 * scale_of_image), 0.0)

    def _proximal(self, v: Tensor, p: Tensor, rows: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Nearly `argmin ½‖x - v‖² + step·λ R(x)` in the box, and its dual variable, from a first guess of it."""
        rate = 1 / (self.step * self.energy.norm**2)
        ahead, t = p, 1.0
        for _ in range(steps):
            image = self._primal(v, ahead, rows)
            new = self.energy.project(torch.add(ahead, self.energy.analyse(image), alpha=rate), self.setting.strength)
            following = (1 + math.sqrt(1 + 4 * t * t)) / 2
            ahead, p, t = torch.lerp(p, new, 1 + (t - 1) / following), new, following
        return self._primal(v, p, rows), p

    def _primal(self, v: Tensor, p: Tensor, rows: Tensor) -> Tensor:
        return self.box.clip(self.supported(v - self.step * self.energy.synthesise(p), rows))

    def _record(self, runs: list[ImageRun], running: Tensor, x: Tensor, residual: Tensor, tol: float) -> Tensor:
        """Note the residuals; what goes on running."""
        for row in running.nonzero().squeeze(1).tolist():
            run = runs[row]
            run.residuals.append(float(residual[row]))
            run.change = float(residual[row]) * float(norms(x[row : row + 1]))
            run.steps += 1
            if run.residuals[-1] <= tol:
                run.status = Status.CONVERGED
        return running & (residual > tol)
