"""`lipspline reconstruct mri` and `lipspline reconstruct ct`: the command line of `lipspline.reconstruct`."""

import shlex
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from lipspline._infra import ranks
from lipspline._infra.devices import keep_memory
from lipspline._infra.progress import bars
from lipspline.cli.program import (
    COMPUTING,
    OUTPUT,
    Device,
    Force,
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
from lipspline.cli.results import interrupted, text, warnings
from lipspline.cli.several import each
from lipspline.formats.output import Output
from lipspline.formats.writers import writer
from lipspline.imaging.coils import Phase, Unknown, Whiten
from lipspline.imaging.problem import Iteration
from lipspline.imaging.reconstruction import carry_out
from lipspline.imaging.request import Request
from lipspline.imaging.scanners import ScannerCT, ScannerMRI
from lipspline.priors.lookup import names

app = typer.Typer(help="Reconstruct images from measurements, with a certificate.", no_args_is_help=True)

MEASURED, COILS, GEOMETRY = "What was measured", "Coils and phase", "Geometry"
IMAGE = "What is known about the image"
"""Groups of options in the help."""

In = Annotated[Path, typer.Argument(metavar="IN", help="The measurement; images with --simulate.")]
Out = Annotated[
    Path,
    typer.Argument(
        metavar="OUT",
        help=".nii.gz, .npy, .h5, .tif, .cfl, .png, .dcm; a name without ending is a folder of DICOM files.",
    ),
]
Simulate = Annotated[
    bool,
    typer.Option("--simulate", help="IN holds images: measure them, add noise, compare.", rich_help_panel=MEASURED),
]
DataNoise = Annotated[
    float | None, typer.Option(help="Noise added to simulated data; by default the paper's.", rich_help_panel=MEASURED)
]
Prior = Annotated[
    str,
    typer.Option(
        "--prior", "--model", help=f"{', '.join(names())}, a .safetensors file, or auto.", rich_help_panel=IMAGE
    ),
]
Strength = Annotated[
    str, typer.Option(help="Of the regularisation, relative to auto: 0.5 smooths less, 2 more.", rich_help_panel=IMAGE)
]
Noise = Annotated[
    str, typer.Option(help="Noise level of the prior, in units of 1/255; or auto.", rich_help_panel=IMAGE)
]
Beta = Annotated[
    str, typer.Option(help="Weight β of the denoiser, up to 0.5 for stability; or auto.", rich_help_panel=IMAGE)
]
Slices = Annotated[
    str, typer.Option(help="Which slices, first:last, numbered from 0; last is not included.", rich_help_panel=OUTPUT)
]
Accelerate = Annotated[
    bool, typer.Option("--accelerate/--plain", help="Anderson's steps, or plain ones only.", rich_help_panel=COMPUTING)
]
Contraction = Annotated[
    float,
    typer.Option(
        help="Of a denoiser: shrink each step by K < 1, such as 0.99; then images are proven stable.",
        rich_help_panel=IMAGE,
    ),
]
Tol = Annotated[
    float,
    typer.Option(
        help="Stop when the relative change of the image is below this; with energies (ridge, tv, ...), when the "
        "relative gradient is below a twentieth of it, which takes the image as far.",
        rich_help_panel=COMPUTING,
    ),
]
MaxSteps = Annotated[
    int,
    typer.Option(help="The largest number of calls of the prior for a slice, in each pass.", rich_help_panel=COMPUTING),
]
Compare = Annotated[
    str,
    typer.Option(
        help="Other priors, such as tv,lls: the middle slice with each of them too, in page and JSON.",
        rich_help_panel=IMAGE,
    ),
]
Page = Annotated[
    bool,
    typer.Option("--report", help="Write a page OUT.html that shows the images and the proof.", rich_help_panel=OUTPUT),
]


@app.command()
def mri(
    source: In,
    output: Out,
    mask: Annotated[
        Path | None, typer.Option(help="Keep what this npy mask, (W,) or (H, W), keeps.", rich_help_panel=MEASURED)
    ] = None,
    acceleration: Annotated[
        float | None, typer.Option(help="Keep one column in so many, at random.", rich_help_panel=MEASURED)
    ] = None,
    center: Annotated[
        float, typer.Option(help="Fraction of the columns, in the middle, that are all kept.", rich_help_panel=MEASURED)
    ] = 0.08,
    spokes: Annotated[
        int | None, typer.Option(help="Instead: simulate so many radial lines.", min=2, rich_help_panel=MEASURED)
    ] = None,
    trajectory: Annotated[
        Path | None, typer.Option(help="Where IN was measured: npy, npz or BART .cfl.", rich_help_panel=MEASURED)
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images of a trajectory, in pixels.", min=2, rich_help_panel=MEASURED)
    ] = None,
    conjugate: Annotated[
        bool, typer.Option("--conjugate", help="Conjugate the data, if images are turned.", rich_help_panel=MEASURED)
    ] = False,
    coils: Annotated[
        str, typer.Option(help="auto (maps in IN, else ESPIRiT), espirit, or a file of maps.", rich_help_panel=COILS)
    ] = "auto",
    phase: Annotated[
        str, typer.Option(help="fold the phase of low resolution into the maps; none; or auto.", rich_help_panel=COILS)
    ] = "auto",
    unknown: Annotated[
        str, typer.Option(help="complex images, or real ones once their phase is folded.", rich_help_panel=COILS)
    ] = "complex",
    whiten: Annotated[
        str, typer.Option(help="auto makes the noise of the coils white; or none.", rich_help_panel=COILS)
    ] = "auto",
    virtual_coils: Annotated[
        int | None, typer.Option(help="Compress the coils to so many.", min=1, rich_help_panel=COILS)
    ] = None,
    map_sets: Annotated[
        int,
        typer.Option(
            help="Sets of coil maps: 2 if the object is larger than the field of view.",
            min=1,
            max=2,
            rich_help_panel=COILS,
        ),
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
    angles: Annotated[
        str, typer.Option(help="How many, spread over --arc; or an npy file of radians.", rich_help_panel=MEASURED)
    ] = "",
    arc: Annotated[
        float | None, typer.Option(help="Degrees that the angles cover: 180, for fans 360.", rich_help_panel=MEASURED)
    ] = None,
    every: Annotated[int, typer.Option(help="Use only every so many-th angle.", rich_help_panel=MEASURED)] = 1,
    axis: Annotated[
        str,
        typer.Option(
            help="Detector under the axis of rotation, from 0; middle; or auto: estimated.", rich_help_panel=GEOMETRY
        ),
    ] = "",
    rings: Annotated[
        bool,
        typer.Option("--rings", help="Remove rings that detectors make whose gain is off.", rich_help_panel=MEASURED),
    ] = False,
    transpose: Annotated[
        bool, typer.Option("--transpose", help="IN is (detectors, angles).", rich_help_panel=MEASURED)
    ] = False,
    convention: Annotated[
        str, typer.Option(help="plain, scikit-image (radon), astra or odl.", rich_help_panel=MEASURED)
    ] = "plain",
    detectors: Annotated[
        int | None, typer.Option(help="How many rays for each angle.", rich_help_panel=MEASURED)
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels; as many as detectors.", rich_help_panel=GEOMETRY)
    ] = None,
    spacing: Annotated[
        float | None, typer.Option(help="From detector to detector, in pixels; 1.", rich_help_panel=GEOMETRY)
    ] = None,
    pixel_size: Annotated[
        float | None, typer.Option(help="From detector to detector, in millimetres.", rich_help_panel=GEOMETRY)
    ] = None,
    source_origin: Annotated[
        float | None, typer.Option(help="Fan: millimetres from source to axis.", rich_help_panel=GEOMETRY)
    ] = None,
    source_detector: Annotated[
        float | None, typer.Option(help="Fan: millimetres from source to detector.", rich_help_panel=GEOMETRY)
    ] = None,
    detector: Annotated[str, typer.Option(help="Fan: flat or curved.", rich_help_panel=GEOMETRY)] = "flat",
    flat: Annotated[
        Path | None, typer.Option(help="Counts without an object; then IN are counts.", rich_help_panel=MEASURED)
    ] = None,
    dark: Annotated[Path | None, typer.Option(help="Counts without a beam.", rich_help_panel=MEASURED)] = None,
    files: Annotated[
        str,
        typer.Option(
            help="What each file of a folder or pattern IN holds: sinograms or projections.", rich_help_panel=MEASURED
        ),
    ] = "sinograms",
    water: Annotated[
        float | None,
        typer.Option(help="Attenuation of water per mm; images in HU. Needs a pixel size.", rich_help_panel=IMAGE),
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
        try:
            with bars(err) as display:
                shown = SliceDisplay(display, scan.count, request.first, len(request.compare))
                result = carry_out(request, scan, cache=output.parts, watch=shown.step, tell=shown.tell)
        except KeyboardInterrupt:
            warn(interrupted(output, scan.count))
            raise
        if not ranks.is_main():
            return
        document = result.commit(output, shlex.join(["lipspline", *sys.argv[1:]]))
    for sentence in warnings(result):
        warn(sentence)
    show(document, text(result, output), json)
