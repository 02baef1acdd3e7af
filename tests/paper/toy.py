"""A toy experiment: each job writes that it ran, and squares a number."""

import time
from dataclasses import dataclass
from pathlib import Path

from lipspline.paper.experiment import Expectation, Experiment, Outcome, Report, Table, Verdict
from lipspline.paper.recipe import Recipe
from lipspline.training.loop import Diverged


@dataclass(frozen=True)
class Settings:
    numbers: tuple[int, ...]
    broken: int = -1
    pause: float = 0.0


@dataclass(frozen=True)
class Job:
    number: int
    broken: int
    pause: float

    @property
    def name(self) -> str:
        return f"square-{self.number}"

    @property
    def steps(self) -> int:
        return 1


def jobs(settings):
    return [Job(number, settings.broken, settings.pause) for number in settings.numbers]


def run(job, context):
    time.sleep(job.pause)
    if job.number == job.broken:
        raise Diverged("The loss became nan at step 3")
    context.folder.mkdir(parents=True, exist_ok=True)
    with (context.folder.parent / "ran.txt").open("a") as file:
        file.write(f"{job.name}\n")
    return Outcome({"square": job.number**2 + context.seed}, 0.5, {"curve": [1, 2]})


def report(settings, outcomes, expect):
    squares = {name: (float(outcome.numbers["square"]),) for name, outcome in outcomes.items()}
    table = Table("Squares", "", {"all": squares}, expect.tables.get("squares", {}))
    return Report((table,), {"grow": Verdict(True, "they do")}, {"plot": _figure})


def needs(job):
    return ("square-1",) if job.number == 2 else ()


def _figure():
    from lipspline.paper import figures

    return figures.lines({"p": {"1": {"lls": 1.0}, "2": {"lls": 2.0}}}, "x", "y")


EXPERIMENT = Experiment(Settings, ("grow",), jobs, run, report, needs)


def recipe(**settings):
    expect = Expectation({"squares": {"all": {"square-3": (9.0,)}}}, {"grow": "squares grow"})
    made = Settings(**settings)
    return Recipe("toy", "Toy", "smoke", EXPERIMENT, made, expect, 1.0, {"numbers": ([1], [1, 2])})


def ran(folder: Path) -> list[str]:
    return (folder / "ran.txt").read_text().split()


def silent(job):
    """Watch a job without a word."""
    return lambda record: None
