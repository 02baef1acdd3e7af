"""`lipspline reconstruct mri` and `lipspline reconstruct ct`: the command line of `lipspline.reconstruct`."""

import shlex
import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from lipspline._infra import ranks
from lipspline._infra.memory import keep_memory
from lipspline._infra.progress import bars
from lipspline.cli.program import (
    Device,
    Json,
    Seed,
    SliceDisplay,
    Threads,
    err,
    new_folders,
    parse_axis,
    parse_number,
    parse_slices,
    show,
    start,
    warn,
)
from lipspline.cli.several import each
from lipspline.formats.output import Output, writer
from lipspline.imaging.cache import Slice
from lipspline.imaging.coils import Phase, Unknown, Whiten
from lipspline.imaging.held_out import HELD
from lipspline.imaging.problem import Iteration
from lipspline.imaging.reconstruction import Reconstruction, Rival, carry_out, mean
from lipspline.imaging.request import Request, ScannerCT, ScannerMRI
from lipspline.priors.lookup import names
from lipspline.report.plain_words import certificate_lines, lines_text, percent

app = typer.Typer(help="Reconstruct images from measurements, with a certificate.", no_args_is_help=True)

In = Annotated[Path, typer.Argument(metavar="IN", help="The measurement; images with --simulate.")]
Out = Annotated[
    Path,
    typer.Argument(
        metavar="OUT", help=".nii.gz, .npy, .h5, .tif, .png, .dcm; a name without ending is a folder of DICOM files."
    ),
]
Simulate = Annotated[bool, typer.Option("--simulate", help="IN holds images: measure them, add noise, compare.")]
DataNoise = Annotated[float | None, typer.Option(help="Noise added to simulated data; by default the paper's.")]
Prior = Annotated[
    str,
    typer.Option(
        "--prior",
        "--model",
        help=f"{', '.join(names())}, a .safetensors file, or auto.",
    ),
]
Strength = Annotated[str, typer.Option(help="Of the regularisation, relative to auto: 0.5 smooths less, 2 more.")]
Noise = Annotated[str, typer.Option(help="Noise level of the prior, in units of 1/255; or auto.")]
Beta = Annotated[str, typer.Option(help="Weight β of the denoiser, up to 0.5 for stability; or auto.")]
Slices = Annotated[str, typer.Option(help="Which slices, first:last, numbered from 0; last is not included.")]
Accelerate = Annotated[bool, typer.Option("--accelerate/--plain", help="Anderson's steps, or plain ones only.")]
Contraction = Annotated[
    float, typer.Option(help="Of a denoiser: shrink each step by K < 1, such as 0.99; then images are proven stable.")
]
Tol = Annotated[
    float,
    typer.Option(
        help="Stop when the relative change of the image is below this; with energies (ridge, tv, ...), when the "
        "relative gradient is below a twentieth of it, which takes the image as far."
    ),
]
MaxSteps = Annotated[int, typer.Option(help="The largest number of calls of the prior for a slice, in each pass.")]
Compare = Annotated[
    str, typer.Option(help="Other priors, such as tv,lls: the middle slice with each of them too, in page and JSON.")
]
Page = Annotated[bool, typer.Option("--report", help="Write a page OUT.html that shows the images and the proof.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier result of lipspline.")]


@app.command()
def mri(
    source: In,
    output: Out,
    mask: Annotated[Path | None, typer.Option(help="Keep what this npy mask, (W,) or (H, W), keeps.")] = None,
    acceleration: Annotated[float | None, typer.Option(help="Keep one column in so many, at random.")] = None,
    center: Annotated[float, typer.Option(help="Fraction of the columns, in the middle, that are all kept.")] = 0.08,
    spokes: Annotated[int | None, typer.Option(help="Instead: simulate so many radial lines.", min=2)] = None,
    trajectory: Annotated[Path | None, typer.Option(help="Where IN was measured: npy, npz or BART .cfl.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images of a trajectory, in pixels.", min=2)] = None,
    conjugate: Annotated[bool, typer.Option("--conjugate", help="Conjugate the data, if images are turned.")] = False,
    coils: Annotated[str, typer.Option(help="auto (maps in IN, else ESPIRiT), espirit, or a file of maps.")] = "auto",
    phase: Annotated[str, typer.Option(help="fold the phase of low resolution into the maps; none; or auto.")] = "auto",
    unknown: Annotated[str, typer.Option(help="complex images, or real ones once their phase is folded.")] = "complex",
    whiten: Annotated[str, typer.Option(help="auto makes the noise of the coils white; or none.")] = "auto",
    virtual_coils: Annotated[int | None, typer.Option(help="Compress the coils to so many.", min=1)] = None,
    map_sets: Annotated[
        int, typer.Option(help="Sets of coil maps: 2 if the object is larger than the field of view.", min=1, max=2)
    ] = 1,
    simulate: Simulate = False,
    data_noise: DataNoise = None,
    prior: Prior = "auto",
    strength: Strength = "auto",
    noise: Noise = "auto",
    beta: Beta = "auto",
    slices: Slices = ":",
    accelerate: Accelerate = True,
    contraction: Contraction = Iteration.contraction,
    tol: Tol = Iteration.tol,
    max_steps: MaxSteps = Iteration.max_steps,
    compare: Compare = "",
    report: Page = False,
    force: Force = False,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Reconstruct MRI slices from k-space, or from simulated k-space.

    IN: fastMRI or ISMRMRD HDF5, BART .cfl, Siemens .dat, npy, npz; images with --simulate; or a folder or pattern of
    raw data in quotes, such as 'knees/*.h5', with OUT 'images/*.nii.gz'. With --mask or --acceleration the result is
    compared with the image from all of k-space.
    """
    start(seed, threads, device)
    request = Request(
        data=source,
        acquisition=ScannerMRI(
            mask=mask,
            acceleration=acceleration,
            center=center,
            spokes=spokes,
            trajectory=trajectory,
            size=size,
            conjugate=conjugate,
            coils=coils,
            phase=cast(Phase, phase),
            unknown=cast(Unknown, unknown),
            whiten=cast(Whiten, whiten),
            virtual_coils=virtual_coils,
            map_sets=map_sets,
            simulate=simulate,
            data_noise=data_noise,
            seed=seed,
        ),
        prior=prior,
        strength=parse_number("--strength", strength),
        noise=parse_number("--noise", noise),
        beta=parse_number("--beta", beta),
        slices=parse_slices(slices),
        tol=tol,
        max_steps=max_steps,
        accelerate=accelerate,
        contraction=contraction,
        compare=tuple(filter(None, compare.split(","))),
    )
    each(request, output, partial(_fulfil, report=report, force=force, json=json), force=force, as_json=json)


@app.command()
def ct(
    source: In,
    output: Out,
    angles: Annotated[str, typer.Option(help="How many, spread over --arc; or an npy file of radians.")] = "",
    arc: Annotated[float | None, typer.Option(help="Degrees that the angles cover: 180, for fans 360.")] = None,
    every: Annotated[int, typer.Option(help="Use only every so many-th angle.")] = 1,
    axis: Annotated[
        str, typer.Option(help="Detector under the axis of rotation, from 0; middle; or auto: estimated.")
    ] = "",
    rings: Annotated[bool, typer.Option("--rings", help="Remove rings that detectors make whose gain is off.")] = False,
    transpose: Annotated[bool, typer.Option("--transpose", help="IN is (detectors, angles).")] = False,
    convention: Annotated[str, typer.Option(help="plain, scikit-image (radon), astra or odl.")] = "plain",
    detectors: Annotated[int | None, typer.Option(help="How many rays for each angle.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels; as many as detectors.")] = None,
    spacing: Annotated[float | None, typer.Option(help="From detector to detector, in pixels; 1.")] = None,
    pixel_size: Annotated[float | None, typer.Option(help="From detector to detector, in millimetres.")] = None,
    source_origin: Annotated[float | None, typer.Option(help="Fan: millimetres from source to axis.")] = None,
    source_detector: Annotated[float | None, typer.Option(help="Fan: millimetres from source to detector.")] = None,
    detector: Annotated[str, typer.Option(help="Fan: flat or curved.")] = "flat",
    flat: Annotated[Path | None, typer.Option(help="Counts without an object; then IN are counts.")] = None,
    dark: Annotated[Path | None, typer.Option(help="Counts without a beam.")] = None,
    files: Annotated[
        str, typer.Option(help="What each file of a folder or pattern IN holds: sinograms or projections.")
    ] = "sinograms",
    water: Annotated[
        float | None, typer.Option(help="Attenuation of water per mm; images in HU. Needs a pixel size.")
    ] = None,
    simulate: Simulate = False,
    data_noise: DataNoise = None,
    prior: Prior = "auto",
    strength: Strength = "auto",
    noise: Noise = "auto",
    beta: Beta = "auto",
    slices: Slices = ":",
    accelerate: Accelerate = True,
    contraction: Contraction = Iteration.contraction,
    tol: Tol = Iteration.tol,
    max_steps: MaxSteps = Iteration.max_steps,
    compare: Compare = "",
    report: Page = False,
    force: Force = False,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Reconstruct CT slices from sinograms or counts of parallel beams or fans, or from simulated sinograms.

    IN: npy, npz, HDF5, Data Exchange, TIFF, MATLAB (Helsinki), a folder, or a pattern in quotes such as 'scan/*.tif'.
    """
    start(seed, threads, device)
    request = Request(
        data=source,
        acquisition=ScannerCT(
            angles=int(angles) if angles.isdecimal() else angles or None,
            detectors=detectors,
            arc=arc,
            every=every,
            axis=parse_axis(axis),
            rings=rings,
            transpose=transpose,
            convention=convention,
            size=size,
            spacing=spacing,
            pixel_size=pixel_size,
            source_origin=source_origin,
            source_detector=source_detector,
            detector=detector,
            water=water,
            files=files,
            flat=flat,
            dark=dark,
            simulate=simulate,
            data_noise=data_noise,
            seed=seed,
        ),
        prior=prior,
        strength=parse_number("--strength", strength),
        noise=parse_number("--noise", noise),
        beta=parse_number("--beta", beta),
        slices=parse_slices(slices),
        tol=tol,
        max_steps=max_steps,
        accelerate=accelerate,
        contraction=contraction,
        compare=tuple(filter(None, compare.split(","))),
    )
    _fulfil(request, output, report=report, force=force, json=json)


def _fulfil(request: Request, target: Path, *, report: bool, force: bool, json: bool) -> None:
    """What both commands do with a request: the first process holds the output, all share the slices."""
    output = Output(target, page=report)
    keep_memory()
    with (
        ranks.session(),
        new_folders([output.path] if ranks.is_main() else []),
        output.open(request.files(), force=force) if ranks.is_main() else nullcontext(),
    ):
        ranks.wait()
        scan = request.acquisition.scan(request.data, request.slices)
        writer(output.path, scan.count, scan.affine)
        with bars(err) as display:
            shown = SliceDisplay(display, scan.count, request.first, len(request.compare))
            result = carry_out(request, scan, cache=output.parts, watch=shown.step, tell=shown.tell)
        if not ranks.is_main():
            return
        document = result.commit(output, shlex.join(["lipspline", *sys.argv[1:]]))
    _warn(result)
    show(document, _text(result, output), json)


TO_CHECK = {
    "CT": (
        "Check the sign (-log of the counts), the angles, their sense and arc, the rotation axis, the orientation and "
        "the geometry of a fan."
    ),
    "MR": (
        "Check that frequency zero lies in the middle of k-space (numpy.fft.fftshift puts it there), the orientation, "
        "the mask and the coil maps (an object larger than the field of view: --map-sets 2)."
    ),
}
VALUES = {  # of CT images
    "hounsfield": "; values in Hounsfield units",
    "per millimetre": "; values are attenuations per millimetre",
    "per pixel": "; values are attenuations per pixel, whose size is not known",
}


def _warn(result: Reconstruction) -> None:
    """What to mind about the result, on stderr."""
    sentences, level = [], result.request.noise
    if level != "auto" and level < 1:
        sentences.append(
            f"--noise {level:g} is in units of 1/255 of the brightness, for which a prior hardly does anything. If it "
            f"was meant as a part of the brightness, give --noise {255 * level:.4g}."
        )
    if slow := result.unsettled:
        reason = f" ({slow[0].run.reason})" if slow[0].run is not None else ""
        sentences.append(f"slice(s) {_numbers(slow)} did not converge{reason}.")
    if result.empty:
        sentences.append(
            f"slice(s) {_numbers(result.empty)} are empty: their data are zero everywhere, and so are their images."
        )
    if odd := result.unexplained:
        doubt = odd[0].misfit
        reason = (
            f" (it is estimated at {percent(doubt.noise)} of slice {odd[0].number}, which is hardly possible)"
            if doubt.doubtful
            else ""
        )
        sentences.append(
            f"slice(s) {_numbers(odd)} fit the measurements worse than noise explains{reason}. "
            f"{TO_CHECK[result.scan.modality]}"
        )
    sentences += result.scan.notes
    for sentence in sentences:
        warn(sentence)


SCORES = {
    "psnr": "PSNR",
    "ssim": "SSIM",
    "psnr_object": "within the object PSNR",
    "ssim_object": "within the object SSIM",
}


def _compared(result: Reconstruction) -> list[str]:
    """The priors side by side on the slice that all of them reconstructed."""
    if not result.rivals:
        return []
    number, held = result.rivals[0].done.number, result.held_out
    own = next(done for done in result.slices if done.number == number)
    lines = [f"Compared on slice {number}:"]
    lines += [_rival(rival) for rival in (Rival(result.strength, own, held), *result.rivals)]
    if held is not None:
        lines += textwrap.wrap(
            f"held out: one readout or projection in {HELD} was left out, and the image made of the others predicts it "
            f"with this error; noise alone makes about {percent(held.noise)}. It needs no truth, so it is a hint only: "
            f"priors that differ by less than a tenth are not ranked by it.",
            100,
            initial_indent="  ",
            subsequent_indent="  ",
        )
    return lines


def _rival(rival: Rival) -> str:
    """One line about a slice reconstructed with a prior."""
    done, held = rival.done, rival.held_out
    scores = [] if held is None else [f"held out off by {100 * held.value:.4g} %"]
    scores += [f"misfit {percent(done.misfit.value)}"]
    scores += [f"{SCORES[name]} {done.quality[name]:.4g}" for name in done.quality]
    proven = (
        "all proven" if done.certificate and not any(e.constant is None for e in done.certificate.estimates) else ""
    )
    return ", ".join(filter(None, [f"  {rival.strength.name}: {scores[0]}", *scores[1:], proven]))


def _numbers(slices: Sequence[Slice]) -> str:
    """The numbers of slices; of three and more in a row, the first and the last: a volume may have thousands of them.

    Example:
        >>> from types import SimpleNamespace
        >>> _numbers([SimpleNamespace(number=k) for k in (0, 1, 5, 6, 7, 9)])
        '0, 1, 5 to 7, 9'
    """
    rows: list[list[int]] = []
    for done in slices:
        if rows and done.number == rows[-1][-1] + 1:
            rows[-1].append(done.number)
        else:
            rows.append([done.number])
    return ", ".join(f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def _text(result: Reconstruction, output: Output) -> str:
    strength, solved = result.strength, result.solved
    shown = solved[len(solved) // 2]
    assert shown.certificate is not None
    lines = [
        f"{result.scan.summary}; {len(result.slices)} slice(s){VALUES.get(result.scan.unit, '')}",
        str(strength),
        *([f"slice {shown.number}, the middle one (counted from 0):"] if len(solved) > 1 else []),
        lines_text(certificate_lines(shown.certificate, shown.misfit)),
    ]
    before, after = mean([s.direct_quality for s in solved]), mean([s.quality for s in solved])
    gains = [f"{SCORES[name]} {before[name]:.4g} -> {after[name]:.4g}" for name in after if name in before]
    if gains:
        lines.append(f"{', '.join(gains)} (mean over slices, profile paper)")
    lines += _compared(result)
    written = [*(output.beside(ending) for ending in output.endings), output.certificate]
    lines.append(f"Written: {', '.join(map(str, written))}")
    return "\n".join(lines)
