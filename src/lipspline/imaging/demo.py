"""The embedded default: two scans of images that need no download, each solved with several priors [sec:exp_pnp]."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any

from lipspline._infra import devices
from lipspline.formats.builtin import head, shepp_logan
from lipspline.formats.volume import Volume
from lipspline.imaging.ct import SimulatedCT
from lipspline.imaging.mri import SimulatedMRI, Undersampling
from lipspline.imaging.problem import Iteration, Problem, Scan, Solved, solve_problem, tolerance
from lipspline.imaging.strength import Strength, choose
from lipspline.pnp import Evidence, Progress, stability

COMPARED = ("tv", "ridge-adaptive")
"""The priors that are compared, the best one last."""
ITERATION = Iteration(max_steps=300)
PERTURBATIONS = 1
"""How often the data are disturbed to see that the bound holds; every time costs some steps more."""

Watch = Callable[[str, Progress | None], None]
"""Told of a piece of work after every denoiser call, and with None when it is done."""


@dataclass(frozen=True)
class Comparison:
    """One scan, its direct reconstruction (in `problem`), and its solutions, the best one last."""

    title: str
    scan: Scan
    problem: Problem
    strength: Strength
    """The prior of the last solution, and its weight."""
    solved: tuple[Solved, ...]
    evidence: Evidence
    """That the last solution is as stable as proven."""

    def document(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        methods = [
            {
                "name": name,
                "seconds": seconds,
                "denoiser_calls": solution.denoiser_calls,
                "converged": solution.converged,
                "guaranteed": solution.certificate.guaranteed,
                **self.problem.quality(solution.value),
            }
            for name, solution, seconds in self.solved
        ]
        return {
            "title": self.title,
            "scan": self.scan.summary,
            "direct": self.problem.quality(self.problem.direct),
            "methods": methods,
            "stable": self.evidence.holds,
        }


def demo_scans(size: int = 256) -> dict[str, Scan]:
    """MRI of a head at a quarter of k-space, and CT of a phantom from few angles; images of up to `size` pixels."""
    step = max(1, 256 // size)
    sampling = Undersampling(acceleration=4)
    return {
        "MRI of a head, 4× accelerated": SimulatedMRI(Volume(head()[None, ::step, ::step]), sampling, 0.01),
        "Sparse-view CT of the Shepp-Logan phantom": SimulatedCT(
            Volume(shepp_logan(size)[None]), angles=60, detectors=ceil(sqrt(2) * size), noise=0.5
        ),
    }


def compare(title: str, scan: Scan, watch: Watch) -> Comparison:
    """Solve the first slice of a scan with each prior, and disturb the data for the last one."""
    problem = scan.problem(0).to(devices.current())
    strengths = [choose(name, "auto", "auto", problem) for name in COMPARED]
    solved = []
    for one in strengths:
        work = f"{scan.modality}, {one.prior.name}"
        follow = partial(watch, work)
        solved.append(solve_problem(one.method, problem, one.served, one.weight, ITERATION, progress=follow))
        watch(work, None)
    best = strengths[-1]
    evidence = stability(
        problem.y,
        problem.H,
        best.served,
        best.weight,
        perturbations=PERTURBATIONS,
        ascents=0,
        tol=tolerance(best.served, ITERATION),
        max_steps=ITERATION.max_steps,
        start=solved[-1].solution.value,
    )
    watch(f"{scan.modality}, stability", None)
    return Comparison(title, scan, problem, best, tuple(solved), evidence)
