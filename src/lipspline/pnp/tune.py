"""Tuning the noise level and β on validation images, coarse to fine [sec:exp_pnp]."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import NamedTuple

from torch import Tensor

from lipspline import _checks
from lipspline.functional.quality import psnr
from lipspline.operators import LinearOperator
from lipspline.pnp.fbs import certified_bound, solve
from lipspline.pnp.guarantee import Denoiser
from lipspline.pnp.shard import solve_all

BETAS = (0.05, 0.1, 0.2, 0.4)
"""A coarse grid up to 1/2, where [eq:EstForward] holds; the paper found the best β there for every problem."""


class Problem(NamedTuple):
    """Data, the operator that measured them, and the image to be found."""

    y: Tensor
    H: LinearOperator
    truth: Tensor


@dataclass(frozen=True)
class Trial:
    """A pair of noise level and β, and how well it did."""

    noise: str
    beta: float
    score: float
    """The mean over all images."""
    converged: bool
    denoiser_calls: int
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Tuning:
    """Every trial made, in order; `str()` is a table of them."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the highest mean score."""
        return max(self.trials, key=lambda trial: trial.score)

    def to_json(self) -> str:
        """All trials and the best one as a JSON document."""
        return json.dumps({"best": asdict(self.best), "trials": [asdict(t) for t in self.trials]}, indent=2)

    def __str__(self) -> str:
        width = max(5, *(len(trial.noise) for trial in self.trials))
        lines = [f"{'noise':{width}}  {'beta':>7}  {'score':>8}  calls"]
        for t in sorted(self.trials, key=lambda trial: (trial.noise, trial.beta)):
            marks = ("" if t.converged else "  not converged") + ("  best" if t == self.best else "")
            lines.append(f"{t.noise:{width}}  {t.beta:7.4f}  {t.score:8.3f}  {t.denoiser_calls:5d}{marks}")
        return "\n".join(lines)


def tune(
    problems: Sequence[Problem],
    denoisers: Mapping[str, Denoiser],
    betas: Sequence[float] = BETAS,
    *,
    refinements: int = 2,
    score: Callable[[Tensor, Tensor], Tensor] = psnr,
    tol: float = 1e-4,
    max_steps: int = 1000,
    accelerate: bool = True,
    guarantee: bool = True,
    progress: Callable[[Trial], None] | None = None,
) -> Tuning:
    """Find the noise level and the β that score best on validation problems [sec:exp_pnp].

    All pairs of the coarse grid are tried; each refinement then tries the geometric means of the best β and its
    neighbours, for the best denoiser. Every solve starts from the last solution of the same problem. Under
    `torch.distributed` the problems are shared out over the ranks.

    Args:
        problems: `(y, H, truth)`; a batch counts as that many images.
        denoisers: by the name of their noise level.
        betas: the coarse grid.
        score: `(reconstruction, truth) -> (B,)`, higher is better; PSNR under the profile "paper" if not given.
        progress: called after every trial.

    The other arguments are those of `fbs`.
    """
    _check(problems, denoisers, betas)
    bounds = {noise: certified_bound(denoiser, guarantee) for noise, denoiser in denoisers.items()}
    options = {"tol": tol, "max_steps": max_steps, "accelerate": accelerate, "guarantee": guarantee}
    latest: dict[int, Tensor] = {}
    trials: list[Trial] = []

    def attempt(noise: str, beta: float) -> None:
        def run(i: int) -> tuple[list[float], bool, int]:
            y, H, truth = problems[i]
            denoiser, bound = denoisers[noise], bounds[noise]
            solution = solve(y, H, denoiser, bound=bound, beta=beta, start=latest.get(i), **options)
            latest[i] = solution.value
            return score(solution.value, truth).tolist(), solution.converged, solution.denoiser_calls

        results = solve_all(run, range(len(problems)))
        scores = [value for values, _, _ in results for value in values]
        mean = sum(scores) / len(scores)
        calls = sum(calls for _, _, calls in results)
        trials.append(Trial(noise, beta, mean, all(done for _, done, _ in results), calls, tuple(scores)))
        if progress is not None:
            progress(trials[-1])

    for noise in denoisers:
        for beta in sorted(betas):
            attempt(noise, beta)
    for _ in range(refinements):
        best = max(trials, key=lambda trial: trial.score)
        for beta in _between(best.beta, sorted(t.beta for t in trials if t.noise == best.noise)):
            attempt(best.noise, beta)
    return Tuning(tuple(trials))


def _between(best: float, tried: Sequence[float]) -> list[float]:
    """Geometric means of `best` and its neighbours among the sorted values `tried`.

    Example:
        >>> _between(0.1, [0.025, 0.1, 0.4])
        [0.05, 0.2]
    """
    i = tried.index(best)
    return [sqrt(best * neighbour) for neighbour in (*tried[max(i - 1, 0) : i], *tried[i + 1 : i + 2])]


def _check(problems: Sequence[Problem], denoisers: Mapping[str, Denoiser], betas: Sequence[float]) -> None:
    if not problems or not denoisers or not betas:
        raise ValueError(
            f"tune needs at least one problem, denoiser and beta, but got {len(problems)} problem(s), "
            f"{len(denoisers)} denoiser(s) and {len(betas)} beta(s)."
        )
    for beta in betas:
        _checks.within("Each of betas", beta, 0.0, 1.0)
    for i, (y, H, truth) in enumerate(problems):
        wanted = H.adjoint(y).shape
        if truth.shape != wanted:
            raise ValueError(
                f"The truth of problem {i} has shape {tuple(truth.shape)}, but its images {tuple(wanted)}."
            )
