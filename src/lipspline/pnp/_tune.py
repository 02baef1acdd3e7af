"""Tuning the noise level and β on validation images, coarse to fine [sec:exp_pnp]."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.ranks import solve_all
from lipspline.functional.quality import psnr
from lipspline.operators import LinearOperator
from lipspline.pnp._fbs import certified_bound, solve
from lipspline.pnp.certificate import Solution
from lipspline.pnp.guarantee import Denoiser

BETAS = (0.05, 0.1, 0.2, 0.4)
"""A coarse grid up to 1/2, where [eq:EstForward] holds; the paper found the best β there for every problem."""
HIGHEST_BETA = 0.5


class ValidationProblem(NamedTuple):
    """Data, the operator that measured them, the image to be found, and where to start from if not at `α Hᵀ y`."""

    y: Tensor
    H: LinearOperator
    truth: Tensor
    start: Tensor | None = None


class Candidate(NamedTuple):
    """What is tuned: the noise level of the denoiser, in any unit, and β."""

    noise: float
    beta: float


@dataclass(frozen=True)
class Trial:
    """A pair of noise level and β, and how well it did."""

    noise: float
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
        lines = [f"{'noise':>8}  {'beta':>7}  {'score':>8}  calls"]
        for t in sorted(self.trials, key=lambda trial: (trial.noise, trial.beta)):
            marks = ("" if t.converged else "  not converged") + ("  best" if t == self.best else "")
            lines.append(f"{t.noise:8.4g}  {t.beta:7.4f}  {t.score:8.3f}  {t.denoiser_calls:5d}{marks}")
        return "\n".join(lines)


def tune(
    problems: Sequence[ValidationProblem],
    denoisers: Mapping[float, Denoiser],
    betas: Sequence[float] = BETAS,
    *,
    between: Callable[[float], Denoiser] | None = None,
    refinements: int = 2,
    max_trials: int = 60,
    score: Callable[[Tensor, Tensor], Tensor] = psnr,
    tol: float = 1e-4,
    max_steps: int = 1000,
    accelerate: bool = True,
    guarantee: bool = True,
    done: Sequence[Trial] = (),
    progress: Callable[[Trial], None] | None = None,
) -> Tuning:
    """Find the noise level and the β that score best on validation problems [sec:exp_pnp].

    All pairs of the coarse grid are tried, neighbours one after the other. Then the search goes on around the best
    pair, in steps that each refinement halves on the scale of logarithms: along β, along the noise level, and
    along both against each other (more noise removed, less often), as long as that helps, and past the ends of the grid
    too, but not past β = 1/2. Every solve starts from a solution of the same problem for a pair nearby. Under
    `torch.distributed` the problems are shared out over the ranks.

    Args:
        problems: a batch counts as that many images.
        denoisers: by their noise level.
        betas: the coarse grid.
        between: makes the denoiser of a noise level that is not among `denoisers`; without it only those are tried.
        max_trials: an end to the search, wherever it is.
        score: `(reconstruction, truth) -> (B,)`, higher is better; PSNR under the profile "paper" if not given.
            Complex images are scored by their magnitudes.
        done: trials of this search before it was interrupted; it takes the same way, and does not make them again.
        progress: called after every new trial.

    The other arguments are those of `fbs`.
    """
    _check(problems, denoisers, betas)
    checks.at_least("max_trials", max_trials, 1)
    options = {"tol": tol, "max_steps": max_steps, "accelerate": accelerate, "guarantee": guarantee}
    search = _Search(problems, denoisers, between, score, options, max_trials, done, progress)
    for pair in _serpentine(sorted(denoisers), sorted(betas)):
        search.attempt(pair)
    ratios = Candidate(_widest(denoisers) if between else 1.0, _widest(betas))
    for _ in range(refinements):
        ratios = Candidate(*map(sqrt, ratios))
        centre = None
        while centre != search.best:
            centre = search.best
            for pair in _around(centre, ratios):
                search.attempt(pair)
    return Tuning(tuple(search.trials.values()))


class _Search:
    """The trials made so far, and the solutions of the last one."""

    def __init__(
        self,
        problems: Sequence[ValidationProblem],
        denoisers: Mapping[float, Denoiser],
        between: Callable[[float], Denoiser] | None,
        score: Callable[[Tensor, Tensor], Tensor],
        options: dict[str, Any],
        max_trials: int,
        done: Sequence[Trial],
        progress: Callable[[Trial], None] | None,
    ):
        self.problems, self.between, self.score, self.options = problems, between, score, options
        self.max_trials, self.progress = max_trials, progress
        self.certified = {noise: self._certify(denoiser) for noise, denoiser in denoisers.items()}
        self.done = {Candidate(trial.noise, trial.beta): trial for trial in done}
        self.trials: dict[Candidate, Trial] = {}
        self.starts = [problem.start for problem in problems]

    @property
    def best(self) -> Candidate:
        """The pair that scored best so far."""
        return max(self.trials, key=lambda pair: self.trials[pair].score)

    def attempt(self, pair: Candidate) -> None:
        """Try a pair, unless it was tried before or the search has lasted long enough."""
        if pair in self.trials or len(self.trials) >= self.max_trials:
            return
        self.trials[pair] = self.done[pair] if pair in self.done else self._try(pair)
        if pair not in self.done and self.progress is not None:
            self.progress(self.trials[pair])

    def _try(self, pair: Candidate) -> Trial:
        denoiser, bound = self._denoiser(pair.noise)

        def run(i: int) -> Solution:
            problem, start = self.problems[i], self.starts[i]
            return solve(problem.y, problem.H, denoiser, bound=bound, beta=pair.beta, start=start, **self.options)

        solutions = solve_all(run, range(len(self.problems)))
        self.starts = [solution.value for solution in solutions]
        each = [self.score(s.value, p.truth) for s, p in zip(solutions, self.problems, strict=True)]
        scores = tuple(value for scores in each for value in scores.tolist())
        return Trial(
            *pair,
            score=sum(scores) / len(scores),
            converged=all(solution.converged for solution in solutions),
            denoiser_calls=sum(solution.denoiser_calls for solution in solutions),
            scores=scores,
        )

    def _denoiser(self, noise: float) -> tuple[Denoiser, float | None]:
        if noise not in self.certified and self.between is not None:
            self.certified[noise] = self._certify(self.between(noise))
        return self.certified[noise]

    def _certify(self, denoiser: Denoiser) -> tuple[Denoiser, float | None]:
        return denoiser, certified_bound(denoiser, self.options["guarantee"])


def _serpentine(noises: Sequence[float], betas: Sequence[float]) -> Iterator[Candidate]:
    """All pairs, each a neighbour of the one before.

    Example:
        >>> [tuple(pair) for pair in _serpentine([5, 10], [0.1, 0.4])]
        [(5, 0.1), (5, 0.4), (10, 0.4), (10, 0.1)]
    """
    for i, noise in enumerate(noises):
        for beta in betas if i % 2 == 0 else reversed(betas):
            yield Candidate(noise, beta)


def _widest(values: Iterable[float]) -> float:
    """The largest ratio of neighbours; 1 for a single value.

    Example:
        >>> _widest([0.4, 0.05, 0.1]), _widest([0.3])
        (4.0, 1.0)
    """
    return max((high / low for low, high in pairwise(sorted(values))), default=1.0)


def _around(centre: Candidate, ratios: Candidate) -> list[Candidate]:
    """The pairs one step away: along β, along the noise, and along both against each other.

    Example:
        >>> [tuple(pair) for pair in _around(Candidate(10.0, 0.2), Candidate(2.0, 2.0))]
        [(10.0, 0.1), (10.0, 0.4), (5.0, 0.2), (20.0, 0.2), (20.0, 0.1), (5.0, 0.4)]
        >>> [tuple(pair) for pair in _around(Candidate(10.0, 0.4), Candidate(1.0, 2.0))]
        [(10.0, 0.2), (10.0, 0.5)]
    """
    directions = ((0, -1), (0, 1), (-1, 0), (1, 0), (1, -1), (-1, 1))
    pairs = [_step(centre, ratios, along_noise, along_beta) for along_noise, along_beta in directions]
    return [pair for pair in dict.fromkeys(pairs) if pair != centre]


def _step(centre: Candidate, ratios: Candidate, along_noise: int, along_beta: int) -> Candidate:
    """A step on the scale of logarithms, rounded so that the way back ends where it began."""
    noise, beta = centre.noise * ratios.noise**along_noise, centre.beta * ratios.beta**along_beta
    return Candidate(float(f"{noise:.6g}"), min(float(f"{beta:.6g}"), max(HIGHEST_BETA, centre.beta)))


def _check(problems: Sequence[ValidationProblem], denoisers: Mapping[float, Denoiser], betas: Sequence[float]) -> None:
    if not problems or not denoisers or not betas:
        raise ValueError(
            f"tune needs at least one problem, denoiser and beta, but got {len(problems)} problem(s), "
            f"{len(denoisers)} denoiser(s) and {len(betas)} beta(s)."
        )
    for noise in denoisers:
        checks.positive("Each noise level of denoisers", noise)
    for beta in betas:
        checks.within("Each of betas", beta, 0.0, 1.0)
    for i, problem in enumerate(problems):
        checks.finite(f"The truth of problem {i}", problem.truth, "No score can be computed with it.")
        wanted = problem.H.adjoint(problem.y).shape
        if problem.truth.shape != wanted:
            raise ValueError(
                f"The truth of problem {i} has shape {tuple(problem.truth.shape)}, but its images {tuple(wanted)}."
            )
