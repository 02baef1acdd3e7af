"""The program that the commands belong to: its help, its version, and what becomes of an error."""

import os
import re
import sys
from typing import Annotated, Any

import torch
import typer

import lipspline
from lipspline import kernels
from lipspline.cli.output import err, out, use_any_terminal
from lipspline.formats.validation import FileError

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
    use_any_terminal()
    try:
        app()
    except (ValueError, ImportError, OSError) as error:
        if os.environ.get("LIPSPLINE_DEBUG"):
            raise
        hint = " (lipspline inspect FILE says what a file is.)" if _is_about_data(error) else ""
        err.print(
            f"lipspline: {translated(str(error))}{hint}", style="red", markup=False, highlight=False, soft_wrap=True
        )
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        err.print("lipspline: interrupted. The same command goes on where work was kept.", style="red")
        sys.exit(INTERRUPTED)


def _is_about_data(error: Exception) -> bool:
    """Whether a reconstruction failed because of a file."""
    return isinstance(error, FileError) and sys.argv[1:2] == ["reconstruct"]


def translated(message: str) -> str:
    """The arguments in a message of the library, such as `force=True`, as options of the command that was given.

    Example:
        >>> sys.argv = ["lipspline", "denoise"]
        >>> translated("Replace it with force=True, or say how much with noise=15; contraction=K is no option.")
        'Replace it with --force, or say how much with --noise 15; contraction=K is no option.'
    """
    command: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    options = {option.name: option.opts[0] for option in command.params if option.opts[0].startswith("--")}

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in options:
            return found.group()
        return options[name] if value in ("", "True") else f"{options[name]} {value}"

    return re.sub(r"(?<![\w.(])([a-z_]+)=([\w.:]*\w|)", option, message)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False) -> None:
    if version:
        versions = f"lipspline {lipspline.__version__}, torch {torch.__version__}, kernels: {kernels.active()}"
        out.print(versions, soft_wrap=True)
        raise typer.Exit
