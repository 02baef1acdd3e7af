"""`lipspline reconstruct mri` and `lipspline reconstruct ct`."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from lipspline._infra import ranks
from lipspline._infra.memory import keep_memory
from lipspline.cli.options import Json, Seed, Threads, start
from lipspline.cli.output import err, show
from lipspline.formats import ct as ct_files
from lipspline.formats import mri as mri_files
from lipspline.formats.kspace import Kspace
from lipspline.formats.output import PAGE, Output, writer
from lipspline.imaging.ct import MeasuredCT, SimulatedCT
from lipspline.imaging.mri import COILS, MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.imaging.order import Order, carry_out
from lipspline.imaging.problem import Scan, central_problem
from lipspline.imaging.run import Reconstruction, Watch, mean
from lipspline.imaging.solved import DIRECT, Iteration, display_scale
from lipspline.imaging.strength import Auto, choose
from lipspline.pnp.iterate import Progress
from lipspline.report.plain_words import certificate_lines, lines_text

app = typer.Typer(help="Reconstruct images from measurements, with a certificate.", no_args_is_help=True)

MOST = 10000  # angles, detectors, pixels along a side
NOT_OPTIONS = ("source", "output", "report", "force", "json", "threads")  # what a result does not depend on

In = Annotated[Path, typer.Argument(metavar="IN", help="The measurement; images with --simulate.")]
Out = Annotated[
    Path,
    typer.Argument(
        metavar="OUT", help=".nii.gz, .npy, .h5, .tif, .png, .dcm; a name without ending is a folder of DICOM files."
    ),
]
Simulate = Annotated[bool, typer.Option("--simulate", help="IN holds images: measure them, add noise, compare.")]
DataNoise = Annotated[float | None, typer.Option(help="Noise added to simulated data; by default the paper's.")]
Noise = Annotated[str, typer.Option(help="Noise level of the denoiser, of 255; or auto.")]
Beta = Annotated[str, typer.Option(help="Weight β of the denoiser, up to 0.5 for stability; or auto.")]
Slices = Annotated[str, typer.Option(help="Which slices, first:last, numbered from 0; last is not included.")]
Model = Annotated[str, typer.Option(help="A shipped denoiser (lls, relu, av) or a .safetensors file.")]
Accelerate = Annotated[bool, typer.Option("--accelerate/--plain", help="Anderson's steps, or plain ones only.")]
Tol = Annotated[float, typer.Option(help="Stop when the relative change of the image is below this.")]
MaxSteps = Annotated[int, typer.Option(min=1, help="The largest number of denoiser calls for a slice.")]
Page = Annotated[bool, typer.Option("--report", help="Write a page OUT.html that shows the images and the proof.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier result of lipspline.")]


@app.command()
def mri(
    context: typer.Context,
    source: In,
    output: Out,
    mask: Annotated[Path | None, typer.Option(help="Keep what this npy mask, (W,) or (H, W), keeps.")] = None,
    acceleration: Annotated[float | None, typer.Option(help="Keep one column in so many, at random.")] = None,
    center: Annotated[float, typer.Option(help="Fraction of the columns, in the middle, that are all kept.")] = 0.08,
    coils: Annotated[str, typer.Option(help="auto (maps in IN, else ESPIRiT), espirit, or a file of maps.")] = "auto",
    simulate: Simulate = False,
    data_noise: DataNoise = None,
    noise: Noise = "auto",
    beta: Beta = "auto",
    slices: Slices = ":",
    model: Model = "lls",
    accelerate: Accelerate = True,
    tol: Tol = Iteration.tol,
    max_steps: MaxSteps = 1000,
    report: Page = False,
    force: Force = False,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Reconstruct MRI slices from k-space (fastMRI or ISMRMRD HDF5, BART .cfl, npy, npz), or from simulated k-space.

    --mask or --acceleration thin out what was measured, and the result is compared with what all of it gives.
    """
    start(seed, threads)
    keep_memory()
    if mask is not None and acceleration is not None:
        raise ValueError("--mask and --acceleration both say which columns are kept. Give one of them.")
    wanted = parse_slices(slices)
    first = wanted.start or 0
    kept = None if mask is None else mri_files.read_mask(mask)
    maps = None if coils in COILS else mri_files.read_maps(coils)
    thinning = Undersampling(kept, 4.0 if acceleration is None else acceleration, center, seed)
    found = mri_files.read(source, wanted)
    scan: Scan
    if isinstance(found, Kspace):
        if simulate or data_noise is not None:
            raise ValueError(f"{source} holds k-space already. Leave out --simulate and --data-noise.")
        unthinned = mask is None and acceleration is None
        scan = MeasuredMRI(found, _as_coils(coils) if maps is None else maps, None if unthinned else thinning, first)
    else:
        if not simulate:
            raise ValueError(f"{source} holds images, not k-space. To measure and reconstruct them give --simulate.")
        scan = SimulatedMRI(found, thinning, 0.01 if data_noise is None else data_noise, maps, seed, first)
    _fulfil(context, scan, first)


@app.command()
def ct(
    context: typer.Context,
    source: In,
    output: Out,
    angles: Annotated[str, typer.Option(help="How many, over half a turn; or an npy file of radians.")] = "",
    detectors: Annotated[int | None, typer.Option(min=2, max=MOST, help="How many rays for each angle.")] = None,
    size: Annotated[int | None, typer.Option(min=2, max=MOST, help="Side of the images in pixels.")] = None,
    spacing: Annotated[float | None, typer.Option(help="From detector to detector, in pixels.")] = None,
    simulate: Simulate = False,
    data_noise: DataNoise = None,
    noise: Noise = "auto",
    beta: Beta = "auto",
    slices: Slices = ":",
    model: Model = "lls",
    accelerate: Accelerate = True,
    tol: Tol = Iteration.tol,
    max_steps: MaxSteps = 1000,
    report: Page = False,
    force: Force = False,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Reconstruct CT slices from parallel-beam sinograms (npy, npz, HDF5, TIFF), or from simulated ones."""
    start(seed, threads)
    keep_memory()
    wanted = parse_slices(slices)
    first = wanted.start or 0
    views = parse_angles(angles)
    scan: Scan
    if simulate:
        if size is not None or spacing is not None:
            raise ValueError("--simulate takes the size from the images. Leave out --size and --spacing.")
        volume = ct_files.read(source, wanted)
        sigma = 1.0 if data_noise is None else data_noise
        scan = SimulatedCT(volume, 200 if views is None else views, detectors or 400, sigma, seed, first)
    else:
        if data_noise is not None:
            raise ValueError("--data-noise is for simulated data. Give --simulate too, or leave it out.")
        found = ct_files.read_sinograms(source, wanted)
        if detectors not in (None, found.data.shape[-1]):
            raise ValueError(f"{source} has {found.data.shape[-1]} detectors, not {detectors}.")
        scan = MeasuredCT(found, views, size, spacing, first)
    _fulfil(context, scan, first)


def _fulfil(context: typer.Context, scan: Scan, first: int) -> None:
    """What both commands do with a scan."""
    given = context.params
    report = given["report"]
    output = Output(given["output"], page=report)
    writer(output.path, scan.count)
    inputs = _inputs(given)
    output.check(inputs, force=given["force"])
    noise, beta = parse_number("--noise", given["noise"]), parse_number("--beta", given["beta"])
    strength = choose(given["model"], noise, beta, central_problem(scan))
    iteration = Iteration(given["tol"], given["max_steps"], given["accelerate"])
    options = {key: value for key, value in given.items() if key not in NOT_OPTIONS}
    order = Order(scan, strength, iteration, given["source"], output, first, options)
    with ranks.session(), output.open(inputs, force=given["force"]) if ranks.is_main() else nullcontext():
        ranks.wait()
        with _progress(scan.count) as watch:
            result, document = carry_out(order, watch, partial(_page, order) if report else None)
    if ranks.is_main():
        _warn(result)
        show(document, _text(order, result, report), given["json"])


def _inputs(given: Mapping[str, object]) -> list[Path]:
    """All files and folders that a command reads."""
    named = (given["source"], *(given.get(name) for name in ("mask", "coils", "angles", "model")))
    return [Path(str(name)) for name in named if name and Path(str(name)).exists()]


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


def parse_angles(text: str) -> int | torch.Tensor | None:
    """A number of angles, a file of them, or None where nothing is given."""
    if not text:
        return None
    if text.isdecimal():
        if not 1 <= int(text) <= MOST:
            raise ValueError(f"--angles must lie between 1 and {MOST}, but is {text}.")
        return int(text)
    return ct_files.read_angles(text)


def parse_number(option: str, text: str) -> float | Auto:
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


def _as_coils(text: str) -> Literal["auto", "espirit"]:
    return "espirit" if text == "espirit" else "auto"


@contextmanager
def _progress(slices: int) -> Iterator[Watch]:
    """A bar on stderr, where somebody watches: slices done, and the residual of the one that runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} slices"))
    with Bar(*columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=slices)

        def watch(i: int, progress: Progress | None) -> None:
            if progress is None:
                bar.advance(task)
            else:
                text = f"slice {i}: {progress.calls} denoiser calls, residual {progress.residual:.1e}"
                bar.update(task, description=text)

        yield watch


def _warn(result: Reconstruction) -> None:
    if result.unsettled:
        numbers = ", ".join(str(done.number) for done in result.unsettled)
        run = result.unsettled[0].run
        reason = "" if run is None else f" ({run.reason})"
        err.print(f"lipspline: slice(s) {numbers} did not converge{reason}.", style="yellow", highlight=False)
    if strange := [done for done in result.slices if done.misfit is not None and not done.misfit.explained]:
        numbers = ", ".join(str(done.number) for done in strange)
        text = (
            f"lipspline: slice(s) {numbers} are farther from the measurements than noise explains. Check angles, "
            "rotation axis, orientation, field of view and coil maps."
        )
        err.print(text, style="yellow", highlight=False)
    if result.empty:
        numbers = ", ".join(str(done.number) for done in result.empty)
        text = f"lipspline: slice(s) {numbers} are empty: their data are zero everywhere, and so are their images."
        err.print(text, style="yellow", highlight=False)


def _page(order: Order, result: Reconstruction) -> bytes:
    from lipspline.report import Case, Picture, reconstruction_page

    solved = [done for done in result.slices if done.solution is not None]
    cases = [
        Case(
            f"Slice {done.number}",
            (
                Picture(DIRECT[order.scan.modality], done.direct),
                Picture("Plug-and-play", done.image, done.solution, seconds=done.seconds, misfit=done.misfit),
            ),
            reference=done.truth,
            summary=f"{order.scan.summary}.",
            number=done.number,
            rescale=display_scale(order.scan, done.scale),
        )
        for done in solved
    ]
    command = shlex.join(["lipspline", *sys.argv[1:]])
    page = reconstruction_page(cases, denoiser=order.strength.denoiser, command=command, title=order.source.name)
    return page.encode("utf-8", "backslashreplace")


def _text(order: Order, result: Reconstruction, report: bool) -> str:
    solved = [done for done in result.slices if done.certificate is not None]
    shown = solved[len(solved) // 2]
    assert shown.certificate is not None
    lines = [
        f"{order.scan.summary}; {len(result.slices)} slice(s)",
        f"denoiser {order.strength.name}, β = {order.strength.beta:.3g} ({order.strength.chosen})",
        *([f"slice {shown.number}:"] if len(solved) > 1 else []),
        lines_text(certificate_lines(shown.certificate, shown.misfit)),
    ]
    before, after = mean([s.direct_quality for s in solved]), mean([s.quality for s in solved])
    gains = [f"{name.upper()} {before[name]:.4g} -> {after[name]:.4g}" for name in after if name in before]
    if gains:
        lines.append(f"{', '.join(gains)} (mean over slices, profile paper)")
    written = [order.output.path, order.output.certificate, *([order.output.beside(PAGE)] if report else [])]
    lines.append(f"Written: {', '.join(map(str, written))}")
    return "\n".join(lines)
