"""The embedded default: two scans of images that need no download, each solved with every denoiser [sec:exp_pnp]."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any

from lipspline.formats.builtin import head, shepp_logan
from lipspline.formats.volume import Volume
from lipspline.imaging.ct import SimulatedCT
from lipspline.imaging.mri import SimulatedMRI, Undersampling
from lipspline.imaging.problem import Iteration, Problem, Scan, Solved, solve_problem
from lipspline.imaging.strength import Strength, choose
from lipspline.pnp import Evidence, Progress, stability

COMPARED = {"relu": "ReLU", "lls": "LLS"}
"""The shipped activations that are compared, the best one last, with their names in print."""
ITERATION = Iteration(max_steps=200)
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
    """The denoiser of the last solution, and its β."""
    solved: tuple[Solved, ...]
    evidence: Evidence
    """That the last solution is as stable as proven [eq:EstForward]."""

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
    """Solve the first slice of a scan with each denoiser, and disturb the data for the last one [eq:EstForward]."""
    problem = scan.problem(0)
    strengths = {name: choose(activation, "auto", "auto", problem) for activation, name in COMPARED.items()}
    solved = []
    for name, strength in strengths.items():
        work = f"{scan.modality}, {name}"
        follow, method = partial(watch, work), f"Plug-and-play, {name}"
        solved.append(solve_problem(method, problem, strength.served, strength.weight, ITERATION, progress=follow))
        watch(work, None)
    best = [*strengths.values()][-1]
    evidence = stability(
        problem.y,
        problem.H,
        best.served,
        best.weight,
        perturbations=PERTURBATIONS,
        ascents=0,
        tol=ITERATION.tol,
        max_steps=ITERATION.max_steps,
        start=solved[-1].solution.value,
    )
    watch(f"{scan.modality}, stability", None)
    return Comparison(title, scan, problem, best, tuple(solved), evidence)
