"""What the commands print: results on stdout, everything else on stderr."""

import codecs
import io
import json as jsonlib
import sys
from typing import Any

from rich.console import Console

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
