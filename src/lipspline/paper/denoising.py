"""Denoisers with each activation and λ: their scores [table:performance], their linear regions [table:nbr_knots]."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lipspline.formats import datasets
from lipspline.networks.builders import Network
from lipspline.networks.complexity import sparsify
from lipspline.networks.files import load, save
from lipspline.paper import figures
from lipspline.paper.config import Count, Several
from lipspline.paper.denoiser_training import (
    WEIGHTS,
    DenoiserJob,
    DenoiserSpec,
    DenoiserTraining,
    complexity,
    elsewhere,
    job_name,
    make_job,
    needs,
    run,
    trained_weights,
)
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
)
from lipspline.training.tasks import mean_quality

CLEAR_LOSS = 0.1  # dB; less is what two trainings with different seeds differ by


@dataclass(frozen=True)
class DenoisingSettings:
    """What [table:performance] compares; noise levels are in units of 1/255.

    Args:
        training_images: how many of the 400 images to train on.
        test_images: how many of the 68 images to test on.
    """

    noises: Several[Count]
    training_images: Count
    test_images: Count
    training: DenoiserTraining
    networks: dict[str, DenoiserSpec]


def jobs(settings: DenoisingSettings) -> list[DenoiserJob]:
    """Every network at every noise level."""
    return [
        make_job(name, spec, noise, settings.training, settings.training_images, settings.test_images)
        for noise in settings.noises
        for name, spec in settings.networks.items()
    ]


def report(settings: DenoisingSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """The table of the paper, and PSNR against λ."""
    scores = {(job.network, job.noise): outcomes[job.name].numbers for job in jobs(settings)}
    rows = {
        name: {f"{key} {noise}": (scores[name, noise][key],) for noise in settings.noises for key in ("psnr", "ssim")}
        for name in settings.networks
    }
    table = Table("PSNR and SSIM on BSD68", "network", rows, expect.tables.get("performance", {}), digits=".4f")
    psnr = {noise: {name: scores[name, noise]["psnr"] for name in settings.networks} for noise in settings.noises}
    return Report((table,), _verdicts(settings, psnr, outcomes), _figures(settings, psnr, outcomes))


NEARLY = 0.05
"""dB below the best spline denoiser that are hardly seen: of these the figure shows the one with the fewest regions."""
PsnrByNoise = Mapping[int, Mapping[str, float]]
"""PSNR by noise level and network."""


def _splines(settings: DenoisingSettings) -> list[str]:
    return [name for name, spec in settings.networks.items() if spec.activation == "lls"]


def _figures(settings: DenoisingSettings, psnr: PsnrByNoise, outcomes: Mapping[str, Outcome]) -> dict:
    """PSNR against λ, what the simplest of the good spline denoisers has learned, and denoisers on a photograph."""
    splines, last = _splines(settings), settings.noises[-1]
    if not splines:
        return {}
    weights = {job.network: str(outcomes[job.name].folder / WEIGHTS) for job in jobs(settings) if job.noise == last}
    best = max(splines, key=lambda name: psnr[last][name])
    good = [name for name in splines if psnr[last][name] > psnr[last][best] - NEARLY]
    simplest = min(good, key=lambda name: outcomes[f"{name}-noise{last}"].numbers["regions"])
    rivals = [name for name in settings.networks if name not in splines]
    shown = {name: weights[name] for name in (*rivals[:2], best)}
    curves = {
        noise: {settings.networks[name].tv2_weight: psnr[noise][name] for name in splines} for noise in settings.noises
    }
    return {
        "lambda": lambda: figures.against_weight(curves),
        "activations": lambda: figures.learned_activations(weights[simplest]),
        "photograph": lambda: figures.photograph(shown, last),
    }


def _verdicts(settings: DenoisingSettings, psnr: PsnrByNoise, outcomes: Mapping[str, Outcome]) -> dict[str, Verdict]:
    return {
        "lls-best": _lls_best(settings, psnr),
        "relu-worst": _relu_worst(settings, psnr),
        "too-sparse": _too_sparse(settings, psnr),
        "certified": all_certified(outcomes),
    }


def _lls_best(settings: DenoisingSettings, psnr: PsnrByNoise) -> Verdict:
    """Whether the best spline denoiser beats every rival of the same budget at every noise level."""
    splines = _splines(settings)
    budgets = {name: _budget(spec) for name, spec in settings.networks.items()}
    equal = [name for name in splines if all(budgets[name] == budgets[each] for each in budgets if each not in splines)]
    gaps = {
        noise: max(row[name] for name in equal) - max(row[name] for name in row if name not in splines)
        for noise, row in psnr.items()
        if equal and len(splines) < len(row)
    }
    text = ", ".join(f"noise {noise}: {gap:+.2f} dB" for noise, gap in gaps.items())
    return Verdict(all(gap > 0 for gap in gaps.values()), f"best LLS minus best rival, {text or 'none to compare'}")


def _budget(spec: DenoiserSpec) -> tuple[str | None, int | None]:
    """Where a denoiser starts from and how many steps it makes: what those that are compared must share."""
    return spec.start.recipe if spec.start is not None else None, spec.steps


def _relu_worst(settings: DenoisingSettings, psnr: PsnrByNoise) -> Verdict:
    """Whether ReLU is below all other fixed activations."""
    splines = _splines(settings)
    lowest = {
        noise: min((name for name in row if name not in splines), key=lambda name: row[name], default="none")
        for noise, row in psnr.items()
    }
    text = ", ".join(f"noise {noise}: {name}" for noise, name in lowest.items())
    return Verdict(all(name == "relu" for name in lowest.values()), f"lowest without splines, {text}")


def _too_sparse(settings: DenoisingSettings, psnr: PsnrByNoise) -> Verdict:
    """Whether the largest λ loses clearly against the best one."""
    splines = _splines(settings)
    if len(splines) < 2:
        return Verdict(False, "there is no λ to compare")
    strongest = max(splines, key=lambda name: settings.networks[name].tv2_weight)
    losses = {noise: max(row[name] for name in splines) - row[strongest] for noise, row in psnr.items()}
    text = ", ".join(f"noise {noise}: {loss:.2f} dB" for noise, loss in losses.items())
    return Verdict(all(loss > CLEAR_LOSS for loss in losses.values()), f"{strongest} below the best λ, {text}")


DENOISING = Experiment(
    DenoisingSettings, ("lls-best", "relu-worst", "too-sparse", "certified"), jobs, run, report, needs, elsewhere
)


FEW, FREE = 2.0, 0.1  # regions, and the loss in dB up to which they count as free


@dataclass(frozen=True)
class RegionsSettings:
    """Which denoisers are looked at, and how their slopes are merged.

    The subgradient of ‖·‖₁ brings slopes near each other but, in a training of few steps, not onto each other.
    Neighbouring slopes that span at most a tolerance are therefore merged after the training; of `tolerances` the
    largest is taken with which the validation images lose at most `loss`. Without tolerances nothing is merged.

    Args:
        denoisers: the recipe that trains them.
        networks: its spline denoisers.
        noises: noise levels, in units of 1/255.
        test_images: how many images to validate and to test on.
        tolerances: differences of slopes, ascending.
        loss: in dB.
    """

    denoisers: str
    networks: Several[str]
    noises: Several[Count]
    test_images: Count
    tolerances: tuple[float, ...]
    loss: float


@dataclass(frozen=True)
class RegionsJob:
    """One trained denoiser."""

    denoisers: str
    network: str
    noise: int
    test_images: int
    tolerances: tuple[float, ...]
    loss: float

    @property
    def name(self) -> str:
        return job_name(self.network, self.noise)

    @property
    def steps(self) -> int:
        return 1


def region_jobs(settings: RegionsSettings) -> list[RegionsJob]:
    """Every spline denoiser at every noise level."""
    s = settings
    return [
        RegionsJob(s.denoisers, name, noise, s.test_images, s.tolerances, s.loss)
        for noise in s.noises
        for name in s.networks
    ]


def count_regions(job: RegionsJob, context: Context) -> Outcome:
    """Count the regions of a trained denoiser, merge its slopes, and score what is left."""
    begin = time.perf_counter()
    model = load(trained_weights(context.sibling(job.denoisers), job.denoisers, job.name))
    assert model.certificate is not None
    validation, test = (_noisy(name, job, context) for name in ("set12", "bsd68"))
    tolerance = choose_tolerance(model, validation, job.tolerances, job.loss)
    merged = merge(model, tolerance)
    certificate = save(merged, context.folder / WEIGHTS, {**model.provenance, "merged": tolerance})
    before, after = complexity(model.certificate, model), complexity(certificate, merged)
    numbers = {
        "psnr": mean_quality(model, test)["psnr"],
        "regions": before["regions"],
        "tolerance": tolerance,
        "merged_psnr": mean_quality(merged, test)["psnr"],
        "merged_regions": after["regions"],
        "certificate": after["certificate"],
    }
    return Outcome(numbers, time.perf_counter() - begin)


def choose_tolerance(
    model: Network, validation: Sequence[datasets.NoisyImage], tolerances: Sequence[float], loss: float
) -> float:
    """The largest tolerance with which merging costs at most `loss` dB on the validation images; 0 if none does."""
    least = mean_quality(model, validation)["psnr"] - loss if tolerances else 0.0
    chosen = 0.0
    for tolerance in sorted(tolerances):
        if mean_quality(merge(model, tolerance), validation)["psnr"] < least:
            break
        chosen = tolerance
    return chosen


def merge(model: Network, tolerance: float) -> Network:
    """The denoiser with neighbouring slopes that span at most `tolerance` made equal; as it is for 0."""
    merged = sparsify(model, tol=tolerance)[0] if tolerance else model
    assert isinstance(merged, Network)
    return merged


def _noisy(name: str, job: RegionsJob, context: Context) -> list[datasets.NoisyImage]:
    clean = datasets.read(name, job.test_images, context.data)
    return datasets.noisy_images(clean, job.noise / 255, context.seed)


def region_report(settings: RegionsSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """The table of the paper: with slopes merged, and as they were trained."""
    paper = expect.tables.get("regions", {})
    how = f"slopes merged at a loss of at most {settings.loss:g} dB on Set12" if settings.tolerances else "as trained"
    tables = (
        Table(f"AELR, {how}", "noise", _region_rows(settings, outcomes, "merged_regions"), paper, digits=".2f"),
        Table("AELR, as trained", "noise", _region_rows(settings, outcomes, "regions"), paper, digits=".2f"),
        Table(
            "Slopes that were merged span at most", "noise", _region_rows(settings, outcomes, "tolerance"), digits="g"
        ),
        Table(f"PSNR on BSD68, {how}", "noise", _region_rows(settings, outcomes, "merged_psnr"), digits=".2f"),
        Table("PSNR on BSD68, as trained", "noise", _region_rows(settings, outcomes, "psnr"), digits=".2f"),
    )
    verdicts = {"sparse-for-free": _sparse_for_free(settings, outcomes), "certified": all_certified(outcomes)}
    return Report(tables, verdicts)


def _region_rows(
    settings: RegionsSettings, outcomes: Mapping[str, Outcome], number: str
) -> dict[str, dict[str, Value]]:
    rows: dict[str, dict[str, Value]] = {str(noise): {} for noise in settings.noises}
    for job in region_jobs(settings):
        rows[str(job.noise)][job.network] = (outcomes[job.name].numbers[number],)
    return rows


def _sparse_for_free(settings: RegionsSettings, outcomes: Mapping[str, Outcome]) -> Verdict:
    """Whether at every noise level some λ has few regions, as trained, and loses almost nothing against the best.

    What merging slopes afterwards gives is told too, but does not count.
    """
    found: dict[int, list[str]] = {noise: [] for noise in settings.noises}
    trained: set[int] = set()
    for noise, names in found.items():
        numbers = {job.network: outcomes[job.name].numbers for job in region_jobs(settings) if job.noise == noise}
        best = max(row["psnr"] for row in numbers.values())
        for how, prefix in (("as trained", ""), ("merged", "merged_")):
            for name, row in numbers.items():
                regions, loss = row[f"{prefix}regions"], best - row[f"{prefix}psnr"]
                if regions < FEW and loss <= FREE:
                    trained |= set() if prefix else {noise}
                    names.append(f"{name} {how} ({regions:.2f} regions, {-loss:+.2f} dB)")
    text = "; ".join(f"noise {noise}: {', '.join(names) or 'none'}" for noise, names in found.items())
    return Verdict(trained == set(found), f"below {FEW:g} regions and within {FREE:g} dB of the best, {text}")


def trained_elsewhere(job: RegionsJob) -> tuple[tuple[str, str], ...]:
    """The training of the denoiser that is looked at."""
    return ((job.denoisers, job.name),)


REGIONS = Experiment(
    RegionsSettings,
    ("sparse-for-free", "certified"),
    region_jobs,
    count_regions,
    region_report,
    elsewhere=trained_elsewhere,
)
