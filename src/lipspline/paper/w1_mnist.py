"""The Wasserstein-1 distance of real digits to those of a trained generator [tab:wasserstein_results]."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from lipspline._infra import checks, randomness
from lipspline.paper import figures
from lipspline.paper.config import Count, Positive, Several
from lipspline.paper.experiment import Context, Expectation, Experiment, Outcome, Report, Table, all_certified, spread
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

    @property
    def name(self) -> str:
        return f"depth{self.spec.depth}-{self.network}-{self.number}"

    @property
    def steps(self) -> int:
        return self.training.steps


def jobs(settings: DigitsSettings) -> list[DigitsJob]:
    """One job for each depth, network and run."""
    steps = max(1, settings.epochs * settings.images // settings.batch)
    training = PotentialTraining(steps, settings.lr, settings.batch, settings.schedule)
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
        )
        for depth in settings.depths
        for name, spec in settings.networks.items()
        for number in range(settings.runs)
    ]


def sampler(images: Tensor, generate: nn.Module, latent: int) -> Sampler:
    """Random images of a set, flat, and fresh ones of a generator."""

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(images), (count,), generator=generator)
        fake = sample(generate, torch.randn(count, latent, generator=generator))
        return images[rows].flatten(1), fake.flatten(1)

    return draw


def run(job: DigitsJob, context: Context) -> Outcome:
    """Train a potential on the training images, and estimate the distance on validation and test images."""
    images = digits("train", context.data).images
    generate, latent = trained_generator(context.sibling(job.gan), job.gan, job.generator)
    draw = sampler(images[: job.images], generate, latent)
    seed = context.seed * 1000 + job.number
    potential = learn(job, job.spec, images[0].numel(), draw, job.training, context, seed)
    test = digits("test", context.data).images[: job.test_images]
    numbers = {"certificate": potential.certificate}
    for name, real in {"validation": images[SPLIT:], "test": test}.items():
        fake = sample(generate, torch.randn(len(real), latent, generator=randomness.generator(seed, name)))
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
        {"relu-lowest": relu_lowest(ours), "certified": all_certified(outcomes)},
        {"estimates": lambda: figures.lines(drawn, "depth", "estimated W1")},
    )


EXPERIMENT = Experiment(DigitsSettings, ("relu-lowest", "certified"), jobs, run, report)
