"""Wasserstein-1 distances of Gaussian mixtures, and of pairs whose distance is known [tab:wasserstein_bigaussian]."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn, rand, randn

from lipspline._infra.randomness import generator
from lipspline.functional.transport import Mixture, discrete_w1, push_along_rays, random_mixture
from lipspline.paper import figures
from lipspline.paper.config import Count, Natural, Positive, Several, added_later, nearest
from lipspline.paper.experiment import (
    Context,
    Expectation,
    Experiment,
    Outcome,
    Report,
    Table,
    Value,
    Verdict,
    ahead,
    all_certified,
    interval,
    spread,
)
from lipspline.paper.networks import (
    NetworkSpec,
    Options,
    PotentialTraining,
    check_cases,
    in_case,
    learn,
    relu_lowest,
)
from lipspline.training.tasks import Sampler, dual_estimate

PairKind = Literal["mixture", "translation", "min-funnel"]


@dataclass(frozen=True)
class MonteCarlo:
    """The Monte-Carlo estimate of [wasserstein] with the learned potential: `runs` times on fresh samples."""

    samples: Count
    runs: Count


@dataclass(frozen=True)
class Known:
    """Pairs whose distance is known, beyond the paper: a mixture, and its samples moved.

    Args:
        kinds: "translation" by one vector, or "min-funnel" along the rays of a known optimal potential.
        distance: the length of the moves over the dimension.
        funnels: number of centres the rays run to.
    """

    kinds: Several[Literal["translation", "min-funnel"]]
    dimensions: Several[Count]
    distance: Positive
    funnels: Count


@dataclass(frozen=True)
class TransportCheck:
    """A comparison with exact discrete optimal transport on `samples` samples, for one network."""

    dimension: Count
    network: str
    samples: Count


@dataclass(frozen=True)
class MixtureSettings:
    """What [tab:wasserstein_bigaussian] compares, and the pairs with a known distance.

    Args:
        runs: trainings of each network for the paper's pairs, with different seeds; the other pairs have one.
    """

    dimensions: Several[Count]
    pair_seed: Natural
    training: PotentialTraining
    estimate: MonteCarlo
    networks: dict[str, NetworkSpec]
    known: Known
    check: TransportCheck
    options: Options = field(default_factory=dict)
    runs: Count = 1

    def __post_init__(self):
        check_cases(self.options, self.networks)
        if self.check.network not in self.networks:
            raise ValueError(f"check.network is {self.check.network!r}; {nearest(self.check.network, self.networks)}")


@dataclass(frozen=True)
class DistributionPair:
    """Two distributions in dimension `dimension`, fixed by `seed`; all but a mixture have a known distance."""

    kind: PairKind
    dimension: int
    seed: int
    distance: float = 0.0
    funnels: int = 0


@dataclass(frozen=True)
class MixtureJob:
    """One network, trained as the potential of one pair; `number` is that of its seed."""

    network: str
    spec: NetworkSpec
    pair: DistributionPair
    training: PotentialTraining
    estimate: MonteCarlo
    discrete: int = 0
    number: int = added_later(0)

    @property
    def name(self) -> str:
        name = f"{self.pair.kind}-{self.pair.dimension}-{self.network}"
        return f"{name}-{self.number}" if self.number else name

    @property
    def steps(self) -> int:
        return self.training.steps


def mixtures(pair: DistributionPair) -> tuple[Mixture, Mixture]:
    """The two random mixtures of a pair [sec:EvalExp]."""
    stream = generator(pair.seed, "mixtures", pair.dimension)
    return random_mixture(pair.dimension, stream), random_mixture(pair.dimension, stream)


def mover(pair: DistributionPair) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """How samples `(B, N)` of the first distribution move to the second: their images, and the lengths `(B,)`.

    The moves are an optimal plan, so the distance of samples and images is exactly the mean length.
    """
    stream = generator(pair.seed, pair.kind, pair.dimension)
    length = pair.distance * pair.dimension
    if pair.kind == "translation":
        direction = randn(pair.dimension, generator=stream)
        shift = length * direction / direction.norm()
        return lambda x: (x + shift, shift.norm().expand(len(x)))
    centres = mixtures(pair)[1].sample(pair.funnels, stream)
    heights = length * rand(pair.funnels, generator=stream)
    return lambda x: push_along_rays(x, centres, heights, length)


def sampler(pair: DistributionPair) -> Sampler:
    """Independent samples of both distributions."""
    first, second = mixtures(pair)
    if pair.kind == "mixture":
        return lambda count, generator: (first.sample(count, generator), second.sample(count, generator))
    move = mover(pair)
    return lambda count, generator: (first.sample(count, generator), move(first.sample(count, generator))[0])


def jobs(settings: MixtureSettings) -> list[MixtureJob]:
    """The paper's pairs, those with a known distance, and the small ones for discrete transport."""
    known, check = settings.known, settings.check
    seed = settings.pair_seed
    pairs = [DistributionPair("mixture", dimension, seed) for dimension in settings.dimensions]
    pairs += [
        DistributionPair(kind, dimension, seed, known.distance, known.funnels)
        for kind in known.kinds
        for dimension in known.dimensions
    ]
    small = [DistributionPair("mixture", check.dimension, seed)]
    small += [DistributionPair(kind, check.dimension, seed, known.distance, known.funnels) for kind in known.kinds]
    first = [_job(settings, name, pair) for pair in pairs for name in settings.networks]
    return [
        *first,
        *(
            replace(job, number=number)
            for number in range(1, settings.runs)
            for job in first
            if job.pair.kind == "mixture"
        ),
        *(replace(_job(settings, check.network, pair), discrete=check.samples) for pair in small),
    ]


def _job(settings: MixtureSettings, name: str, pair: DistributionPair) -> MixtureJob:
    spec = in_case(settings.networks[name], settings.options, str(pair.dimension), name)
    return MixtureJob(name, spec, pair, settings.training, settings.estimate)


def run(job: MixtureJob, context: Context) -> Outcome:
    """Train a potential, certify it, and estimate the distance with it."""
    seed = context.seed * 1000 + job.number
    potential = learn(job, job.spec, job.pair.dimension, sampler(job.pair), job.training, context, seed)
    numbers = {"certificate": potential.certificate, **_estimates(job, potential.network, context.seed)}
    return Outcome(numbers, potential.evidence.seconds)


def _estimates(job: MixtureJob, potential: nn.Module, seed: int) -> dict[str, Any]:
    """Estimates on fresh samples, with the truth where it is known.

    Where it is, the second samples are the first ones moved: then the estimate of a 1-Lipschitz potential is below
    the mean length for these very samples, not only in expectation.
    """
    streams = [generator(seed, "estimate", number) for number in range(job.estimate.runs)]
    if job.pair.kind == "mixture":
        draw = sampler(job.pair)
        values = [dual_estimate(potential, *draw(job.estimate.samples, stream)) for stream in streams]
        numbers: dict[str, Any] = {"estimates": values}
    else:
        first, move = mixtures(job.pair)[0], mover(job.pair)
        samples = [first.sample(job.estimate.samples, stream) for stream in streams]
        images = [move(x) for x in samples]
        values = [dual_estimate(potential, x, y) for x, (y, _) in zip(samples, images, strict=True)]
        numbers = {"estimates": values, "truths": [length.double().mean().item() for _, length in images]}
    return numbers | (_discrete(job, potential, seed) if job.discrete else {})


def _discrete(job: MixtureJob, potential: nn.Module, seed: int) -> dict[str, float]:
    """The exact distance of a few samples, and the estimate on them, which weak duality puts below it."""
    x, y = sampler(job.pair)(job.discrete, generator(seed, "discrete"))
    return {"discrete": discrete_w1(x, y), "discrete_estimate": dual_estimate(potential, x, y)}


def report(settings: MixtureSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """The paper's table, the relative errors on the known pairs, and the comparison with discrete transport."""
    every = jobs(settings)
    results = {
        (job.pair.kind, str(job.pair.dimension), job.network): outcomes[job.name].numbers
        for job in every
        if not job.number
    }
    rows = [str(dimension) for dimension in settings.dimensions]
    trained = _trainings(every, outcomes)
    estimates = _by_row(
        {(n, name): spread(r["estimates"]) for (kind, n, name), r in results.items() if kind == "mixture"}, rows
    )
    over_seeds = _by_row({cell: interval(means) for cell, means in trained.items()}, rows)
    errors = {
        kind: _by_row(
            {(n, name): (_error(r),) for (of, n, name), r in results.items() if of == kind},
            [str(dimension) for dimension in settings.known.dimensions],
        )
        for kind in settings.known.kinds
    }
    discrete = {
        job.name: {key: (outcomes[job.name].numbers[key],) for key in ("discrete", "discrete_estimate")}
        for job in every
        if job.discrete
    }
    tables = (
        Table(
            "Estimated W1 of Gaussian mixtures: mean and deviation over samples, one training",
            "N",
            estimates,
            expect.tables.get("mixtures", {}),
            best="max",
        ),
        Table(
            f"The same over {settings.runs} trainings: mean and half the width of its 95 % interval",
            "N",
            over_seeds,
            best="max",
        ),
        *(Table(f"Relative error, {kind}", "N", rows, best="min", digits=".2%") for kind, rows in errors.items()),
        Table("Discrete optimal transport on samples, and the estimate on them", "pair", discrete),
    )
    drawn = {
        kind: {row: {name: value[0] for name, value in values.items()} for row, values in rows.items()}
        for kind, rows in errors.items()
    }
    return Report(
        tables,
        _verdicts(estimates, errors, outcomes) | {"lls-best": _lls_best(trained)},
        {"errors": lambda: figures.lines(drawn, "N", "relative error of W1", log=True)},
    )


def _error(numbers: Mapping[str, Any]) -> float:
    """How much of the known distance the estimates miss."""
    return 1 - statistics.fmean(numbers["estimates"]) / statistics.fmean(numbers["truths"])


def _verdicts(estimates: Any, errors: Any, outcomes: Mapping[str, Outcome]) -> dict[str, Verdict]:
    gaps = [
        estimate - truth
        for outcome in outcomes.values()
        for estimate, truth in zip(outcome.numbers["estimates"], outcome.numbers.get("truths", ()), strict=False)
    ]
    best = [min(values.values())[0] for rows in errors.values() for n, values in rows.items() if int(n) <= 10]
    above, missed = max(gaps, default=0.0), max(best, default=0.0)
    return {
        "relu-lowest": relu_lowest(estimates),
        "below-truth": Verdict(above <= 1e-4, f"largest estimate minus truth {above:.1e}", of_training=False),
        "best-within-5-percent": Verdict(missed <= 0.05, f"largest error of a best estimate {missed:.2%}"),
        "certified": all_certified(outcomes),
    }


def _trainings(jobs: Sequence[MixtureJob], outcomes: Mapping[str, Outcome]) -> dict[tuple[str, str], list[float]]:
    """The estimate of each training on the paper's pairs, by dimension and network, in the order of the seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        if job.pair.kind == "mixture":
            estimates = outcomes[job.name].numbers["estimates"]
            found.setdefault((str(job.pair.dimension), job.network), []).append(statistics.fmean(estimates))
    return found


def _lls_best(trained: Mapping[tuple[str, str], Sequence[float]]) -> Verdict:
    """Whether LLS is above every rival at N = 5 and 10 beyond what the seeds explain [tab:wasserstein_bigaussian]."""
    texts, holds = [], True
    for n in ("5", "10"):
        rivals = {name: values for (of, name), values in trained.items() if of == n and name != "lls"}
        if not rivals or (n, "lls") not in trained:
            continue
        best = max(rivals, key=lambda name: statistics.fmean(rivals[name]))
        above, text = ahead(trained[n, "lls"], rivals[best])
        holds = holds and above
        texts.append(f"N = {n}: {text} over {best}")
    return Verdict(holds and bool(texts), "LLS minus the best rival, " + "; ".join(texts))


def _by_row(cells: Mapping[tuple[str, str], Value], rows: list[str]) -> dict[str, dict[str, Value]]:
    return {row: {name: value for (of, name), value in cells.items() if of == row} for row in rows}


EXPERIMENT = Experiment(
    MixtureSettings,
    ("relu-lowest", "lls-best", "below-truth", "best-within-5-percent", "certified"),
    jobs,
    run,
    report,
)
