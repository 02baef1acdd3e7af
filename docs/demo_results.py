"""Run the demo and keep what it found: results/demo.json for the table of the README, docs/images/demo.png for it."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from lipspline._infra.devices import keep_memory
from lipspline.imaging.demo import Comparison, compare, demo_scans
from lipspline.imaging.problem import Problem

ROOT = Path(__file__).resolve().parent.parent


def draw(found: list[Comparison], path: Path) -> None:
    """A row for each scan: the image, its direct reconstruction, and the best solution."""
    figure, rows = plt.subplots(len(found), 3, figsize=(9, 3.25 * len(found)), layout="constrained")
    for axes, comparison in zip(rows, found, strict=True):
        problem, best = comparison.problem, comparison.solved[-1].solution.value
        _show(axes[0], "The image", problem.truth, problem)
        for axis, name, x in (
            (axes[1], comparison.scan.direct_name, problem.direct),
            (axes[2], comparison.solved[-1].name, best),
        ):
            _show(axis, f"{name}, {problem.quality(x)['psnr']:.1f} dB", problem.image(x), problem)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def _show(axis: Axes, title: str, picture: Tensor, problem: Problem) -> None:
    axis.imshow(picture.abs(), cmap="gray", vmin=0, vmax=float(problem.truth.max()), interpolation="none")
    axis.set_title(title, fontsize=11)
    axis.axis("off")


if __name__ == "__main__":
    torch.manual_seed(0)
    keep_memory()
    found = [compare(title, scan, lambda *_: None) for title, scan in demo_scans().items()]
    document = {"comparisons": [comparison.document() for comparison in found]}
    for comparison in document["comparisons"]:
        for method in comparison["methods"]:
            del method["seconds"]  # of this machine at that moment
    (ROOT / "results" / "demo.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(found, ROOT / "docs" / "images" / "demo.png")
