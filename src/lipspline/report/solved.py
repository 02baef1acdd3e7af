"""A solved problem as a case of the page."""

from collections.abc import Sequence

from lipspline.imaging.problem import Modality, Problem
from lipspline.imaging.solved import Solved
from lipspline.pnp.stability import Evidence
from lipspline.report.case import Case, Picture

DIRECT: dict[Modality, str] = {"MR": "Zero-filled", "CT": "Filtered backprojection"}
"""What the direct reconstruction of each kind of data is called."""


def solved_case(
    title: str,
    summary: str,
    problem: Problem,
    modality: Modality,
    solved: Sequence[Solved],
    stability: Evidence | None = None,
) -> Case:
    """The direct reconstruction of a problem, its solutions, and its truth if that is known."""
    direct = Picture(DIRECT[modality], problem.image(problem.direct))
    pictures = [
        Picture(name, problem.image(solution.value), solution, seconds=seconds) for name, solution, seconds in solved
    ]
    return Case(title, (direct, *pictures), problem.truth, summary, stability)
