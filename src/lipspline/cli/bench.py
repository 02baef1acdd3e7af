"""`lipspline bench`."""

import json as jsonlib
from typing import Annotated

import torch
import typer

from lipspline import kernels
from lipspline.cli.options import Json, Seed, Threads, start
from lipspline.cli.output import err, out


def bench(
    suites: Annotated[list[str] | None, typer.Argument(help="Which suites; all if none is named.")] = None,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Measure side by side: this library, plain torch, and the textbook formulas. Ratios of medians, interleaved."""
    from lipspline._infra import checks
    from lipspline.benchmarks.suites import SUITES

    start(seed, threads)
    names = [checks.one_of("suite", name, SUITES) for name in suites or SUITES]
    header = {"kernels": kernels.active(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    if not json:
        out.print(", ".join(f"{key}: {value}" for key, value in header.items()), highlight=False)
    results = []
    for name in names:
        with err.status(f"{name} ..."):
            for ratios in SUITES[name]():
                results.append(ratios)
                if not json:
                    out.print(str(ratios), highlight=False)
    if json:
        print(jsonlib.dumps({**header, "results": [vars(ratios) for ratios in results]}, indent=2))
