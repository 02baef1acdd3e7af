"""A session of the lab: measures images, says what is promised, and solves in the background, one job at a time."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, sqrt
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from lipspline.formats.kspace import Kspace
from lipspline.formats.png import data_uri
from lipspline.formats.volume import Volume
from lipspline.imaging import (
    Iteration,
    MeasuredCT,
    MeasuredMRI,
    Problem,
    Scan,
    SimulatedCT,
    SimulatedMRI,
    Undersampling,
)
from lipspline.imaging.held_out import MOST_TRIALS, Trials
from lipspline.imaging.problem import solve_problem, solved_case, tolerance
from lipspline.imaging.strength import Auto, Strength, choose, matching_beta, relative_noise
from lipspline.lab.catalogue import Catalogue, Models
from lipspline.lab.request import LabRequest, Measurement, in_words
from lipspline.lab.result import LabResult
from lipspline.pnp import Progress, promise
from lipspline.priors import Kind
from lipspline.report import reconstruction_page
from lipspline.report.drawing import Window, magnitude, residual_chart, robust_window
from lipspline.report.plain_words import promise_lines
from lipspline.report.section import case_section, lines_table

ITERATION = Iteration(max_steps=500)
PICTURES_A_SECOND = 5
CENTER = 0.08  # of the columns of k-space, around frequency zero, are always measured
COMPARED = 3  # earlier results on the same data that are shown beside the latest
UNKNOWN_LEVEL = 15.0  # in units of 1/255: what a denoiser is taken for whose file does not say
STRENGTHS = 4  # choices that are kept; a denoiser has 9 MB
LARGEST_SLICE = 2**25  # values of measured data


class Busy(Exception):
    """A job is running already."""


class Cancelled(Exception):
    """The visitor has asked to stop."""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened: `kind` is "trial", "step", "image", "done", "failed" or "cancelled"."""

    number: int
    kind: str
    data: dict[str, Any]


Work = Callable[["BackgroundJob"], dict[str, Any]]
LAST = ("done", "failed", "cancelled")


@dataclass
class BackgroundJob:
    """Work in a thread of its own; its events can be read by many, at any time, from any point on."""

    id: int
    work: Work
    _events: list[JobEvent] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin; daemonic, so that it does not keep the program alive."""
        threading.Thread(target=self._run, name=f"lab-job-{self.id}", daemon=True).start()

    def cancel(self) -> None:
        """Ask it to stop; it does at its next step."""
        self._stop.set()

    @property
    def running(self) -> bool:
        """Whether its last event is still to come."""
        with self._lock:
            return not self._events or self._events[-1].kind not in LAST

    def tell(self, kind: str, **data: Any) -> None:
        """Record an event; a new image takes the place of the one before. Raises `Cancelled` if asked to stop."""
        if self._stop.is_set() and kind not in LAST:
            raise Cancelled
        with self._lock:
            number = self._events[-1].number + 1 if self._events else 1
            if kind == "image":
                self._events = [event for event in self._events if event.kind != "image"]
            self._events.append(JobEvent(number, kind, data))

    def since(self, number: int) -> list[JobEvent]:
        """Events after this number that have not been superseded."""
        with self._lock:
            return [event for event in self._events if event.number > number]

    def _run(self) -> None:
        try:
            result = self.work(self)
        except Cancelled:
            self.tell("cancelled")
        except Exception as error:
            self.tell("failed", sentence=in_words(error))
        else:
            self.tell("done", **result)


class Session:
    """Images and measurements, priors, and the one job that may run.

    Args:
        weights: files with priors besides the shipped ones.
    """

    def __init__(self, weights: Sequence[Path] = ()):
        self.catalogue, self.models = Catalogue(), Models(weights)
        self.measured = lru_cache(maxsize=2)(self._measure)
        self.job: BackgroundJob | None = None
        self.result: LabResult | None = None
        self._lock, self._count = threading.Lock(), 0
        self._strengths: dict[tuple[object, ...], Strength] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.job is not None:
            self.job.cancel()
        self.catalogue.close()

    def choices(self) -> dict[str, Any]:
        """What there is to choose from, the best first."""
        return {
            "images": [source.document() for source in self.catalogue.sources()],
            "models": self.models.document(),
            "running": None if self.job is None or not self.job.running else self.job.id,
            "result": self.result is not None,
        }

    def preview(self, request: LabRequest) -> dict[str, Any]:
        """The direct reconstruction, what would suit it, and what is promised for this request before it is solved."""
        scan, problem = self.measured(request.measurement)
        strength, window = self._strength(request, problem), shown_window(problem)
        setting = promise(
            problem.H, strength.served, strength.weight, contraction=request.contraction, positive=problem.positive
        )
        return {
            "direct_name": scan.direct_name,
            "summary": " ".join([f"{scan.summary}.", *scan.notes]),
            "reference": None if problem.truth is None else picture(window, problem.truth),
            "direct": picture(window, problem.image(problem.direct)),
            "quality": problem.quality(problem.direct),
            "suited": {"level": strength.noise, "beta": strength.weight},
            "chosen": f"{strength}.",
            "promise": lines_table(promise_lines(setting, setting.violations())),
        }

    def start(self, request: LabRequest) -> BackgroundJob:
        """Solve in the background; `Busy` if something is being solved."""
        self.measured(request.measurement)
        self._check(request)
        with self._lock:
            if self.job is not None and self.job.running:
                raise Busy("One reconstruction is running already, and the lab runs one at a time. Cancel it, or wait.")
            self._count += 1
            self.job = BackgroundJob(self._count, lambda job: self._solve(job, request))
            self.job.start()
            return self.job

    def shown(self) -> dict[str, Any]:
        """The result as it was shown when it was finished, and the settings it was made with."""
        result = self.result
        if result is None:
            raise LookupError("Nothing has been reconstructed yet.")
        problem, value = result.problem, result.solved[-1].solution.value
        return {
            "request": result.request.document(),
            "section": result.section,
            "image": picture(shown_window(problem), problem.image(value)),
            "quality": problem.quality(value),
            "chart": residual_chart(
                {"change": list(result.solved[-1].solution.images[0].residuals)},
                tolerance(result.strength.served, ITERATION),
            ),
        }

    def _measure(self, measurement: Measurement) -> tuple[Scan, Problem]:
        source = self.catalogue.get(measurement.image)
        found = self.catalogue.read(source, measurement.slice)
        scan = simulated(found, measurement) if isinstance(found, Volume) else _measured(found, measurement)
        return scan, scan.problem(0)

    def _check(self, request: LabRequest) -> None:
        """Refuse what the model that is asked for does not have."""
        if self.models.get(request.model).kind is Kind.ENERGY and (request.beta is not None or request.contraction < 1):
            raise ValueError(f"beta and contraction are for denoisers, but {request.model} is an energy.")

    def _strength(
        self, request: LabRequest, problem: Problem, watch: Callable[[Progress], None] | None = None
    ) -> Strength:
        """The prior as it is used; what is automatic is chosen as `lipspline.reconstruct` does.

        Args:
            watch: is told how the strength of an energy is refined, which takes about as long as to solve; without it
                the noise alone decides, unless it has been refined before.
        """
        self._check(request)
        prior, level, beta = self.models.get(request.model), request.level, request.beta
        energy = prior.kind is Kind.ENERGY
        if not energy and not prior.levels:  # it serves as it is
            beta = matching_beta(relative_noise(problem), level or UNKNOWN_LEVEL) if beta is None else beta
            level = None
        factor = 1.0 if energy else request.strength  # that of an energy is multiplied below: it is refined once
        asked, refine = (request.measurement, request.model, level, beta, factor), energy and watch is not None
        found = self._strengths.get((*asked, True)) or self._strengths.get((*asked, refine))
        if found is None:
            noise: float | Auto = "auto" if level is None else level
            weight: float | Auto = "auto" if beta is None else beta
            found = choose(prior, noise, weight, problem, factor, refine=refine, watch=watch)
            with self._lock:
                self._strengths[*asked, refine] = found
                for old in list(self._strengths)[:-STRENGTHS]:
                    del self._strengths[old]
        if request.strength == 1:
            return found
        times = request.strength if energy else 1.0
        return replace(found, weight=found.weight * times, chosen=f"{found.chosen}, × {request.strength:.3g}")

    def _solve(self, job: BackgroundJob, request: LabRequest) -> dict[str, Any]:
        scan, problem = self.measured(request.measurement)
        trials = Trials(lambda number: job.tell("trial", number=number, most=MOST_TRIALS))
        strength = self._strength(request, problem, trials)
        solved = solve_problem(
            self._name(request, strength),
            problem,
            strength.served,
            strength.weight,
            replace(ITERATION, contraction=request.contraction),
            progress=_Watch(job, problem, tolerance(strength.served, ITERATION)),
        )
        earlier = self.result.solved if self.result and self.result.measurement == request.measurement else ()
        together = (*(one for one in earlier if one.name != solved.name), solved)[-COMPARED - 1 :]
        source = self.catalogue.get(request.measurement.image)
        title = _title(scan, request.measurement, source.slices)
        case = solved_case(title, problem, scan, together)
        command = f"lipspline lab   {json.dumps(request.document(), ensure_ascii=False)}"
        network = strength.served if strength.prior.kind is Kind.DENOISER else None
        page = reconstruction_page([case], denoiser=network, command=command, title=title)
        section, origin = case_section(case, job.id), self.models.origin(request.model)
        made = (scan, problem, together, strength, origin, source.fingerprint(), section, page.encode(), source.stem)
        self.result = LabResult(request, *made)
        return {"section": section, "sentence": solved.solution.certificate.guarantee}

    def _name(self, request: LabRequest, strength: Strength) -> str:
        if strength.prior.kind is Kind.ENERGY:
            return request.model if request.strength == 1 else f"{request.model}, strength × {request.strength:.3g}"
        level = f" {strength.noise:.3g}" if strength.prior.levels else ""
        shrink = f", K = {request.contraction:g}" if request.contraction < 1 else ""
        return f"{request.model}{level}, β = {strength.weight:.2g}{shrink}"


def simulated(volume: Volume, measurement: Measurement) -> Scan:
    """The measurement of one image."""
    seed = measurement.seed
    if measurement.kind == "ct":
        detectors = ceil(sqrt(2) * max(volume.slices.shape[-2:]))
        return SimulatedCT(volume, measurement.angles, detectors, measurement.noise, seed, measurement.slice)
    sampling = _sampling(measurement)
    return SimulatedMRI(volume, sampling, measurement.noise, seed=seed, first=measurement.slice)


def _measured(found: Any, measurement: Measurement) -> Scan:
    """One slice of a file of measurements."""
    if found.data.numel() > LARGEST_SLICE:
        raise ValueError(
            f"A slice of {measurement.image} has {found.data.numel():,} values; the lab takes {LARGEST_SLICE:,}."
        )
    if isinstance(found, Kspace):
        thinning = None if measurement.acceleration == 1 else _sampling(measurement)
        return MeasuredMRI(found, undersampling=thinning, first=measurement.slice)
    return MeasuredCT(found, first=measurement.slice)


def _sampling(measurement: Measurement) -> Undersampling:
    center = min(CENTER, 0.5 / measurement.acceleration)
    return Undersampling(acceleration=measurement.acceleration, center=center, seed=measurement.seed)


def _title(scan: Scan, measurement: Measurement, slices: int) -> str:
    kind = {"MR": "MRI", "CT": "CT"}[scan.modality]
    number = f", slice {measurement.slice}" if slices > 1 else ""
    return f"{kind} of {measurement.image}{number}"


def shown_window(problem: Problem) -> Window:
    """The grey values that all pictures of a problem are shown with."""
    return robust_window(magnitude(problem.image(problem.direct) if problem.truth is None else problem.truth))


def picture(window: Window, image: Tensor) -> str:
    """An image as the address of itself."""
    return data_uri(window.bytes(magnitude(image)))


class _Watch:
    """Tells the job of every step, and a few times a second shows the image."""

    def __init__(self, job: BackgroundJob, problem: Problem, tol: float):
        self.job, self.problem, self.window, self.tol = job, problem, shown_window(problem), tol
        self.residuals: list[float] = []
        self.shown = 0.0

    def __call__(self, progress: Progress) -> None:
        self.residuals.append(progress.residual)
        self.job.tell("step", calls=len(self.residuals), residual=progress.residual, eta=progress.eta)
        now = time.perf_counter()
        if progress.running == 0 or now - self.shown >= 1 / PICTURES_A_SECOND:
            self.shown = now
            self.job.tell(
                "image",
                source=picture(self.window, self.problem.image(progress.value)),
                quality=self.problem.quality(progress.value),
                chart=residual_chart({"change": self.residuals}, self.tol),
            )
