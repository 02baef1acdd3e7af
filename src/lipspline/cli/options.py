"""The options that commands share, and what they set."""

from pathlib import Path
from typing import Annotated

import torch
import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]
Threads = Annotated[int, typer.Option(help="Threads to use; 0 leaves torch's choice.", min=0)]
DataFolder = Annotated[Path | None, typer.Option(help="The data folder; LIPSPLINE_DATA if not given.")]
OutFolder = Annotated[Path, typer.Option(help="Holds runs/ (to go on after a stop) and results/.")]
ScaleOption = Annotated[
    str | None, typer.Option(help="smoke (seconds), laptop (the default), or paper (the published protocol: days).")
]


def start(seed: int, threads: int) -> None:
    """Seed everything random, and set the number of threads; 0 leaves torch's choice."""
    torch.manual_seed(seed)
    if threads:
        torch.set_num_threads(threads)
