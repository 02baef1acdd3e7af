r"""The one fixed-point loop: `x ← T(x)` for a batch of independent problems, plain or with Anderson's acceleration.

A finished image is frozen and costs no further call of the map. The loop never prints and never returns NaN: an image
that turns bad is stopped with a reason, and its last finite iterate is returned.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipspline.pnp.batch import RECENT, Clock, ImageRun, Progress, Status, decay, inner, norms, pick, scale, stop

# Added to the normal equations of unit columns: well above float64 round-off, well below what steers the weights.
RIDGE = 1e-10

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


class Anderson:
    r"""Propose `x = T(x_k) - Σ_j γ_j ΔT_j` where `γ` minimises `‖g_k - Σ_j γ_j Δg_j‖`, with `g = T - Id`.

    `ΔT_j`, `Δg_j` are differences of `T` and `g` between the last `memory` points where `T` was called, so to propose
    costs no call of `T`. A proposal is taken only if the safeguard approves of it; otherwise the next step is plain.

    **The theorem.** Let `T` be averaged, as it is in [eq:pnp_fbs] under the conditions of [sec:PnPReconstruction], and
    have a fixed point. Write the step taken as `x_{k+1} = T(x_k) + e_k`, so `e_k = 0` for a plain step. A proposal
    is taken only if

    1. `‖e_k‖ <= reach · ‖g(x_k)‖`, and
    2. `‖g(x_{k+1})‖ <= decrease · ‖g(x_k)‖` with `decrease < 1`.

    Plain steps of a nonexpansive map do not increase `‖g‖`. So the n-th proposal taken has
    `‖e_k‖ <= reach · decrease^(n-1) · ‖g(x_0)‖`, and `Σ ‖e_k‖` is finite: this is the Krasnosel'skii-Mann iteration
    with summable errors, which converges to a fixed point of `T`. (For a fixed point `p`,
    `‖x_{k+1} - p‖ <= ‖x_k - p‖ + ‖e_k‖`, so the distances to `p` converge and the iterates are bounded. Since `T` is
    θ-averaged, `‖T(x) - p‖² <= ‖x - p‖² - (1-θ)/θ ‖g(x)‖²`; summing gives `g(x_k) → 0`, so every cluster point is a
    fixed point, and as the distance to it converges, it is the limit.) The residuals `‖g(x_k)‖` never increase.

    A proposal that fails 2. has cost one call of `T`. After the j-th failure in a row the next `2^j - 1` steps are
    plain, so failures in a row waste at most about log2(n) of n calls.

    Where `T` has several fixed points the limit may be another one than that of the plain iteration. For `β <= 1/2` all
    have the same `H x`, by [eq:EstForward] with `y_1 = y_2`, so that is what to compare.

    An object of this class remembers one run; take a new one for the next.
    """

    def __init__(self, memory: int = 6, *, decrease: float = 0.999, reach: float = 1e4):
        self.memory, self.decrease, self.reach = memory, decrease, reach
        self._calls = 0

    def propose(self, point: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        """The next point to try for each image, and where it is bolder than the plain step `image = T(point)`."""
        if self._calls == 0:
            self._begin(point)
        residual = image - point
        weights = self._weights(residual)
        proposal = image
        for j in range(self.memory):
            proposal = proposal - scale(weights[:, j], self._images[j])
        length = norms(proposal - image)
        bold = (self._pause == 0) & (length > 0) & (length <= self.reach * norms(residual))
        self._pause = (self._pause - 1).clamp_min(0)
        return pick(bold, proposal, image), bold

    def judge(self, moved: Tensor, mapped: Tensor, trial: Tensor, change: Tensor, bold: Tensor) -> Tensor:
        """Learn from the candidates that were tried, and say which of them may be taken.

        Args:
            moved, mapped: from the current points to the candidates, and between their images under T, `(B, ...)`.
            trial, change: `‖g‖` at the candidates and at the current points, `(B,)`.
            bold: where the candidate is not the plain step.
        """
        self._learn(mapped, mapped - moved, torch.isfinite(trial))
        approved = ~bold | (trial <= self.decrease * change)
        failed = bold & ~approved
        self._failures = torch.where(failed, self._failures + 1, torch.where(bold, 0, self._failures))
        self._pause = torch.where(failed, 2 ** self._failures.clamp_max(30) - 1, self._pause)
        return approved

    def _begin(self, like: Tensor) -> None:
        """No differences yet: zeros get the weight zero."""
        self._images = [torch.zeros_like(like) for _ in range(self.memory)]
        self._residuals = list(self._images)
        self._gram = torch.zeros(len(like), self.memory, self.memory, dtype=torch.float64, device=like.device)
        self._pause = self._failures = torch.zeros(len(like), dtype=torch.int64, device=like.device)

    def _learn(self, images: Tensor, residuals: Tensor, finite: Tensor) -> None:
        """Replace the oldest differences, and keep the Gram matrix `⟨Δg_i, Δg_j⟩` up to date."""
        slot = self._calls % self.memory
        self._calls += 1
        zero = torch.zeros_like(images)
        self._images[slot], self._residuals[slot] = pick(finite, images, zero), pick(finite, residuals, zero)
        self._gram[:, slot, :] = self._gram[:, :, slot] = self._against(self._residuals[slot])

    def _weights(self, residual: Tensor) -> Tensor:
        """Least-squares weights `(B, memory)` by the normal equations of the columns scaled to unit length."""
        length = self._gram.diagonal(dim1=1, dim2=2).sqrt()
        length = torch.where(length > 0, length, 1.0)
        gram = self._gram / (length[:, :, None] * length[:, None, :])
        gram.diagonal(dim1=1, dim2=2).add_(RIDGE)
        return torch.linalg.solve(gram, self._against(residual) / length) / length

    def _against(self, g: Tensor) -> Tensor:
        return torch.stack([inner(column, g) for column in self._residuals], dim=1)


@torch.no_grad()
def iterate(
    fixed_point_map: FixedPointMap,
    start: Tensor,
    *,
    tol: float,
    max_steps: int,
    nonexpansive: bool = True,
    accelerator: Anderson | None = None,
    pace: float = 1.0,
    magnitude: Tensor | None = None,
    round_off: Callable[[], Tensor] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Tensor, list[ImageRun]]:
    r"""Iterate `x ← T(x)` for each image of the batch `start` until `‖T(x) - x‖ <= tol ‖x‖`.

    With an accelerator, `T(x)` must also lie within `4 tol ‖x‖` of the fixed point, as far as can be told from two
    calls: the length of the next step and, if steps go on shrinking as the residual has of late, of all that follow.
    Plain steps do not tell: they can be short because they are slow. If that takes three times as many calls again as
    the residual took to fall below the tolerance, the problem is too ill-conditioned, and the residual decides. Where
    plain steps go at most `pace < 1/4` of the way, the residual alone says that `T(x)` is not that near as long as it
    exceeds `4 pace tol ‖x‖`, and has to fall below that.

    Args:
        fixed_point_map: `T(x, rows)`, applied to the images `rows` that are still running.
        start: the first iterates, `(B, ...)`, real or complex.
        max_steps: the largest number of calls of the map.
        nonexpansive: `T` is known to be nonexpansive, so two iterates that it drives apart refute this and stop the
            image. Otherwise only a step 1e6 times longer than the first stops it.
        accelerator: proposes bolder steps than the plain one; see `Anderson`.
        pace: the largest part of the way to the fixed point that a plain step goes in the slow directions.
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

    shortness = 1.0 if accelerator is None or pace <= 0 else min(1.0, ESTIMATED_DISTANCE * pace)
    state = _State(start, evaluate, tol, shortness, nonexpansive, magnitude, round_off)
    clock = Clock(tol * shortness, max_steps, progress, 1.0 if accelerator is None else PATIENCE)
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
        shortness: float,
        nonexpansive: bool,
        magnitude: Tensor | None,
        round_off: Callable[[], Tensor] | None,
    ):
        self._round_off = round_off
        self.tol, self.shortness, self.nonexpansive, self.calls = tol, shortness, nonexpansive, 1
        self.runs = [ImageRun(tol) for _ in start]
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
        self._stop(~finite, Status.NOT_FINITE)

    def settle(self, candidate: Tensor, bold: Tensor | None) -> None:
        """Stop the images that have arrived and, where steps are accelerated, that bolder ones would not take further.

        The way ahead is estimated by the step and by how fast residuals decay. Without a history there is no estimate,
        so that a run does not stop at a start from which plain steps merely are short; but it does where they are
        round-off.
        """
        near = torch.maximum(self.tol * self._size(), self._floor)
        settled = self.running & (self.change <= torch.maximum(self.shortness * near, self._floor))
        if bold is not None:
            shrink = torch.tensor([decay(run.residuals) for run in self.runs], device=candidate.device)
            known = bold | torch.tensor([len(run.residuals) > RECENT for run in self.runs], device=candidate.device)
            ahead = torch.where(bold, norms(candidate - self.image), self.change) / (1 - shrink.clamp_max(0.999))
            self._ahead = torch.where(known, torch.cat([self._ahead[1:], ahead.unsqueeze(0)]), self._ahead)
            foreseen = self._ahead.amax(dim=0) <= ESTIMATED_DISTANCE * near
            self._arrived = torch.where(settled, self._arrived.clamp_max(self.calls), self._arrived)
            overdue = self.calls >= PATIENCE * self._arrived.clamp_min(RECENT)
            settled = settled & (foreseen | overdue | (self.change <= self._floor))
        self._stop(settled, Status.CONVERGED)

    def step(self, candidate: Tensor, mapped: Tensor, trial: Tensor, approved: Tensor, bold: Tensor) -> None:
        """Move to the approved candidates, leave the others where they are, stop those that went wrong."""
        self.calls += 1
        finite = torch.isfinite(trial)
        wild = finite & self._wild(candidate, mapped, trial, bold)
        accepted = self.running & approved & finite & ~wild
        self.point, self.image = pick(accepted, candidate, self.point), pick(accepted, mapped, self.image)
        self.change = torch.where(accepted, trial, self.change)
        self._record(accepted, bold)
        self._stop(~finite & ~bold, Status.NOT_FINITE)
        self._stop(wild, Status.STRETCHED if self.nonexpansive else Status.DIVERGED)

    def finish(self) -> list[ImageRun]:
        stop(self.runs, self.running, Status.OUT_OF_STEPS)
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

    def _stop(self, which: Tensor, status: Status) -> None:
        stop(self.runs, self.running & which, status)
        self.running = self.running & ~which
