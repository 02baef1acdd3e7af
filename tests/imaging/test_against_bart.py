"""The ridge energies beside BART's wavelets: the same data, maps and machine."""

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lipspline._infra.devices import keep_memory
from lipspline.formats import mri
from lipspline.formats.kspace import Kspace
from lipspline.imaging.mri import MeasuredMRI, Undersampling
from lipspline.imaging.problem import Iteration, Problem, solve_problem
from lipspline.imaging.strength import choose
from lipspline.operators import MultiCoilMRI
from sample_files import write_cfl

ROUNDS = 5
AS_FAR = 3e-3  # the tolerance at which ours are no further from their answer than BART after 100 steps
HEAD = Path(os.environ.get("LIPSPLINE_DATA", ""), "mri", "brain_mprage_4ch.h5")
WEIGHTS = (0.001, 0.002, 0.004, 0.008, 0.016)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bart") is None, reason="bart is not installed"),
    pytest.mark.skipif(not HEAD.exists(), reason="needs the measured head in LIPSPLINE_DATA"),
]


@pytest.fixture(scope="module")
def head() -> Problem:
    """The measured head at acceleration 4."""
    found = mri.read(HEAD, slice(0, 1))
    assert isinstance(found, Kspace)
    return MeasuredMRI(found, undersampling=Undersampling(acceleration=4, center=0.08, seed=0)).problem(0)


def wavelets(head: Problem, folder: Path, weight: float, steps: int = 100) -> tuple[torch.Tensor, float]:
    """BART's image with a weight, and its seconds."""
    command = ["bart", "pics", "-S", "-i", str(steps), "-R", f"W:3:0:{weight}", "kspace", "maps", "image"]
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    seconds = time.perf_counter() - begin
    plane = tuple(int(n) for n in head.y.shape[-2:])
    image = np.fromfile(folder / "image.cfl", dtype="<c8").reshape(plane, order="F")
    return torch.from_numpy(np.ascontiguousarray(image))[None, None], seconds


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_a_ridge_energy_is_no_slower_than_wavelets_and_better(head, tmp_path, capsys):
    """Interleaved, two threads each; BART with the best of five weights, ours with the automatic one.

    Both are compared at the distance to their own answer that BART has after the 100 steps it is mostly given, and
    ours at the default tolerance too, where it is closer by far.
    """
    H = head.H
    assert isinstance(H, MultiCoilMRI)
    write_cfl(tmp_path / "kspace", head.y[0].movedim(0, -1)[:, :, None].numpy())
    write_cfl(tmp_path / "maps", H.maps.reshape(-1, *head.y.shape[-2:]).movedim(0, -1)[:, :, None].numpy())
    torch.set_num_threads(2)
    keep_memory()  # as the commands do
    scores = {w: head.quality(wavelets(head, tmp_path, w)[0])["psnr"] for w in WEIGHTS}
    best = max(scores, key=lambda w: scores[w])
    far = apart(wavelets(head, tmp_path, best)[0], wavelets(head, tmp_path, best, 1000)[0])
    lines, ratios = [f"BART, wavelets, weight {best}: {scores[best]:.2f} dB, {far:.3f} from its answer"], {}
    for name, tol in ((name, tol) for name in ("ridge", "ridge-adaptive") for tol in (AS_FAR, 2e-4)):
        chosen, seconds = choose(name, "auto", "auto", head), ([], [])
        for _ in range(ROUNDS):
            solved = solve_problem(name, head, chosen.served, chosen.weight, Iteration(tol, 600))
            seconds[0].append(solved.seconds)
            seconds[1].append(wavelets(head, tmp_path, best)[1])
        ours, theirs = map(statistics.median, seconds)
        ratios[name, tol] = ours / theirs
        answer = solve_problem(name, head, chosen.served, chosen.weight, Iteration(1e-6, 2000)).solution.value
        distance, psnr = apart(solved.solution.value, answer), head.quality(solved.solution.value)["psnr"]
        lines.append(
            f"{name}, tol {tol:g}: {psnr:.2f} dB, {distance:.4f} from its answer, {ours:.2f} s, "
            f"{ours / theirs:.2f} of BART's {theirs:.2f} s"
        )
        assert psnr > scores[best] + 0.5
        assert distance <= far
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert ratios["ridge", AS_FAR] <= 1
