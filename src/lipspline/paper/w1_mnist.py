"""The Wasserstein-1 distance of real digits to those of a trained generator [tab:wasserstein_results]."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from lipspline._infra import checks, randomness
from lipspline.paper import figures
from lipspline.paper.config import Count, Natural, Positive, Several
from lipspline.paper.experiment import (
    Context,
    Expectation,
    Experiment,
    Outcome,
    Report,
    Table,
    Value,
    Verdict,
    all_certified,
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
from lipspline.paper.wgan import digits, sample, trained_generator
from lipspline.training.tasks import Sampler, dual_estimate

SPLIT = 54_000  # the training set's last 6,000 images validate the potential


@dataclass(frozen=True)
class DigitsSettings:
    """What [tab:wasserstein_results] compares.

    Args:
        depths: of the networks; the `depth` of a network is replaced by each of them.
        runs: trainings of each network, with different seeds.
        gan: the recipe that trained the generator; generator: the network whose critic trained it.
        images: training images, at most 54,000; an epoch shows each of them once.
        test_images: of the test set.
        rotations: as for `PotentialTraining`.
        generated: images of the generator that trainings draw from; 0 for fresh ones in every step, as in the paper,
            which cost as much as the rest of a step.
    """

    depths: Several[Count]
    runs: Count
    gan: str
    generator: str
    images: Count
    epochs: Count
    batch: Count
    lr: Positive
    schedule: Literal["constant", "cosine"]
    test_images: Count
    networks: dict[str, NetworkSpec]
    options: Options = field(default_factory=dict)
    rotations: Positive | None = None
    generated: Natural = 0

    def __post_init__(self):
        checks.within("images", self.images, 0, SPLIT + 1, "The last 6,000 of the training set are for validation.")
        check_cases(self.options, self.networks)


@dataclass(frozen=True)
class DigitsJob:
    """One network, trained once."""

    network: str
    spec: NetworkSpec
    number: int
    training: PotentialTraining
    images: int
    gan: str
    generator: str
    test_images: int
    generated: int = 0

    @property
    def name(self) -> str:
        return f"depth{self.spec.depth}-{self.network}-{self.number}"

    @property
    def steps(self) -> int:
        return self.training.steps


def jobs(settings: DigitsSettings) -> list[DigitsJob]:
    """One job for each depth, network and run."""
    steps = max(1, settings.epochs * settings.images // settings.batch)
    training = PotentialTraining(steps, settings.lr, settings.batch, settings.schedule, settings.rotations)
    return [
        DigitsJob(
            name,
            replace(in_case(spec, settings.options, str(depth), name), depth=depth),
            number,
            training,
            settings.images,
            settings.gan,
            settings.generator,
            settings.test_images,
            settings.generated,
        )
        for depth in settings.depths
        for name, spec in settings.networks.items()
        for number in range(settings.runs)
    ]


def elsewhere(job: DigitsJob) -> tuple[tuple[str, str], ...]:
    """The training of the generator."""
    return ((job.gan, job.generator),)


def sampler(images: Tensor, generated: Callable[[int, torch.Generator], Tensor]) -> Sampler:
    """Random images of a set, flat, and generated ones."""

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(images), (count,), generator=generator)
        return images[rows].flatten(1), generated(count, generator).flatten(1)

    return draw


def fresh(generate: nn.Module, latent: int) -> Callable[[int, torch.Generator], Tensor]:
    """New images of a generator at every call."""
    return lambda count, generator: sample(generate, torch.randn(count, latent, generator=generator))


def drawn_from(pool: Tensor) -> Callable[[int, torch.Generator], Tensor]:
    """Random ones of images that were generated before."""
    return lambda count, generator: pool[torch.randint(len(pool), (count,), generator=generator)]


def run(job: DigitsJob, context: Context) -> Outcome:
    """Train a potential on the training images, and estimate the distance on validation and test images."""
    images = digits("train", context.data).images
    generate, latent = trained_generator(context.sibling(job.gan), job.gan, job.generator)
    source = fresh(generate, latent)
    if job.generated:
        source = drawn_from(source(job.generated, randomness.generator(context.seed, "pool")))
    draw = sampler(images[: job.images], source)
    seed = context.seed * 1000 + job.number
    potential = learn(job, job.spec, images[0].numel(), draw, job.training, context, seed)
    test = digits("test", context.data).images[: job.test_images]
    numbers = {"certificate": potential.certificate}
    for name, real in {"validation": images[SPLIT:], "test": test}.items():
        fake = fresh(generate, latent)(len(real), randomness.generator(seed, name))
        numbers[name] = dual_estimate(potential.network, real.flatten(1), fake.flatten(1))
    return Outcome(numbers, potential.evidence.seconds)


def report(settings: DigitsSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """Mean and deviation of the estimates on the test images, by depth and network."""
    values: dict[str, dict[str, list[float]]] = {}
    for job in jobs(settings):
        row = values.setdefault(str(job.spec.depth), {})
        row.setdefault(job.network, []).append(outcomes[job.name].numbers["test"])
    ours = {depth: {name: spread(found) for name, found in row.items()} for depth, row in values.items()}
    title = "Estimated W1 of test digits and generated ones (our generator is not the paper's)"
    drawn = {"digits": {depth: {name: value[0] for name, value in row.items()} for depth, row in ours.items()}}
    return Report(
        (Table(title, "depth", ours, expect.tables.get("digits", {}), best="max"),),
        {"relu-lowest": relu_lowest(ours), "deeper-more": deeper_more(ours), "certified": all_certified(outcomes)},
        {"estimates": lambda: figures.lines(drawn, "depth", "estimated W1")},
    )


def deeper_more(ours: Mapping[str, Mapping[str, Value]]) -> Verdict:
    """Whether the estimate of every network grows from each depth to the next."""
    depths = sorted(ours, key=int)
    curves = {name: [ours[depth][name][0] for depth in depths] for name in ours[depths[0]]}
    growing = [name for name, curve in curves.items() if all(b > a for a, b in pairwise(curve))]
    text = "; ".join(f"{name} {', '.join(f'{value:.3f}' for value in curve)}" for name, curve in curves.items())
    evidence = f"{len(growing)} of {len(curves)} networks at depths {', '.join(depths)}: {text}"
    return Verdict(len(depths) > 1 and len(growing) == len(curves), evidence)


EXPERIMENT = Experiment(
    DigitsSettings, ("relu-lowest", "deeper-more", "certified"), jobs, run, report, elsewhere=elsewhere
)
