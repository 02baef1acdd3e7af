"""Run a recipe job by job: what is done stays on disk, so a run that was killed goes on when it is started again."""

import json
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lipspline._infra import files, ranks
from lipspline._infra.files import write_whole
from lipspline._infra.progress import bars
from lipspline.paper import config
from lipspline.paper.config import to_json
from lipspline.paper.experiment import Context, Job, Judgement, Outcome, Report, Verdict
from lipspline.paper.recipe import Recipe, load
from lipspline.training.log import Observer, Record
from lipspline.training.loop import Diverged

JobWatch = Callable[[Job], Observer]
"""Gives the observer of a job; called when a job starts, or is found done."""

NAME = re.compile(r"\w[\w.+-]*")
PAUSE = 0.5  # seconds between two looks at the jobs of other processes


@dataclass(frozen=True)
class Run:
    """A recipe, and where and how it is run.

    Args:
        out: holds `runs/` (what a run needs to go on) and `results/` (what it found).
        data: the data folder; None leaves it to the environment variable LIPSPLINE_DATA.
    """

    recipe: Recipe
    out: Path = Path()
    data: Path | None = None
    seed: int = 0

    @property
    def label(self) -> str:
        """The name of the run in its files."""
        return self._label(self.recipe.name)

    @property
    def folder(self) -> Path:
        """Where the run keeps its jobs."""
        return self.out / "runs" / self.label

    def outcome(self, job: str) -> Path:
        """The file with the outcome of a job that is done."""
        return self.folder / f"{job}.json"

    def sibling(self, recipe: str) -> Path:
        """The run folder of another recipe at the same scale and seed."""
        return self.out / "runs" / self._label(recipe)

    def jobs(self) -> list[Any]:
        """The jobs of the recipe. Their names are those of files, so each is one."""
        jobs = self.recipe.experiment.jobs(self.recipe.settings)
        names = [job.name for job in jobs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"The recipe {self.recipe.name} has {names.count(name)} jobs with the name {name!r}.")
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"The recipe {self.recipe.name} has a job with the name {name!r}, which cannot be that of a file: "
                    f"use letters, digits, '.', '_' and '-'."
                )
        return jobs

    def _label(self, recipe: str) -> str:
        return f"{recipe}-{self.recipe.scale}" + (f"-seed{self.seed}" if self.seed else "")


@dataclass(frozen=True)
class Results:
    """What a run found: the document that is written, the report, and the files."""

    document: dict[str, Any]
    report: Report
    text: str
    files: tuple[Path, ...]


def reproduce(run: Run, watch: JobWatch, workers: int = 1) -> Results:
    """Run all jobs of a recipe, write `results/LABEL.json` and the figures, and set ours beside the paper's.

    Started again, it keeps the jobs that are done and goes on in the middle of those that were not.

    Args:
        watch: gives every job its observer.
        workers: processes that share the jobs; each has its part of torch's threads.
    """
    with _helpers(run, workers):
        outcomes = work(run, watch)
    report = run.recipe.experiment.report(run.recipe.settings, outcomes, run.recipe.expect)
    document = _document(run, outcomes, report)
    results = run.out / "results"
    path = _write(results / f"{run.label}.json", document)
    figures = [_draw(results / "figures" / f"{run.label}-{name}.png", draw) for name, draw in report.figures.items()]
    return Results(document, report, summary(run, report), (path, *figures))


def work(run: Run, watch: JobWatch) -> dict[str, Outcome]:
    """Run every job that no other process has claimed, and wait for the others; returns all outcomes by name.

    What a run needs of other recipes is run like its own jobs. Any number of processes may work on one run folder, also
    from several machines that share it.
    """
    steps = [*prerequisites(run), *((run, job) for job in run.jobs())]
    needed = {of.outcome(job.name): [at.outcome(each.name) for at, each in chain(of, job)[:-1]] for of, job in steps}
    done: dict[Path, Outcome] = {}
    while len(done) < len(steps):
        before = len(done)
        for of, job in steps:
            path = of.outcome(job.name)
            ready = path not in done and (path.is_file() or all(each.is_file() for each in needed[path]))
            if ready and (outcome := _attempt(of, job, watch)) is not None:
                done[path] = outcome
        if len(done) == before:
            time.sleep(PAUSE)
    return {job.name: done[run.outcome(job.name)] for job in run.jobs()}


def _attempt(run: Run, job: Job, watch: JobWatch) -> Outcome | None:
    """The outcome of a job that is done or can be run; None if another process runs it."""
    if run.outcome(job.name).is_file():
        return run_job(run, job, watch(job))
    with _claimed(run.folder / f"{job.name}.lock") as mine:
        return run_job(run, job, watch(job)) if mine else None


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock `path`; the system gives it back when a process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = files.lock(path, path.stem)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def train(run: Run, job: Job, watch: JobWatch, *, tensorboard: bool = False) -> Outcome:
    """Run one job, and before it those that it starts from, here or in other recipes; keeps those that are done.

    Raises:
        BlockingIOError: another process is at it.
    """
    outcome = None
    for of, each in chain(run, job):
        lock = of.folder / f"{each.name}.lock"
        what = f"The training {each.name} in {of.folder}"
        with files.locked(lock, what) if ranks.is_main() else nullcontext():
            outcome = run_job(of, each, watch(each), tensorboard=tensorboard)
    assert outcome is not None
    return outcome


def chain(run: Run, job: Job) -> list[tuple[Run, Any]]:
    """The jobs that must be done before a job, each with its run, and the job itself."""
    experiment = run.recipe.experiment
    before = [step for name in experiment.needs(job) for step in chain(run, pick(run, name))]
    for recipe, name in experiment.elsewhere(job):
        other = replace(run, recipe=load(recipe, run.recipe.scale))
        before += chain(other, pick(other, name))
    return [*before, (run, job)]


def prerequisites(run: Run) -> list[tuple[Run, Any]]:
    """The jobs of other recipes that this one needs and that are not done, each once, in the order they must run."""
    found: dict[tuple[Path, str], tuple[Run, Any]] = {}
    for job in run.jobs():
        for of, each in chain(run, job)[:-1]:
            if of.folder != run.folder and not of.outcome(each.name).is_file():
                found.setdefault((of.folder, each.name), (of, each))
    return list(found.values())


def minutes_left(steps: Sequence[tuple[Run, Any]]) -> float:
    """About how many minutes jobs take on two cores, those that are done not counted: their part of their recipes."""
    total = 0.0
    for run, job in steps:
        if not run.outcome(job.name).is_file():
            total += run.recipe.minutes * (job.steps + 1) / sum(each.steps + 1 for each in run.jobs())
    return total


@contextmanager
def _helpers(run: Run, workers: int) -> Iterator[None]:
    """Let `workers - 1` more processes work on the run meanwhile."""
    before = torch.get_num_threads()
    threads = max(1, before // workers)
    spawn = multiprocessing.get_context("spawn")
    for _ in range(workers - 1):
        spawn.Process(target=_help, args=(run, threads), daemon=True).start()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


def _help(run: Run, threads: int) -> None:
    """What a helper does. It is silent: an error will meet the main process too, which takes the job over."""
    torch.set_num_threads(threads)
    with suppress(KeyboardInterrupt, ValueError, ImportError, OSError):
        work(run, lambda job: lambda record: None)


def pick(run: Run, name: str | None) -> Any:
    """The job of that name, or the only one."""
    jobs = {job.name: job for job in run.jobs()}
    if name is None and len(jobs) == 1:
        return next(iter(jobs.values()))
    if name not in jobs:
        asked = "it does not say which" if name is None else f"{name!r} is none of them"
        raise ValueError(
            f"The recipe {run.recipe.name} has {len(jobs)} trainings and {asked}. Name one as job: {', '.join(jobs)}."
        )
    return jobs[name]


def run_job(run: Run, job: Job, observe: Observer, *, tensorboard: bool = False) -> Outcome:
    """The outcome of a job: read if it is done, else found (from its last checkpoint on) and kept."""
    path = run.outcome(job.name)
    identity = to_json(job) | {"seed": run.seed}
    if path.is_file():
        return replace(_kept(path, identity), folder=run.folder / job.name)
    for name in run.recipe.experiment.needs(job):
        if not run.outcome(name).is_file():
            raise FileNotFoundError(
                f"The job {job.name} needs the outcome of {name}, but there is no file {run.outcome(name)}. Run it "
                f"first."
            )
    folder = run.folder / job.name
    context = Context(folder, run.data, run.seed, observe, run.sibling, tensorboard)
    try:
        outcome = run.recipe.experiment.run(job, context)
    except Diverged as error:
        raise ValueError(f"The job {job.name} stopped: {error}") from error
    if ranks.is_main():
        found = {"numbers": outcome.numbers, "seconds": outcome.seconds, "drawing": outcome.drawing}
        _write(path, {"job": identity, **to_json(found)})
    return replace(outcome, folder=folder)


def summary(run: Run, report: Report) -> str:
    """The tables, what differs from the published protocol, and the paper's claims with our verdicts, as text."""
    recipe = run.recipe
    parts = [f"{recipe.title} ({recipe.name}, scale {recipe.scale})", *map(str, report.tables)]
    if recipe.differs:
        changes = (f"  {name}: {here} (paper: {paper})" for name, (here, paper) in recipe.differs.items())
        parts.append("\n".join(["Not as published at this scale:", *changes]))
    if recipe.expect.claims:
        parts.append("\n".join(["Claims:", *_claims(recipe, report)]))
    return "\n\n".join(parts)


def machine() -> str:
    """The class of this machine, without its name."""
    gpus = torch.cuda.device_count()
    return f"{os.cpu_count()} cores, {f'{gpus} GPU' if gpus else 'no GPU'}"


def _kept(path: Path, identity: Mapping[str, Any]) -> Outcome:
    try:
        kept = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}). Remove it, and what it held is found again.") from error
    changed = config.differences(dict(identity), kept.pop("job"))
    if changed:
        name, (now, then) = next(iter(changed.items()))
        raise ValueError(
            f"{path} holds the outcome of another configuration: {name} was {then!r} and is {now!r}. "
            f"Choose another folder, or remove this file and the folder beside it to run it again."
        )
    return Outcome(**kept)


def _document(run: Run, outcomes: Mapping[str, Outcome], report: Report) -> dict[str, Any]:
    recipe = run.recipe
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": recipe.scale,
        "seed": run.seed,
        "version": version("lipspline"),
        "torch": torch.__version__,
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(sum(outcome.seconds for outcome in outcomes.values()), 1),
        "differs_from_paper": to_json(recipe.differs),
        "tables": [
            {"title": table.title, "rows": table.corner, "ours": to_json(table.ours), "paper": to_json(table.paper)}
            for table in report.tables
        ],
        "claims": {name: _claim(claim, report.verdicts[name], recipe) for name, claim in recipe.expect.claims.items()},
        "settings": to_json(recipe.settings),
        "jobs": {name: {"seconds": round(outcome.seconds, 1), **outcome.numbers} for name, outcome in outcomes.items()},
    }


def _claims(recipe: Recipe, report: Report) -> list[str]:
    lines = []
    for name, claim in recipe.expect.claims.items():
        verdict = report.verdicts[name]
        lines.append(f"  [{verdict.judgement(recipe.scale)}] {claim}: {verdict.evidence}")
    return lines


def _claim(claim: str, verdict: Verdict, recipe: Recipe) -> dict[str, Any]:
    """A claim in the document; `holds` is null where the run is too short to judge it."""
    judged = verdict.judgement(recipe.scale) is not Judgement.TOO_SHORT
    return {"claim": claim, "holds": verdict.holds if judged else None, "evidence": verdict.evidence}


def _write(path: Path, document: Any) -> Path:
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
    return path


def _draw(path: Path, draw: Callable[[], Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw().savefig(path, dpi=110)
    return path


@contextmanager
def progress(jobs: Sequence[Job], console: Console) -> Iterator[JobWatch]:
    """Show how far the jobs are; yields what gives each job its observer."""
    total = sum(job.steps for job in jobs)
    with bars(console, keep=True) as display:
        started: list[Job] = []

        def watch(job: Job) -> Observer:
            before = sum(job.steps for job in started)
            started.append(job)
            label = f"job {len(started)} of {len(jobs)}"
            display.show("every", before, total, label=label)
            display.show("current", 0, job.steps, label=job.name)

            def observe(record: Record) -> None:
                display.show("every", before + record.step, total, label=label)
                display.show("current", record.step, job.steps, label=job.name, note=_score_text(record))

            return observe

        yield watch


def _score_text(record: Record) -> str:
    """The losses of a training; of what is not trained, the metrics."""
    if record.losses:
        return f"loss {', '.join(f'{value:.3g}' for value in record.losses.values())}"
    return ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
