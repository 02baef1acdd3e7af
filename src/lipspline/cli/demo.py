"""`lipspline demo`."""

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipspline._infra.memory import keep_memory
from lipspline._infra.progress import bars
from lipspline.cli.options import Json, Seed, Threads, start
from lipspline.cli.output import err, show
from lipspline.formats.output import Output, versions

if TYPE_CHECKING:
    from lipspline.imaging.demo import Comparison, Watch
    from lipspline.pnp import Progress as Iteration

TITLE = "Two scans, reconstructed"


def demo(
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("demo"),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Reconstruct an MRI and a CT scan, simulated from images that need no download; print a table, write a report."""
    from lipspline.imaging.demo import compare, demo_scans

    start(seed, threads)
    keep_memory()
    output = Output(folder / "report.html")
    with output.open(force=True):
        with _watch() as watch:
            found = [compare(title, scan, watch) for title, scan in demo_scans().items()]
        document = {"comparisons": [c.document() for c in found], "report": str(output.path), "versions": versions()}
        page = _report(found).encode()
        document = output.commit(document, {"": lambda draft: draft.write_bytes(page)})
    show(document, f"{_table(found)}\n\nThe report: {output.path}", json)


def _report(found: "Sequence[Comparison]") -> str:
    from lipspline.imaging.problem import solved_case
    from lipspline.report import reconstruction_page

    cases = [solved_case(c.title, c.problem, c.scan, c.solved, c.evidence) for c in found]
    command = shlex.join(["lipspline", *sys.argv[1:]])
    return reconstruction_page(cases, denoiser=found[0].strength.served, command=command, title=TITLE)


def _table(found: "Sequence[Comparison]") -> str:
    from lipspline.imaging.problem import DIRECT

    lines = []
    for comparison in found:
        document = comparison.document()
        rows = [{"name": DIRECT[comparison.scan.modality], **document["direct"]}, *document["methods"]]
        lines += ["", comparison.title]
        for row in rows:
            cost = f"{row['denoiser_calls']:4d} steps  {row['seconds']:6.1f} s" if "seconds" in row else ""
            lines.append(f"  {row['name']:24} PSNR {row['psnr']:6.2f} dB  SSIM {row['ssim']:.3f}  {cost}".rstrip())
        proven = all(row["guaranteed"] and row["converged"] for row in document["methods"])
        stable = "holds" if document["stable"] else "is BROKEN"
        lines.append(f"  convergence {'proven and reached' if proven else 'NOT proven or reached'}; stability {stable}")
    return "\n".join(lines).strip("\n")


@contextmanager
def _watch() -> "Iterator[Watch]":
    """A bar for each piece of work, by how far the residual has fallen on its way to the tolerance."""
    from lipspline.imaging.demo import ITERATION

    first: dict[str, float] = {}
    with bars(err, keep=True) as display:

        def watch(work: str, iteration: "Iteration | None") -> None:
            label = f"{work:16}"
            if iteration is None:
                display.show(work, 1.0, label=label)
                return
            whole = math.log(max(first.setdefault(work, iteration.residual), 2 * ITERATION.tol) / ITERATION.tol)
            left = math.log(max(iteration.residual, ITERATION.tol) / ITERATION.tol)
            note = f"{iteration.calls} steps, change {iteration.residual:.0e}"
            display.show(work, min(1 - left / whole, 0.99), label=label, note=note)

        yield watch
