"""A session of the lab: measures images, says what is promised, and solves in the background, one job at a time."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from torch import Tensor

from lipspline.formats.png import data_uri
from lipspline.formats.volume import Volume
from lipspline.imaging import Iteration, Problem, Scan, SimulatedCT, SimulatedMRI, Undersampling
from lipspline.imaging.solved import DIRECT, solve_problem, solved_case
from lipspline.imaging.strength import automatic_level, matching_beta, relative_noise
from lipspline.lab.catalogue import Denoisers, ImageCatalogue
from lipspline.lab.request import LabRequest, Measurement
from lipspline.pnp import Progress, lipschitz_bound
from lipspline.pnp.guarantee import Setting
from lipspline.report import reconstruction_page
from lipspline.report.case import case_section, lines_table
from lipspline.report.charts import residual_chart
from lipspline.report.images import magnitude, spanning
from lipspline.report.plain_words import setting_lines

ITERATION = Iteration(max_steps=500)
PICTURES_A_SECOND = 5
CENTER = 0.08  # of the columns of k-space, around frequency zero, are always measured


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


class Session:
    """ImageCatalogue, denoisers, and the one job that may run.

    Args:
        weights: files with denoisers besides the shipped ones.
    """

    def __init__(self, weights: Sequence[Path] = ()):
        self.images, self.denoisers = ImageCatalogue(), Denoisers(weights)
        self.measured = lru_cache(maxsize=4)(self._measure)
        self.job: BackgroundJob | None = None
        self.page: str | None = None
        self._lock, self._count = threading.Lock(), 0

    def shelf(self) -> dict[str, Any]:
        """What there is to choose from."""
        return {
            "images": self.images.names(),
            "models": self.denoisers.names(),
            "shipped": self.denoisers.shipped,
            "running": None if self.job is None or not self.job.running else self.job.id,
        }

    def preview(self, request: LabRequest) -> dict[str, Any]:
        """The direct reconstruction, what would suit it, and what is promised for this request before it is solved."""
        scan, problem = self.measured(request.measurement)
        setting = self._setting(request, problem)
        return {
            "direct_name": DIRECT[scan.modality],
            "summary": f"{scan.summary}.",
            "reference": picture(problem, problem.truth),
            "direct": picture(problem, problem.image(problem.direct)),
            "quality": problem.quality(problem.direct),
            "suited": self._suited(request, problem),
            "promise": lines_table(setting_lines(setting, setting.violations())),
        }

    def start(self, request: LabRequest) -> BackgroundJob:
        """Solve in the background; `Busy` if something is being solved."""
        _, problem = self.measured(request.measurement)
        self.denoisers.get(request.model, request.strength)
        with self._lock:
            if self.job is not None and self.job.running:
                raise Busy("One reconstruction is running already, and the lab runs one at a time. Cancel it, or wait.")
            self._count += 1
            self.job = BackgroundJob(self._count, lambda job: self._solve(job, request, problem))
            self.job.start()
            return self.job

    def _measure(self, measurement: Measurement) -> tuple[Scan, Problem]:
        scan = simulated(self.images.get(measurement.image), measurement)
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
        )

    def _solve(self, job: BackgroundJob, request: LabRequest, problem: Problem) -> dict[str, Any]:
        scan, _ = self.measured(request.measurement)
        denoiser = self.denoisers.get(request.model, request.strength)
        solved = solve_problem(
            f"Plug-and-play, {request.model}",
            problem,
            denoiser,
            request.beta,
            ITERATION,
            contraction=request.contraction,
            progress=_Watch(job, problem),
        )
        title = f"{request.measurement.kind.upper()} of {request.measurement.image}"
        case = solved_case(title, f"{scan.summary}.", problem, scan.modality, [solved])
        command = f"lipspline lab   {json.dumps(_document(request), ensure_ascii=False)}"
        self.page = reconstruction_page([case], denoiser=denoiser, command=command, title=title)
        return {"section": case_section(case, job.id), "sentence": solved.solution.certificate.guarantee}


def simulated(image: Tensor, measurement: Measurement) -> Scan:
    """The measurement of an image `(H, W)`."""
    volume, seed = Volume(image[None]), measurement.seed
    if measurement.kind == "ct":
        detectors = ceil(sqrt(2) * max(image.shape))
        return SimulatedCT(volume, measurement.angles, detectors, measurement.noise, seed)
    center = min(CENTER, 0.5 / measurement.acceleration)
    sampling = Undersampling(acceleration=measurement.acceleration, center=center, seed=seed)
    return SimulatedMRI(volume, sampling, measurement.noise, seed=seed)


def picture(problem: Problem, image: Tensor | None) -> str | None:
    """An image as the address of itself, in the grey values of the truth."""
    if image is None or problem.truth is None:
        return None
    return data_uri(spanning(problem.truth).bytes(magnitude(image)))


class _Watch:
    """Tells the job of every step, and a few times a second shows the image."""

    def __init__(self, job: BackgroundJob, problem: Problem):
        self.job, self.problem, self.residuals, self.shown = job, problem, [], 0.0

    def __call__(self, progress: Progress) -> None:
        self.residuals.append(progress.residual)
        self.job.tell("step", calls=progress.calls, residual=progress.residual, eta=progress.eta)
        if progress.running == 0 or progress.seconds - self.shown >= 1 / PICTURES_A_SECOND:
            self.shown = progress.seconds
            self.job.tell(
                "image",
                source=picture(self.problem, self.problem.image(progress.value)),
                quality=self.problem.quality(progress.value),
                chart=residual_chart({"change": self.residuals}, ITERATION.tol),
            )


def _document(request: LabRequest) -> dict[str, Any]:
    others = {key: value for key, value in vars(request).items() if key != "measurement"}
    return {**vars(request.measurement), **others}
