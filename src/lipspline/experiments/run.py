"""Run a recipe job by job: what is done stays on disk, so a run that was killed goes on when it is started again."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lipspline.experiments import config
from lipspline.experiments.config import to_json
from lipspline.experiments.experiment import Context, Job, Outcome, Report
from lipspline.experiments.recipe import Recipe
from lipspline.training import distributed
from lipspline.training.checkpoint import write_atomically
from lipspline.training.log import Observer
from lipspline.training.loop import Diverged

Watch = Callable[[Job], Observer]
"""Gives the observer of a job; called once for every job, also for those that were done before."""


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

    def sibling(self, recipe: str) -> Path:
        """The run folder of another recipe at the same scale and seed."""
        return self.out / "runs" / self._label(recipe)

    def jobs(self) -> list[Any]:
        """The jobs of the recipe."""
        return self.recipe.experiment.jobs(self.recipe.settings)

    def _label(self, recipe: str) -> str:
        return f"{recipe}-{self.recipe.scale}" + (f"-seed{self.seed}" if self.seed else "")


@dataclass(frozen=True)
class Results:
    """What a run found: the document that is written, the report, and the files."""

    document: dict[str, Any]
    report: Report
    text: str
    files: tuple[Path, ...]


def reproduce(run: Run, watch: Watch) -> Results:
    """Run all jobs of a recipe, write `results/LABEL.json` and the figures, and set ours beside the paper's.

    Started again, it keeps the jobs that are done and goes on in the middle of the one that was not.
    """
    outcomes = {job.name: run_job(run, job, watch(job)) for job in run.jobs()}
    report = run.recipe.experiment.report(run.recipe.settings, outcomes, run.recipe.expect)
    document = _document(run, outcomes, report)
    results = run.out / "results"
    path = _write(results / f"{run.label}.json", document)
    figures = [_draw(results / "figures" / f"{run.label}-{name}.png", draw) for name, draw in report.figures.items()]
    return Results(document, report, summary(run, report), (path, *figures))


def run_job(run: Run, job: Job, observe: Observer) -> Outcome:
    """The outcome of a job: read if it is done, else found (from its last checkpoint on) and kept."""
    path = run.folder / f"{job.name}.json"
    identity = to_json(job) | {"seed": run.seed}
    if path.is_file():
        return _kept(path, identity)
    folder = run.folder / job.name
    context = Context(folder, run.data, run.seed, observe, run.sibling)
    try:
        outcome = run.recipe.experiment.run(job, context)
    except Diverged as error:
        raise ValueError(f"The job {job.name} stopped: {error}") from error
    if distributed.is_main():
        _write(path, {"job": identity, **to_json(outcome)})
    return outcome


def summary(run: Run, report: Report) -> str:
    """The tables, what differs from the published protocol, and the paper's claims with our verdicts, as text."""
    recipe = run.recipe
    parts = [f"{recipe.title} ({recipe.name}, scale {recipe.scale})", *map(str, report.tables)]
    if recipe.differs:
        changes = (f"  {name}: {here} (paper: {paper})" for name, (here, paper) in recipe.differs.items())
        parts.append("\n".join(["Not as published at this scale:", *changes]))
    if recipe.expect.claims:
        parts.append("\n".join(["The paper's claims:", *_claims(recipe, report)]))
    return "\n\n".join(parts)


def machine() -> str:
    """The class of this machine, without its name."""
    gpus = torch.cuda.device_count()
    return f"{os.cpu_count()} cores, {f'{gpus} GPU' if gpus else 'no GPU'}"


def _kept(path: Path, identity: Mapping[str, Any]) -> Outcome:
    kept = json.loads(path.read_text())
    changed = config.differences(dict(identity), kept.pop("job"))
    if changed:
        name, (now, then) = next(iter(changed.items()))
        raise ValueError(
            f"{path} holds the outcome of another configuration: {name} was {then!r} and is {now!r}. "
            f"Choose another --out, or remove this file and the folder beside it to run it again."
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
        "claims": {
            name: {"claim": claim, **to_json(report.verdicts[name])} for name, claim in recipe.expect.claims.items()
        },
        "settings": to_json(recipe.settings),
        "jobs": {
            name: {"seconds": round(outcome.seconds, 1), **outcome.numbers} for name, outcome in outcomes.items()
        },
    }


def _claims(recipe: Recipe, report: Report) -> list[str]:
    lines = []
    for name, claim in recipe.expect.claims.items():
        verdict = report.verdicts[name]
        lines.append(f"  [{'holds' if verdict.holds else 'does not hold'}] {claim}: {verdict.evidence}")
    return lines


def _write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())
    return path


def _draw(path: Path, draw: Callable[[], Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw().savefig(path, dpi=110)
    return path
