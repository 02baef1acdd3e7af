"""The options that commands share, and what they print: results on stdout, everything else on stderr."""

import codecs
import io
import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

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


out = Console()
err = Console(stderr=True)


PLAIN = {
    "β": "beta",
    "α": "alpha",
    "σ": "sigma",
    "λ": "lambda",
    "ε": "eps",
    "δ": "delta",
    "‖": "||",
    "≤": "<=",
    "×": "x",
}
"""How a terminal that has no Greek letters shows them."""


def use_any_terminal() -> None:
    """Print plain words where a terminal cannot show a letter, instead of failing."""

    def plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end

    codecs.register_error("lipspline.plain", plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lipspline.plain")


def show(document: dict[str, Any], text: str, json: bool) -> None:
    """Print a result: as one JSON document, or as text for people."""
    if json:
        print(jsonlib.dumps(document, indent=2))
    else:
        out.print(text, markup=False, highlight=False, soft_wrap=True)
