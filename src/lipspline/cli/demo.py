"""`lipspline demo`."""

from pathlib import Path
from typing import Annotated

import typer

from lipspline.cli.options import Json, Seed, Threads, start
from lipspline.cli.output import err, show


def demo(
    folder: Annotated[Path, typer.Option(help="Where the pictures go.")] = Path("demo"),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Train a small 1-Lipschitz spline network on a function of one variable, draw it, print its certificate."""
    from lipspline.experiments.demo import run_demo

    start(seed, threads)
    result = run_demo(folder, lambda message: err.print(message))
    show(result.document(), str(result), json)
