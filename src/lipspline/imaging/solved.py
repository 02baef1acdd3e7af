"""One problem solved with one denoiser, and how long that took [eq:pnp_fbs]."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from lipspline.imaging.problem import Modality, Problem, Scan
from lipspline.pnp import Evidence, Progress, Solution, fbs
from lipspline.report import Case, Picture, Rescale

DIRECT: dict[Modality, str] = {"MR": "Zero-filled", "CT": "Filtered backprojection"}
"""What the direct reconstruction of each kind of data is called."""


@dataclass(frozen=True)
class Iteration:
    """How far a problem is solved, and by which steps.

    The default is enough to look at: a tenth of it changes the images of the demo by less than 0.1 dB.
    """

    tol: float = 2e-4
    max_steps: int = 1000
    accelerate: bool = True


class Solved(NamedTuple):
    """A solution, what its method is called, and how long it took."""

    name: str
    solution: Solution
    seconds: float


def solve_problem(
    name: str,
    problem: Problem,
    denoiser: nn.Module,
    beta: float,
    iteration: Iteration,
    *,
    contraction: float = 1.0,
    progress: Callable[[Progress], None] | None = None,
) -> Solved:
    """Solve a problem from where it wants to start; arguments are those of `fbs`.

    Args:
        name: what the method is called.
    """
    begin = time.perf_counter()
    solution = fbs(
        problem.y,
        problem.H,
        denoiser,
        beta,
        tol=iteration.tol,
        max_steps=iteration.max_steps,
        accelerate=iteration.accelerate,
        contraction=contraction,
        start=problem.start,
        progress=progress,
    )
    return Solved(name, solution, time.perf_counter() - begin)


def solved_case(
    title: str,
    problem: Problem,
    scan: Scan,
    solved: Sequence[Solved],
    stability: Evidence | None = None,
) -> Case:
    """What a page shows of a problem: its direct reconstruction, its solutions, and its truth if that is known."""
    direct = Picture(DIRECT[scan.modality], problem.image(problem.direct))
    pictures = [
        Picture(name, problem.image(solution.value), solution, seconds=seconds, misfit=problem.misfit(solution.value))
        for name, solution, seconds in solved
    ]
    rescale = display_scale(scan, problem.scale)
    return Case(title, (direct, *pictures), problem.truth, f"{scan.summary}.", stability, rescale=rescale)


def display_scale(scan: Scan, scale: float) -> Rescale:
    """How a page shows values: in Hounsfield units if the scan has them, else in the scale of the denoiser."""
    if scan.unit != "hounsfield":
        return Rescale()
    zero, one = scan.values(torch.tensor([0.0, 1.0], dtype=torch.float64), scale).tolist()
    return Rescale(one - zero, zero, "HU")
