"""Denoisers beside what a user would use instead, on BSD68; fills a table of docs/denoisers.md.

`--measure DIR` measures first, on the images below the data folder DIR, into results/denoiser-rivals.json, and goes on
where it was stopped; about two core-hours. Total variation and wavelets have the best of some weights on Set12 for each
noise level. BM3D is measured where the package `bm3d` is installed, which lipspline does not need. `--check` fails if
the page does not show the file.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipspline._infra.files import write_whole
from lipspline.certification import certify
from lipspline.formats import datasets
from lipspline.formats.datasets import NoisyImage
from lipspline.operators import Identity
from lipspline.pnp import minimize
from lipspline.priors import EnergyPrior, resolve
from lipspline.training.tasks import mean_quality

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "denoisers.md", ROOT / "results" / "denoiser-rivals.json"
MARK = re.compile(r"(<!-- rivals -->\n).*?(<!-- /rivals -->)", re.DOTALL)
NOISES = (5, 10, 15)
CLASSICS, LEARNED = ("tv", "wavelet"), ("lls", "ridge", "ridge-unrolled", "ridge-adaptive", "ridge-weak")
FACTORS = tuple(2 ** (k / 2) for k in range(-4, 5))
"""Weights of the classics over that which the noise asks for."""
TOL = 3e-4
WHAT = {
    "bm3d": "BM3D, its authors' program",
    "tv": "total variation, tuned",
    "wavelet": "wavelets, tuned",
    "lls": "`lls`, a network for each level",
    "ridge": "`ridge`, the minimiser",
    "ridge-unrolled": "`ridge-unrolled`, 30 steps",
    "ridge-adaptive": "`ridge-adaptive`, two minimisers",
    "ridge-weak": "`ridge-weak`, the minimiser",
}
Denoise = Callable[[Tensor], Tensor]


def energy(name: str, noise: int, factor: float = 1.0) -> Denoise:
    """The minimiser of an energy prior, `factor` times as strong as its own weight."""
    prior = resolve(name)
    assert isinstance(prior, EnergyPrior)
    served, weight = prior.at(noise), prior.strength(noise) * factor
    return lambda y: minimize(y, Identity(y.shape[1:]), served, weight, tol=TOL).value


def denoiser(name: str, noise: int, validation: Sequence[NoisyImage]) -> tuple[Denoise, dict[str, Any]]:
    """A denoiser by name, and what is known about it: how it was tuned, or the proven constant of its map."""
    if name == "bm3d":
        from bm3d import bm3d  # pyright: ignore[reportMissingImports]

        version = metadata.version("bm3d")
        return lambda y: torch.from_numpy(bm3d(y[0, 0].double().numpy(), noise / 255))[None, None].float(), {
            "version": version
        }
    if name in CLASSICS:
        scores = {factor: mean_quality(energy(name, noise, factor), validation)["psnr"] for factor in FACTORS}
        best = max(scores, key=scores.__getitem__)
        return energy(name, noise, best), {"factor": best, "constant": 1.0}
    prior = resolve(name)
    if isinstance(prior, EnergyPrior):
        y = validation[0].noisy
        solution = minimize(y, Identity(y.shape[1:]), prior.at(noise), prior.strength(noise), tol=TOL)
        stability = solution.certificate.image_stability
        return energy(name, noise), {"constant": None if stability is None else stability.constant}
    served = prior.at(noise)
    return served, {"constant": certify(served).upper}


@torch.no_grad()
def measure(data: str) -> None:
    """Score what was not scored yet; each score is written at once."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    clean = datasets.read_folder(datasets.locate("bsd68", data))
    validation = datasets.read_folder(datasets.locate("set12", data))
    for name in WHAT:
        for noise in NOISES:
            cell = f"{name}, {noise}"
            if cell in found:
                continue
            try:
                denoise, known = denoiser(name, noise, datasets.noisy_images(validation, noise / 255))
            except ModuleNotFoundError as error:
                print(f"{cell}: {error}", flush=True)
                continue
            begin = time.process_time()
            quality = mean_quality(denoise, datasets.noisy_images(clean, noise / 255))
            seconds = (time.process_time() - begin) / len(clean)
            found[cell] = quality | known | {"processor seconds": seconds, "images": len(clean)}
            print(cell, found[cell], flush=True)
            write_whole(RESULTS, (json.dumps(found, indent=1) + "\n").encode())


def table() -> str:
    """What was measured."""
    if not RESULTS.exists():
        return "(not measured yet: `python docs/denoiser_rivals.py --measure DIR`)\n"
    found = json.loads(RESULTS.read_text())
    lines = ["| | " + " | ".join(f"noise {noise}" for noise in NOISES) + " | constant of the map, at most | seconds |"]
    lines.append("|---" * (3 + len(NOISES)) + "|")
    for name, what in WHAT.items():
        cells = [found.get(f"{name}, {noise}") for noise in NOISES]
        if not any(cells):
            continue
        scores = [f"{cell['psnr']:.2f} / {cell['ssim']:.4f}" if cell else "–" for cell in cells]
        constants = [cell["constant"] for cell in cells if cell and cell.get("constant") is not None]
        bound = f"{max(constants):.3g}" if constants else "none known"
        seconds = [cell["processor seconds"] for cell in cells if cell]
        lines.append(f"| {what} | " + " | ".join(scores) + f" | {bound} | {sum(seconds) / len(seconds):.1f} |")
    return "\n".join(lines) + "\n"


def filled() -> str:
    """The page with its table."""
    text = PAGE.read_text()
    assert MARK.search(text), "there is no place for rivals"
    return MARK.sub(lambda match: match[1] + table() + match[2], text)


if __name__ == "__main__":
    if "--measure" in sys.argv:
        torch.set_num_threads(1)
        measure(sys.argv[sys.argv.index("--measure") + 1])
    if "--check" in sys.argv and PAGE.read_text() != filled():
        sys.exit("docs/denoisers.md does not show what was measured: run `python docs/denoiser_rivals.py`.")
    PAGE.write_text(filled())
