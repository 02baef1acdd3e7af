"""A progress bar on stderr: the job that runs, its loss, and the time the rest will take."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lipspline.paper.experiment import Job
from lipspline.paper.run import Watch
from lipspline.training.log import Observer, Record


@contextmanager
def progress(jobs: Sequence[Job], console: Console) -> Iterator[Watch]:
    """Show how far the jobs are; yields what gives each job its observer."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        every = bar.add_task("", total=sum(job.steps for job in jobs))
        current = bar.add_task("", total=None)
        started: list[Job] = []

        def watch(job: Job) -> Observer:
            before = sum(job.steps for job in started)
            started.append(job)
            bar.update(every, completed=before, description=f"job {len(started)} of {len(jobs)}")
            bar.reset(current, description=job.name, total=job.steps)

            def observe(record: Record) -> None:
                bar.update(current, completed=record.step, description=f"{job.name} ({_scores(record)})")
                bar.update(every, completed=before + record.step)

            return observe

        yield watch


def _scores(record: Record) -> str:
    """The losses of a training; of what is not trained, the metrics."""
    if record.losses:
        return f"loss {', '.join(f'{value:.3g}' for value in record.losses.values())}"
    return ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
