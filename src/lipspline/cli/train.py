"""`lipspline train`."""

import json as jsonlib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from lipspline._infra.memory import keep_memory
from lipspline.cli.options import Data, Json, OutFolder, ScaleOption, Seed, Threads, start
from lipspline.cli.output import err, show


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of your own (TOML), or the name of a shipped one.")],
    job: Annotated[str | None, typer.Option(help="Which training of the recipe, if it has several.")] = None,
    scale: ScaleOption = "paper",
    data: Data = None,
    out: OutFolder = Path(),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Train one configuration of a recipe; started again it goes on. Under torchrun all processes train together.

    Where tensorboard is installed, the folder of the training can be watched with it, learned activations included.
    """
    from lipspline._infra import ranks
    from lipspline.paper.recipe import load
    from lipspline.paper.run import Run, pick, progress, run_job

    start(seed, threads)
    keep_memory()
    run = Run(load(recipe, scale), out, data, seed)
    chosen = pick(run, job)
    with ranks.session(), progress([chosen], err) as watch:
        outcome = run_job(run, chosen, watch(chosen), tensorboard=find_spec("tensorboard") is not None)
        if ranks.is_main():
            document = {"job": chosen.name, "folder": str(run.folder / chosen.name), **outcome.numbers}
            show(document, jsonlib.dumps(document, indent=2), json)
