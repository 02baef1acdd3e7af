"""What reconstructions amount to: tables of scores, of gains over the direct reconstruction, and verdicts.

Our images are of other patients than the paper's, so what is compared are gains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Protocol

from lipspline.paper import figures, reconstruction
from lipspline.paper.experiment import Expectation, Experiment, Outcome, Report, Table, Value, Verdict
from lipspline.paper.reconstruction import DenoiserComparison, ReconstructionJob, ScanKind, from_text

CLAIMS = ("lls-best", "order", "gain", "beta-below-half", "certified")
ORDER = ("lls", "av", "relu")

ImageScores = Mapping[str, Mapping[str, float]]
"""PSNR and SSIM of each image, by its name."""
Rows = dict[str, dict[str, Value]]


@dataclass(frozen=True)
class Found:
    """The outcomes of all jobs, by method and case, in the order of the jobs.

    Args:
        baseline: the method that gains are over.
        main: the test set that stands for the paper's.
    """

    jobs: Sequence[ReconstructionJob]
    outcomes: Mapping[str, Outcome]
    baseline: str
    main: str

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(job.method for job in self.jobs))

    @property
    def networks(self) -> list[str]:
        return list(dict.fromkeys(job.method for job in self.jobs if job.source is not None))

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(job.case for job in self.jobs))

    def outcome(self, method: str, case: str) -> Outcome:
        return next(self.outcomes[job.name] for job in self.jobs if (job.method, job.case) == (method, case))

    def scores(self, method: str, case: str, group: str) -> ImageScores:
        return self.outcome(method, case).numbers["images"][group]

    def mean(self, metric: str, method: str, case: str, group: str) -> float:
        return fmean(scores[metric] for scores in self.scores(method, case, group).values())

    def gain(self, method: str, case: str, group: str) -> float:
        """Mean PSNR over the mean PSNR of the baseline."""
        return self.mean("psnr", method, case, group) - self.mean("psnr", self.baseline, case, group)

    def wins(self, method: str, rival: str, case: str) -> str:
        """On how many images of the main test set a method has the higher PSNR, as `7 of 8`."""
        ours, theirs = (self.scores(name, case, self.main) for name in (method, rival))
        won = sum(ours[image]["psnr"] > theirs[image]["psnr"] for image in ours)
        return f"{won} of {len(ours)}"


class ReconstructionSettings(Protocol):
    """What a table of reconstructions compares: kinds of scans, and denoisers on them."""

    @property
    def scans(self) -> Mapping[str, Any]: ...

    @property
    def comparison(self) -> DenoiserComparison: ...


def experiment(settings: type, measurement: ScanKind) -> Experiment:
    """A table of reconstructions: direct ones and with every denoiser, on every kind of scan."""
    return Experiment(
        settings,
        CLAIMS,
        partial(jobs, measurement=measurement),
        partial(reconstruction.run, measurement=measurement),
        partial(report, measurement=measurement),
    )


def jobs(settings: ReconstructionSettings, measurement: ScanKind) -> list[ReconstructionJob]:
    """Every direct reconstruction and every denoiser, on every kind of scan."""
    return reconstruction.jobs(settings.scans, settings.comparison, tuple(measurement.baselines))


def report(
    settings: ReconstructionSettings, outcomes: Mapping[str, Outcome], expect: Expectation, measurement: ScanKind
) -> Report:
    """What was found, with gains over the first direct reconstruction of the measurement."""
    baseline = next(iter(measurement.baselines))
    return assess(settings.comparison, jobs(settings, measurement), outcomes, expect, baseline)


def assess(
    comparison: DenoiserComparison,
    jobs: Sequence[ReconstructionJob],
    outcomes: Mapping[str, Outcome],
    expect: Expectation,
    baseline: str,
) -> Report:
    """Scores and gains for each test set beside the paper's, what was tuned, and the reconstructions side by side."""
    found = Found(jobs, outcomes, baseline, next(iter(comparison.test)))
    tables = []
    for group in comparison.test:
        published = expect.tables.get(group, {})
        tables += [_scores(found, group, published), _gains(found, group, published)]
    missing = [name for name in comparison.networks if name not in found.networks]
    if found.networks:
        tables.append(_tuned(found, missing))
    goals = expect.tables.get("goals", {})
    drawn = {"reconstructions": lambda: figures.picture_rows(_pictures(found, comparison.figure))}
    return Report(tuple(tables), _verdicts(found, goals), drawn)


def _scores(found: Found, group: str, published: Mapping[str, Any]) -> Table:
    rows: Rows = {
        method: {
            f"{metric} {case}": (found.mean(metric, method, case, group),)
            for case in found.cases
            for metric in ("psnr", "ssim")
        }
        for method in found.methods
    }
    count = len(found.scores(found.baseline, found.cases[0], group))
    title = f"{group}: PSNR and SSIM (profile paper), mean over {count} image(s) {_OTHER[bool(published)]}"
    return Table(title, "method", rows, published, digits=".4f")


_OTHER = {
    True: "(other data than the paper's, whose numbers stand below ours: compare the gains)",
    False: "(other data than the paper's; noise level and β as tuned for the first test set)",
}


def _gains(found: Found, group: str, published: Mapping[str, Mapping[str, Value]]) -> Table:
    rows: Rows = {
        method: {case: (found.gain(method, case, group),) for case in found.cases}
        for method in found.methods
        if method != found.baseline
    }
    theirs = {
        method: {
            case: (row[f"psnr {case}"][0] - published[found.baseline][f"psnr {case}"][0],)
            for case in found.cases
            if f"psnr {case}" in row
        }
        for method, row in published.items()
        if method != found.baseline
    }
    title = f"{group}: gain in PSNR over {found.baseline} (dB; other data than the paper's)"
    return Table(title, "method", rows, theirs, digits="+.2f")


def _tuned(found: Found, missing: Sequence[str]) -> Table:
    rows: Rows = {}
    for method in found.networks:
        rows[method] = {}
        for case in found.cases:
            numbers = found.outcome(method, case).numbers
            rows[method] |= {f"noise {case}": (numbers["noise"],), f"beta {case}": (numbers["beta"],)}
    without = f"; left out for lack of weights: {', '.join(missing)}" if missing else ""
    levels = dict.fromkeys(level for job in found.jobs for level in job.weights)
    title = (
        "Tuned on the validation images: noise level s (of 255) and β; networks are trained for "
        f"{', '.join(levels)}, rescaled above these levels and averaged with the identity below, which keeps the "
        f"certificate{without}"
    )
    return Table(title, "network", rows, digits=".3g")


def _pictures(found: Found, group: str) -> dict[str, dict[str, Any]]:
    """The first image of a test set, a row for each case: the truth, then every method with its PSNR."""
    rows: dict[str, dict[str, Any]] = {}
    for case in found.cases:
        truth = found.outcome(found.baseline, case).drawing["truth"]
        rows[case] = {"truth": from_text(truth)}
        for method in found.methods:
            score = next(iter(found.scores(method, case, group).values()))["psnr"]
            rows[case][f"{method}, {score:.2f} dB"] = from_text(found.outcome(method, case).drawing["value"])
    return rows


def _verdicts(found: Found, goals: Mapping[str, Mapping[str, Value]]) -> dict[str, Verdict]:
    return {
        "lls-best": _lls_best(found),
        "order": _in_order(found),
        "gain": _gain(found, goals),
        "beta-below-half": _beta_below_half(found),
        "certified": _certified(found),
    }


def _lls_best(found: Found) -> Verdict:
    """Whether LLS is above every rival on every image."""
    rivals = [name for name in found.networks if name != "lls"]
    if "lls" not in found.networks or not rivals:
        return _not_compared(found)
    counts = {
        case: ", ".join(f"{found.wins('lls', rival, case)} against {rival}" for rival in rivals) for case in found.cases
    }
    losses = [
        image
        for case in found.cases
        for rival in rivals
        for image, scores in found.scores("lls", case, found.main).items()
        if scores["psnr"] <= found.scores(rival, case, found.main)[image]["psnr"]
    ]
    return Verdict(not losses, "images won by LLS: " + "; ".join(f"{case}: {text}" for case, text in counts.items()))


def _in_order(found: Found) -> Verdict:
    """Whether the means of LLS, AV and ReLU come in this order."""
    if not set(ORDER) <= set(found.networks):
        return _not_compared(found)
    means = {case: [found.mean("psnr", name, case, found.main) for name in ORDER] for case in found.cases}
    text = "; ".join(f"{case}: {', '.join(f'{mean:.2f}' for mean in row)}" for case, row in means.items())
    return Verdict(all(a > b > c for a, b, c in means.values()), f"mean PSNR of {', '.join(ORDER)}: {text}")


def _gain(found: Found, goals: Mapping[str, Mapping[str, Value]]) -> Verdict:
    """Whether the gains over the baseline reach what is asked for."""
    asked = [(name, case, goal[0]) for name, row in goals.items() for case, goal in row.items() if case in found.cases]
    if not asked or not {name for name, _, _ in asked} <= set(found.networks):
        return _not_compared(found)
    reached = [(name, case, goal, found.gain(name, case, found.main)) for name, case, goal in asked]
    text = "; ".join(f"{name} at {case}: {gain:+.2f} of {goal:+.2f} dB" for name, case, goal, gain in reached)
    return Verdict(all(gain >= goal for _, _, goal, gain in reached), text)


def _beta_below_half(found: Found) -> Verdict:
    """Whether every tuned β is below 1/2, so that [eq:EstForward] holds."""
    if not found.networks:
        return _not_compared(found)
    largest = max(found.outcome(name, case).numbers["beta"] for name in found.networks for case in found.cases)
    return Verdict(largest < 0.5, f"largest β {largest:.3g} (β = 1/2 is the end of the search)")


def _certified(found: Found) -> Verdict:
    """Whether every reconstruction has converged under a proof that it does."""
    if not found.networks:
        return _not_compared(found)
    outcomes = [found.outcome(name, case) for name in found.networks for case in found.cases]
    bound = max(outcome.numbers["certificate"] for outcome in outcomes)
    solved = [image for outcome in outcomes for group in outcome.numbers["images"].values() for image in group.values()]
    good = sum(image["guaranteed"] and image["converged"] for image in solved)
    calls = max(image["denoiser_calls"] for image in solved)
    text = f"{good} of {len(solved)} reconstructions, at most {calls} denoiser calls; largest certificate {bound:.9f}"
    return Verdict(good == len(solved) and bound <= 1, text, of_training=False)


def _not_compared(found: Found) -> Verdict:
    compared = f"{', '.join(found.networks) or 'no network'} on {', '.join(found.cases)}"
    return Verdict(False, f"not to be judged by {compared} only")
