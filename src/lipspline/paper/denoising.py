"""Denoisers with each activation and each λ: their scores on images they have not seen [table:performance]."""

from collections.abc import Mapping
from dataclasses import dataclass

from lipspline.paper import denoising_figures as figures
from lipspline.paper.config import Count, Several
from lipspline.paper.denoiser_training import WEIGHTS, DenoiserSpec, Job, Training, needs, run
from lipspline.paper.experiment import Expectation, Experiment, Outcome, Report, Verdict
from lipspline.paper.potential import all_certified
from lipspline.paper.tables import Table

CLEAR_LOSS = 0.1  # dB; less is what two trainings with different seeds differ by


@dataclass(frozen=True)
class Settings:
    """What [table:performance] compares; noise is the standard deviation of 255.

    Args:
        training_images: how many of the 400 images to train on.
        test_images: how many of the 68 images to test on.
    """

    noises: Several[Count]
    training_images: Count
    test_images: Count
    training: Training
    networks: dict[str, DenoiserSpec]


def jobs(settings: Settings) -> list[Job]:
    """Every network at every noise level."""
    return [
        Job(name, spec, noise, settings.training, settings.training_images, settings.test_images)
        for noise in settings.noises
        for name, spec in settings.networks.items()
    ]


def report(settings: Settings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """The table of the paper, and PSNR against λ."""
    scores = {(job.network, job.noise): outcomes[job.name].numbers for job in jobs(settings)}
    rows = {
        name: {f"{key} {noise}": (scores[name, noise][key],) for noise in settings.noises for key in ("psnr", "ssim")}
        for name in settings.networks
    }
    table = Table("PSNR and SSIM on BSD68", "network", rows, expect.tables.get("performance", {}), digits=".4f")
    psnr = {noise: {name: scores[name, noise]["psnr"] for name in settings.networks} for noise in settings.noises}
    return Report((table,), _verdicts(settings, psnr, outcomes), _figures(settings, psnr, outcomes))


Scores = Mapping[int, Mapping[str, float]]
"""PSNR by noise level and network."""


def _splines(settings: Settings) -> list[str]:
    return [name for name, spec in settings.networks.items() if spec.activation == "lls"]


def _figures(settings: Settings, psnr: Scores, outcomes: Mapping[str, Outcome]) -> dict:
    """PSNR against λ, what the best spline denoiser has learned, and what denoisers make of a photograph."""
    splines, last = _splines(settings), settings.noises[-1]
    if not splines:
        return {}
    weights = {job.network: str(outcomes[job.name].folder / WEIGHTS) for job in jobs(settings) if job.noise == last}
    best = max(splines, key=lambda name: psnr[last][name])
    rivals = [name for name in settings.networks if name not in splines]
    shown = {name: weights[name] for name in (*rivals[:2], best)}
    curves = {
        noise: {settings.networks[name].tv2_weight: psnr[noise][name] for name in splines} for noise in settings.noises
    }
    return {
        "lambda": lambda: figures.against_weight(curves),
        "activations": lambda: figures.learned_activations(weights[best]),
        "photograph": lambda: figures.photograph(shown, last),
    }


def _verdicts(settings: Settings, psnr: Scores, outcomes: Mapping[str, Outcome]) -> dict[str, Verdict]:
    return {
        "lls-best": _lls_best(settings, psnr),
        "relu-worst": _relu_worst(settings, psnr),
        "too-sparse": _too_sparse(settings, psnr),
        "certified": all_certified(outcomes),
    }


def _lls_best(settings: Settings, psnr: Scores) -> Verdict:
    """Whether the best spline denoiser beats every rival of the same budget at every noise level."""
    splines = _splines(settings)
    equal = [name for name in splines if settings.networks[name].start is None]
    gaps = {
        noise: max(row[name] for name in equal) - max(row[name] for name in row if name not in splines)
        for noise, row in psnr.items()
        if equal and len(splines) < len(row)
    }
    text = ", ".join(f"noise {noise}: {gap:+.2f} dB" for noise, gap in gaps.items())
    return Verdict(all(gap > 0 for gap in gaps.values()), f"best LLS minus best rival, {text or 'none to compare'}")


def _relu_worst(settings: Settings, psnr: Scores) -> Verdict:
    """Whether ReLU is below all other fixed activations."""
    splines = _splines(settings)
    lowest = {
        noise: min((name for name in row if name not in splines), key=lambda name: row[name], default="none")
        for noise, row in psnr.items()
    }
    text = ", ".join(f"noise {noise}: {name}" for noise, name in lowest.items())
    return Verdict(all(name == "relu" for name in lowest.values()), f"lowest without splines, {text}")


def _too_sparse(settings: Settings, psnr: Scores) -> Verdict:
    """Whether the largest λ loses clearly against the best one."""
    splines = _splines(settings)
    if len(splines) < 2:
        return Verdict(False, "there is no λ to compare")
    strongest = max(splines, key=lambda name: settings.networks[name].tv2_weight)
    losses = {noise: max(row[name] for name in splines) - row[strongest] for noise, row in psnr.items()}
    text = ", ".join(f"noise {noise}: {loss:.2f} dB" for noise, loss in losses.items())
    return Verdict(all(loss > CLEAR_LOSS for loss in losses.values()), f"{strongest} below the best λ, {text}")


EXPERIMENT = Experiment(Settings, ("lls-best", "relu-worst", "too-sparse", "certified"), jobs, run, report, needs)
