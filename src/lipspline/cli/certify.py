"""`lipspline certify`."""

import json as jsonlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import lipspline
from lipspline.certification import estimate_lower
from lipspline.cli.options import Json, Seed, Threads, start
from lipspline.cli.output import err, show


def certify(
    weights: Annotated[Path, typer.Argument(help="A network written by lipspline (safetensors).")],
    lipschitz: Annotated[float, typer.Option(help="The constant to prove.")] = 1.0,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Prove a Lipschitz bound of a network, layer by layer; exit code 0 only if the asked constant is proved."""
    start(seed, threads)
    network = lipspline.models.load(weights)
    certificate = replace(lipspline.certify(network), lower=estimate_lower(network))
    show(jsonlib.loads(certificate.to_json()), str(certificate), json)
    if certificate.upper > lipschitz:
        err.print(f"lipspline: the bound {certificate.upper:.9g} exceeds {lipschitz:g}.", style="red")
        raise typer.Exit(1)
