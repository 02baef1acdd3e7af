"""`lipspline verify`."""

from pathlib import Path
from typing import Annotated

import typer

from lipspline.cli.options import Json, Seed, Threads, start
from lipspline.cli.output import show


def verify(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="An image or folder that lipspline has written.")],
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Check that a result is the one its certificate OUT.json was written for; exit code 0 only if nothing fails."""
    from lipspline.imaging.verify import verify as verified

    start(seed, threads)
    found = verified(output)
    show(found.document(), str(found), json)
    if not found.holds:
        raise typer.Exit(1)
