"""`lipspline reproduce`."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from lipspline._infra.memory import keep_memory
from lipspline.cli.options import DataFolder, Json, OutFolder, ScaleOption, Seed, Threads, start
from lipspline.cli.output import err, show
from lipspline.cli.train import asked_to_start


def reproduce(
    recipe: Annotated[str | None, typer.Argument(help="The name of a recipe, or a TOML file of your own.")] = None,
    scale: ScaleOption = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the recipes and how long they take.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that share the work; 0: one a thread.", min=0)] = 0,
    data: DataFolder = None,
    out: OutFolder = Path(),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Run an experiment of the paper, and set our numbers beside the published ones; started again it goes on."""
    from lipspline.paper import recipe as recipes
    from lipspline.paper.run import Run, minutes_left, progress
    from lipspline.paper.run import reproduce as reproduce_run

    start(seed, threads)
    keep_memory()
    if list_ or recipe is None:
        show(recipes.listing(), recipes.listing_text(), json)
        return
    run = Run(recipes.load(recipe, scale or "laptop"), out, data, seed)
    jobs = run.jobs()
    asked_to_start(f"{recipe} at the scale {run.recipe.scale}", minutes_left([(run, job) for job in jobs]), scale)
    with progress(jobs, err) as watch:
        results = reproduce_run(run, watch, min(len(jobs), workers or torch.get_num_threads()))
    show(results.document, f"{results.text}\n\nWritten: {', '.join(map(str, results.files))}", json)
