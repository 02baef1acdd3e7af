"""A session of the lab: measures images, says what is promised, and solves in the background, one job at a time."""

import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, sqrt
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from lipspline.formats import output
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
from lipspline.imaging.problem import DIRECT, Solved, solve_problem, solved_case
from lipspline.imaging.strength import automatic_level, matching_beta, relative_noise
from lipspline.lab.catalogue import Catalogue, Denoisers
from lipspline.lab.request import LabRequest, Measurement
from lipspline.pnp import Progress, lipschitz_bound
from lipspline.pnp.guarantee import Setting, vouched_reason
from lipspline.report import reconstruction_page
from lipspline.report.case import case_section, lines_table
from lipspline.report.drawing import Window, magnitude, residual_chart, robust_window
from lipspline.report.plain_words import setting_lines

ITERATION = Iteration(max_steps=500)
PICTURES_A_SECOND = 5
CENTER = 0.08  # of the columns of k-space, around frequency zero, are always measured
COMPARED = 3  # earlier results on the same data that are shown beside the latest
LARGEST_SLICE = 2**25  # values of measured data
DOWNLOADS = (".npy", ".png", ".tif", ".nii.gz", ".dcm")


class Busy(Exception):
    """A job is running already."""


class Cancelled(Exception):
    """The visitor has asked to stop."""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened: `kind` is "step", "image", "done", "failed" or "cancelled"."""

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
            self.tell("failed", sentence=str(error) or type(error).__name__)
        else:
            self.tell("done", **result)


@dataclass(frozen=True)
class LabResult:
    """What was reconstructed last: for the page, and to be kept."""

    measurement: Measurement
    scan: Scan
    problem: Problem
    solved: tuple[Solved, ...]
    """Of these data, the latest one last."""
    page: bytes

    def file(self, ending: str) -> bytes:
        """The latest image in its unit, as a file with this ending; .json is its certificate."""
        solution = self.solved[-1].solution
        if ending == ".json":
            return solution.certificate.to_json().encode()
        values = self.scan.values(self.problem.image(solution.value), self.problem.scale).detach()[None]
        volume = Volume((values.abs() if values.is_complex() else values).float(), self.scan.affine, self.scan.unit)
        description = f"lipspline lab. {self.scan.summary}"
        complex_values = values if values.is_complex() else None
        with tempfile.TemporaryDirectory(prefix="lipspline-lab-") as folder:
            path = Path(folder) / f"result{ending}"
            output.write(path, output.Image(volume, self.scan.modality, description, complex_values))
            return path.read_bytes()


class Session:
    """Images and measurements, denoisers, and the one job that may run.

    Args:
        weights: files with denoisers besides the shipped ones.
    """

    def __init__(self, weights: Sequence[Path] = ()):
        self.catalogue, self.denoisers = Catalogue(), Denoisers(weights)
        self.measured = lru_cache(maxsize=2)(self._measure)
        self.job: BackgroundJob | None = None
        self.result: LabResult | None = None
        self._lock, self._count = threading.Lock(), 0

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
            "models": self.denoisers.names(),
            "adjustable": [name for name in self.denoisers.names() if self.denoisers.prior(name).levels],
            "running": None if self.job is None or not self.job.running else self.job.id,
        }

    def preview(self, request: LabRequest) -> dict[str, Any]:
        """The direct reconstruction, what would suit it, and what is promised for this request before it is solved."""
        scan, problem = self.measured(request.measurement)
        setting = self._setting(request, problem)
        window = shown_window(problem)
        return {
            "direct_name": DIRECT[scan.modality],
            "summary": f"{scan.summary}.",
            "reference": None if problem.truth is None else picture(window, problem.truth),
            "direct": picture(window, problem.image(problem.direct)),
            "quality": problem.quality(problem.direct),
            "suited": self._suited(request, problem),
            "promise": lines_table(setting_lines(setting, setting.violations())),
        }

    def start(self, request: LabRequest) -> BackgroundJob:
        """Solve in the background; `Busy` if something is being solved."""
        self.measured(request.measurement)
        self.denoisers.get(request.model, request.strength)
        with self._lock:
            if self.job is not None and self.job.running:
                raise Busy("One reconstruction is running already, and the lab runs one at a time. Cancel it, or wait.")
            self._count += 1
            self.job = BackgroundJob(self._count, lambda job: self._solve(job, request))
            self.job.start()
            return self.job

    def _measure(self, measurement: Measurement) -> tuple[Scan, Problem]:
        source = self.catalogue.get(measurement.image)
        found = self.catalogue.read(source, measurement.slice)
        scan = simulated(found, measurement) if isinstance(found, Volume) else _measured(found, measurement)
        return scan, scan.problem(0)

    def _suited(self, request: LabRequest, problem: Problem) -> dict[str, float]:
        """The noise level that suits the data, and the β that does for the level that was chosen."""
        relative = relative_noise(problem)
        prior = self.denoisers.prior(request.model)
        strength = automatic_level(prior, relative) if prior.levels else request.strength
        beta = matching_beta(relative, request.strength)
        return {"strength": round(strength), "beta": round(beta, 2)}

    def _setting(self, request: LabRequest, problem: Problem) -> Setting:
        norm = problem.H.norm_bounds()
        return Setting(
            denoiser=lipschitz_bound(self.denoisers.get(request.model, request.strength)),
            beta=request.beta,
            contraction=request.contraction,
            step=1 / norm[1] ** 2,
            norm=norm,
            smallest=problem.H.smallest_singular_value(),
            vouched=vouched_reason(self.denoisers.get(request.model, request.strength)),
        )

    def _solve(self, job: BackgroundJob, request: LabRequest) -> dict[str, Any]:
        scan, problem = self.measured(request.measurement)
        denoiser = self.denoisers.get(request.model, request.strength)
        solved = solve_problem(
            self._name(request),
            problem,
            denoiser,
            request.beta,
            ITERATION,
            contraction=request.contraction,
            progress=_Watch(job, problem),
        )
        earlier = self.result.solved if self.result and self.result.measurement == request.measurement else ()
        together = (*(one for one in earlier if one.name != solved.name), solved)[-COMPARED - 1 :]
        title = _title(scan, request.measurement, self.catalogue.get(request.measurement.image).slices)
        case = solved_case(title, problem, scan, together)
        command = f"lipspline lab   {json.dumps(_document(request), ensure_ascii=False)}"
        page = reconstruction_page([case], denoiser=denoiser, command=command, title=title)
        self.result = LabResult(request.measurement, scan, problem, together, page.encode())
        return {"section": case_section(case, job.id), "sentence": solved.solution.certificate.guarantee}

    def _name(self, request: LabRequest) -> str:
        level = f" {request.strength:g}" if self.denoisers.prior(request.model).levels else ""
        shrink = f", K = {request.contraction:g}" if request.contraction < 1 else ""
        return f"{request.model}{level}, β = {request.beta:g}{shrink}"


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

    def __init__(self, job: BackgroundJob, problem: Problem):
        self.job, self.problem, self.window = job, problem, shown_window(problem)
        self.residuals: list[float] = []
        self.shown = 0.0

    def __call__(self, progress: Progress) -> None:
        self.residuals.append(progress.residual)
        to_go = progress.eta if progress.residual > ITERATION.tol else None
        self.job.tell("step", calls=progress.calls, residual=progress.residual, eta=to_go)
        if progress.running == 0 or progress.seconds - self.shown >= 1 / PICTURES_A_SECOND:
            self.shown = progress.seconds
            self.job.tell(
                "image",
                source=picture(self.window, self.problem.image(progress.value)),
                quality=self.problem.quality(progress.value),
                chart=residual_chart({"change": self.residuals}, ITERATION.tol),
            )


def _document(request: LabRequest) -> dict[str, Any]:
    others = {key: value for key, value in vars(request).items() if key != "measurement"}
    return {**vars(request.measurement), **others}
