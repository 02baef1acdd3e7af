"""The whole paper in one command: every recipe that makes a table or a figure of it, one after the other.

What is done stays on disk, recipe by recipe and job by job, so that a run that was stopped goes on when started again.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lipspline._infra.progress import bars
from lipspline.paper.experiment import Job
from lipspline.paper.recipe import load, shipped
from lipspline.paper.run import JobWatch, Results, Run, minutes_left, prerequisites, reproduce
from lipspline.training.log import Observer, Record

NAME = "all"
"""What the whole paper is called where a recipe is named."""


@dataclass(frozen=True)
class Whole:
    """What the recipes found, by name, and why those that could not run did not."""

    results: dict[str, Results]
    failures: dict[str, str]

    @property
    def document(self) -> dict[str, Any]:
        return {
            "results": {name: result.document for name, result in self.results.items()},
            "failures": self.failures,
        }

    @property
    def text(self) -> str:
        """How many claims hold in each recipe, and what did not run."""
        lines = []
        for name, result in self.results.items():
            holds = [claim["holds"] for claim in result.document["claims"].values()]
            judged = [verdict for verdict in holds if verdict is not None]
            lines.append(f"{name}: {sum(judged)} of {len(judged)} claims hold, {len(holds) - len(judged)} not judged")
        return "\n".join([*lines, *(f"{name}: not run. {why}" for name, why in self.failures.items())])


def runs(scale: str, out: Path = Path(), data: Path | None = None, seed: int = 0) -> list[Run]:
    """A run for each recipe with labels of the paper; those that others need come before them."""
    every = {name: Run(load(name, scale), out, data, seed) for name in shipped() if load(name, scale).labels}
    ordered: list[str] = []
    while len(ordered) < len(every):
        ready = [name for name in every if name not in ordered and _needed(every[name]) & set(every) <= set(ordered)]
        assert ready, "recipes need each other in a circle"
        ordered += ready
    return [every[name] for name in ordered]


def _needed(run: Run) -> set[str]:
    """The recipes whose trainings a run uses."""
    return {recipe for job in run.jobs() for recipe, _ in run.recipe.experiment.elsewhere(job)}


def plan(every: Sequence[Run]) -> dict[str, float]:
    """About how many minutes each recipe still takes on two cores, by name.

    What a recipe of the list trains is not counted again where another one needs it.
    """
    names = {run.recipe.name for run in every}
    return {
        run.recipe.name: minutes_left(
            [
                *((of, job) for of, job in prerequisites(run) if of.recipe.name not in names),
                *((run, job) for job in run.jobs()),
            ]
        )
        for run in every
    }


def reproduce_all(every: Sequence[Run], watch: Callable[[Run], JobWatch], workers: int = 1) -> Whole:
    """Run recipe after recipe. One that cannot run, for lack of its data for example, does not stop the others."""
    results, failures = {}, {}
    for run in every:
        try:
            results[run.recipe.name] = reproduce(run, watch(run), min(workers, len(run.jobs())))
        except (ValueError, OSError, ImportError) as error:
            failures[run.recipe.name] = str(error)
    return Whole(results, failures)


@contextmanager
def progress_of_all(
    every: Sequence[Run], console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Run], JobWatch]]:
    """One bar for the whole paper, in estimated minutes, and one for the job at hand.

    The time left is the minutes that are left, at the pace at which those were done that this run has worked on.
    """
    minutes = plan(every)
    pace = MinutePace(sum(minutes.values()), clock)
    with bars(console, keep=True) as display:

        def watch_run(run: Run) -> JobWatch:
            share: dict[str, float] = defaultdict(float)  # a job may have the name of one that it starts from
            for of, job in [*prerequisites(run), *((run, job) for job in run.jobs())]:
                share[job.name] += minutes_left([(of, job)])
            place = [each.recipe.name for each in every].index(run.recipe.name) + 1
            label = f"{run.recipe.name}, recipe {place} of {len(every)}"

            def watch(job: Job) -> Observer:
                pace.begin(f"{run.recipe.name}/{job.name}", share[job.name])
                display.show("all", pace.done, pace.total, label=label, left=pace.left())

                def observe(record: Record) -> None:
                    pace.reach(record.step / job.steps)
                    display.show("all", pace.done, pace.total, label=label, left=pace.left())
                    display.show("job", record.step, job.steps, label=job.name)

                return observe

            return watch

        yield watch_run


class MinutePace:
    """How much of some estimated minutes is done, and how long the rest takes at the pace so far.

    Args:
        total: all estimated minutes.
        clock: tells seconds.

    Example:
        >>> now = iter([0.0, 60.0])
        >>> pace = MinutePace(10.0, lambda: next(now))
        >>> pace.begin("a", 4.0)
        >>> pace.reach(0.5)
        >>> pace.done, pace.left()  # two minutes were done in one
        (2.0, 240.0)
    """

    def __init__(self, total: float, clock: Callable[[], float] = time.monotonic):
        self.total, self._clock = total, clock
        self._begin: float | None = None
        self._before, self._share, self._part = 0.0, 0.0, 0.0
        self._begun: set[str] = set()

    def begin(self, name: str, minutes: float) -> None:
        """A job starts that should take some minutes; the one before it is done. Said again, it is the same."""
        if self._begin is None:
            self._begin = self._clock()
        if name not in self._begun:
            self._before += self._share
            self._share, self._part = minutes, 0.0
            self._begun.add(name)

    def reach(self, part: float) -> None:
        """A part, in [0, 1], of the job at hand is done."""
        self._part = part

    @property
    def done(self) -> float:
        """The minutes that are done, by the estimate."""
        return self._before + self._part * self._share

    def left(self) -> float | None:
        """Seconds until all is done; None as long as nothing is known."""
        if not self.done or self._begin is None:
            return None
        return (self._clock() - self._begin) / self.done * (self.total - self.done)
