"""The program that the commands belong to: its help, its version, and what becomes of an error."""

import os
import sys
from typing import Annotated

import torch
import typer

import lipspline
from lipspline import kernels
from lipspline.cli.output import err, out

INTERRUPTED = 130  # the exit code after Ctrl-C

app = typer.Typer(
    name="lipspline",
    help="Provably 1-Lipschitz networks with learned activations, and image reconstruction with a certificate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def main() -> None:
    """Run the command line; any error a user can cause ends in one sentence."""
    try:
        app()
    except (ValueError, ImportError, OSError) as error:
        if os.environ.get("LIPSPLINE_DEBUG"):
            raise
        err.print(f"lipspline: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        err.print("lipspline: interrupted. The same command goes on where work was kept.", style="red")
        sys.exit(INTERRUPTED)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False) -> None:
    if version:
        versions = f"lipspline {lipspline.__version__}, torch {torch.__version__}, kernels: {kernels.active()}"
        out.print(versions, soft_wrap=True)
        raise typer.Exit
