"""`lipspline denoise`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lipspline._infra.memory import keep_memory
from lipspline._infra.progress import bars
from lipspline.cli.options import Json, Seed, Threads, start
from lipspline.cli.output import err, show
from lipspline.imaging.denoise import denoise_file


def denoise(
    source: Annotated[Path, typer.Argument(metavar="IN", help="PNG, TIFF or npy; gray or colour.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="PNG, TIFF or npy, with the same kind of pixels.")],
    noise: Annotated[str, typer.Option(help="Standard deviation of the noise, of 255 for white; or auto.")] = "auto",
    model: Annotated[str, typer.Option(help="A shipped denoiser (lls, relu, av) or a .safetensors file.")] = "lls",
    white: Annotated[
        float | None, typer.Option(help="The value of white; by default 255, 65535, or 1 for floats.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Remove white noise from an image; bit depth, range, colour and transparency stay as they are."""
    start(seed, threads)
    keep_memory()
    with bars(err) as display:

        def watch(done: int, total: int) -> None:
            display.show(source.name, done, total)

        result = denoise_file(source, output, noise=_level(noise), model=model, white=white, force=force, watch=watch)
    if result.warning:
        err.print(f"lipspline: {result.warning}", style="yellow", highlight=False, soft_wrap=True)
    show(result.document(), str(result), json)


def _level(noise: str) -> float | Literal["auto"]:
    if noise == "auto":
        return noise
    try:
        return float(noise)
    except ValueError:
        raise ValueError(f"--noise must be a number, the noise of 255, or auto, but is {noise!r}.") from None
