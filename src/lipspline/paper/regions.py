"""How few linear regions trained spline denoisers need [table:nbr_knots]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lipspline.formats import datasets
from lipspline.networks.builders import Network
from lipspline.networks.complexity import sparsify
from lipspline.networks.files import load, save
from lipspline.paper.config import Count, Several
from lipspline.paper.denoiser_training import WEIGHTS, complexity, job_name, trained_weights
from lipspline.paper.experiment import Context, Expectation, Experiment, Outcome, Report, Verdict
from lipspline.paper.potential import all_certified
from lipspline.paper.tables import Table, Value
from lipspline.training.tasks import mean_quality

FEW, FREE = 2.0, 0.1  # regions, and the loss in dB up to which they count as free


@dataclass(frozen=True)
class Settings:
    """Which denoisers are looked at, and how their slopes are merged.

    The subgradient of ‖·‖₁ brings slopes near each other but, in a training of few steps, not onto each other.
    Neighbouring slopes that span at most a tolerance are therefore merged after the training; of `tolerances` the
    largest is taken with which the validation images lose at most `loss`. Without tolerances nothing is merged.

    Args:
        denoisers: the recipe that trains them.
        networks: its spline denoisers.
        noises: standard deviations of 255.
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
class Job:
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


def jobs(settings: Settings) -> list[Job]:
    """Every spline denoiser at every noise level."""
    s = settings
    return [
        Job(s.denoisers, name, noise, s.test_images, s.tolerances, s.loss) for noise in s.noises for name in s.networks
    ]


def run(job: Job, context: Context) -> Outcome:
    """Count the regions of a trained denoiser, merge its slopes, and score what is left."""
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
    return Outcome(numbers, 0.0)


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


def _noisy(name: str, job: Job, context: Context) -> list[datasets.NoisyImage]:
    clean = datasets.read(name, job.test_images, context.data)
    return datasets.noisy_images(clean, job.noise / 255, context.seed)


def report(settings: Settings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """The table of the paper: with slopes merged, and as they were trained."""
    paper = expect.tables.get("regions", {})
    how = f"slopes merged at a loss of at most {settings.loss:g} dB on Set12" if settings.tolerances else "as trained"
    tables = (
        Table(f"AELR, {how}", "noise", _rows(settings, outcomes, "merged_regions"), paper, digits=".2f"),
        Table("AELR, as trained", "noise", _rows(settings, outcomes, "regions"), paper, digits=".2f"),
        Table("Slopes that were merged span at most", "noise", _rows(settings, outcomes, "tolerance"), digits="g"),
        Table(f"PSNR on BSD68, {how}", "noise", _rows(settings, outcomes, "merged_psnr"), digits=".2f"),
        Table("PSNR on BSD68, as trained", "noise", _rows(settings, outcomes, "psnr"), digits=".2f"),
    )
    verdicts = {"sparse-for-free": _sparse_for_free(settings, outcomes), "certified": all_certified(outcomes)}
    return Report(tables, verdicts)


def _rows(settings: Settings, outcomes: Mapping[str, Outcome], number: str) -> dict[str, dict[str, Value]]:
    rows: dict[str, dict[str, Value]] = {str(noise): {} for noise in settings.noises}
    for job in jobs(settings):
        rows[str(job.noise)][job.network] = (outcomes[job.name].numbers[number],)
    return rows


def _sparse_for_free(settings: Settings, outcomes: Mapping[str, Outcome]) -> Verdict:
    """Whether at every noise level some λ, merged or not, has few regions and loses almost nothing against the best."""
    found: dict[int, list[str]] = {noise: [] for noise in settings.noises}
    for noise, names in found.items():
        numbers = {job.network: outcomes[job.name].numbers for job in jobs(settings) if job.noise == noise}
        best = max(row["psnr"] for row in numbers.values())
        for how, prefix in (("as trained", ""), ("merged", "merged_")):
            for name, row in numbers.items():
                regions, loss = row[f"{prefix}regions"], best - row[f"{prefix}psnr"]
                if regions < FEW and loss <= FREE:
                    names.append(f"{name} {how} ({regions:.2f} regions, {-loss:+.2f} dB)")
    text = "; ".join(f"noise {noise}: {', '.join(names) or 'none'}" for noise, names in found.items())
    return Verdict(all(found.values()), f"below {FEW:g} regions and within {FREE:g} dB of the best, {text}")


EXPERIMENT = Experiment(Settings, ("sparse-for-free", "certified"), jobs, run, report)
