"""The commands that are a few lines over one function: denoise, demo, inspect, verify, bench, lab."""

import json as jsonlib
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import typer

from lipspline import kernels
from lipspline._infra import checks
from lipspline._infra.devices import keep_memory
from lipspline._infra.progress import bars
from lipspline.cli.program import (
    Device,
    Force,
    Json,
    Seed,
    Threads,
    err,
    new_folders,
    out,
    show,
    start,
    translated,
    warn,
)
from lipspline.formats.output import Output, versions
from lipspline.imaging.denoise import denoise_file


def denoise(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="IN...", help="PNG, TIFF, JPEG, npy, gray or colour; NIfTI, DICOM, or a DICOM folder."),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="A file for the same kind of pixels; of several files, a folder.")
    ],
    noise: Annotated[str, typer.Option(help="Noise level, 15 for 15/255 of white; or auto.")] = "auto",
    noise_value: Annotated[
        float | None, typer.Option(help="Or the noise in the values of the file: 20 for 20 HU of a CT image.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "--prior",
            help="auto (ridge-adaptive), ridge (Lipschitz constant 1), lls, tv, ..., or a .safetensors file.",
        ),
    ] = "auto",
    white: Annotated[
        float | None, typer.Option(help="The value of white; by default 255, 65535, 1 for floats, 1000 HU.")
    ] = None,
    black: Annotated[float | None, typer.Option(help="The value of black; by default 0; -1000 HU.")] = None,
    force: Force = False,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Remove white noise from images; bit depth, range, colour and transparency stay as they are."""
    start(seed, threads, device)
    keep_memory()
    options = {"noise": _level(noise), "noise_value": noise_value, "model": model}
    options |= {"white": white, "black": black, "force": force}
    results, targets = [], _targets(sources, output)
    with new_folders(target for _, target in targets), bars(err) as display:
        for source, target in targets:

            def watch(done: int, total: int, name: str = source.name) -> None:
                display.show(name, done, total)

            results.append(denoise_file(source, target, **options, watch=watch))
    for result in results:
        if result.warning:
            named = "" if len(results) == 1 else f"{result.input}: "
            warn(f"{named}{translated(result.warning)}")
    documents = [result.document() for result in results]
    document = documents[0] if len(sources) == 1 else {"results": documents}
    show(document, "\n".join(map(str, results)), json)


def _targets(sources: list[Path], output: Path) -> list[tuple[Path, Path]]:
    """Each input with its output; several inputs go into a folder, under their own names, JPEG as PNG."""
    if len(sources) == 1:
        return [(sources[0], output)]
    if output.suffix or (output.exists() and not output.is_dir()):
        raise ValueError(f"{len(sources)} files go into a folder, but {output} is the name of a file.")
    targets = [
        output / (source.with_suffix(".png") if source.suffix.lower() in (".jpg", ".jpeg") else source).name
        for source in sources
    ]
    if len(set(targets)) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise ValueError(f"Two of the files would be written as {twice}. Rename one of them.")
    return list(zip(sources, targets, strict=True))


def _level(noise: str) -> float | Literal["auto"]:
    if noise == "auto":
        return noise
    try:
        return float(noise)
    except ValueError:
        raise ValueError(
            f"--noise must be a number, 15 for a noise level of 15/255, or auto, but is {noise!r}."
        ) from None


if TYPE_CHECKING:
    from lipspline.imaging.demo import Comparison, Watch
    from lipspline.pnp import Progress as Iteration

TITLE = "Two scans, reconstructed"


def demo(
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("demo"),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Reconstruct an MRI and a CT scan, simulated from images that need no download; print a table, write a report."""
    from lipspline.imaging.demo import compare, demo_scans

    start(seed, threads, device)
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
    return reconstruction_page(cases, command=command, title=TITLE)


def _table(found: "Sequence[Comparison]") -> str:
    lines = []
    for comparison in found:
        document = comparison.document()
        rows = [{"name": comparison.scan.direct_name, **document["direct"]}, *document["methods"]]
        lines += ["", comparison.title]
        for row in rows:
            cost = f"{row['denoiser_calls']:4d} steps  {row['seconds']:6.1f} s" if "seconds" in row else ""
            lines.append(f"  {row['name']:24} PSNR {row['psnr']:6.2f} dB  SSIM {row['ssim']:.3f}  {cost}".rstrip())
        best = document["methods"][-1]
        proven = best["guaranteed"] and best["converged"]
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


def verify(
    outputs: Annotated[
        list[Path], typer.Argument(metavar="OUT...", help="Images or folders that lipspline has written, or a pattern.")
    ],
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Check that results are those their certificates OUT.json were written for; exit code 0 only if nothing fails."""
    from lipspline.cli.several import verified

    start(seed, threads, device, only="proofs are computed on the processor, in double precision")
    document, words, holds = verified(outputs)
    show(document, words, json)
    if not holds:
        raise typer.Exit(1)


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which of activations, convolution, orthonormal, training, denoising, ensemble, scaling, warm; "
            "all if none is named."
        ),
    ] = None,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Measure side by side: this library, plain torch, and the textbook formulas. Ratios of medians, interleaved."""
    from lipspline.benchmarks.suites import SUITES

    start(seed, threads, device, only="the costs are those of the processor")
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


def lab(
    port: Annotated[
        int, typer.Option(help="The port of 127.0.0.1; 0 takes any that is free.", min=0, max=65535)
    ] = 8765,
    weights: Annotated[
        list[Path] | None, typer.Option(help="A prior of your own (safetensors); may be given several times.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Try reconstructions in the browser, live: choose, run, watch, and see what is proven. For this machine only."""
    from lipspline.lab.server import serve

    start(seed, threads, device, only="the lab computes on the processor")
    keep_memory()
    serve(port, weights or [], lambda address: err.print(f"The lab is open at {address} (Ctrl-C closes it)."))


def inspect(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A file or folder that a scanner or a program wrote.")],
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Say what a file is, what was recognised in it, what would be done and what is missing; exit code 1 if nothing."""
    from lipspline.cli.several import inspected

    start(seed, threads, device, only="files are read on the processor")
    document, words, recognised = inspected(source)
    show(jsonlib.loads(_options(jsonlib.dumps(document))), _options(words), json)
    if not recognised:
        raise typer.Exit(1)


def _options(text: str) -> str:
    """The arguments of `reconstruct` in a text as the options of its commands."""
    return translated(translated(text, "reconstruct", "mri"), "reconstruct", "ct")
