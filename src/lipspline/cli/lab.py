"""`lipspline lab`."""

from pathlib import Path
from typing import Annotated

import typer

from lipspline._infra.memory import keep_memory
from lipspline.cli.options import Seed, Threads, start
from lipspline.cli.output import err


def lab(
    port: Annotated[
        int, typer.Option(help="The port of 127.0.0.1; 0 takes any that is free.", min=0, max=65535)
    ] = 8765,
    weights: Annotated[
        list[Path] | None, typer.Option(help="A denoiser of your own (safetensors); may be given several times.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Try reconstructions in the browser, live: choose, run, watch, and see what is proven. For this machine only."""
    from lipspline.lab.server import serve

    start(seed, threads)
    keep_memory()
    serve(port, weights or [], lambda address: err.print(f"The lab is open at {address} (Ctrl-C closes it)."))
