"""A batch `(B, ...)` is `B` independent problems: sizes and choices image by image, and the record of each image."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

# Calls over which the fall of the residual is measured, for the way to go.
RECENT = 6
FEWEST = 10  # calls before the time to go is told
EXPONENT = 50.0  # of e: more calls than anybody waits for


def inner(a: Tensor, b: Tensor) -> Tensor:
    r"""Real inner products `Re⟨a_i, b_i⟩` of the images of two batches, accumulated in float64: `(B, ...) -> (B,)`.

    Complex images are pairs of real ones; with this inner product the theorems for real images apply to them.

    Example:
        >>> inner(torch.tensor([[1j, 2.0]]), torch.tensor([[1j, 1.0]]))
        tensor([3.], dtype=torch.float64)
    """
    return torch.linalg.vecdot(_real_rows(a).double(), _real_rows(b).double())


def norms(x: Tensor) -> Tensor:
    """Euclidean norm of each image of a batch, in float64: `(B, ...) -> (B,)`.

    Example:
        >>> norms(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.], dtype=torch.float64)
    """
    return torch.linalg.vector_norm(_real_rows(x), dim=1, dtype=torch.float64)


def pick(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The images of `a` where `mask` holds and those of `b` elsewhere; `mask` is `(B,)`.

    Example:
        >>> pick(torch.tensor([True, False]), torch.ones(2, 2), torch.zeros(2, 2))
        tensor([[1., 1.],
                [0., 0.]])
    """
    if mask.all():
        return a
    return torch.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b)


def scale(factor: Tensor, x: Tensor) -> Tensor:
    """Multiply each image of a batch by its own real factor: `(B,), (B, ...) -> (B, ...)`.

    Example:
        >>> scale(torch.tensor([2.0, 0.0]), torch.ones(2, 2))
        tensor([[2., 2.],
                [0., 0.]])
    """
    return factor.to(x.real.dtype).reshape(-1, *[1] * (x.ndim - 1)) * x


def split_parts(x: Tensor, shift: float = 0.0) -> Tensor:
    """Real parts and shifted imaginary parts of complex images, one below the other: `(B, ...) -> (2B, ...)`.

    Example:
        >>> split_parts(torch.tensor([[1 + 2j]]), 0.5), join_parts(torch.tensor([[1.0], [2.5]]), 0.5)
        (tensor([[1.0000],
                [2.5000]]), tensor([[1.+2.j]]))
    """
    return torch.cat([x.real, x.imag + shift if shift else x.imag])


def join_parts(parts: Tensor, shift: float = 0.0) -> Tensor:
    """The complex images of which `split_parts` made these parts: `(2B, ...) -> (B, ...)`."""
    real, imaginary = parts.chunk(2)
    return torch.complex(real, imaginary - shift if shift else imaginary)


def _real_rows(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).flatten(start_dim=1)


class Status(StrEnum):
    """Where the iteration for an image stands, or why it ended; `sentence` says it in words."""

    RUNNING = "running"
    CONVERGED = "converged"
    OUT_OF_STEPS = "out of steps"
    ROUND_OFF = "round-off"
    DIVERGED = "diverged"
    NOT_FINITE = "not finite"
    STRETCHED = "stretched"

    @property
    def sentence(self) -> str:
        """The status in words."""
        return SENTENCES[self]

    @property
    def refutes(self) -> bool:
        """Whether the iteration did what its theorem excludes, so that a hypothesis must be wrong."""
        return self in (Status.NOT_FINITE, Status.STRETCHED)


SENTENCES = {
    Status.RUNNING: "still running",
    Status.CONVERGED: "converged",
    Status.OUT_OF_STEPS: "not converged: there were no steps left",
    Status.ROUND_OFF: "not converged: no step lowers the objective any more in this precision",
    Status.DIVERGED: "stopped: the iteration diverges, a step has become a million times as long as the first",
    Status.NOT_FINITE: "stopped: the prior or the operator returned NaN or infinity",
    Status.STRETCHED: (
        "stopped: the iteration drove two iterates apart, which a nonexpansive map cannot do, "
        "so the Lipschitz bound given for the denoiser, or the adjoint or norm of the operator, is wrong"
    ),
}


@dataclass
class ImageRun:
    """How the iteration went for one image of the batch."""

    tol: float
    """The residual at which it counts as converged."""
    status: Status = Status.RUNNING
    steps: int = 0
    """Steps taken, accelerated ones included; a rejected proposal is a call of the map but not a step."""
    accelerated: int = 0
    residuals: list[float] = field(default_factory=list)
    """Relative residual `‖T(x) - x‖ / ‖x‖` of the current iterate x after each call of the map."""
    change: float = math.inf
    """Absolute residual `‖T(x) - x‖` of the last iterate x; what is returned is `T(x)`."""

    @property
    def converged(self) -> bool:
        """Whether the residual reached the tolerance."""
        return self.status is Status.CONVERGED

    @property
    def reason(self) -> str:
        """Why the iteration ended, as a sentence."""
        if self.status is not Status.OUT_OF_STEPS:
            return self.status.sentence
        return f"not converged: residual {self.residuals[-1]:.3g} after {self.calls} steps, tol is {self.tol:g}"

    @property
    def calls(self) -> int:
        """Calls of the map for this image."""
        return len(self.residuals)


def stop(runs: Sequence[ImageRun], which: Tensor, status: Status) -> None:
    """Note for the images of a mask `(B,)` that they ended, and why."""
    for row in which.nonzero().squeeze(1).tolist():
        runs[row].status = status


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told after every call of the map; the worst image counts."""

    calls: int
    residual: float
    running: int
    images: int
    seconds: float
    eta: float | None
    """Estimated seconds to go, from how the residual has been falling; None while that cannot be told."""
    value: Tensor
    """What would be returned if the iteration ended now, `(B, ...)`; to be looked at, not changed."""


class Clock:
    """Tells the progress callback how far the worst image has come, and when it may be there.

    Residuals fall with ups and downs, at first faster and later slower than at a constant rate. So the smallest one so
    far counts, over the second half of the calls; the estimate lies between that for a constant rate, which is mostly
    too short, and that for a power of the number of calls, which is mostly too long.

    Args:
        max_steps: the most calls.
        patience: a run goes on up to so many times the calls that it takes to the tolerance.
    """

    def __init__(self, tol: float, max_steps: int, progress: Callable[[Progress], None] | None, patience: float = 1.0):
        self.tol, self.max_steps, self.progress, self.patience = tol, max_steps, progress, patience
        self.begin = time.perf_counter()
        self.best: list[float] = []

    def tick(self, runs: Sequence[ImageRun], running: Tensor, calls: int, value: Tensor) -> None:
        """Report after a call of the map."""
        if self.progress is None:
            return
        worst = max(run.residuals[-1] for run in runs)
        self.best.append(min([worst, *self.best[-1:]]))
        seconds, count = time.perf_counter() - self.begin, int(running.sum())
        to_go = self.calls_to_go() if count else 0.0
        eta = None if to_go is None else to_go * seconds / calls
        self.progress(Progress(calls, worst, count, len(runs), seconds, eta, value))

    def calls_to_go(self) -> float | None:
        """An estimate of the calls to the end; None if nothing can be told yet.

        Example:
            >>> clock = Clock(1e-4, 1000, None)
            >>> clock.best = [2.0**-k for k in range(10)]
            >>> 13.3 - 10 < clock.calls_to_go() < 10
            True
        """
        calls, arrived = len(self.best), sum(residual > self.tol for residual in self.best) + 1
        if arrived > calls:
            ahead = self._calls_to_tolerance()
            if ahead is None:
                return None
            arrived = calls + ahead
        return max(min(self.patience * max(arrived, RECENT), self.max_steps) - calls, 0.0)

    def _calls_to_tolerance(self) -> float | None:
        calls, half = len(self.best), len(self.best) // 2
        if calls < FEWEST or not 0 < self.best[-1] < self.best[half - 1] < math.inf:
            return None
        fall, way = math.log(self.best[half - 1] / self.best[-1]), math.log(self.best[-1] / self.tol)
        constant = way / fall * (calls - half)
        power = calls * math.expm1(min(way / fall * math.log(calls / half), EXPONENT))
        return math.sqrt(constant * power)


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
