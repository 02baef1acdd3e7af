"""Many problems on many processes: each rank solves its share, and every rank gets all results."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import distributed

Problem = TypeVar("Problem")
Result = TypeVar("Result")


def solve_all(solve: Callable[[Problem], Result], problems: Sequence[Problem]) -> list[Result]:
    """Apply `solve` to every problem, shared out over the ranks of `torch.distributed` if it is initialised.

    Every rank must call this with the same problems; each returns the results of all, in their order. Slices of one
    shape are best put into a batch; this is for lists of batches, or of slices that differ.

    Example:
        >>> solve_all(lambda n: n * n, [1, 2, 3])
        [1, 4, 9]
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return [solve(problem) for problem in problems]
    rank, world = distributed.get_rank(), distributed.get_world_size()
    shares: list[list[Result]] = [[]] * world
    distributed.all_gather_object(shares, [solve(problem) for problem in problems[rank::world]])
    return [shares[i % world][i // world] for i in range(len(problems))]
