"""Every prior on every kind of scan, as the command line uses it: by the automatic strength, and tuned with the truth.

It has no counterpart in the paper: it says which prior to choose, and what the automatic strength costs.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch

from lipspline._infra.randomness import generator
from lipspline.formats import ct, mri
from lipspline.formats.datasets import data_dir
from lipspline.formats.kspace import Kspace
from lipspline.formats.volume import Volume
from lipspline.imaging.ct import SimulatedCT
from lipspline.imaging.held_out import vertex
from lipspline.imaging.mri import MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.imaging.problem import Iteration, Problem, Scan, solve_problem
from lipspline.imaging.simulation import add_kspace_noise
from lipspline.imaging.strength import Strength, choose
from lipspline.operators import MultiCoilMRI, simulated_maps
from lipspline.paper import figures
from lipspline.paper.config import Amount, Count, Natural, Positive, Several, to_json
from lipspline.paper.experiment import Context, Expectation, Experiment, Outcome, Report, Table, Value, Verdict
from lipspline.paper.reconstruction import Kept, from_text, to_text, visible
from lipspline.priors import EnergyPrior, resolve
from lipspline.training.log import Record

DIRECT = "direct"
CLASSICS = ("tv", "wavelet")
CLAIMS = ("ridge-beats-classics", "proven-best", "weak-best", "automatic")
PROVEN_GAIN, SINGLE_GAIN, COILS_GAIN, AUTOMATIC_LOSS = 0.5, 1.5, 0.8, 0.3
"""Decibels that the claims speak of."""
SHOWN = ("mri/brain_vsseg.nii.gz", "ct/torso_acrin.nii.gz")
"""Files whose terms allow that their images are shown in a figure."""
Kind = Literal["mri", "coils", "measured", "ct"]


@dataclass(frozen=True)
class PriorScan:
    """One kind of scan, and the images of a file that are measured so.

    Args:
        kind: MRI or CT simulated from images, with several simulated coils, or MRI that was measured.
        file: below the data folder.
        validation: numbers of the images on which weights are tuned.
        test: numbers of the images that are scored.
        acceleration, center, noise, coils, angles, detectors: as for `lipspline reconstruct`.
    """

    kind: Kind
    file: str
    validation: Several[Natural]
    test: Several[Natural]
    acceleration: Positive = 4.0
    center: Amount = 0.08
    noise: Amount = 0.01
    coils: Count = 15
    angles: Count = 200
    detectors: Count = 400

    def problem(self, folder: Path, number: int, seed: int) -> Problem:
        """Image `number`, measured."""
        return self._scan(folder / self.file, number, seed).problem(0)

    def _scan(self, path: Path, number: int, seed: int) -> Scan:
        one = slice(number, number + 1)
        kept = Undersampling(acceleration=self.acceleration, center=self.center, seed=seed + number)
        if self.kind == "ct":
            volume = ct.read(path, one)
            return SimulatedCT(volume, self.angles, self.detectors, self.noise, seed, number)
        found = mri.read(path, one)
        if self.kind == "measured":
            if not isinstance(found, Kspace):
                raise ValueError(f"{path} holds images, but measured k-space is wanted.")
            return MeasuredMRI(found, undersampling=kept, first=number)
        images = found.reference if isinstance(found, Kspace) else found.slices
        if images is None:
            raise ValueError(
                f"{path} holds k-space without reference images, but k-space is to be simulated from images."
            )
        if self.kind == "mri":
            return SimulatedMRI(Volume(images), kept, self.noise, None, seed, number)
        return MeasuredMRI(self._seen_by_coils(images[0], kept, number, seed), "espirit", first=number)

    def _seen_by_coils(self, image: torch.Tensor, kept: Undersampling, number: int, seed: int) -> Kspace:
        """k-space of simulated coils, of which the reconstruction knows nothing but the data."""
        truth = image / image.max()
        plane = (truth.shape[0], truth.shape[1])
        mask = kept.of(plane)
        H = MultiCoilMRI(mask, simulated_maps(self.coils, plane), convention="centred")
        clean = H.forward(truth[None, None].to(torch.complex64))
        # the noise is drawn with frequency zero first, as everywhere
        uncentred = torch.fft.ifftshift(clean, dim=(-2, -1))
        noisy = add_kspace_noise(uncentred, mask, self.noise, generator(seed, "coils", number))
        return Kspace(torch.fft.fftshift(noisy, dim=(-2, -1)), mask, reference=truth[None])


@dataclass(frozen=True)
class PriorSettings:
    """What is compared.

    Args:
        scans: the kinds of scans.
        priors: names in the catalogue.
        trials: how many weights are tried on the validation images at most, in steps of a factor 2; between them the
            parabola through the best and its neighbours decides.
        tol, max_steps: of the final solves; weights are tried with ten times the tolerance.
    """

    scans: dict[str, PriorScan]
    priors: Several[str]
    trials: Count
    tol: Positive
    max_steps: Count


@dataclass(frozen=True)
class PriorJob:
    """One prior on one kind of scan; the direct reconstruction is one too."""

    case: str
    scan: PriorScan
    prior: str
    sha256: str
    trials: Count
    tol: Positive
    max_steps: Count

    @property
    def name(self) -> str:
        return f"{self.case}-{self.prior}"

    @property
    def steps(self) -> int:
        tests = len(self.scan.test)
        return tests if self.prior == DIRECT else self.trials * len(self.scan.validation) + 2 * tests


def jobs(settings: PriorSettings) -> list[PriorJob]:
    """The direct reconstruction and every prior, one after the other, each on every kind of scan."""
    sums = {DIRECT: "", **{name: resolve(name).sha256 for name in settings.priors}}
    return [
        PriorJob(case, scan, prior, sha256, settings.trials, settings.tol, settings.max_steps)
        for prior, sha256 in sums.items()
        for case, scan in settings.scans.items()
    ]


def run(job: PriorJob, context: Context) -> Outcome:
    """Reconstruct the test images by the automatic strength, then with the weight that is best on validation images."""
    kept = Kept(context.folder / "solved.json", to_json(job) | {"seed": context.seed})
    folder, done = data_dir(context.data), 0

    def rated(problem: Problem, x: torch.Tensor) -> dict[str, float]:
        """The scores of the table, over all pixels."""
        return {name: score for name, score in problem.quality(x).items() if name in ("psnr", "ssim")}

    def tick(score: float) -> None:
        nonlocal done
        done += 1
        context.observe(Record(min(done, job.steps), job.steps, {}, 0.0, kept.seconds, {"psnr": score}))

    def solved(problem: Problem, chosen: Strength, weight: float, tol: float) -> tuple[torch.Tensor, dict[str, Any]]:
        iteration = Iteration(tol, job.max_steps)
        begin = time.process_time()  # of all threads; unlike the clock, it hardly knows what else runs
        _, solution, _ = solve_problem(chosen.name, problem, chosen.served, weight, iteration)
        seconds = time.process_time() - begin
        constants = [estimate.constant for estimate in solution.certificate.estimates]
        scores = {**rated(problem, solution.value), "seconds": seconds, "converged": solution.converged}
        scores |= {"proven": solution.certificate.guaranteed and None not in constants, "constants": constants}
        tick(scores["psnr"])
        return solution.value, scores

    def tuned() -> float:
        """The best k of weights times 2^k, between those tried by the parabola through the best and its neighbours."""
        problems = [job.scan.problem(folder, number, context.seed) for number in job.scan.validation]
        chosen = [choose(job.prior, "auto", "auto", problem, refine=False) for problem in problems]

        def score(k: int) -> float:
            key = f"trial/{k}"
            if key not in kept:
                pairs = zip(problems, chosen, strict=True)
                kept[key] = fmean(solved(p, c, scaled(c, k), 10 * job.tol)[1]["psnr"] for p, c in pairs)
            return kept[key]

        best = 0 if score(0) >= score(1) else 1
        while len(kept.under("trial")) < job.trials:
            other = next((k for k in (best + 1, best - 1) if f"trial/{k}" not in kept), None)
            if other is None:
                break
            if score(other) > score(best):
                best = other
        return best + vertex({k: -score(k) for k in range(best - 1, best + 2) if f"trial/{k}" in kept}, best)

    best = None
    for number in job.scan.test:
        key = f"test/{number}"
        if key in kept:
            continue
        problem = job.scan.problem(folder, number, context.seed)
        if job.prior == DIRECT:
            kept[key] = {way: rated(problem, problem.direct) for way in ("tuned", "automatic")}
            assert problem.truth is not None
            kept[f"picture/{number}"] = to_text(problem.truth[None, None] / problem.truth.max())
            continue
        best = tuned() if best is None else best
        automatic, plain = (
            choose(job.prior, "auto", "auto", problem, refine=refine, max_steps=job.max_steps)
            for refine in (True, False)
        )
        _, by_itself = solved(problem, automatic, automatic.weight, job.tol)
        image, with_truth = solved(problem, plain, scaled(plain, best), job.tol)
        kept[key] = {
            "automatic": by_itself,
            "tuned": with_truth,
            "factor": automatic.weight / plain.weight,
            "best": best,
        }
        shown = visible(problem.image(image))
        assert problem.truth is not None
        kept[f"picture/{number}"] = to_text(shown[None, None] / problem.truth.max())
    return Outcome({"images": kept.under("test")}, kept.seconds, kept.under("picture"))


def scaled(chosen: Strength, k: float) -> float:
    """The weight times 2^k; that of a denoiser stays where [eq:EstForward] holds."""
    weight = chosen.weight * 2.0**k
    return weight if isinstance(chosen.prior, EnergyPrior) else min(weight, 0.5)


@dataclass(frozen=True)
class PriorsFound:
    """The outcomes by case and prior."""

    settings: PriorSettings
    outcomes: Mapping[str, Outcome]

    def mean(self, case: str, prior: str, how: str, metric: str) -> float:
        """The mean over the test images."""
        images = self.outcomes[f"{case}-{prior}"].numbers["images"].values()
        return fmean(float(image[how][metric]) for image in images)

    def proven(self, case: str, prior: str) -> bool:
        """Whether every line of every certificate is proven."""
        images = self.outcomes[f"{case}-{prior}"].numbers["images"].values()
        return all(image[how]["proven"] for image in images for how in ("automatic", "tuned"))


def report(settings: PriorSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """PSNR, SSIM and seconds of each prior on each scan, tuned and automatic."""
    found, names = PriorsFound(settings, outcomes), (DIRECT, *settings.priors)
    tables = []
    for how in ("tuned", "automatic"):
        for metric, digits in (("psnr", ".2f"), ("ssim", ".4f"), ("seconds", ".1f")):
            rows: dict[str, dict[str, Value]] = {
                case: {
                    prior: (found.mean(case, prior, how, metric),)
                    for prior in names
                    if not (metric == "seconds" and prior == DIRECT)
                }
                for case in settings.scans
            }
            title = f"{metric.upper() if metric != 'seconds' else 'Processor-seconds of one solve'}, {_HOW[how]}"
            tables.append(Table(title, "scan", rows, best="max" if metric != "seconds" else None, digits=digits))
    pictures = _pictures(found, names)
    drawn = {"reconstructions": lambda: figures.picture_rows(pictures)} if pictures else {}
    return Report(tuple(tables), _verdicts(found), drawn)


_HOW = {
    "tuned": "weight tuned on the validation images with their truth",
    "automatic": "automatic weight, without truth",
}


def _pictures(found: PriorsFound, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for case, scan in found.settings.scans.items():
        if scan.file not in SHOWN:
            continue
        drawn = {name: next(iter(found.outcomes[f"{case}-{name}"].drawing.values())) for name in names}
        rows[case] = {"truth": from_text(drawn[DIRECT])}
        for name in names[1:]:
            rows[case][f"{name}, {found.mean(case, name, 'tuned', 'psnr'):.2f} dB"] = from_text(drawn[name])
    return rows


def _verdicts(found: PriorsFound) -> dict[str, Verdict]:
    """What the table says of the priors; a prior that is not compared leaves its claim open."""
    cases, names = list(found.settings.scans), set(found.settings.priors)
    verdicts = {name: Verdict(False, "not compared") for name in CLAIMS}
    classics = [name for name in CLASSICS if name in names]
    if not classics:
        return verdicts
    rival = {case: max(found.mean(case, name, "tuned", "psnr") for name in classics) for case in cases}
    best_of = f"the best of {' and '.join(classics)}" if len(classics) > 1 else classics[0]
    if "ridge" in names:
        gains = {case: found.mean(case, "ridge", "tuned", "psnr") - rival[case] for case in cases}
        sharper = [
            case
            for case in cases
            if found.mean(case, "ridge", "tuned", "ssim") > max(found.mean(case, n, "tuned", "ssim") for n in classics)
        ]
        text = f"PSNR over {best_of}: {_listed(gains)}; SSIM above in {len(sharper)} of {len(cases)}"
        holds = min(gains.values()) > 0 and len(sharper) == len(cases)
        verdicts["ridge-beats-classics"] = Verdict(holds, text, of_training=False)
    proven = [name for name in names - set(CLASSICS) if all(found.proven(case, name) for case in cases)]
    if proven:
        means = {
            name: fmean(found.mean(case, name, "tuned", "psnr") - rival[case] for case in cases) for name in proven
        }
        best = max(means, key=lambda name: means[name])
        text = f"best prior with every line proven: {best}, {means[best]:+.2f} dB over {best_of} in the mean"
        verdicts["proven-best"] = Verdict(means[best] >= PROVEN_GAIN, text, of_training=False)
    if "ridge-weak" in names:
        gains = {
            case: found.mean(case, "ridge-weak", "tuned", "psnr") - found.mean(case, "tv", "tuned", "psnr")
            for case, scan in found.settings.scans.items()
            if scan.kind != "ct"
        }
        wanted = {case: SINGLE_GAIN if found.settings.scans[case].kind == "mri" else COILS_GAIN for case in gains}
        holds = all(gains[case] >= wanted[case] for case in gains)
        verdicts["weak-best"] = Verdict(holds, f"PSNR over total variation: {_listed(gains)}", of_training=False)
    losses = {
        f"{case} {name}": found.mean(case, name, "tuned", "psnr") - found.mean(case, name, "automatic", "psnr")
        for case in cases
        for name in found.settings.priors
    }
    worst = max(losses, key=lambda key: losses[key])
    text = f"at most {losses[worst]:.2f} dB below tuned ({worst}), in the mean {fmean(losses.values()):.2f} dB"
    verdicts["automatic"] = Verdict(losses[worst] <= AUTOMATIC_LOSS, text, of_training=False)
    return verdicts


def _listed(gains: Mapping[str, float]) -> str:
    return ", ".join(f"{case} {gain:+.2f}" for case, gain in gains.items())


PRIORS_EXPERIMENT = Experiment(PriorSettings, CLAIMS, jobs, run, report)
