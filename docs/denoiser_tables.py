"""Fill the tables of docs/denoisers.md: from the shipped weights, and from results/denoiser-levels.json.

`--check` fails if the page does not show them. `--measure DIR` measures the latter first, on the images below the data
folder DIR; with three shipped levels this takes about two minutes on two cores.
"""

import json
import re
import sys
from pathlib import Path

from torch import nn

from lipspline.formats import datasets
from lipspline.formats.datasets import locate
from lipspline.networks.rescale import Rescaled, level_for, serving
from lipspline.nn.combine import Averaged
from lipspline.priors import zoo
from lipspline.priors.denoisers import available
from lipspline.training.tasks import mean_quality

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "denoisers.md"
LEVELS = ROOT / "results" / "denoiser-levels.json"
NOISES = (1, 2, 3, 5, 7, 9, 10, 12, 14, 15, 20, 25)
IMAGES = 12
MARKS = re.compile(r"(<!-- (shipped|levels|below) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def shipped_table() -> str:
    """The shipped denoisers with the scores and the bound that stand in their files."""
    if not available():
        return "(no weights are in the package yet)\n"
    lines = [
        "| denoiser | noise | BSD68 PSNR / SSIM | Set12 PSNR / SSIM | Lipschitz constant | steps | made by |",
        "|---|---|---|---|---|---|---|",
    ]
    for activation, noise in available():
        model = zoo(activation, noise)
        assert model.certificate is not None
        scores = [f"{s['psnr']:.2f} / {s['ssim']:.4f}" for s in map(model.provenance["scores"].get, ("bsd68", "set12"))]
        stages = [model.provenance]
        while "start" in stages[0]:
            stages.insert(0, stages[0]["start"])
        steps = " + ".join(str(stage["trained"]["training"]["steps"]) for stage in stages)
        recipe, _, scale = model.provenance["run"].rpartition("-")
        cells = (*scores, f"≤ {model.certificate.upper:.9f}", steps, f"`lipspline train {recipe} --scale {scale}`")
        lines.append(f"| {activation} | {noise} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def measure(data: str) -> None:
    """PSNR of each shipped spline denoiser at each noise level, made to serve it, on the first images of BSD68."""
    clean = datasets.read_folder(locate("bsd68", data), IMAGES)
    trained = [noise for activation, noise in available() if activation == "lls"]
    psnr: dict[str, dict[str, float]] = {}
    for noise in NOISES:
        noisy = datasets.noisy_images(clean, noise / 255)
        psnr[str(noise)] = {
            str(level): mean_quality(serving(zoo("lls", level), level, noise), noisy)["psnr"] for level in trained
        }
        psnr[str(noise)]["nothing"] = mean_quality(nn.Identity(), noisy)["psnr"]
    lowest, below = min(trained), {}
    for noise in (noise for noise in NOISES if noise < lowest):
        noisy, ratio, inner = datasets.noisy_images(clean, noise / 255), noise / lowest, zoo("lls", lowest)
        ways = {
            "nothing": nn.Identity(),
            "averaged, s / s0": Averaged(inner, ratio),
            "averaged, (s / s0)²": Averaged(inner, ratio**2),
            "rescaled": Rescaled(inner, ratio),
        }
        below[str(noise)] = {way: mean_quality(model, noisy)["psnr"] for way, model in ways.items()}
    LEVELS.write_text(json.dumps({"images": IMAGES, "psnr": psnr, "below": below}, indent=1, ensure_ascii=False) + "\n")


def levels_table() -> str:
    """What a denoiser loses at a noise level that it was not trained for."""
    if not LEVELS.exists():
        return "(not measured yet: `python docs/denoiser_tables.py --measure DIR`)\n"
    found = json.loads(LEVELS.read_text())
    trained = [level for level in next(iter(found["psnr"].values())) if level != "nothing"]
    lines = [
        f"PSNR in dB, mean of the first {found['images']} images of BSD68; bold is what `zoo` serves.",
        "",
        "| noise | noisy | " + " | ".join(f"trained for {level}" for level in trained) + " |",
        "|---" * (2 + len(trained)) + "|",
    ]
    for noise, row in found["psnr"].items():
        served = str(level_for(int(noise), [int(level) for level in trained]))
        cells = [f"**{row[level]:.2f}**" if level == served else f"{row[level]:.2f}" for level in trained]
        lines.append(f"| {noise} | {row['nothing']:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def below_table() -> str:
    """Ways to serve less noise than any denoiser was trained for."""
    below = json.loads(LEVELS.read_text())["below"]
    ways = list(next(iter(below.values())))
    lines = ["| noise | " + " | ".join(["noisy", *ways[1:]]) + " |", "|---" * (1 + len(ways)) + "|"]
    lines += [f"| {noise} | " + " | ".join(f"{row[way]:.2f}" for way in ways) + " |" for noise, row in below.items()]
    return "\n".join(lines) + "\n"


def filled() -> str:
    """The page with its tables."""
    tables = {"shipped": shipped_table(), "levels": levels_table(), "below": below_table()}
    return MARKS.sub(lambda match: match[1] + tables[match[2]] + match[3], PAGE.read_text())


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure(sys.argv[sys.argv.index("--measure") + 1])
    if "--check" in sys.argv and PAGE.read_text() != filled():
        sys.exit("docs/denoisers.md does not show the shipped weights: run `python docs/denoiser_tables.py`.")
    PAGE.write_text(filled())
