"""Learning-rate schedules: factors that depend on the step alone, so that there is no state to save."""

import math
from collections.abc import Callable

Schedule = Callable[[int, int], float]
"""The factor on the learning rate at step `step` of `steps`."""


def constant(step: int, steps: int) -> float:
    """The learning rate as given, throughout."""
    return 1.0


def cosine(step: int, steps: int) -> float:
    """Half a cosine from 1 down to 0.

    Example:
        >>> [round(cosine(step, 4), 3) for step in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def one_cycle(step: int, steps: int, warmup: float = 0.3, start: float = 1 / 25, end: float = 1e-4 / 25) -> float:
    """A half cosine from `start` up to 1 during the first `warmup` of the steps, then one down to `end`.

    Example:
        >>> [round(one_cycle(step, 10), 3) for step in (0, 2, 9)]
        [0.04, 1.0, 0.0]
    """
    peak = warmup * steps - 1
    if step <= peak:
        return _half_cosine(start, 1.0, step / peak) if peak > 0 else 1.0
    return _half_cosine(1.0, end, (step - peak) / (steps - 1 - peak)) if steps > 1 else 1.0


def halving(step: int, steps: int, times: int = 4) -> float:
    """Halve the learning rate `times` times, at equal distances.

    Example:
        >>> [halving(step, 10, times=4) for step in (0, 1, 2, 9)]
        [1.0, 1.0, 0.5, 0.0625]
    """
    return 0.5 ** (step * (times + 1) // steps)


def trapezoid(step: int, steps: int, warmup: int = 300, decay: float = 0.3) -> float:
    """A straight rise over the first `warmup` steps, then constant, and a straight fall over the last `decay` of them.

    Until the fall begins it does not depend on the length, so a run may be made longer after the fact and still be the
    run that was longer from the start.

    Example:
        >>> [trapezoid(step, 100, warmup=10, decay=0.4) for step in (0, 4, 9, 50, 80, 99)]
        [0.1, 0.5, 1.0, 1.0, 0.5, 0.025]
    """
    return min(1.0, (step + 1) / warmup, (steps - step) / (decay * steps))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "cosine": cosine,
    "one-cycle": one_cycle,
    "halving": halving,
    "trapezoid": trapezoid,
}


def _half_cosine(first: float, last: float, fraction: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * fraction))
