"""Wasserstein GANs for digits: one generator, six activations in the critic, scored by a classifier [sec:WGAN]."""

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lipspline._infra import randomness
from lipspline.certification import certify
from lipspline.formats import datasets
from lipspline.functional.transport import dual_gap
from lipspline.networks.gan import critic, digit_classifier, generator
from lipspline.networks.inference import plain
from lipspline.paper import figures
from lipspline.paper.config import Amount, Count, Positive, added_later, to_json
from lipspline.paper.experiment import (
    Context,
    Expectation,
    Experiment,
    Outcome,
    Report,
    Table,
    Verdict,
    ahead,
    interval,
)
from lipspline.paper.networks import Activation, check_options
from lipspline.training.loop import Plan, fit
from lipspline.training.optim import Player
from lipspline.training.schedules import cosine
from lipspline.training.tasks import Pairs, WassersteinGAN, classification

_read = functools.lru_cache(maxsize=2)(datasets.read_mnist)
BETAS = (0.5, 0.999)
DRAWN = 64
GENERATOR = "generator.safetensors"


def digits(part: Literal["train", "test"], data: str | os.PathLike[str] | None) -> datasets.Digits:
    """The digits of `datasets.read_mnist`, read once a process for each folder."""
    return _read(part, datasets.data_dir(data))


@dataclass(frozen=True)
class GeneratorSpec:
    """The generator: size of the latent vectors, width, channels of the coarse and the fine feature maps."""

    latent: Count
    width: Count
    coarse: Count
    fine: Count

    def build(self) -> nn.Sequential:
        """An untrained generator."""
        return generator(self.latent, width=self.width, channels=(self.coarse, self.fine))


@dataclass(frozen=True)
class CriticSpec:
    """The critic: channels of the fine and the coarse feature maps, width of the dense layer."""

    fine: Count
    coarse: Count
    width: Count


@dataclass(frozen=True)
class ActivationSpec:
    """An activation of the critic, its options and λ."""

    activation: Activation
    options: dict[str, Any] = field(default_factory=dict)
    tv2_weight: Amount = 0.0

    def __post_init__(self):
        check_options(self.activation, self.options)


@dataclass(frozen=True)
class GanTraining:
    """How the two players are trained.

    Args:
        images: how many of the training set are used.
        rotations: turn the critic's orthonormal matrices by about this angle in a step, instead of moving their entries
            by Adam.
    """

    images: Count
    epochs: Count
    batch: Count
    critic_steps: Count
    critic_lr: Positive
    generator_lr: Positive
    rotations: Positive | None = added_later(None)

    @property
    def steps(self) -> int:
        """Updates of the generator: an epoch shows every image to the critic once."""
        return max(1, self.epochs * self.images // (self.batch * self.critic_steps))


@dataclass(frozen=True)
class ClassifierSpec:
    """The classifier that scores the digits, trained on `images` of the training set."""

    images: Count
    epochs: Count
    batch: Count
    lr: Positive

    @property
    def steps(self) -> int:
        """Updates of the classifier."""
        return max(1, self.epochs * self.images // self.batch)


@dataclass(frozen=True)
class GanSettings:
    """What [tab:inception_scores] compares.

    Args:
        runs: trainings of each network, with different seeds; jobs of their own, for as many processes as there are.
    """

    training: GanTraining
    generator: GeneratorSpec
    critic: CriticSpec
    networks: dict[str, ActivationSpec]
    classifier: ClassifierSpec
    score_samples: Count
    runs: Count = 1


@dataclass(frozen=True)
class ClassifierJob:
    """Train the classifier."""

    classifier: ClassifierSpec
    name: str = "classifier"

    @property
    def steps(self) -> int:
        return self.classifier.steps


@dataclass(frozen=True)
class GanJob:
    """Train one GAN and score its digits; `number` is that of its seed."""

    name: str
    activation: ActivationSpec
    generator: GeneratorSpec
    critic: CriticSpec
    training: GanTraining
    score_samples: int
    number: int = added_later(0)

    @property
    def steps(self) -> int:
        return self.training.steps


def inception_score(probabilities: Tensor) -> float:
    r"""How sure a classifier is of each sample and how evenly the samples fill the classes, in [1, classes] [sec:WGAN].

    .. math:: \exp\, \mathbb{E}_x\, \mathrm{KL}\big(p(y | x)\, \|\, \mathbb{E}_x p(y | x)\big)

    Args:
        probabilities: `(B, classes)`.

    Example:
        >>> inception_score(torch.eye(10)), inception_score(torch.full((5, 10), 0.1))
        (10.0, 1.0)
    """
    p = probabilities.double()
    divergence = (torch.special.xlogy(p, p) - torch.special.xlogy(p, p.mean(dim=0))).sum(dim=1)
    return round(divergence.mean().exp().item(), 12)


def jobs(settings: GanSettings) -> list[ClassifierJob | GanJob]:
    """The classifier first, then a GAN for each seed and activation."""
    shared = settings.generator, settings.critic, settings.training, settings.score_samples
    return [
        ClassifierJob(settings.classifier),
        *(
            GanJob(job_name(name, number), spec, *shared, number)
            for number in range(settings.runs)
            for name, spec in settings.networks.items()
        ),
    ]


def job_name(network: str, number: int) -> str:
    """The name of a training: that of the network, and for all seeds but the first their number."""
    return f"{network}-{number}" if number else network


def needs(job: ClassifierJob | GanJob) -> tuple[str, ...]:
    """A GAN is scored by the classifier."""
    return () if isinstance(job, ClassifierJob) else ("classifier",)


def run(job: ClassifierJob | GanJob, context: Context) -> Outcome:
    """Train the classifier, or one GAN."""
    return _run_classifier(job, context) if isinstance(job, ClassifierJob) else _run_gan(job, context)


def _run_classifier(job: ClassifierJob, context: Context) -> Outcome:
    model = _seeded(context.seed, digit_classifier)
    training, test = (digits(part, context.data) for part in ("train", "test"))
    spec = job.classifier
    pairs = Pairs(training.images[: spec.images], training.labels[: spec.images])
    task = classification(model, pairs, Pairs(*test), batch=spec.batch, lr=spec.lr, seed=context.seed)
    plan = Plan(job.steps, schedule=cosine, log_every=max(1, job.steps // 100), checkpoint_every=max(1, job.steps // 4))
    watching = context.observers(lambda: model)
    evidence = fit(task, plan, folder=context.folder, config=to_json(job), observers=watching)
    save_file(model.state_dict(), context.folder / "classifier.safetensors")
    return Outcome({"accuracy": evidence.metrics["accuracy"]}, evidence.seconds)


def _run_gan(job: GanJob, context: Context) -> Outcome:
    training, options = job.training, job.activation
    seed = context.seed * 1000 + job.number
    images = digits("train", context.data).images[: training.images]
    generate = _seeded(seed, job.generator.build)
    judge = _seeded(
        seed,
        lambda: critic(
            options.activation,
            channels=(job.critic.fine, job.critic.coarse),
            width=job.critic.width,
            activation_options=options.options,
        ),
    )
    task = WassersteinGAN(
        Player(judge, training.critic_lr, BETAS, rotations=training.rotations),
        Player(generate, training.generator_lr, BETAS),
        images,
        job.generator.latent,
        score=dict,
        batch=training.batch,
        critic_steps=training.critic_steps,
        tv2_weight=options.tv2_weight,
        seed=seed,
    )
    plan = Plan(job.steps, log_every=max(1, job.steps // 100), checkpoint_every=max(1, job.steps // 10))
    evidence = fit(task, plan, folder=context.folder, config=to_json(job), observers=context.observers(lambda: judge))
    save_file(generate.state_dict(), context.folder / GENERATOR)
    latent = torch.randn(job.score_samples, job.generator.latent, generator=randomness.generator(seed, "score"))
    fake = sample(generate, latent)
    potential = plain(judge)
    with torch.no_grad():
        gap = dual_gap(potential(images[: len(fake)]), potential(fake)).item()
    numbers = {
        "inception_score": inception_score(_probabilities(context, fake)),
        "certificate": certify(potential).upper,
        "w1": gap,
    }
    return Outcome(numbers, evidence.seconds, {"digits": _bytes(fake[:DRAWN])})


@torch.no_grad()
def sample(generate: nn.Module, latent: Tensor, chunk: int = 500) -> Tensor:
    """Images `(B, 1, 28, 28)` of a generator in evaluation mode."""
    return torch.cat([generate.eval()(part) for part in latent.split(chunk)])


def trained_generator(run: Path, recipe: str, network: str) -> tuple[nn.Module, int]:
    """The generator that a run of a GAN recipe has left in its folder, and the size of its latent vectors."""
    outcome, weights = run / f"{network}.json", run / network / GENERATOR
    if not (outcome.is_file() and weights.is_file()):
        raise FileNotFoundError(
            f"There is no trained generator {weights}. Make it first, with the same options as this command: "
            f"lipspline reproduce {recipe}"
        )
    spec = GeneratorSpec(**json.loads(outcome.read_text())["job"]["generator"])
    generate = spec.build()
    generate.load_state_dict(load_file(weights))
    return generate.eval().requires_grad_(False), spec.latent


@torch.no_grad()
def _probabilities(context: Context, images: Tensor) -> Tensor:
    """What the classifier of this run thinks of images, `(B, 10)`."""
    model = digit_classifier()
    model.load_state_dict(load_file(context.folder.parent / "classifier" / "classifier.safetensors"))
    return torch.cat([model.eval()(part).softmax(dim=1) for part in images.split(1000)])


def _seeded(seed: int, build: Callable[[], nn.Sequential]) -> nn.Sequential:
    """A network whose random start depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def _bytes(images: Tensor) -> list[list[int]]:
    """Images as 8-bit values, a list each."""
    return (images.flatten(1) * 255).round().int().tolist()


def report(settings: GanSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """The scores [tab:inception_scores] and the digits [fig:gan_samples]."""
    trained = {
        name: [outcomes[job_name(name, number)].numbers["inception_score"] for number in range(settings.runs)]
        for name in settings.networks
    }
    scores = {name: interval(found) for name, found in trained.items()}
    intervals = f"; mean over {settings.runs} trainings / half the width of its 95 % interval" * (settings.runs > 1)
    tables = (
        Table(
            f"Inception score (by our classifier, so the level is not the paper's){intervals}",
            "",
            {"score": scores},
            expect.tables.get("scores", {}),
            best="max",
            digits=".2f",
        ),
    )
    grids = {
        f"{name} ({scores[name][0]:.2f})": torch.tensor(outcomes[name].drawing["digits"]).view(-1, 28, 28) / 255
        for name in settings.networks
    }
    return Report(tables, _verdicts(trained, outcomes), {"digits": lambda: figures.digit_grids(grids)})


def _verdicts(trained: Mapping[str, Sequence[float]], outcomes: Mapping[str, Outcome]) -> dict[str, Verdict]:
    """The paper's claims; with several seeds, LLS must be ahead of the best rival beyond what the seeds explain."""
    ranked = sorted(trained, key=lambda name: fmean(trained[name]), reverse=True)
    accuracy = outcomes["classifier"].numbers["accuracy"]
    largest = max(found.numbers["certificate"] for found in outcomes.values() if "certificate" in found.numbers)
    order = " > ".join(ranked)
    rival = next(name for name in ranked if name != "lls")
    above, difference = ahead(trained["lls"], trained[rival]) if "lls" in trained else (False, "not compared")
    first = ranked[0] == "lls" and (above or len(trained["lls"]) == 1)
    return {
        "relu-lowest": Verdict(ranked[-1] == "relu", order),
        "lls-best": Verdict(first, f"{order}; LLS minus {rival}: {difference}"),
        "classifier": Verdict(accuracy >= 0.99, f"test accuracy {accuracy:.2%}"),
        "certified": Verdict(largest <= 1 + 1e-5, f"largest certificate {largest:.9f}"),
    }


EXPERIMENT = Experiment(GanSettings, ("relu-lowest", "lls-best", "classifier", "certified"), jobs, run, report, needs)
