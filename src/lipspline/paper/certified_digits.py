"""Classifiers of digits with certified radii: clean against certified accuracy, for each activation at equal budget."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipspline import robust
from lipspline._infra import checks
from lipspline.certification.proof import certify
from lipspline.networks.builders import Network, activation
from lipspline.networks.inference import plain
from lipspline.nn.convolutions import conv2d
from lipspline.nn.matrices import linear
from lipspline.paper import figures
from lipspline.paper.config import Count, Positive, Several, to_json
from lipspline.paper.experiment import Context, Expectation, Experiment, Outcome, Report, Table, Verdict, all_certified
from lipspline.paper.wgan import digits
from lipspline.training.loop import Plan, fit
from lipspline.training.schedules import cosine
from lipspline.training.tasks import Minimize, Pairs

SIDE, CLASSES = 28, 10


@dataclass(frozen=True)
class ClassifierActivation:
    """An activation, its options, and the λ of its TV²."""

    activation: Literal["relu", "av", "prelu", "gs", "maxmin", "hh", "lls"]
    options: dict[str, Any] = field(default_factory=dict)
    tv2_weight: float = 0.0


@dataclass(frozen=True)
class ClassifierPoint:
    """A point of the curve of clean against certified accuracy.

    Args:
        margin: that the loss asks for between the right logit and the largest other one; `sqrt(2) * epsilon` is the
            certified radius epsilon. Small ones count mistakes, large ones give up on some digits for others.
        layers: two convolutions and two dense layers, or dense ones only.
        epochs: how often the training sees every image.
    """

    margin: Positive
    layers: Literal["convolutional", "dense"]
    epochs: Count


@dataclass(frozen=True)
class CertifiedSettings:
    """What is compared: every activation at every point, with the same training.

    Args:
        points: margins and layers.
        epsilons: Euclidean lengths of perturbations, for images with values in [0, 1].
        fine, coarse: channels after the first and the second convolution; width: neurons of the dense layer.
        dense_width, dense_depth: neurons of a hidden layer of dense networks, and how many of these layers there are.
        components: how many principal components of the training images dense networks see: a fixed orthonormal layer
            that keeps most of the length of an image, so that training is several times cheaper.
        rotations: the angle by which orthonormal matrices turn in a step; 0 leaves them to Adam.
        images: of the training set; test_images: of the test set.
    """

    points: dict[str, ClassifierPoint]
    epsilons: Several[Positive]
    fine: Count
    coarse: Count
    width: Count
    dense_width: Count
    dense_depth: Count
    components: Count
    images: Count
    batch: Count
    lr: Positive
    rotations: float
    test_images: Count
    networks: dict[str, ClassifierActivation]

    def __post_init__(self):
        if not self.rotations >= 0:
            raise ValueError(f"rotations must be an angle, at least 0, but is {self.rotations}.")


@dataclass(frozen=True)
class CertifiedJob:
    """One classifier."""

    network: str
    spec: ClassifierActivation
    at: str
    point: ClassifierPoint
    epsilons: tuple[float, ...]
    sizes: tuple[int, ...]
    images: int
    steps: int
    batch: int
    lr: float
    rotations: float
    test_images: int

    @property
    def name(self) -> str:
        return f"{self.network}-{self.at}"


def jobs(settings: CertifiedSettings) -> list[CertifiedJob]:
    """One job for each activation and point."""
    convolutional = (settings.fine, settings.coarse, settings.width)
    dense = (settings.components, *(settings.dense_width,) * settings.dense_depth)
    return [
        CertifiedJob(
            name,
            spec,
            at,
            point,
            tuple(settings.epsilons),
            convolutional if point.layers == "convolutional" else dense,
            settings.images,
            max(1, point.epochs * settings.images // settings.batch),
            settings.batch,
            settings.lr,
            settings.rotations,
            settings.test_images,
        )
        for name, spec in settings.networks.items()
        for at, point in settings.points.items()
    ]


def classifier(images: Tensor, spec: ClassifierActivation, fine: int, coarse: int, width: int) -> Network:
    """A 1-Lipschitz network for digits: two orthogonal convolutions with stride 2, then two dense layers."""
    features = coarse * (SIDE // 4) ** 2
    layers: list[nn.Module] = [
        conv2d(1, fine, 3, stride=2),
        activation(spec.activation, fine, **spec.options),
        conv2d(fine, coarse, 3, stride=2),
        activation(spec.activation, coarse, **spec.options),
        nn.Flatten(),
        linear(features, width),
        activation(spec.activation, width, **spec.options),
        linear(width, CLASSES),
    ]
    return Network(layers, {"kind": "classifier"})


def dense_classifier(images: Tensor, spec: ClassifierActivation, components: int, *widths: int) -> Network:
    """A 1-Lipschitz network for digits: principal components of the images, then dense layers."""
    layers: list[nn.Module] = [nn.Flatten(), principal_components(images, components)]
    for n_in, n_out in itertools.pairwise((components, *widths)):
        layers += [linear(n_in, n_out), activation(spec.activation, n_out, **spec.options)]
    return Network([*layers, linear(widths[-1], CLASSES)], {"kind": "classifier"})


@torch.no_grad()
def principal_components(images: Tensor, components: int) -> nn.Linear:
    """A layer that is not trained: the orthonormal directions that hold most of the length of images (M, ...)."""
    rows = images.flatten(1)
    _, directions = torch.linalg.eigh((rows.mT @ rows).double())
    layer = nn.Linear(rows.shape[1], components, bias=False).requires_grad_(False)
    layer.weight.copy_(directions[:, -components:].mT)
    return layer


_BUILDERS = {"convolutional": classifier, "dense": dense_classifier}


def run(job: CertifiedJob, context: Context) -> Outcome:
    """Train a classifier; its accuracies are those of the exported network, with the constant that is proved of it."""
    training, test = (digits(part, context.data) for part in ("train", "test"))
    pairs = Pairs(training.images[: job.images], training.labels[: job.images])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        model = _BUILDERS[job.point.layers](pairs.x, job.spec, *job.sizes)
    held_out = Pairs(test.images[: job.test_images], test.labels[: job.test_images])

    def loss(step: int) -> Tensor:
        batch = pairs.batch(step, job.batch, context.seed)
        return robust.multi_margin_loss(model(batch.x), batch.y, margin=job.point.margin)

    def score() -> dict[str, float]:
        return {"accuracy": robust.certified_accuracy(_logits(model, held_out.x), held_out.y, 0.0)}

    task = Minimize(model, job.lr, loss, score, job.spec.tv2_weight, rotations=job.rotations or None)
    plan = Plan(job.steps, schedule=cosine, log_every=max(1, job.steps // 100), checkpoint_every=max(1, job.steps // 4))
    watching = context.observers(lambda: model)
    evidence = fit(task, plan, folder=context.folder, config=to_json(job), observers=watching)
    final = plain(model)
    upper, logits = certify(final).upper, _logits(final, held_out.x)
    accuracies = {
        f"{epsilon:.4g}": robust.certified_accuracy(logits, held_out.y, epsilon, upper)
        for epsilon in (0.0, *job.epsilons)
    }
    return Outcome({"certificate": upper, **accuracies}, evidence.seconds)


@torch.no_grad()
def _logits(model: nn.Module, images: Tensor) -> Tensor:
    checks.at_least("The number of test images", len(images), 1)
    training = model.training
    logits = torch.cat([model.eval()(part) for part in images.split(1000)])
    model.train(training)
    return logits


def report(settings: CertifiedSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """Clean and certified accuracy in percent, by point and activation."""
    columns = ["0", *(f"{epsilon:.4g}" for epsilon in settings.epsilons)]
    ours: dict[str, dict[str, tuple[float, ...]]] = {}
    curves: dict[str, dict[str, dict[str, float]]] = {}
    for job in jobs(settings):
        numbers = outcomes[job.name].numbers
        for column in columns:
            row = f"{job.at} (margin {job.point.margin:g}), ε = {column}"
            ours.setdefault(row, {})[job.network] = (100 * numbers[column],)
            drawn = curves.setdefault(f"{job.at} (margin {job.point.margin:g})", {})
            drawn.setdefault(column, {})[job.network] = 100 * numbers[column]
    return Report(
        (Table("Accuracy and certified accuracy, percent", "perturbation", ours, best="max", digits=".2f"),),
        {"relu-lowest": _relu_lowest(ours, columns[-1]), "certified": all_certified(outcomes)},
        {"accuracies": lambda: figures.lines(curves, "length of the perturbation", "certified accuracy, percent")},
    )


def _relu_lowest(ours: Mapping[str, Mapping[str, tuple[float, ...]]], largest: str) -> Verdict:
    """Whether no activation certifies less than ReLU at the largest perturbation."""
    rows = {name: row for name, row in ours.items() if name.endswith(f"ε = {largest}")}
    holds = all("relu" in row and row["relu"] <= min(row.values()) for row in rows.values())
    evidence = "; ".join(
        f"{name}: " + ", ".join(f"{k} {v[0]:.1f}" for k, v in row.items()) for name, row in rows.items()
    )
    return Verdict(holds, evidence)


EXPERIMENT = Experiment(CertifiedSettings, ("relu-lowest", "certified"), jobs, run, report)
