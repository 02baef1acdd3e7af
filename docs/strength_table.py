"""Fill the table of docs/choose.md: how `--noise auto --beta auto` do with a prior weaker and stronger than it is.

It is in results/strength.json. `--check` fails if the page does not show it. `--measure DIR` measures it first, on
files below the data folder DIR and on the images of the demo; this takes some minutes on two cores. With `--only WORDS`
only rows whose name contains them are measured, and the others stay.
"""

import json
import re
import sys
from pathlib import Path

from lipspline.formats import ct, mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.volume import Volume
from lipspline.imaging.ct import SimulatedCT
from lipspline.imaging.demo import demo_scans
from lipspline.imaging.mri import MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.imaging.problem import Iteration, Scan, solve_problem
from lipspline.imaging.strength import PRIOR, choose

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "choose.md"
FOUND = ROOT / "results" / "strength.json"
PRIORS = (3.0, 1.0, PRIOR, 0.1)
ITERATION = Iteration(tol=1e-4, max_steps=400)
MARKS = re.compile(r"(<!-- strength -->\n).*?(<!-- /strength -->)", re.DOTALL)


def scans(data: Path) -> dict[str, Scan]:
    """One slice of each kind."""
    knee = mri.read(data / "mri" / "knee_stanford.h5", slice(7, 8))
    brain = mri.read(data / "mri" / "brain_mprage_4ch.h5", slice(0, 1))
    assert isinstance(knee, Volume)
    assert isinstance(brain, Kspace)
    torso = ct.read(data / "ct" / "torso_acrin.nii.gz", slice(12, 13))
    return {
        **demo_scans(),
        "MRI of a knee, simulated, one coil, 4×": SimulatedMRI(knee, Undersampling(), 0.01),
        "MRI of a head, measured, 4 coils, 4×": MeasuredMRI(brain, "auto", Undersampling()),
        "MRI of a head, measured, 4 coils by ESPIRiT, 3×": MeasuredMRI(brain, "espirit", Undersampling(acceleration=3)),
        "CT of an abdomen, 200 angles, noise 0.5": SimulatedCT(torso, 200, 400, 0.5),
        "CT of an abdomen, 200 angles, noise 2": SimulatedCT(torso, 200, 400, 2.0),
        "CT of an abdomen, 60 angles, noise 1": SimulatedCT(torso, 60, 400, 1.0),
    }


def measure(data: Path, only: str = "") -> None:
    """PSNR of the first slice of each scan with each prior; of those whose name contains `only`."""
    rows = json.loads(FOUND.read_text())["psnr"] if only else {}
    for name, scan in scans(data).items():
        if only not in name:
            continue
        problem = scan.problem(0)
        cells = {"direct": problem.quality(problem.direct)}
        for prior in PRIORS:
            strength = choose("lls", "auto", "auto", problem, prior / PRIOR, refine=False)
            solved = solve_problem(name, problem, strength.served, strength.weight, ITERATION)
            quality = problem.quality(solved.solution.value)
            cells[f"{prior:g}"] = {"denoiser": strength.name, "beta": strength.weight, **quality}
            print(name, prior, cells[f"{prior:g}"], flush=True)
        rows[name] = cells
    FOUND.write_text(json.dumps({"psnr": rows}, indent=1, ensure_ascii=False) + "\n")


def table() -> str:
    """PSNR, with what was chosen."""
    lines = [
        "| | direct | " + " | ".join(f"factor {prior:g}" for prior in PRIORS) + " |",
        "|---" * (2 + len(PRIORS)) + "|",
    ]
    for name, cells in json.loads(FOUND.read_text())["psnr"].items():
        direct = f"{cells['direct']['psnr']:.2f} / {cells['direct']['ssim']:.3f}"
        shown = [
            f"{c['psnr']:.2f} / {c['ssim']:.3f} ({c['denoiser']}, β = {c['beta']:.2g})"
            for c in (cells[f"{prior:g}"] for prior in PRIORS)
        ]
        lines.append(f"| {name} | {direct} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def filled() -> str:
    """The page with its table."""
    return MARKS.sub(lambda match: match[1] + table() + match[2], PAGE.read_text())


if __name__ == "__main__":
    if "--measure" in sys.argv:
        only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
        measure(Path(sys.argv[sys.argv.index("--measure") + 1]), only)
    if "--check" in sys.argv and PAGE.read_text() != filled():
        sys.exit("docs/choose.md does not show results/strength.json: run `python docs/strength_table.py`.")
    PAGE.write_text(filled())
