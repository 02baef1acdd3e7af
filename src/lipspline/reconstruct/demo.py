"""The embedded default: two scans of images that need no download, each solved with every denoiser [sec:exp_pnp]."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any

from lipspline.data.builtin import head, shepp_logan
from lipspline.data.volume import Volume
from lipspline.models.network import Network
from lipspline.models.zoo import available, zoo
from lipspline.pnp import Evidence, Progress, stability
from lipspline.reconstruct.ct import SimulatedCT
from lipspline.reconstruct.mri import SimulatedMRI, Undersampling
from lipspline.reconstruct.problem import Problem, Scan
from lipspline.reconstruct.run import Iteration
from lipspline.reconstruct.solved import Solved, solve_problem
from lipspline.reconstruct.strength import automatic_beta

LABELS = {"relu": "ReLU", "lls": "LLS"}
ITERATION = Iteration(tol=1e-4, max_steps=300)
PERTURBATIONS = 2
"""How often the data are disturbed to see that the bound holds; every time costs a few steps."""

Watch = Callable[[str, Progress | None], None]
"""Told of a piece of work after every denoiser call, and with None when it is done."""


@dataclass(frozen=True)
class Comparison:
    """One scan, its direct reconstruction (in `problem`), and its solutions, the best one last."""

    title: str
    scan: Scan
    problem: Problem
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


def demo_denoisers() -> dict[str, Network]:
    """The shipped denoisers that are compared, for the highest noise level there is; none if no LLS denoiser ships."""
    levels = [noise for activation, noise in available() if activation == "lls"]
    shipped = {activation for activation, _ in available()} if levels else set()
    return {label: zoo(activation, max(levels)) for activation, label in LABELS.items() if activation in shipped}


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


def compare(title: str, scan: Scan, denoisers: Mapping[str, Network], watch: Watch) -> Comparison:
    """Solve the first slice of a scan with each denoiser, and disturb the data for the last one [eq:EstForward]."""
    problem = scan.problem(0)
    beta = automatic_beta(next(iter(denoisers.values())), problem)
    solved = []
    for name, denoiser in denoisers.items():
        work = f"{scan.modality}, {name}"
        follow = partial(watch, work)
        solved.append(solve_problem(f"Plug-and-play, {name}", problem, denoiser, beta, ITERATION, progress=follow))
        watch(work, None)
    evidence = stability(
        problem.y,
        problem.H,
        [*denoisers.values()][-1],
        beta,
        perturbations=PERTURBATIONS,
        ascents=0,
        tol=ITERATION.tol,
        max_steps=ITERATION.max_steps,
        start=solved[-1].solution.value,
    )
    watch(f"{scan.modality}, stability", None)
    return Comparison(title, scan, problem, tuple(solved), evidence)
