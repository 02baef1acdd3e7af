"""One denoiser, trained for one noise level, written with its certificate, its scores and where it comes from."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from lipspline._infra import ranks
from lipspline._infra.files import decode, encode, write_whole
from lipspline.certification import Certificate
from lipspline.formats import datasets
from lipspline.networks.builders import Network, denoiser
from lipspline.networks.complexity import effective_regions
from lipspline.networks.files import load, save
from lipspline.networks.inference import plain
from lipspline.networks.rescale import rescale_
from lipspline.paper.config import Amount, Count, Natural, Positive, added_later, to_json
from lipspline.paper.experiment import Context, Outcome
from lipspline.paper.networks import Activation, check_options
from lipspline.training.loop import Fit, Plan, fit
from lipspline.training.optim import SLOPES
from lipspline.training.schedules import SCHEDULES
from lipspline.training.slopes import learn_coefficients, learn_slopes
from lipspline.training.tasks import Patches, denoising, mean_quality

WEIGHTS = "model.safetensors"
PARAMETERS = "parameters.safetensors"
DATA = "400 images of 180x180 from BSDS500 (its 200 training and 200 test images), gray, at four scales"
LICENCE = (
    "trained on the Berkeley Segmentation Dataset, which its authors offer for non-commercial research and education"
)


@dataclass(frozen=True)
class Start:
    """The trained denoiser that a training starts from, rescaled to its noise level [sec:exp_pnp].

    Args:
        network: its name in its recipe.
        noise: what it was trained for; if not given, what the training that starts from it is for.
        recipe: which recipe it is of; this one if not given. "{noise}" in it becomes the noise level.
    """

    network: str
    noise: Count | None = None
    recipe: str = ""

    @property
    def job(self) -> str:
        """The name of the training it comes from."""
        assert self.noise is not None, "a job knows the noise level that it starts from"
        return job_name(self.network, self.noise)


@dataclass(frozen=True, kw_only=True)
class DenoiserSpec:
    """A convolutional denoiser [sec:PnPReconstruction].

    Args:
        activation: its name in the paper's tables.
        channels: feature maps in a hidden layer.
        depth: number of convolutions.
        padding_mode: "zeros" or "circular".
        options: of the activation.
        tv2_weight: λ of [eq:optim_network].
        start: where its parameters come from; random if not given.
        steps: how long it is trained, if not as long as the others; 0 leaves it as it starts.
        lr, slopes, rotations: its rates, if not those of the others.
    """

    activation: Activation
    channels: Count
    depth: Count
    padding_mode: Literal["zeros", "circular"]
    options: dict[str, Any] = field(default_factory=dict)
    tv2_weight: Amount = 0.0
    start: Start | None = None
    steps: Natural | None = None
    lr: Positive | None = added_later(None)
    slopes: Positive | None = added_later(None)
    rotations: Positive | None = added_later(None)

    def __post_init__(self):
        check_options(self.activation, self.options)

    def build(self, seed: int) -> Network:
        """The denoiser with random weights given by `seed` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return denoiser(
                self.activation,
                self.channels,
                self.depth,
                padding_mode=self.padding_mode,
                activation_options=self.options,
            )


@dataclass(frozen=True)
class DenoiserTraining:
    """How a denoiser is trained.

    Args:
        patches: "crops" for random crops without end, "grid" for the paper's 238,400 patches.
        average: decay of the moving average of the weights; 0 for none.
        validate_every: steps between two looks at the validation images.
        slopes: learn the slopes of splines, with this learning rate, instead of their coefficients.
        rotations: turn orthonormal matrices by at most this angle in a step, instead of moving their entries.
        tv2_prox: minimise TV² by its proximal step, so that slopes merge exactly, instead of its subgradient.
        rowwise: the slopes of a spline share their second moment in Adam, so that those that few inputs reach stay.
        lambda_per: what λ is weighed against: the squared error of a "pixel", or of a "patch", the sum over its pixels,
            as in the authors' program; there the same λ weighs less, by the number of pixels.
    """

    steps: Count
    lr: Positive
    batch: Count
    size: Count
    patches: Literal["crops", "grid"]
    schedule: Literal["constant", "cosine", "one-cycle", "trapezoid"]
    average: Amount
    validate_every: Count
    slopes: Positive | None = None
    rotations: Positive | None = None
    tv2_prox: bool = added_later(False)
    lambda_per: Literal["pixel", "patch"] = added_later("pixel")
    rowwise: bool = added_later(False)

    def __post_init__(self):
        if self.tv2_prox and self.slopes is None:
            raise ValueError("tv2_prox is a step in the slopes of splines: give slopes, their learning rate.")
        if self.rowwise and self.slopes is None:
            raise ValueError("rowwise is about the slopes of splines: give slopes, their learning rate.")

    def tv2_weight(self, weight: float) -> float:
        """What λ is beside a mean squared error over pixels, which is what is minimised.

        Adam takes no notice of a factor on the whole objective, so that the two are the same training.
        """
        return weight / self.size**2 if self.lambda_per == "patch" else weight

    def plan(self, steps: int) -> Plan:
        """What the training loop is told."""
        return Plan(
            steps,
            schedule=SCHEDULES[self.schedule],
            average=self.average or None,
            evaluate_every=self.validate_every,
            checkpoint_every=250,
        )


@dataclass(frozen=True)
class DenoiserJob:
    """One denoiser, trained for one noise level, in units of 1/255."""

    network: str
    spec: DenoiserSpec
    noise: int
    training: DenoiserTraining
    training_images: int
    test_images: int

    @property
    def name(self) -> str:
        return job_name(self.network, self.noise)

    @property
    def steps(self) -> int:
        return self.training.steps if self.spec.steps is None else self.spec.steps


def make_job(
    network: str, spec: DenoiserSpec, noise: int, training: DenoiserTraining, training_images: int, test_images: int
) -> DenoiserJob:
    """The training of a network for a noise level, with the rates of its own that it may have."""
    rates = {name: getattr(spec, name) for name in ("lr", "slopes", "rotations") if getattr(spec, name) is not None}
    if spec.start is not None:
        start = replace(spec.start, recipe=spec.start.recipe.replace("{noise}", str(noise)))
        spec = replace(spec, start=start if start.noise is not None else replace(start, noise=noise))
    return DenoiserJob(network, spec, noise, replace(training, **rates), training_images, test_images)


def job_name(network: str, noise: int) -> str:
    """The name of the training of a network for a noise level."""
    return f"{network}-noise{noise}"


def needs(job: DenoiserJob) -> tuple[str, ...]:
    """The training of the same recipe that this one starts from."""
    start = job.spec.start
    return (start.job,) if start is not None and not start.recipe else ()


def elsewhere(job: DenoiserJob) -> tuple[tuple[str, str], ...]:
    """The training of another recipe that this one starts from."""
    start = job.spec.start
    return ((start.recipe, start.job),) if start is not None and start.recipe else ()


def run(job: DenoiserJob, context: Context) -> Outcome:
    """Train a denoiser, score it as ordinary layers, and write these with certificate, scores and provenance."""
    model = job.spec.build(context.seed)
    if job.spec.start is not None:
        start_from(model, job.spec.start, job.noise, context)
    evidence = train(model, job, context) if job.steps else Fit(0, {}, [], 0.0, 0)
    if ranks.is_main():
        write_whole(context.folder / PARAMETERS, encode(model.state_dict()))
    ordinary = plain(model)
    assert isinstance(ordinary, Network)
    scores = {name: mean_quality(ordinary, held_out(name, job, context)) for name in ("bsd68", "set12")}
    curve = [[line["step"], line["psnr"]] for line in evidence.log if "psnr" in line]
    path = context.folder / WEIGHTS
    certificate = save(ordinary, path, provenance(job, context, scores, curve))
    numbers = {**scores["bsd68"], "set12_psnr": scores["set12"]["psnr"], **complexity(certificate, ordinary)}
    return Outcome(numbers, evidence.seconds, {"validation": curve})


def train(model: Network, job: DenoiserJob, context: Context) -> Fit:
    """Train a denoiser in place; started again in the same folder, it goes on where it was."""
    training, noise = job.training, job.noise / 255
    clean = datasets.read("train400", job.training_images, context.data)
    if training.slopes is not None:
        learn_slopes(model)
    task = denoising(
        model,
        _patches(clean, training, context.seed),
        held_out("set12", job, context),
        noise=noise,
        batch=training.batch,
        lr=training.lr,
        tv2_weight=training.tv2_weight(job.spec.tv2_weight),
        slopes=SLOPES if training.slopes is None else training.slopes,
        rotations=training.rotations,
        tv2_prox=training.tv2_prox and job.spec.tv2_weight > 0,
        rowwise=training.rowwise,
        seed=context.seed,
    )
    plan = training.plan(job.steps)
    evidence = fit(task, plan, folder=context.folder, config=to_json(job), observers=context.observers(lambda: model))
    learn_coefficients(model)
    return evidence


def start_from(model: Network, start: Start, noise: int, context: Context) -> None:
    """Give a denoiser the parameters of a trained one, rescaled to its own noise level."""
    path = _start_folder(start, context) / PARAMETERS
    if not path.is_file():
        raise FileNotFoundError(
            f"The training starts from {path}, which does not exist. Run the training {start.job!r} of "
            f"{f'the recipe {start.recipe}' if start.recipe else 'this recipe'} first, with the same options."
        )
    model.load_state_dict(decode(path))
    assert start.noise is not None
    rescale_(model, noise / start.noise)


def held_out(name: str, job: DenoiserJob, context: Context) -> list[datasets.NoisyImage]:
    """Images for validation ("set12") or test ("bsd68"), noisy as the seed says."""
    clean = datasets.read(name, job.test_images, context.data)
    return datasets.noisy_images(clean, job.noise / 255, context.seed)


def provenance(job: DenoiserJob, context: Context, scores: dict, curve: list) -> dict[str, Any]:
    """Where the weights come from, and how good they are; of weights that they started from, the same."""
    start = job.spec.start
    before = {} if start is None else {"start": load(_start_folder(start, context) / WEIGHTS).provenance}
    return {
        "noise": job.noise,
        "run": context.folder.parent.name,
        "trained": to_json(job),
        "seed": context.seed,
        "data": DATA,
        "licence": LICENCE,
        "scores": {name: {**score, "profile": "paper"} for name, score in scores.items()},
        "validation": curve,
        **before,
    }


def complexity(certificate: Certificate, model: Network) -> dict[str, float]:
    """The certified bound, and for splines how many linear regions they use [table:nbr_knots]."""
    found = {"certificate": certificate.upper}
    if model.config["activation"] != "lls":
        return found
    regions = effective_regions(model)
    return {**found, "regions": regions.overall, "most_regions": regions.largest}


def trained_weights(run_folder: Path, recipe: str, job: str) -> Path:
    """The file that a finished training has left in the run folder of its recipe."""
    outcome, weights = run_folder / f"{job}.json", run_folder / job / WEIGHTS
    if not (outcome.is_file() and weights.is_file()):
        raise FileNotFoundError(
            f"There is no trained denoiser {weights}. Make it first, with the same options as this command: "
            f"lipspline reproduce {recipe}"
        )
    return weights


def _start_folder(start: Start, context: Context) -> Path:
    """Where the training that another starts from has left its files."""
    return (context.sibling(start.recipe) if start.recipe else context.folder.parent) / start.job


def _patches(clean: list[datasets.NamedImage], training: DenoiserTraining, seed: int) -> Patches:
    source = datasets.GridPatches if training.patches == "grid" else datasets.RandomCrops
    return source(clean, size=training.size, seed=seed)
