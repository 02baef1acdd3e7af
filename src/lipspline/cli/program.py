"""The program that the commands belong to: shared options, what is printed, its version, what becomes of an error."""

import codecs
import errno
import io
import json as jsonlib
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console

import lipspline
from lipspline import kernels
from lipspline._infra import devices, ranks
from lipspline._infra.progress import Bars, Lines, Pace
from lipspline.formats.validation import FileError
from lipspline.pnp import Progress

OUTPUT, COMPUTING = "Output", "Computing"
"""Groups of options in the help of every command."""

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.", rich_help_panel=OUTPUT),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier result of lipspline.", rich_help_panel=OUTPUT)]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1, rich_help_panel=COMPUTING)]
Threads = Annotated[
    int, typer.Option(help="Threads to use; 0 leaves torch's choice.", min=0, rich_help_panel=COMPUTING)
]
Device = Annotated[
    str,
    typer.Option(
        help="Where to compute: auto (CUDA where torch finds it and the command can), cpu, cuda or mps.",
        rich_help_panel=COMPUTING,
    ),
]
DataFolder = Annotated[Path | None, typer.Option(help="The data folder; LIPSPLINE_DATA if not given.")]
OutFolder = Annotated[Path, typer.Option(help="Holds runs/ (to go on after a stop) and results/.")]
ScaleOption = Annotated[
    str | None, typer.Option(help="smoke (seconds), laptop (the default), or paper (the published protocol: days).")
]


def start(seed: int, threads: int, device: str, *, only: str = "") -> None:
    """Seed everything random, set the number of threads (0 leaves torch's choice) and the device.

    Args:
        only: why the command computes on the processor alone, if it does.
    """
    if only and devices.find(device).type != "cpu" and device != "auto":
        raise ValueError(f"device is {device!r}, but {only}. Leave device= out.")
    devices.use("cpu" if only else device)
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


def warn(sentence: str) -> None:
    """Say on stderr what to mind about a result."""
    err.print(f"lipspline: {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def new_folders(targets: Iterable[Path]) -> Iterator[None]:
    """Say which folders were made for outputs that nobody had made before: a name may be misspelt."""
    parents = [[folder for folder in target.absolute().parents if not folder.exists()] for target in targets]
    new = {missing[-1] for missing in parents if missing}
    yield
    for folder in sorted(new):
        if folder.is_dir():
            err.print(f"lipspline: made the folder {folder}.", markup=False, highlight=False, soft_wrap=True)


# The program

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
    except (ValueError, ImportError, OSError, MemoryError, RuntimeError) as error:
        if os.environ.get("LIPSPLINE_DEBUG") or (isinstance(error, RuntimeError) and not _is_about_memory(error)):
            raise
        hint = " (lipspline inspect FILE says what a file is.)" if _is_about_data(error) else ""
        sentence = f"lipspline: {translated(sentence_of(error))}{hint}"
        err.print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        err.print("lipspline: interrupted. The same command goes on where work was kept.", style="red")
        sys.exit(INTERRUPTED)


def _is_about_memory(error: RuntimeError) -> bool:
    """Whether torch could not allocate a tensor: on the processor it says so in words only."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def sentence_of(error: Exception) -> str:
    """What went wrong; errors of the system without their numbers.

    Example:
        >>> sentence_of(OSError(13, "Permission denied", "a.npy"))
        'a.npy: permission denied.'
        >>> sentence_of(OSError(errno.ENOSPC, "No space left on device"))
        'No space is left on the disk. Make room and give the same command again: it goes on where it was.'
    """
    if isinstance(error, MemoryError | RuntimeError):
        return "There is not enough memory for this. Take a smaller input, or a part of it."
    if not isinstance(error, OSError) or not error.strerror:
        return re.sub(r"\s*\n\s*", " ", str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "No space is left on the disk. Make room and give the same command again: it goes on where it was."
    where = "" if error.filename is None else f"{error.filename}: "
    what = error.strerror[0].lower() if where else error.strerror[0]
    return f"{where}{what}{error.strerror[1:]}."


def _is_about_data(error: Exception) -> bool:
    """Whether a reconstruction failed because of a file."""
    return isinstance(error, FileError) and sys.argv[1:2] == ["reconstruct"]


SHORTER = {"input_shape": "shape"}
"""Arguments of the library whose options have shorter names."""


def translated(message: str, *words: str) -> str:
    """The arguments in a message of the library, such as `force=True` or `input_bound`, as options of a command.

    Args:
        words: of the command; without them it is the one that was given.

    Example:
        >>> sys.argv = ["lipspline", "denoise"]
        >>> translated("Replace it with force=True, or say how much with noise=15; contraction=K is no option.")
        'Replace it with --force, or say how much with --noise 15; contraction=K is no option.'
        >>> translated("Give input_shape and input_bound.", "certify")
        'Give --shape and --input-bound.'
    """
    command: Any = typer.main.get_command(app)
    for word in words or sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    options = {option.name: option.opts[0] for option in command.params if option.opts[0].startswith("--")}
    options |= {name: options[short] for name, short in SHORTER.items() if short in options}

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in options:
            return found.group()
        return options[name] if value in ("", "True") else f"{options[name]} {value}"

    message = re.sub(r"(?<![\w.(])([a-z_]+)=([\w.:]*\w|)", option, message)
    return re.sub(
        r"(?<![\w.(/-])[a-z]+(?:_[a-z]+)+(?![\w(=]|\.\w)", lambda found: options.get(found[0], found[0]), message
    )


def parse_slices(text: str) -> slice:
    """Slices as a user writes them: `3:9`, `3:`, `:9`, `:` for all, or `3` for one.

    Example:
        >>> parse_slices("3:9"), parse_slices("4"), parse_slices(":")
        (slice(3, 9, None), slice(4, 5, None), slice(None, None, None))
    """
    first, colon, last = text.partition(":")
    if any(part and not part.isdecimal() for part in (first, last)) or not (first or colon):
        raise ValueError(f"--slices must be first:last, such as 3:9, but is {text!r}.")
    if not colon:
        return slice(int(first), int(first) + 1)
    return slice(int(first) if first else None, int(last) if last else None)


def parse_axis(text: str) -> float | str | None:
    """The axis of rotation as a user writes it: a detector, auto, middle, or nothing.

    Example:
        >>> parse_axis("295.9"), parse_axis("auto"), parse_axis("")
        (295.9, 'auto', None)
    """
    if text in ("", "auto", "middle"):
        return text or None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--axis must be auto, middle or a detector, but is {text!r}.") from None


def parse_number(option: str, text: str) -> float | Literal["auto"]:
    """A number, or "auto".

    Example:
        >>> parse_number("--beta", "0.4"), parse_number("--beta", "auto")
        (0.4, 'auto')
    """
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} must be auto or a number, but is {text!r}.") from None


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False) -> None:
    if version:
        versions = f"lipspline {lipspline.__version__}, torch {torch.__version__}, kernels: {kernels.active()}"
        out.print(versions, soft_wrap=True)
        raise typer.Exit


class SliceDisplay:
    """Shows the slices done, which prior of how many is worked with, and the residual of the slice that runs.

    Args:
        slices: of the scan; those of this process are counted.
        first: the number of the first of them.
        rivals: how many priors are compared. How long they take is not known, so no time left is shown.
    """

    def __init__(self, display: Bars | Lines, slices: int, first: int, rivals: int):
        self._display, self._first, self._rivals = display, first, rivals
        self._pace, self._own = Pace(), len(ranks.shard(range(slices)))
        self._prior, self._what, self._unknown = 1, "", math.inf if rivals else None

    def tell(self, prior: int, priors: int, what: str) -> None:
        """What comes next."""
        self._prior = prior
        self._what = ", ".join(filter(None, [f"prior {prior} of {priors}" if priors > 1 else "", what]))
        self._show("")

    def step(self, i: int, progress: Progress | None) -> None:
        """A step of slice i, or its end."""
        if progress is None:
            self._pace.end(i)
            self._show("")
            return
        if self._prior == 1:
            self._pace.begin(i)
        self._show(f"slice {self._first + i}: {progress.calls} steps, residual {progress.residual:.1e}")

    def _show(self, step: str) -> None:
        done = self._pace.done
        note = ", ".join(filter(None, [f"{done}/{self._own}", self._what, step]))
        left = self._pace.left(self._own) if self._unknown is None else self._unknown
        total = self._own + self._rivals
        self._display.show("slices", done + max(0, self._prior - 2), total, note=note, left=left)
