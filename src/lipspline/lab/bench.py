"""Where the lab works: measures images, says what is promised, and solves, one job at a time."""

import json
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, sqrt
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor

from lipspline.formats.volume import Volume
from lipspline.imaging import Iteration, Problem, Scan, SimulatedCT, SimulatedMRI, Undersampling
from lipspline.imaging.solved import DIRECT, solve_problem, solved_case
from lipspline.imaging.strength import automatic_beta, automatic_level, matching_beta, relative_noise
from lipspline.lab.job import Job
from lipspline.lab.order import Measurement, Order
from lipspline.lab.shelf import Denoisers, Images
from lipspline.pnp import Progress, lipschitz_bound
from lipspline.pnp.guarantee import Setting
from lipspline.report import reconstruction_page
from lipspline.report.case import case_section, lines_table
from lipspline.report.charts import residual_chart
from lipspline.report.images import data_uri, magnitude, spanning
from lipspline.report.plain_words import setting_lines

ITERATION = Iteration(max_steps=500)
PICTURES_A_SECOND = 5
CENTER = 0.08  # of the columns of k-space, around frequency zero, are always measured


class Busy(Exception):
    """A job is running already."""


class Bench:
    """Images, denoisers, and the one job that may run.

    Args:
        weights: files with denoisers besides the shipped ones.
    """

    def __init__(self, weights: Sequence[Path] = ()):
        self.images, self.denoisers = Images(), Denoisers(weights)
        self.measured = lru_cache(maxsize=4)(self._measure)
        self.job: Job | None = None
        self.page: str | None = None
        self._lock, self._count = Lock(), 0

    def shelf(self) -> dict[str, Any]:
        """What there is to choose from."""
        return {
            "images": self.images.names(),
            "models": self.denoisers.names(),
            "shipped": self.denoisers.shipped,
            "running": None if self.job is None or not self.job.running else self.job.id,
        }

    def preview(self, order: Order) -> dict[str, Any]:
        """The direct reconstruction, what would suit it, and what is promised for this order before it is solved."""
        scan, problem = self.measured(order.measurement)
        setting = self._setting(order, problem)
        return {
            "direct_name": DIRECT[scan.modality],
            "summary": f"{scan.summary}.",
            "reference": picture(problem, problem.truth),
            "direct": picture(problem, problem.image(problem.direct)),
            "quality": problem.quality(problem.direct),
            "suited": self._suited(order, problem),
            "promise": lines_table(setting_lines(setting, setting.violations())),
        }

    def start(self, order: Order) -> Job:
        """Solve in the background; `Busy` if something is being solved."""
        _, problem = self.measured(order.measurement)
        self.denoisers.get(order.model, order.strength)
        with self._lock:
            if self.job is not None and self.job.running:
                raise Busy("One reconstruction is running already, and the lab runs one at a time. Cancel it, or wait.")
            self._count += 1
            self.job = Job(self._count, lambda job: self._solve(job, order, problem))
            self.job.start()
            return self.job

    def _measure(self, measurement: Measurement) -> tuple[Scan, Problem]:
        scan = simulated(self.images.get(measurement.image), measurement)
        return scan, scan.problem(0)

    def _suited(self, order: Order, problem: Problem) -> dict[str, float]:
        """The noise level that suits the data, and the β that does for the level that was chosen."""
        relative = relative_noise(problem)
        if order.model in self.denoisers.shipped:
            strength, beta = automatic_level(order.model, relative), matching_beta(relative, order.strength)
        else:
            strength, beta = order.strength, automatic_beta(self.denoisers.get(order.model, order.strength), relative)
        return {"strength": round(strength), "beta": round(beta, 2)}

    def _setting(self, order: Order, problem: Problem) -> Setting:
        norm = problem.H.norm_bounds()
        return Setting(
            denoiser=lipschitz_bound(self.denoisers.get(order.model, order.strength)),
            beta=order.beta,
            contraction=order.contraction,
            step=1 / norm[1] ** 2,
            norm=norm,
            smallest=problem.H.smallest_singular_value(),
        )

    def _solve(self, job: Job, order: Order, problem: Problem) -> dict[str, Any]:
        scan, _ = self.measured(order.measurement)
        denoiser = self.denoisers.get(order.model, order.strength)
        solved = solve_problem(
            f"Plug-and-play, {order.model}",
            problem,
            denoiser,
            order.beta,
            ITERATION,
            contraction=order.contraction,
            progress=_Watch(job, problem),
        )
        title = f"{order.measurement.kind.upper()} of {order.measurement.image}"
        case = solved_case(title, f"{scan.summary}.", problem, scan.modality, [solved])
        command = f"lipspline lab   {json.dumps(_document(order), ensure_ascii=False)}"
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

    def __init__(self, job: Job, problem: Problem):
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


def _document(order: Order) -> dict[str, Any]:
    others = {key: value for key, value in vars(order).items() if key != "measurement"}
    return {**vars(order.measurement), **others}
