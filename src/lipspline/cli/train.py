"""`lipspline train` and `lipspline reproduce`."""

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer

from lipspline._infra.devices import keep_memory
from lipspline.cli.program import DataFolder, Device, Json, OutFolder, ScaleOption, Seed, Threads, err, out, show, start

if TYPE_CHECKING:
    from lipspline.paper.run import Run

HOUR = 60.0  # minutes


@dataclass(frozen=True)
class _OwnJob:
    """A training on a folder of images, as the progress bar sees it."""

    name: str
    steps: int


RECIPES = "recipes are computed on the processor"


def train(
    what: Annotated[
        str,
        typer.Argument(help="A folder of your images; or a recipe of your own (TOML), or the name of a shipped one."),
    ],
    noise: Annotated[
        float | None, typer.Option(help="For a folder of images: the noise level to remove, 15 for 15/255.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", help="The .safetensors file; of a recipe, the folder that holds runs/.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="For a folder of images: how long; 4000 if not given.")] = None,
    job: Annotated[str | None, typer.Option(help="Which training of the recipe, if it has several.")] = None,
    scale: ScaleOption = None,
    whole: Annotated[bool, typer.Option("--show", help="Print what the recipe finally is, and stop.")] = False,
    data: DataFolder = None,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Train a denoiser on a folder of your images, or one configuration of a recipe; started again it goes on.

    A recipe is trained at the scale laptop, which gives what ships, and with it what it starts from. Where tensorboard
    is installed, the folder of its training can be watched with it. Under torchrun all processes train together.
    """
    start(seed, threads, device)
    keep_memory()
    if Path(what).is_dir():
        _reject(f"{what} is a folder of images", job=job, scale=scale, show=whole or None, data=data)
        _own_images(Path(what), noise, output, steps, seed, json)
        return
    if noise is not None or steps is not None:
        _check_is_recipe(what)
    _reject(f"{what} is a recipe, not a folder", noise=noise, steps=steps)
    start(seed, threads, device, only=RECIPES)
    if whole:
        _show_recipe(what, json)
        return
    _recipe(what, job, scale, data, output or Path(), seed, json)


def asked_to_start(what: str, minutes: float, scale: str | None) -> None:
    """Say how long something takes; what takes more than an hour starts only if its scale was named.

    Raises:
        ValueError: it takes more than an hour, and nobody has named the scale.
    """
    from lipspline.paper.recipe import duration_text

    if minutes > HOUR and scale is None:
        raise ValueError(
            f"{what} takes about {duration_text(minutes)} on two cores. To start it, name the scale: --scale laptop."
        )
    if minutes:
        err.print(f"{what}: about {duration_text(minutes)} on two cores.", markup=False, highlight=False)


def _check_is_recipe(what: str) -> None:
    """A folder that is not there is not a recipe either."""
    from lipspline.paper.recipe import shipped

    if what.endswith(("/", "\\")):
        raise ValueError(f"There is no folder {what}.")
    if not what.endswith(".toml") and what not in shipped():
        raise ValueError(f"{what} is neither a folder nor a recipe. Check the name of the folder of images.")


def _reject(why: str, **options: object) -> None:
    """Refuse options that have no meaning here."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{why}: --{name} has no meaning for it.")


def _own_images(
    folder: Path, noise: float | None, output: Path | None, steps: int | None, seed: int, json: bool
) -> None:
    from lipspline._infra import ranks
    from lipspline.paper.recipe import duration_text
    from lipspline.paper.run import progress
    from lipspline.training.own_images import STEPS, OwnImages

    if noise is None or output is None:
        wanted = {"--noise 15": noise, "--out my.safetensors": output}
        missing = " ".join(option for option, value in wanted.items() if value is None)
        raise ValueError(f"Training on the images of {folder} needs the noise level and the file to write: {missing}.")
    training = OwnImages(folder, output, noise, STEPS if steps is None else steps, seed)
    with ranks.session():
        if not training.finished():
            counts = [len(images) for images in training.images]
            _say(f"{counts[0]} images to train on, {counts[1]} to validate on (a fixed choice).")
            minutes = training.estimate() / 60
            if minutes > HOUR and steps is None:
                raise ValueError(
                    f"{STEPS} steps take about {duration_text(minutes)} on this machine. To start them, name them: "
                    f"--steps {STEPS}, or fewer."
                )
            _say(
                f"{training.steps} steps, about {duration_text(minutes)} left. Ctrl-C stops; the same command goes on."
            )
        with progress([_OwnJob(output.name, training.steps)], err) as watch:
            provenance = training.run([watch(_OwnJob(output.name, training.steps))])
        if ranks.is_main():
            _show_trained(output, provenance, training.steps, json)


def _show_trained(path: Path, provenance: dict, steps: int, json: bool) -> None:
    from lipspline.certification.certificate import printed_up
    from lipspline.networks.files import load

    certificate, scores = load(path).certificate, provenance["scores"]["validation"]
    assert certificate is not None
    denoises = scores["psnr"] > scores["noisy_psnr"]
    document = {"file": str(path), "certificate": certificate.upper, "denoises": denoises, **provenance}
    advice = f"It makes noisy images worse: train longer, with another name and more steps than {steps}."
    text = (
        f"{path}: a denoiser for noise {provenance['noise']:g}/255 on gray values in [0, 1], proved to be "
        f"{printed_up(certificate.upper)}-Lipschitz.\n"
        f"Validation images: {scores['psnr']:.2f} dB (noisy: {scores['noisy_psnr']:.2f} dB).\n"
        + (f"Use it: lipspline denoise IN OUT --model {path}" if denoises else advice)
    )
    show(document, text, json)


def _say(text: str) -> None:
    from lipspline._infra import ranks

    if ranks.is_main():
        err.print(text, markup=False, highlight=False, soft_wrap=True)


def _show_recipe(what: str, json: bool) -> None:
    import tomllib

    from lipspline.paper.recipe import load, whole_text

    load(what)  # a mistake in it is a sentence
    text = whole_text(what)
    if json:
        print(jsonlib.dumps(tomllib.loads(text), indent=2))
    else:
        out.print(text, markup=False, highlight=False, soft_wrap=True)


def _recipe(
    what: str, job: str | None, scale: str | None, data: Path | None, output: Path, seed: int, json: bool
) -> None:
    from lipspline._infra import ranks
    from lipspline.paper.recipe import load
    from lipspline.paper.run import Run, chain, minutes_left, pick, progress
    from lipspline.paper.run import train as train_job

    run = Run(load(what, scale or "laptop"), output, data, seed)
    chosen = pick(run, job)
    trainings = chain(run, chosen)
    names = ", then ".join(f"{each.recipe.name} {one.name}" for each, one in trainings)
    with ranks.session():
        if ranks.is_main():
            asked_to_start(f"{names} at the scale {run.recipe.scale}", minutes_left(trainings), scale)
        with progress([one for _, one in trainings], err) as watch:
            outcome = train_job(run, chosen, watch, tensorboard=find_spec("tensorboard") is not None)
        if ranks.is_main():
            document = {"job": chosen.name, "folder": str(run.folder / chosen.name), **outcome.numbers}
            show(document, jsonlib.dumps(document, indent=2), json)


def reproduce(
    recipe: Annotated[
        str | None, typer.Argument(help="The name of a recipe, a TOML file of your own, or `all`.")
    ] = None,
    scale: ScaleOption = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the recipes and how long they take.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that share the work; 0: one a thread.", min=0)] = 0,
    data: DataFolder = None,
    out: OutFolder = Path(),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Run an experiment of the paper, and set our numbers beside the published ones; started again it goes on.

    What it needs of other recipes is trained first. `all` runs every recipe with a table or a figure of the paper.
    """
    from lipspline.paper import recipe as recipes
    from lipspline.paper import whole
    from lipspline.paper.run import Run, minutes_left, prerequisites, progress
    from lipspline.paper.run import reproduce as reproduce_run

    start(seed, threads, device, only=RECIPES)
    keep_memory()
    if list_ or recipe is None:
        show(recipes.listing(), recipes.listing_text(), json)
        return
    if recipe == whole.NAME:
        _reproduce_all(whole.runs(scale or "laptop", out, data, seed), scale, workers or torch.get_num_threads(), json)
        return
    run = Run(recipes.load(recipe, scale or "laptop"), out, data, seed)
    jobs, before = run.jobs(), prerequisites(run)
    minutes = minutes_left([*before, *((run, job) for job in jobs)])
    needed = f" with what it needs ({', '.join(dict.fromkeys(of.recipe.name for of, _ in before))})" if before else ""
    asked_to_start(f"{recipe} at the scale {run.recipe.scale}{needed}", minutes, scale)
    with progress([*(job for _, job in before), *jobs], err) as watch:
        results = reproduce_run(run, watch, min(len(jobs), workers or torch.get_num_threads()))
    show(results.document, f"{results.text}\n\nWritten: {', '.join(map(str, results.files))}", json)


def _reproduce_all(runs: Sequence["Run"], scale: str | None, workers: int, json: bool) -> None:
    """The whole paper: what is left of it and how long that takes, then recipe after recipe."""
    from lipspline.paper import whole
    from lipspline.paper.recipe import duration_text

    minutes = whole.plan(runs)
    total = sum(minutes.values())
    for name, left in minutes.items():
        _say(f"{name}: {duration_text(left) if left else 'done'}")
    asked_to_start(f"The whole paper, {2 * total / 60:.1f} core-hours,", total, scale)
    with whole.progress_of_all(runs, err) as watch:
        found = whole.reproduce_all(runs, watch, workers)
    show(found.document, found.text, json)
    if found.failures:
        raise typer.Exit(2)
