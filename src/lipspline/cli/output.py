"""What the commands print: results on stdout, everything else on stderr."""

import json as jsonlib
from typing import Any

from rich.console import Console

out = Console()
err = Console(stderr=True)


def show(document: dict[str, Any], text: str, json: bool) -> None:
    """Print a result: as one JSON document, or as text for people."""
    if json:
        print(jsonlib.dumps(document, indent=2))
    else:
        out.print(text, markup=False, highlight=False, soft_wrap=True)
