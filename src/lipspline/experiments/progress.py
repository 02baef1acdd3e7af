"""A progress bar on stderr: the job that runs, its loss, and the time the rest will take."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lipspline.experiments.experiment import Job
from lipspline.experiments.run import Watch
from lipspline.training.log import Observer, Record


@contextmanager
def progress(jobs: Sequence[Job], console: Console) -> Iterator[Watch]:
    """Show how far the jobs are; yields what gives each job its observer."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        every = bar.add_task(f"{len(jobs)} jobs", total=sum(job.steps for job in jobs))
        current = bar.add_task("", total=None)
        before = 0

        def watch(job: Job) -> Observer:
            nonlocal before
            start, before = before, before + job.steps
            number = jobs.index(job) + 1
            bar.reset(current, description=f"{number}/{len(jobs)} {job.name}", total=job.steps)
            bar.update(every, completed=start)

            def observe(record: Record) -> None:
                losses = ", ".join(f"{value:.3g}" for value in record.losses.values())
                description = f"{number}/{len(jobs)} {job.name} (loss {losses})"
                bar.update(current, completed=record.step, total=record.steps, description=description)
                bar.update(every, completed=start + job.steps * record.step / record.steps)

            return observe

        yield watch
        bar.update(every, completed=before)
