"""What every experiment is made of: settings, jobs that can be run one by one, and a report on their outcomes."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from lipspline._infra import ranks
from lipspline.networks.curves import activation_curves, plot_activations
from lipspline.paper.tables import Table
from lipspline.training.log import Observer, TensorBoard

_log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in our numbers, and the numbers that say so."""

    holds: bool
    evidence: str


@dataclass(frozen=True)
class Report:
    """An experiment as tables, verdicts on the claims by name, and figures that are drawn when asked for."""

    tables: tuple[Table, ...]
    verdicts: Mapping[str, Verdict]
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def needs_nothing(job: Job) -> tuple[str, ...]:
    """Jobs that can run in any order."""
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
    """

    settings: type
    claims: tuple[str, ...]
    jobs: Callable[[Any], list[Any]]
    run: Callable[[Any, Context], Outcome]
    report: Callable[[Any, Mapping[str, Outcome], Expectation], Report]
    needs: Callable[[Any], tuple[str, ...]] = needs_nothing
