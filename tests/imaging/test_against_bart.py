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

from lipspline.formats import mri
from lipspline.formats.kspace import Kspace
from lipspline.imaging.mri import MeasuredMRI, Undersampling
from lipspline.imaging.problem import Iteration, Problem, solve_problem
from lipspline.imaging.strength import choose
from lipspline.operators import MultiCoilMRI
from sample_files import write_cfl

ROUNDS = 5
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


def wavelets(head: Problem, folder: Path, weight: float) -> tuple[torch.Tensor, float]:
    """BART's image with a weight, 100 steps, and its seconds."""
    command = ["bart", "pics", "-S", "-i", "100", "-R", f"W:3:0:{weight}", "kspace", "maps", "image"]
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    seconds = time.perf_counter() - begin
    plane = tuple(int(n) for n in head.y.shape[-2:])
    image = np.fromfile(folder / "image.cfl", dtype="<c8").reshape(plane, order="F")
    return torch.from_numpy(np.ascontiguousarray(image))[None, None], seconds


def test_a_ridge_energy_is_no_slower_than_wavelets_and_better(head, tmp_path, capsys):
    """Interleaved, two threads each; BART with the best of five weights, ours with the automatic one."""
    H = head.H
    assert isinstance(H, MultiCoilMRI)
    write_cfl(tmp_path / "kspace", head.y[0].movedim(0, -1)[:, :, None].numpy())
    write_cfl(tmp_path / "maps", H.maps.reshape(-1, *head.y.shape[-2:]).movedim(0, -1)[:, :, None].numpy())
    torch.set_num_threads(2)
    scores = {w: head.quality(wavelets(head, tmp_path, w)[0])["psnr"] for w in WEIGHTS}
    best = max(scores, key=lambda w: scores[w])
    lines, ratios = [f"BART, wavelets, weight {best}: {scores[best]:.2f} dB"], {}
    for name in ("ridge", "ridge-adaptive", "ridge-weak", "tv"):
        chosen, seconds = choose(name, "auto", "auto", head), ([], [])
        for _ in range(ROUNDS):
            solved = solve_problem(name, head, chosen.served, chosen.weight, Iteration(2e-4, 600))
            seconds[0].append(solved.seconds)
            seconds[1].append(wavelets(head, tmp_path, best)[1])
        ours, theirs = map(statistics.median, seconds)
        ratios[name] = ours / theirs
        psnr = head.quality(solved.solution.value)["psnr"]
        lines.append(f"{name}: {psnr:.2f} dB, {ours:.2f} s, {ours / theirs:.2f} of BART's {theirs:.2f} s")
        assert name == "tv" or psnr > scores[best] + 0.5
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert ratios["ridge"] <= 1
