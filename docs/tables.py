"""Fill the tables of the README and of docs/benchmarks.md from results/.

Costs are in results/bench.json, which `lipspline bench --json` wrote: the README shows what most readers ask for,
docs/benchmarks.md everything. What the demo found is in results/demo.json, by docs/demo_results.py. What became of the
paper's claims is in the files of `lipspline reproduce`. `--check` fails if they show other numbers.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README, PAGE = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "results"

HEADLINES = [
    ("Activations in a network", "LinearSpline, 51 coefficients", "learned spline, 51 coefficients"),
    ("Activations in a network", "spline, textbook", "the same by the textbook"),
    ("Activations in a network", "LipschitzPReLU", "PReLU"),
    ("Activations in a network", "GroupSort(2)", "GroupSort"),
    ("Activations in a network", "Householder", "Householder"),
    ("3x3 convolution, training step", "conv2d, orthogonal", "orthogonal 3x3 convolution, training step"),
    ("3x3 convolution, eval", "conv2d, orthogonal", "... evaluated"),
    ("3x3 convolution, eval", "plain(conv2d)", "... evaluated, exported by `plain`"),
    ("Training step of the denoiser", "denoiser, LLS", "training step of the whole denoiser"),
    ("Training step of the denoiser", "denoiser, textbook", "the same by the textbook"),
    ("The denoiser on an image", "plain denoiser, LLS", "the shipped kind of denoiser on an image"),
    ("Orthonormal weight 1024x1024", "default", "orthonormal 1024x1024 weight, forward + backward"),
]
"""How a title begins, the name under it, and how the README says it."""


def machine(bench: dict) -> str:
    """What was measured on."""
    return f"{bench['threads']} threads, kernels: {bench['kernels']}"


def headlines(bench: dict) -> str:
    """The table of the README."""
    lines = [
        f"Ratios of medians, interleaved, by `lipspline bench --json` ({machine(bench)}).",
        "Activations as layers in a network, forward + backward on (16, 64, 40, 40). [All of it](docs/benchmarks.md).",
        "",
        "| | times | |",
        "|---|---|---|",
    ]
    for title, name, label in HEADLINES:
        (result,) = (r for r in bench["results"] if r["title"].startswith(title))
        lines.append(f"| {label} | **{result['values'][name]:.2f}** | {result['unit']} |")
    return "\n".join(lines) + "\n"


def everything(bench: dict) -> str:
    """All suites, a table each."""
    lines = [f"Measured with {machine(bench)}.", ""]
    for result in bench["results"]:
        lines += [f"## {result['title']}", "", f"| | in units of {result['unit']} |", "|---|---|"]
        lines += [f"| {name} | {value:.2f} |" for name, value in result["values"].items() if name != result["unit"]]
        lines.append("")
    return "\n".join(lines)


def found(demo: dict) -> str:
    """What the demo found, a line each."""
    names = [method["name"] for method in demo["comparisons"][0]["methods"]]
    lines = [f"| | direct | {' | '.join(names)} | proven |", f"|{'---|' * (len(names) + 3)}"]
    for comparison in demo["comparisons"]:
        psnr = [comparison["direct"]["psnr"], *(method["psnr"] for method in comparison["methods"])]
        best = comparison["methods"][-1]
        solved = best["guaranteed"] and best["converged"]
        proven = "convergence and stability" if solved and comparison["stable"] else "nothing"
        cells = [*(f"{value:.2f} dB" for value in psnr), proven]
        lines.append(f"| {comparison['title']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def claims(experiments: list[dict]) -> str:
    """Each experiment of the paper that was run, how many of its claims held, and what it took."""
    lines = ["| `lipspline reproduce` | | claims that hold | computing |", "|---|---|---|---|"]
    for document in experiments:
        verdicts = [claim["holds"] for claim in document["claims"].values()]
        seconds = document["seconds"]
        cost = f"{seconds / 60:.0f} core-minutes" if seconds >= 120 else f"{seconds:.0f} s" if seconds else "not timed"
        held = f"{sum(verdicts)} of {len(verdicts)}"
        lines.append(f"| `{document['recipe']} --scale {document['scale']}` | {document['title']} | {held} | {cost} |")
    return "\n".join(lines) + "\n"


def filled() -> dict[Path, str]:
    """Both files with the committed numbers."""
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    bench = documents["bench"]
    readme = _fill(README.read_text(), "benchmark", headlines(bench))
    readme = _fill(readme, "demo", found(documents["demo"]))
    readme = _fill(readme, "claims", claims([document for document in documents.values() if "recipe" in document]))
    return {README: readme, PAGE: _fill(PAGE.read_text(), "benchmark", everything(bench))}


def _fill(page: str, mark: str, text: str) -> str:
    between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    assert between.search(page), f"there is no place for {mark}"
    return between.sub(lambda match: match[1] + text + match[2], page)


if __name__ == "__main__":
    pages = filled()
    if "--check" in sys.argv and any(path.read_text() != text for path, text in pages.items()):
        sys.exit("The tables do not show what is in results/: run `python docs/tables.py`.")
    for path, text in pages.items():
        path.write_text(text)
