r"""The one fixed-point loop: `x ← T(x)` for a batch of independent problems, until each image has settled.

A finished image is frozen and costs no further call of the map. The loop never prints and never returns NaN: an image
that turns bad is stopped with a reason, and its last finite iterate is returned.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lipspline.pnp.anderson import Anderson
from lipspline.pnp.norms import norms, pick

FixedPointMap = Callable[[Tensor, Tensor], Tensor]
"""`T(x, rows)`: maps the iterates `x` of the images `rows` of the batch."""

# What a nonexpansive map may seem to stretch a distance by, through round-off, in units of eps ‖x‖.
ROUND_OFF = 1e3
# Without a guarantee steps may lengthen; beyond this factor over the first step the iteration is called divergent.
DIVERGENCE = 1e6

# How far, in units of tol, an accelerated iterate may be from the fixed point by its own estimates, this one and the
# one before: a single estimate can be far too small by chance. docs/decisions.md says how far it is in truth.
ESTIMATED_DISTANCE = 4.0
AGREEING = 2
# Where the fixed point keeps out of reach, the run ends as a plain one does, by its residual, once it has taken this
# many times the calls that the residual took: a plain run takes more.
PATIENCE = 4.0
# Calls over which the fall of the residual is measured, for that estimate and for the time to go.
RECENT = 6

BROKEN = "stopped: the denoiser or the operator returned NaN or infinity"
STRETCHED = (
    "stopped: the iteration drove two iterates apart, which a nonexpansive map cannot do, "
    "so the Lipschitz bound given for the denoiser, or the adjoint or norm of the operator, is wrong"
)
DIVERGED = "stopped: the iteration diverges, a step has become a million times as long as the first"


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told after every call of the map; the worst image counts."""

    calls: int
    residual: float
    running: int
    images: int
    seconds: float
    eta: float | None
    """Estimated seconds to go, from how fast the residual has been falling; None while it is not falling."""
    value: Tensor
    """What would be returned if the iteration ended now, `(B, ...)`; to be looked at, not changed."""


@dataclass
class ImageRun:
    """How the iteration went for one image of the batch."""

    converged: bool = False
    reason: str = ""
    steps: int = 0
    """Steps taken, accelerated ones included; a rejected proposal is a call of the map but not a step."""
    accelerated: int = 0
    residuals: list[float] = field(default_factory=list)
    """Relative residual `‖T(x) - x‖ / ‖x‖` of the current iterate x after each call of the map."""
    change: float = math.inf
    """Absolute residual `‖T(x) - x‖` of the last iterate x; what is returned is `T(x)`."""

    @property
    def calls(self) -> int:
        """Calls of the map for this image."""
        return len(self.residuals)


@torch.no_grad()
def iterate(
    fixed_point_map: FixedPointMap,
    start: Tensor,
    *,
    tol: float,
    max_steps: int,
    nonexpansive: bool = True,
    accelerator: Anderson | None = None,
    magnitude: Tensor | None = None,
    round_off: Callable[[], Tensor] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Tensor, list[ImageRun]]:
    r"""Iterate `x ← T(x)` for each image of the batch `start` until `‖T(x) - x‖ <= tol ‖x‖`.

    With an accelerator, `T(x)` must also lie within `4 tol ‖x‖` of the fixed point, as far as can be told from two
    calls: the length of the next step and, if steps go on shrinking as the residual has of late, of all that follow.
    Plain steps do not tell: they can be short because they are slow. If that takes three times as many calls again as
    the residual took to fall below the tolerance, the problem is too ill-conditioned, and the residual decides.

    Args:
        fixed_point_map: `T(x, rows)`, applied to the images `rows` that are still running.
        start: the first iterates, `(B, ...)`, real or complex.
        max_steps: the largest number of calls of the map.
        nonexpansive: `T` is known to be nonexpansive, so two iterates that it drives apart refute this and stop the
            image. Otherwise only a step 1e6 times longer than the first stops it.
        accelerator: proposes bolder steps than the plain one; see `Anderson`.
        magnitude: norms `(B,)` of what `T` adds up, where that is more than `‖x‖`: by this round-off is judged.
        round_off: bounds `(B,)` on the round-off of one call of `T`, asked for when a map that is known to be
            nonexpansive seems not to be, before it is accused.
        progress: called after every call of the map; what it raises ends the iteration.

    Returns:
        The images `T(x)` of the last iterates, `(B, ...)`, and how each of them came about.

    Example:
        >>> value, (run,) = iterate(lambda x, rows: 0.5 * x + 1, torch.zeros(1, 3), tol=1e-3, max_steps=100)
        >>> run.converged, run.steps, value
        (True, 10, tensor([[1.9980, 1.9980, 1.9980]]))
    """

    def evaluate(x: Tensor, running: Tensor) -> Tensor:
        rows = running.nonzero().squeeze(1)
        return x.index_copy(0, rows, fixed_point_map(x[rows], rows))

    state = _State(start, evaluate, tol, nonexpansive, magnitude, round_off)
    clock = Clock(tol, progress)
    while True:
        candidate, bold = state.image, torch.zeros_like(state.running)
        if accelerator is not None:
            candidate, bold = accelerator.propose(state.point, state.image)
        state.settle(candidate, None if accelerator is None else bold)
        clock.tick(state.runs, state.running, state.calls, state.image)
        if state.calls == max_steps or not state.running.any():
            return state.image, state.finish()
        mapped = evaluate(candidate, state.running)
        trial = norms(mapped - candidate)
        approved = ~bold
        if accelerator is not None:
            approved = accelerator.judge(candidate - state.point, mapped - state.image, trial, state.change, bold)
        state.step(candidate, mapped, trial, approved, bold)


class _State:
    """The current iterates `point`, their images `image = T(point)`, and the record of each image."""

    def __init__(
        self,
        start: Tensor,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        tol: float,
        nonexpansive: bool,
        magnitude: Tensor | None,
        round_off: Callable[[], Tensor] | None,
    ):
        self._round_off = round_off
        self.tol, self.nonexpansive, self.calls = tol, nonexpansive, 1
        self.runs = [ImageRun() for _ in start]
        self.running = torch.ones(len(start), dtype=torch.bool, device=start.device)
        mapped = evaluate(start, self.running)
        change = norms(mapped - start)
        finite = torch.isfinite(change)
        self.change = torch.where(finite, change, math.inf)
        self.point, self.image = start, pick(finite, mapped, start)
        self._first = self.change
        self._ahead = self.change.new_full((AGREEING, len(start)), math.inf)
        self._arrived = self.change.new_full((len(start),), math.inf)
        sizes = (norms(start), norms(self.image), *([] if magnitude is None else [magnitude]))
        self._floor = torch.finfo(start.dtype).eps * torch.stack(sizes).amax(dim=0)
        self._record(finite, torch.zeros_like(finite))
        self._stop(~finite, BROKEN)

    def settle(self, candidate: Tensor, bold: Tensor | None) -> None:
        """Stop the images that have arrived and, where steps are accelerated, that bolder ones would not take further.

        The way ahead is estimated by the step and by how fast residuals decay. Without a history there is no estimate,
        so that a run does not stop at a start from which plain steps merely are short; but it does where they are
        round-off.
        """
        near = torch.maximum(self.tol * self._size(), self._floor)
        settled = self.running & (self.change <= near)
        if bold is not None:
            shrink = torch.tensor([decay(run.residuals) for run in self.runs], device=candidate.device)
            known = bold | torch.tensor([len(run.residuals) > RECENT for run in self.runs], device=candidate.device)
            ahead = torch.where(bold, norms(candidate - self.image), self.change) / (1 - shrink.clamp_max(0.999))
            self._ahead = torch.where(known, torch.cat([self._ahead[1:], ahead.unsqueeze(0)]), self._ahead)
            foreseen = self._ahead.amax(dim=0) <= ESTIMATED_DISTANCE * near
            self._arrived = torch.where(settled, self._arrived.clamp_max(self.calls), self._arrived)
            overdue = self.calls >= PATIENCE * self._arrived.clamp_min(RECENT)
            settled = settled & (foreseen | overdue | (self.change <= self._floor))
        for row in settled.nonzero().squeeze(1).tolist():
            self.runs[row].converged = True
        self._stop(settled, "converged")

    def step(self, candidate: Tensor, mapped: Tensor, trial: Tensor, approved: Tensor, bold: Tensor) -> None:
        """Move to the approved candidates, leave the others where they are, stop those that went wrong."""
        self.calls += 1
        finite = torch.isfinite(trial)
        wild = finite & self._wild(candidate, mapped, trial, bold)
        accepted = self.running & approved & finite & ~wild
        self.point, self.image = pick(accepted, candidate, self.point), pick(accepted, mapped, self.image)
        self.change = torch.where(accepted, trial, self.change)
        self._record(accepted, bold)
        self._stop(~finite & ~bold, BROKEN)
        self._stop(wild, STRETCHED if self.nonexpansive else DIVERGED)

    def finish(self) -> list[ImageRun]:
        for row in self.running.nonzero().squeeze(1).tolist():
            run = self.runs[row]
            run.reason = f"not converged: residual {run.residuals[-1]:.3g} after {run.calls} steps, tol is {self.tol:g}"
        return self.runs

    def _wild(self, candidate: Tensor, mapped: Tensor, trial: Tensor, bold: Tensor) -> Tensor:
        if not self.nonexpansive:
            return ~bold & (trial > DIVERGENCE * self._first)
        slack = ROUND_OFF * torch.maximum(torch.finfo(candidate.dtype).eps * norms(candidate), self._floor)
        excess = norms(mapped - self.image) - norms(candidate - self.point) - slack
        if self._round_off is not None and bool((excess > 0).any()):
            excess = excess - 2 * self._round_off()
        return excess > 0

    def _size(self) -> Tensor:
        """`‖x‖`, but not below the round-off of where x came from: an iterate that small is zero."""
        return torch.maximum(norms(self.point), self._floor)

    def _record(self, accepted: Tensor, bold: Tensor) -> None:
        residual = torch.where(self.change > 0, self.change / self._size(), 0.0)
        columns = zip(residual.tolist(), self.change.tolist(), accepted.tolist(), bold.tolist(), strict=True)
        for run, running, (relative, change, taken, accelerated) in zip(
            self.runs, self.running.tolist(), columns, strict=True
        ):
            if running:
                run.residuals.append(relative)
                run.change = change
                run.steps += taken
                run.accelerated += taken and accelerated

    def _stop(self, which: Tensor, reason: str) -> None:
        for row in (self.running & which).nonzero().squeeze(1).tolist():
            self.runs[row].reason = reason
        self.running = self.running & ~which


class Clock:
    """Tells the progress callback how far the worst image has come, and when it may be there."""

    def __init__(self, tol: float, progress: Callable[[Progress], None] | None):
        self.tol, self.progress, self.begin = tol, progress, time.perf_counter()
        self.worst: list[float] = []

    def tick(self, runs: Sequence[ImageRun], running: Tensor, calls: int, value: Tensor) -> None:
        """Report after a call of the map."""
        if self.progress is None:
            return
        self.worst.append(max(run.residuals[-1] for run in runs))
        seconds = time.perf_counter() - self.begin
        count = int(running.sum())
        eta = self._calls_to_go() * seconds / calls if count else 0.0
        known = eta if math.isfinite(eta) else None
        self.progress(Progress(calls, self.worst[-1], count, len(runs), seconds, known, value))

    def _calls_to_go(self) -> float:
        """Calls until the tolerance if the residual goes on falling as it has of late."""
        fall = decay(self.worst)
        if not 0 < fall < 1 or not math.isfinite(self.worst[-1]):
            return math.inf
        return max(math.log(self.worst[-1] / self.tol), 0.0) / -math.log(fall)


def decay(residuals: Sequence[float]) -> float:
    """The factor by which residuals have changed a call, on average over the most recent ones.

    Example:
        >>> decay([1.0, 0.5, 0.25])
        0.5
    """
    recent = residuals[-RECENT - 1 :]
    if len(recent) < 2 or not 0 < recent[0] < math.inf:
        return 0.0
    return (recent[-1] / recent[0]) ** (1 / (len(recent) - 1))
