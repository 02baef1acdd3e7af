"""Plug-and-play with each denoiser against a direct reconstruction: tuned on some images, tested on others.

What single-coil MRI, multi-coil MRI and CT share [sec:exp_pnp]. They differ in their scans and in a `ScanKind`.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipspline._infra.files import write_whole
from lipspline.formats.datasets import data_dir
from lipspline.functional.quality import psnr, ssim
from lipspline.paper.config import Count, Natural, Positive, Several, added_later, to_json
from lipspline.paper.experiment import Context, Outcome
from lipspline.paper.networks import Family, Source
from lipspline.pnp import Trial, ValidationProblem, fbs, lipschitz_bound, tune
from lipspline.training.log import Record

TRIALS_A_REFINEMENT = 8  # for the progress bar: six neighbours of the best pair, and a step or two towards it


@dataclass(frozen=True)
class Images:
    """Some images of a file.

    Args:
        file: below the data folder; or a folder, of one series in DICOM or of files in HDF5.
        count: how many, spread evenly.
        within: the number of the first image that may be taken, and of the first after them; all if not given.
        prepared: a folder with the authors' own measurements of these images (doi:10.5281/zenodo.8302121), which is
            taken where it is there; `{acceleration:g}` and the like stand for what the scan has.
    """

    file: str
    count: Count
    within: tuple[int, ...] = ()
    prepared: str = added_later("")

    def __post_init__(self):
        if self.within and (len(self.within) != 2 or not 0 <= self.within[0] < self.within[1]):
            raise ValueError(f"within must be a first number and one past the last, but is {list(self.within)}.")

    def path(self, data: Path, scan: Any) -> Path:
        """Where the images are: prepared ones if they are there."""
        prepared = data / self.prepared.format(**vars(scan)) if self.prepared else None
        return prepared if prepared is not None and prepared.is_dir() else data / self.file

    def numbers(self, available: int) -> list[int]:
        """Which of the `available` images are taken.

        Example:
            >>> Images("knees.h5", 3).numbers(12), Images("knees.h5", 4, (0, 4)).numbers(12)
            ([2, 6, 10], [0, 1, 2, 3])
        """
        first, end = self.within or (0, available)
        if end > available or end - first < self.count:
            raise ValueError(
                f"{self.file} has {available} image(s), too few to take {self.count} of numbers {first} to {end - 1}."
            )
        return [first + (2 * i + 1) * (end - first) // (2 * self.count) for i in range(self.count)]


@dataclass(frozen=True)
class Search:
    """How noise level and β are tuned [sec:exp_pnp].

    Args:
        levels: the noise levels, in units of 1/255, of the trained denoisers; of these all networks use those that
            every one is trained for, to be fair.
        noises: the coarse grid of noise levels, in units of 1/255.
        betas: the coarse grid of β.
        refinements: how often the steps are halved around the best pair.
        continuous: tune the noise level between and beyond those of `noises` too; the paper does not.
        max_trials: an end to the search.
        tol: of the solves.
    """

    levels: Several[Count]
    noises: Several[Positive]
    betas: Several[Positive]
    refinements: Natural
    continuous: bool
    max_trials: Count
    tol: Positive


@dataclass(frozen=True)
class Final:
    """How the test images are solved: to a tolerance, within a number of denoiser calls."""

    tol: Positive
    max_steps: Count


@dataclass(frozen=True)
class DenoiserComparison:
    """What is compared, on which images.

    Args:
        validation: what noise level and β are tuned on.
        test: sets of images to test on; the first stands for the paper's, the others see the same noise level and β.
        figure: the test set whose first image is shown.
        networks: the denoisers; those without weights are left out.
    """

    validation: Images
    test: dict[str, Images]
    figure: str
    search: Search
    final: Final
    networks: dict[str, Source]

    def __post_init__(self):
        if self.figure not in self.test:
            raise ValueError(f"figure names the test set {self.figure!r}; known: {', '.join(self.test) or 'none'}.")


@dataclass(frozen=True)
class ScanKind:
    """What an experiment does to images.

    Args:
        read: the subjects of a file: images, or what else `measure` takes.
        measure: simulate the data of a subject: `measure(subject, scan, name, seed)`.
        baselines: direct reconstructions, the first of which gains are over.
    """

    read: Callable[[Path], Sequence[Any]]
    measure: Callable[[Any, Any, str, int], ValidationProblem]
    baselines: Mapping[str, Callable[[ValidationProblem], Tensor]]


@dataclass(frozen=True)
class ReconstructionJob:
    """One method on one kind of scan; a method without a source is a baseline."""

    case: str
    scan: Any
    method: str
    source: Source | None
    weights: dict[str, str]
    validation: Images
    test: dict[str, Images]
    figure: str
    search: Search
    final: Final

    @property
    def name(self) -> str:
        return f"{self.case}-{self.method}"

    @property
    def steps(self) -> int:
        tests = sum(images.count for images in self.test.values())
        if self.source is None:
            return tests
        trials = len(self.search.noises) * len(self.search.betas) + TRIALS_A_REFINEMENT * self.search.refinements
        return min(trials, self.search.max_trials) * self.validation.count + tests


def jobs(scans: Mapping[str, Any], comparison: DenoiserComparison, baselines: Sequence[str]) -> list[ReconstructionJob]:
    """Every baseline and every network that has weights, on every scan; networks use the levels that all have."""
    c = comparison
    levels = _common_levels(c)
    search = replace(c.search, levels=levels)
    families = {name: source.load(levels) for name, source in c.networks.items()}
    sources = dict.fromkeys(baselines) | {name: c.networks[name] for name, family in families.items() if family}
    weights = {name: family.checksums() for name, family in families.items() if family}
    return [
        ReconstructionJob(
            case, scan, name, source, weights.get(name, {}), c.validation, c.test, c.figure, search, c.final
        )
        for case, scan in scans.items()
        for name, source in sources.items()
    ]


def _common_levels(comparison: DenoiserComparison) -> tuple[int, ...]:
    """The noise levels that every network with weights is trained for; all of the search if there is none."""
    asked = comparison.search.levels
    families = [family for source in comparison.networks.values() if (family := source.load(asked)) is not None]
    common = tuple(level for level in asked if all(level in family.trained for family in families))
    return common or asked


def run(job: ReconstructionJob, context: Context, measurement: ScanKind) -> Outcome:
    """Tune a denoiser on the validation images and reconstruct the test images; every solve done is kept on disk."""
    kept = Kept(context.folder / "solved.json", to_json(job) | {"seed": context.seed})
    tick = _ticker(job, context)
    if job.source is None:
        numbers, reconstruct = {}, _direct(measurement.baselines[job.method])
    else:
        family = job.source.load(job.search.levels)
        assert family is not None, "a network without weights has no job"
        best = _tuned(job, context, measurement, family, kept, tick)
        denoiser = family.at(best.noise)
        numbers = {"noise": best.noise, "beta": best.beta, "certificate": lipschitz_bound(denoiser)}
        numbers["trials"] = list(kept.under("trial").values())
        reconstruct = _plug_and_play(denoiser, best.beta, job.final)
    for group, images in job.test.items():
        for name, measure in _cases(images, job.scan, measurement, context):
            key = f"test/{group}/{name}"
            if key not in kept:
                problem = measure()
                value, evidence = reconstruct(problem)
                if group == job.figure and not kept.under("picture"):
                    kept["picture/truth"], kept["picture/value"] = (
                        to_text(problem.truth),
                        to_text(visible(value, problem.truth)),
                    )
                kept[key] = _scores(value, problem.truth) | evidence
            tick(1, kept[key]["psnr"])
    numbers["images"] = {group: kept.under(f"test/{group}") for group in job.test}
    return Outcome(numbers, kept.seconds, kept.under("picture"))


class Kept:
    """Results by name that survive an interruption: a JSON file, written whole after every addition.

    Args:
        path: the file; one that was written for another `identity` is not believed.
        identity: what the results depend on.
    """

    def __init__(self, path: Path, identity: dict[str, Any]):
        self.path, self.identity = path, json.loads(json.dumps(identity))
        found = json.loads(path.read_text()) if path.is_file() else {}
        fits = found.get("identity") == self.identity
        self._values: dict[str, Any] = found["values"] if fits else {}
        self._before: float = found["seconds"] if fits else 0.0
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time all of it took."""
        return self._before + time.perf_counter() - self._begin

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value
        document = {"identity": self.identity, "seconds": self.seconds, "values": self._values}
        write_whole(self.path, json.dumps(document).encode())

    def under(self, prefix: str) -> dict[str, Any]:
        """The results whose names begin with `prefix/`, by the rest of their names."""
        start = f"{prefix}/"
        return {name.removeprefix(start): value for name, value in self._values.items() if name.startswith(start)}


def visible(x: Tensor, truth: Tensor | None = None) -> Tensor:
    """What is looked at and scored: the magnitude of a complex image, a real one as it is; the middle of it that fits
    the truth, which has been cut where a readout is longer than the field of view.

    Example:
        >>> visible(torch.arange(6.0).view(1, 1, 1, 6), torch.zeros(1, 1, 1, 2))
        tensor([[[[2., 3.]]]])
    """
    seen = x.abs() if x.is_complex() else x
    if truth is None:
        return seen
    top, left = ((seen.shape[dim] - truth.shape[dim]) // 2 for dim in (-2, -1))
    return seen[..., top : top + truth.shape[-2], left : left + truth.shape[-1]]


def to_text(image: Tensor) -> dict[str, Any]:
    """An image `(1, 1, H, W)` with values in [0, 1] in 8 bit, fit for JSON."""
    pixels = (255 * image[0, 0].clamp(0, 1)).round().byte()
    return {"shape": list(pixels.shape), "pixels": base64.b64encode(pixels.numpy().tobytes()).decode()}


def from_text(text: Mapping[str, Any]) -> Tensor:
    """The inverse of `to_text`: `(H, W)` with values in [0, 1].

    Example:
        >>> from_text(to_text(torch.tensor([[[[0.0, 0.2, 1.0]]]])))
        tensor([[0.0000, 0.2000, 1.0000]])
    """
    pixels = bytearray(base64.b64decode(text["pixels"]))
    return torch.frombuffer(pixels, dtype=torch.uint8).view(*text["shape"]) / 255


Reconstruct = Callable[[ValidationProblem], tuple[Tensor, dict[str, Any]]]
Tick = Callable[[int, float], None]


def _direct(baseline: Callable[[ValidationProblem], Tensor]) -> Reconstruct:
    return lambda problem: (baseline(problem), {})


def _plug_and_play(denoiser: Callable[[Tensor], Tensor], beta: float, final: Final) -> Reconstruct:
    """Solve with the theorem checked; accelerated, which does not touch it."""

    def reconstruct(problem: ValidationProblem) -> tuple[Tensor, dict[str, Any]]:
        solution = fbs(
            problem.y,
            problem.H,
            denoiser,
            beta,
            tol=final.tol,
            max_steps=final.max_steps,
            accelerate=True,
            start=problem.start,
        )
        return solution.value, {
            "guaranteed": solution.certificate.guaranteed,
            "converged": solution.converged,
            "residual": solution.certificate.residual,
            "denoiser_calls": solution.denoiser_calls,
        }

    return reconstruct


def _tuned(
    job: ReconstructionJob, context: Context, measurement: ScanKind, family: Family, kept: Kept, tick: Tick
) -> Trial:
    """The best trial on the validation images."""
    search = job.search
    done = [Trial(**{**trial, "scores": tuple(trial["scores"])}) for trial in kept.under("trial").values()]
    for trial in done:
        tick(job.validation.count, trial.score)

    def keep(trial: Trial) -> None:
        kept[f"trial/{len(kept.under('trial'))}"] = to_json(trial)
        tick(job.validation.count, trial.score)

    tuning = tune(
        [measure() for _, measure in _cases(job.validation, job.scan, measurement, context)],
        _grid(family, search),
        search.betas,
        between=family.at if search.continuous else None,
        refinements=search.refinements,
        max_trials=search.max_trials,
        score=lambda x, truth: psnr(visible(x, truth), truth),
        tol=search.tol,
        max_steps=job.final.max_steps,
        done=done,
        progress=keep,
    )
    return tuning.best


def _grid(family: Family, search: Search) -> dict[float, Any]:
    """The denoisers of the coarse grid; only trained ones where the noise level is not continuous."""
    missing = [] if search.continuous else [noise for noise in search.noises if noise not in family.trained]
    if missing:
        raise ValueError(
            f"There is no denoiser trained for noise {missing[0]:g}, only for {', '.join(map(str, family.trained))}. "
            f"Train it, leave it out of search.noises, or set search.continuous = true."
        )
    return {noise: family.at(noise) for noise in search.noises}


def _cases(
    images: Images, scan: Any, measurement: ScanKind, context: Context
) -> Iterator[tuple[str, Callable[[], ValidationProblem]]]:
    """The images by their number, each with what measures it."""
    subjects = measurement.read(images.path(data_dir(context.data), scan))
    for number in images.numbers(len(subjects)):
        name = f"{images.file}/{number}"
        yield (
            str(number),
            lambda number=number, name=name: measurement.measure(subjects[number], scan, name, context.seed),
        )


def _scores(value: Tensor, truth: Tensor) -> dict[str, float]:
    """PSNR and SSIM, profile `paper`."""
    seen = visible(value, truth)
    return {"psnr": psnr(seen, truth).item(), "ssim": ssim(seen, truth).item()}


def _ticker(job: ReconstructionJob, context: Context) -> Tick:
    """Tells whoever watches how many images have been solved, and how well."""
    begin, solved = time.perf_counter(), 0

    def tick(images: int, score: float) -> None:
        nonlocal solved
        solved += images
        seconds = time.perf_counter() - begin
        context.observe(Record(min(solved, job.steps), job.steps, {}, 0.0, seconds, {"psnr": score}))

    return tick
