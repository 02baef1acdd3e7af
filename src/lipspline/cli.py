"""The command line: parsing and printing only. Errors are one sentence and exit code 2."""

import json as jsonlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import lipspline
from lipspline import kernels

app = typer.Typer(
    name="lipspline",
    help="Provably 1-Lipschitz networks with learned activations, and image reconstruction with a certificate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Threads = Annotated[int, typer.Option(help="Threads to use; 0 leaves torch's choice.", min=0)]


def main() -> None:
    """Run the command line; any error a user can cause ends in one sentence."""
    try:
        app()
    except (ValueError, ImportError, OSError) as error:
        if os.environ.get("LIPSPLINE_DEBUG"):
            raise
        err.print(f"lipspline: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("lipspline: interrupted.", style="red")
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False) -> None:
    if version:
        out.print(f"lipspline {lipspline.__version__}, torch {torch.__version__}, kernels: {kernels.active()}")
        raise typer.Exit


def _start(seed: int, threads: int) -> None:
    torch.manual_seed(seed)
    if threads:
        torch.set_num_threads(threads)


def _print(document: dict[str, Any], text: str, json: bool) -> None:
    if json:
        print(jsonlib.dumps(document, indent=2))
    else:
        out.print(text, markup=False, highlight=False)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the pictures go.")] = Path("demo"),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Train a small 1-Lipschitz spline network on a function of one variable, draw it, print its certificate."""
    from lipspline.experiments.demo import run_demo

    _start(seed, threads)
    result = run_demo(folder, lambda message: err.print(message))
    _print(result.document(), str(result), json)


@app.command()
def certify(
    weights: Annotated[Path, typer.Argument(help="A network written by lipspline (safetensors).")],
    lipschitz: Annotated[float, typer.Option(help="The constant to prove.")] = 1.0,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Prove a Lipschitz bound of a network, layer by layer; exit code 0 only if the asked constant is proved."""
    _start(seed, threads)
    certificate = lipspline.certify(lipspline.models.load(weights))
    _print(jsonlib.loads(certificate.to_json()), str(certificate), json)
    if certificate.upper > lipschitz:
        err.print(f"lipspline: the bound {certificate.upper:.9g} exceeds {lipschitz:g}.", style="red")
        raise typer.Exit(1)


@app.command()
def bench(
    suites: Annotated[list[str] | None, typer.Argument(help="Which suites; all if none is named.")] = None,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Measure side by side: this library, plain torch, and the textbook formulas. Ratios of medians, interleaved."""
    from lipspline import _checks
    from lipspline.benchmarks.suites import SUITES

    _start(seed, threads)
    names = [_checks.one_of("suite", name, SUITES) for name in suites or SUITES]
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


Data = Annotated[Path | None, typer.Option(help="The data folder; LIPSPLINE_DATA if not given.")]
Out = Annotated[Path, typer.Option(help="Holds runs/ (to go on after a stop) and results/.")]
Scale = Annotated[str, typer.Option(help="smoke (seconds), laptop, or paper (the published protocol).")]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of your own (TOML), or the name of a shipped one.")],
    job: Annotated[str | None, typer.Option(help="Which training of the recipe, if it has several.")] = None,
    scale: Scale = "paper",
    data: Data = None,
    out: Out = Path(),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Train one configuration of a recipe; started again it goes on. Under torchrun all processes train together."""
    from lipspline.experiments.progress import progress
    from lipspline.experiments.recipe import load
    from lipspline.experiments.run import Run, pick, run_job
    from lipspline.training import distributed

    _start(seed, threads)
    run = Run(load(recipe, scale), out, data, seed)
    chosen = pick(run, job)
    with distributed.session(), progress([chosen], err) as watch:
        outcome = run_job(run, chosen, watch(chosen))
        if distributed.is_main():
            document = {"job": chosen.name, "folder": str(run.folder / chosen.name), **outcome.numbers}
            _print(document, jsonlib.dumps(document, indent=2), json)


@app.command()
def reproduce(
    recipe: Annotated[str | None, typer.Argument(help="The name of a recipe, or a TOML file of your own.")] = None,
    scale: Scale = "laptop",
    list_: Annotated[bool, typer.Option("--list", help="Show the recipes and how long they take.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that share the work; 0: one a thread.", min=0)] = 0,
    data: Data = None,
    out: Out = Path(),
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Run an experiment of the paper, and set our numbers beside the published ones; started again it goes on."""
    from lipspline.experiments import recipe as recipes
    from lipspline.experiments.progress import progress
    from lipspline.experiments.run import Run
    from lipspline.experiments.run import reproduce as reproduce_run

    _start(seed, threads)
    if list_ or recipe is None:
        _print(recipes.listing(), recipes.listing_text(), json)
        return
    run = Run(recipes.load(recipe, scale), out, data, seed)
    jobs = run.jobs()
    with progress(jobs, err) as watch:
        results = reproduce_run(run, watch, min(len(jobs), workers or torch.get_num_threads()))
    _print(results.document, f"{results.text}\n\nWritten: {', '.join(map(str, results.files))}", json)


if __name__ == "__main__":
    main()
