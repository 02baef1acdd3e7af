"""Denoisers with each activation and each λ: their scores and how few linear regions they need [table:performance]."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from lipspline.certify import Certificate
from lipspline.data import bsd, images
from lipspline.data.location import locate
from lipspline.experiments import figures
from lipspline.experiments.config import to_json
from lipspline.experiments.experiment import Context, Expectation, Experiment, Outcome, Report, Verdict
from lipspline.experiments.networks import Activation, check_options
from lipspline.experiments.potential import all_certified
from lipspline.experiments.tables import Table, Value
from lipspline.functional.quality import psnr, ssim
from lipspline.models.denoiser import denoiser
from lipspline.models.export import load, save
from lipspline.models.network import Network
from lipspline.nn.complexity import EffectiveRegions, effective_regions
from lipspline.training.loop import Plan, fit
from lipspline.training.schedules import SCHEDULES
from lipspline.training.tasks import Patches, denoising

WEIGHTS = "model.safetensors"


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
    """

    activation: Activation
    channels: int
    depth: int
    padding_mode: Literal["zeros", "circular"]
    options: dict[str, Any] = field(default_factory=dict)
    tv2_weight: float = 0.0

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
class Training:
    """How a denoiser is trained.

    Args:
        patches: "crops" for random crops without end, "grid" for the paper's 238,400 patches.
        average: decay of the moving average of the weights; 0 for none.
        validate_every: steps between two looks at the validation images.
    """

    steps: int
    lr: float
    batch: int
    size: int
    patches: Literal["crops", "grid"]
    schedule: Literal["constant", "cosine", "one-cycle", "trapezoid"]
    average: float
    validate_every: int


@dataclass(frozen=True)
class Settings:
    """What [table:performance] and [table:nbr_knots] compare; noise is the standard deviation of 255.

    Args:
        training_images: how many of the 400 images to train on.
        test_images: how many of the 68 images to test on.
    """

    noises: tuple[int, ...]
    training_images: int
    test_images: int
    training: Training
    networks: dict[str, DenoiserSpec]


@dataclass(frozen=True)
class Job:
    """One denoiser, trained for one noise level."""

    network: str
    spec: DenoiserSpec
    noise: int
    training: Training
    training_images: int
    test_images: int

    @property
    def name(self) -> str:
        return f"{self.network}-noise{self.noise}"

    @property
    def steps(self) -> int:
        return self.training.steps


def jobs(settings: Settings) -> list[Job]:
    """Every network at every noise level."""
    return [
        Job(name, spec, noise, settings.training, settings.training_images, settings.test_images)
        for noise in settings.noises
        for name, spec in settings.networks.items()
    ]


def run(job: Job, context: Context) -> Outcome:
    """Train a denoiser, write it as ordinary layers with a certificate, and score what was written."""
    model = job.spec.build(context.seed)
    training, noise = job.training, job.noise / 255
    clean = images.read_folder(locate("train400", context.data))[: job.training_images]
    validation = bsd.noisy_images(images.read_folder(locate("set12", context.data)), noise, context.seed)
    task = denoising(
        model,
        _patches(clean, training, context.seed),
        validation[: job.test_images],
        noise=noise,
        batch=training.batch,
        lr=training.lr,
        tv2_weight=job.spec.tv2_weight,
        seed=context.seed,
    )
    plan = Plan(
        training.steps,
        schedule=SCHEDULES[training.schedule],
        average=training.average or None,
        evaluate_every=training.validate_every,
        checkpoint_every=250,
    )
    evidence = fit(task, plan, folder=context.folder, config=to_json(job), observers=[context.observe])
    certificate = save(model, context.folder / WEIGHTS, {"trained": to_json(job), "seed": context.seed})
    regions = effective_regions(model) if job.spec.activation == "lls" else None
    test = bsd.noisy_images(images.read_folder(locate("bsd68", context.data)), noise, context.seed)
    written = load(context.folder / WEIGHTS)
    numbers = {
        **_scores(written, test[: job.test_images]),
        "set12_psnr": evidence.metrics["psnr"],
        **_evidence(certificate, regions),
    }
    curve = [[line["step"], line["psnr"]] for line in evidence.log if "psnr" in line]
    return Outcome(numbers, evidence.seconds, {"validation": curve})


def _patches(clean: list[images.NamedImage], training: Training, seed: int) -> Patches:
    if training.patches == "grid":
        return bsd.GridPatches(clean, size=training.size, seed=seed)
    return bsd.RandomCrops(clean, size=training.size, seed=seed)


@torch.no_grad()
def _scores(model: Network, test: list[bsd.NoisyImage]) -> dict[str, float]:
    """Mean PSNR and SSIM over images, profile `paper`."""
    pairs = [(model(image.noisy), image.clean) for image in test]
    return {
        "psnr": sum(psnr(estimate, clean).item() for estimate, clean in pairs) / len(pairs),
        "ssim": sum(ssim(estimate, clean).item() for estimate, clean in pairs) / len(pairs),
    }


def _evidence(certificate: Certificate, regions: EffectiveRegions | None) -> dict[str, float]:
    found = {"certificate": certificate.upper}
    return found if regions is None else {**found, "regions": regions.overall, "most_regions": regions.largest}


def report(settings: Settings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """Both tables of the paper, and PSNR against λ."""
    numbers = {(job.network, job.noise): outcomes[job.name].numbers for job in jobs(settings)}
    performance = {
        name: {f"{key} {noise}": (numbers[name, noise][key],) for noise in settings.noises for key in ("psnr", "ssim")}
        for name in settings.networks
    }
    splines = [name for name, spec in settings.networks.items() if spec.activation == "lls"]
    regions: dict[str, dict[str, Value]] = {
        str(noise): {name: (numbers[name, noise]["regions"],) for name in splines} for noise in settings.noises
    }
    tables = (
        Table("PSNR and SSIM on BSD68", "network", performance, expect.tables.get("performance", {}), digits=".4f"),
        Table("Average effective regions (AELR)", "noise", regions, expect.tables.get("regions", {}), digits=".2f"),
    )
    curves = {f"noise {noise}": _against_weight(settings, numbers, splines, noise) for noise in settings.noises}
    drawn = {"lambda": lambda: figures.lines(curves, "λ", "PSNR on BSD68 (dB)")} if splines else {}
    return Report(tables, _verdicts(settings, numbers, outcomes, splines), drawn)


def _against_weight(settings: Settings, numbers: Mapping, splines: list[str], noise: int) -> dict[str, dict]:
    """PSNR of the spline denoisers by λ."""
    return {f"{settings.networks[name].tv2_weight:g}": {"lls": numbers[name, noise]["psnr"]} for name in splines}


def _verdicts(settings: Settings, numbers: Mapping, outcomes: Mapping[str, Outcome], splines: list[str]) -> dict:
    gaps, lowest = [], []
    for noise in settings.noises:
        scores = {name: numbers[name, noise]["psnr"] for name in settings.networks}
        rivals = {name: score for name, score in scores.items() if name not in splines}
        if splines and rivals:
            gaps.append(max(scores[name] for name in splines) - max(rivals.values()))
            lowest.append(min(rivals, key=lambda name: rivals[name]) == "relu")
    margin = f"best LLS minus best rival: {', '.join(f'{gap:+.2f} dB' for gap in gaps)}"
    return {
        "lls-best": Verdict(all(gap > 0 for gap in gaps), margin),
        "relu-worst": Verdict(all(lowest), "the lowest rival is ReLU" if all(lowest) else "ReLU is not the lowest"),
        "sparse-for-free": _sparse_for_free(settings, numbers, splines),
        "certified": all_certified(outcomes),
    }


def _sparse_for_free(settings: Settings, numbers: Mapping, splines: list[str]) -> Verdict:
    """Whether some λ brings the AELR below 2 at a loss of at most 0.1 dB against the best λ."""
    found = []
    for noise in settings.noises:
        best = max((numbers[name, noise]["psnr"] for name in splines), default=0.0)
        good = [
            name
            for name in splines
            if numbers[name, noise]["regions"] < 2 and numbers[name, noise]["psnr"] >= best - 0.1
        ]
        found.append(f"noise {noise}: {', '.join(good) or 'none'}")
    return Verdict(all("none" not in text for text in found), "; ".join(found))


EXPERIMENT = Experiment(Settings, ("lls-best", "relu-worst", "sparse-for-free", "certified"), jobs, run, report)
