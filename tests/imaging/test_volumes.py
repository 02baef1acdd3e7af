"""Volumes of many slices: read, solved, kept and written piece by piece; killed and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import torch

import lipspline as ls
from lipspline._infra.progress import Pace
from lipspline.formats import dicom, sinograms
from lipspline.formats.sinograms import read_sinograms
from lipspline.formats.volume import Stack

GROWTH = 30
"""MB that a run may grow by; the images of the volume below take 41 MB, and the direct ones as many."""

RUN = '''
import json, resource, sys
from pathlib import Path
import lipspline as ls
from lipspline.operators import ct

bounds, once = ct.collatz_wielandt, []

def bounded_once(*inputs, **options):
    """A third of the time goes into bounds on norms, which are nearly those of the first slice."""
    once or once.append(bounds(*inputs, **options))
    return once[0]

ct.collatz_wielandt = bounded_once

def run(source, folder):
    done = ls.reconstruct(source, acquisition="ct", prior="tv", strength=1.0, max_steps=1, cache=folder / "kept")
    for ending in (".npy", ".nii", ".nii.gz", ".h5", ".tif", ""):
        done.save(folder / f"image{ending}", report=ending == ".npy")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

few, many = (run(*map(Path, pair)) for pair in (sys.argv[1:3], sys.argv[3:5]))
print(json.dumps({"few": few, "many": many}))
'''


def write_volume(path: Path, slices: int, angles: int, detectors: int) -> Path:
    """Sinograms of discs that grow from slice to slice."""
    place = np.arange(detectors, dtype=np.float32) - (detectors - 1) / 2
    volume = np.lib.format.open_memmap(path, "w+", np.float32, (slices, angles, detectors))
    for k in range(slices):
        volume[k] = 2 * np.sqrt(np.clip((detectors * (0.2 + 0.2 * k / slices)) ** 2 - place**2, 0, None)) / detectors
    return path


def test_memory_does_not_grow_with_the_number_of_slices(tmp_path):
    """100 slices in every format and with a page, after 4 slices in the same process: the peak is hardly higher."""
    sources = [write_volume(tmp_path / f"{count}.npy", count, 4, 320) for count in (4, 100)]
    folders = [tmp_path / "few", tmp_path / "many"]
    for folder in folders:
        folder.mkdir()
    words = [sources[0], folders[0], sources[1], folders[1]]
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    peak = json.loads(done.stdout)
    assert peak["many"] - peak["few"] < GROWTH, peak
    images = np.load(folders[1] / "image.npy")
    assert images.shape == (100, 320, 320)
    assert len(np.unique(images.sum(axis=(1, 2)))) == 100  # every slice is its own
    assert np.array_equal(nibabel.load(folders[1] / "image.nii").get_fdata(dtype=np.float32).T, images)
    assert np.array_equal(nibabel.load(folders[1] / "image.nii.gz").get_fdata(dtype=np.float32).T, images)
    assert np.array_equal(tifffile.imread(folders[1] / "image.tif"), images)
    with h5py.File(folders[1] / "image.h5") as file:
        assert np.array_equal(file["reconstruction"][:], images)
    found = dicom.read(folders[1] / "image", slice(99, 100)).slices[0]
    torch.testing.assert_close(found, torch.from_numpy(images[99]), atol=1e-4 * images.max(), rtol=0)


COMMAND = "from lipspline.cli import main; main()"


def test_a_volume_that_is_killed_goes_on_and_ends_with_the_same_bytes(tmp_path):
    """SIGKILL in the middle, as often as it takes; what was solved is not solved again."""
    source = write_volume(tmp_path / "volume.npy", 12, 30, 96)
    command = [sys.executable, "-c", COMMAND, "reconstruct", "ct", source]
    options = ["--prior", "tv", "--max-steps", "40", "--tol", "1e-9"]
    subprocess.run([*command, tmp_path / "whole.nii.gz", *options], check=True, capture_output=True)
    target, parts = tmp_path / "killed.nii.gz", tmp_path / "killed.nii.gz.parts"
    kills = 0
    for wanted in (3, 7):
        process = subprocess.Popen([*command, target, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(finished(parts)) < wanted:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills == 2
    kept = finished(parts)
    assert 7 <= len(kept) < 12
    assert not target.exists()
    last = subprocess.run([*command, target, *options, "--json"], check=True, capture_output=True, text=True)
    assert target.read_bytes() == (tmp_path / "whole.nii.gz").read_bytes()
    assert not parts.exists()
    assert len(json.loads(last.stdout)["slices"]) == 12


def finished(parts: Path) -> list[str]:
    return [name for name in (os.listdir(parts) if parts.is_dir() else ()) if name.startswith("slice-")]


def test_a_kept_slice_that_is_gone_when_it_is_needed_is_one_sentence(tmp_path):
    source = write_volume(tmp_path / "volume.npy", 2, 8, 24)
    done = ls.reconstruct(source, acquisition="ct", prior="tv", max_steps=1, cache=tmp_path / "kept")
    (tmp_path / "kept" / "slice-00001.safetensors").unlink()
    with pytest.raises(ValueError, match=r"slice-00001\.safetensors was removed or changed while it was needed"):
        done.save(tmp_path / "image.npy")


@pytest.mark.parametrize("ending", [".h5", ".tif", ".npy"])
def test_large_files_are_read_block_by_block(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(sinograms, "BLOCK", 300)
    values, path = np.random.default_rng(0).random((9, 10, 12), np.float32), tmp_path / f"volume{ending}"
    if ending == ".h5":
        with h5py.File(path, "w") as file:
            file["sinogram"], file["angles"] = values, np.linspace(0, 3, 10)
    elif ending == ".tif":
        tifffile.imwrite(path, values, photometric="minisblack", metadata=None)
    else:
        np.save(path, values)
    found = read_sinograms(path, slice(2, 8))
    assert isinstance(found.data, Stack)
    assert tuple(found.data.shape) == (6, 10, 12)
    for i in (5, 0, 3):
        assert np.array_equal(found.data[i], values[2 + i])


def test_the_time_left_counts_only_slices_that_were_solved_now():
    now = 0.0
    pace = Pace(lambda: now)
    for i in range(500):
        pace.end(i)  # found done
    assert pace.left(1000) is None
    pace.begin(500)
    now = 60.0
    pace.end(500)
    assert pace.left(1000) == pytest.approx(499 * 60)
    now = 90.0
    pace.begin(501)
    assert pace.left(1000) == pytest.approx(499 * 60 - 30)
