"""What a smaller constant of `ridge-adaptive` costs in decibels: `python docs/constants_curve.py --data FOLDER`.

The pull of both passes towards their references is what makes the answer stable. Prints the table of docs/guarantee.md
and writes results/constants.json; `tv` and `ridge`, which need one pass, stand beside it. Strengths are chosen by the
noise alone.
"""

import argparse
import copy
import json
from pathlib import Path

import torch

from lipspline.imaging.problem import Iteration, solve_problem
from lipspline.imaging.strength import choose
from lipspline.paper.priors import PriorScan

RESULT = Path(__file__).resolve().parents[1] / "results" / "constants.json"
SCANS = {
    "knee, 4x": PriorScan("mri", "mri/knee_stanford.h5", (0,), (5,)),
    "measured head, 4x": PriorScan("measured", "mri/brain_mprage_4ch.h5", (0,), (0,)),
    "CT, noise 1": PriorScan("ct", "ct/torso_acrin.nii.gz", (5,), (20,), noise=1.0),
}
PULLS = (3.0, 10.0, 30.0, 100.0)  # in units of the convexity; 10 is what ships


def rows(data: Path, scan: PriorScan) -> dict[str, dict[str, float]]:
    """PSNR and constants of tv, ridge, and ridge-adaptive with several pulls."""
    problem, found = scan.problem(data, scan.test[0], 0), {}
    for name, pull in [("tv", None), ("ridge", None), *(("ridge-adaptive", pull) for pull in PULLS)]:
        chosen = choose(name, "auto", "auto", problem, refine=False)
        prior = copy.copy(chosen.served)
        if pull is not None:
            prior.pulls = (pull, pull)
        solution = solve_problem(name, problem, prior, chosen.weight, Iteration()).solution
        certificate = solution.certificate
        of_data, of_image = (estimate.constant for estimate in certificate.estimates)
        found[name if pull is None else f"{name}, pull {pull:g}"] = {
            "psnr": problem.quality(solution.value)["psnr"],
            "data": of_data,
            "image": of_image,
            "distance": certificate.relative_distance,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    found = {}
    print("| scan | prior | PSNR | data stability | image stability | distance |\n|---|---|---|---|---|---|")
    for scan, setting in SCANS.items():
        found[scan] = rows(data, setting)
        for prior, row in found[scan].items():
            numbers = f"{row['psnr']:.2f} dB | {row['data']:.3g} | {row['image']:.3g} | {100 * row['distance']:.2g} %"
            print(f"| {scan} | {prior} | {numbers} |", flush=True)
    RESULT.write_text(json.dumps({"torch": torch.__version__, "scans": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
