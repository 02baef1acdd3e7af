"""What every experiment is made of: settings, jobs that can be run one by one, and a report with tables."""

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from lipspline._infra import ranks
from lipspline.networks.curves import activation_curves, plot_activations
from lipspline.training.log import Observer, TensorBoard

_log = logging.getLogger(__name__)


Value = tuple[float, ...]
"""A number, or a mean and its deviation."""


@dataclass(frozen=True)
class Table:
    """Numbers by row and column, with the published ones where there are some.

    Args:
        title: one line.
        corner: what the rows are.
        ours: `ours[row][column]`.
        paper: `paper[row][column]`, the published numbers.
        best: which of a row is marked with a star, `max` or `min`; None marks nothing.
        digits: a format such as ".3f".
    """

    title: str
    corner: str
    ours: Mapping[str, Mapping[str, Value]]
    paper: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    best: str | None = None
    digits: str = ".3f"

    def columns(self) -> list[str]:
        """All columns, in the order of their first appearance."""
        return list(dict.fromkeys(column for row in self.ours.values() for column in row))

    def __str__(self) -> str:
        columns = self.columns()
        grid = [[self.corner, "", *columns]]
        for row, values in self.ours.items():
            grid.append([row, "ours", *(self._cell(values, column) for column in columns)])
            if row in self.paper:
                grid.append(["", "paper", *(_text(self.paper[row].get(column), self.digits) for column in columns)])
        return "\n".join([self.title, *_aligned(grid)])

    def _cell(self, values: Mapping[str, Value], column: str) -> str:
        value = values.get(column)
        star = "*" if value is not None and self.best and value[0] == self._extreme(values) else ""
        return _text(value, self.digits) + star

    def _extreme(self, values: Mapping[str, Value]) -> float:
        numbers = [value[0] for value in values.values()]
        return max(numbers) if self.best == "max" else min(numbers)


class Job(Protocol):
    """One training (or one batch of trainings): a frozen dataclass whose fields are all it depends on."""

    @property
    def name(self) -> str:
        """Its name, fit for a folder."""
        ...

    @property
    def steps(self) -> int:
        """How many steps it takes, for the progress bar."""
        ...


@dataclass(frozen=True)
class Context:
    """Where and with which seed a job runs.

    Args:
        folder: the job's own folder, for checkpoints and for what it keeps.
        data: the data folder the user named; None leaves it to the environment.
        seed: the seed of everything random.
        observe: called with every record of a training.
        sibling: the run folder of another recipe at the same scale and seed.
        tensorboard: write trainings for TensorBoard too, in the folder `tensorboard` of the job.
    """

    folder: Path
    data: Path | None
    seed: int
    observe: Observer
    sibling: Callable[[str], Path]
    tensorboard: bool = False

    def observers(self, network: Callable[[], nn.Module]) -> list[Observer]:
        """Who watches a training; TensorBoard is shown the activations of `network()`, where they are learned."""
        if not self.tensorboard or not ranks.is_main():
            return [self.observe]

        def pictures() -> dict[str, Any]:
            model = network()
            return {"activations": plot_activations(model)} if activation_curves(model, per_layer=1) else {}

        try:
            return [self.observe, TensorBoard(self.folder / "tensorboard", pictures)]
        except ImportError as error:  # one that is installed but broken must not stop a training
            _log.warning("%s", error)
            return [self.observe]


@dataclass(frozen=True)
class Outcome:
    """What a job found, as JSON values: numbers for the results, the time they took, and what only figures need.

    `folder`, where the job left its files, is known once the job is done; it is not kept, as folders are moved.
    """

    numbers: dict[str, Any]
    seconds: float
    drawing: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()


@dataclass(frozen=True)
class Expectation:
    """What the paper publishes: numbers by table, row and column, as `[value]` or `[mean, deviation]`, and claims."""

    tables: dict[str, dict[str, dict[str, tuple[float, ...]]]] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)


class Judgement(StrEnum):
    """What can be said of a claim of the paper."""

    HOLDS = "holds"
    FAILS = "does not hold"
    TOO_SHORT = "too short to judge"
    """The trainings are those of the smoke scale, which shows that everything runs and nothing else."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in our numbers, and the numbers that say so.

    Args:
        of_training: whether the claim speaks of trained networks; proofs hold for untrained ones too.
    """

    holds: bool
    evidence: str
    of_training: bool = True

    def judgement(self, scale: str) -> Judgement:
        """What a run at this scale says of the claim."""
        if scale == "smoke" and self.of_training:
            return Judgement.TOO_SHORT
        return Judgement.HOLDS if self.holds else Judgement.FAILS


@dataclass(frozen=True)
class Report:
    """An experiment as tables, verdicts on the claims by name, and figures that are drawn when asked for."""

    tables: tuple[Table, ...]
    verdicts: Mapping[str, Verdict]
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def needs_nothing(job: Job) -> tuple[str, ...]:
    """Jobs that can run in any order."""
    return ()


def starts_nowhere(job: Job) -> tuple[tuple[str, str], ...]:
    """Jobs that need no other recipe."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """The parts of an experiment.

    Args:
        settings: the frozen dataclass a recipe fills.
        claims: the names of the claims it can judge.
        jobs: the jobs of the settings, in the order they run.
        run: run one job; started again in the same folder, it goes on where it was.
        report: say what the outcomes, by job name, amount to beside what the paper publishes.
        needs: the names of the jobs that must be done before a job.
        elsewhere: those of other recipes, as (recipe, job).
    """

    settings: type
    claims: tuple[str, ...]
    jobs: Callable[[Any], list[Any]]
    run: Callable[[Any, Context], Outcome]
    report: Callable[[Any, Mapping[str, Outcome], Expectation], Report]
    needs: Callable[[Any], tuple[str, ...]] = needs_nothing
    elsewhere: Callable[[Any], tuple[tuple[str, str], ...]] = starts_nowhere


def spread(values: Sequence[float]) -> Value:
    """Mean and standard deviation.

    Example:
        >>> spread([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""By the number of values, the quantile of Student's distribution that leaves 2.5 % above it."""


def interval(values: Sequence[float]) -> Value:
    """Mean and half the width of its 95 % confidence interval (Student's); the number alone if there is only one.

    Beyond ten values the quantile of ten is used, which makes the interval a little too wide.

    Example:
        >>> [round(number, 3) for number in interval([1.0, 2.0, 3.0])], interval([2.0])
        ([2.0, 2.484], (2.0,))
    """
    if len(values) < 2:
        return (values[0],)
    mean, deviation = spread(values)
    return mean, STUDENT[min(len(values), max(STUDENT))] * deviation / len(values) ** 0.5


def ahead(ours: Sequence[float], theirs: Sequence[float]) -> tuple[bool, str]:
    """Whether the mean of one set of trainings is above that of another beyond what their seeds explain.

    The difference is taken seed by seed; where its interval holds 0, or there is only one seed, nothing is told apart.

    Example:
        >>> ahead([2.0, 2.5, 3.0], [1.0, 1.0, 1.0]), ahead([2.0], [1.0])
        ((True, '+1.5 ± 1.2'), (False, '+1, one seed'))
    """
    found = interval([a - b for a, b in zip(ours, theirs, strict=True)])
    if len(found) == 1:
        return False, f"{found[0]:+.3g}, one seed"
    return found[0] > found[1], f"{found[0]:+.3g} ± {found[1]:.2g}"


def all_certified(outcomes: Mapping[str, Outcome]) -> Verdict:
    """Whether every network is proved to be 1-Lipschitz, but for rounding."""
    largest = max(outcome.numbers["certificate"] for outcome in outcomes.values())
    return Verdict(largest <= 1 + 1e-5, f"largest certificate {largest:.9f}", of_training=False)


def _text(value: Value | None, digits: str) -> str:
    """A value as in the paper's tables: `mean/deviation`, or the number alone."""
    return "-" if value is None else "/".join(format(number, digits) for number in value)


def _aligned(grid: list[list[str]]) -> list[str]:
    """Lines with the columns of a grid aligned, and a rule below the header."""
    widths = [max(len(row[i]) for row in grid) for i in range(len(grid[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in grid]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
