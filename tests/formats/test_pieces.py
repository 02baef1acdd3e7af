"""k-space that is too large for memory, read piece by piece: the same as if it were read whole."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

import lipspline as ls
import sample_files
from lipspline.formats import kspace as kspace_files
from lipspline.formats import mri
from lipspline.formats.kspace import Kspace, LazyKspace, in_pieces
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Stack

GROWTH = 20
"""MB by which the peak may grow; the k-space of the larger file below takes 50 MB."""


def volume(slices: int = 6) -> np.ndarray:
    """Smooth k-space `(coils, readout, phase, partition)`, not zero anywhere."""
    rng = np.random.default_rng(3)
    axes = np.meshgrid(*(np.arange(n) - n // 2 for n in (12, 10, slices)), indexing="ij")
    shape = np.exp(-sum(axis**2 for axis in axes) / 20)
    return ((rng.normal(size=(2, *shape.shape)) + 1j * rng.normal(size=(2, *shape.shape))) * shape).astype(np.complex64)


def bart_planes(path):
    whole = sample_files.multi_coil() * sample_files.columns_mask()  # slices, coils, readout, phase
    return sample_files.write_cfl(path / "k.cfl", whole.transpose(2, 3, 1, 0).reshape(20, 16, 1, 2, *(1,) * 9, 3))


def bart_partitions(path):
    return sample_files.write_cfl(path / "k.cfl", volume().transpose(1, 2, 3, 0))


def bart_two_directions(path):
    points = np.random.default_rng(1).random((10, 6)) < 0.6
    return sample_files.write_cfl(path / "k.cfl", (volume() * points).transpose(1, 2, 3, 0))


def fastmri(path):
    return sample_files.write_fastmri(path / "k.h5", mask=True, maps=True)


def fastmri_masks(path):
    masks = np.stack([np.roll(sample_files.columns_mask(), s) for s in range(sample_files.SLICES)])
    with h5py.File(path / "k.h5", "w") as file:
        file["kspace"], file["mask"] = sample_files.multi_coil(), masks
    return path / "k.h5"


def single_coil_array(path):
    np.save(path / "k.npy", sample_files.single_coil())
    return path / "k.npy"


def readouts(path):
    return sample_files.write_ismrmrd(path / "k.h5", "reversed", "masks", "embedded calibration")


def readouts_averaged(path):
    return sample_files.write_ismrmrd(path / "k.h5", averages=2)


def readouts_of_partitions(path):
    return sample_files.write_ismrmrd(path / "k.h5", "reversed", depth=True, averages=2)


def readouts_of_two_directions(path):
    """More slices than readouts that are read together, oversampled, in a place of the patient."""
    images = np.random.default_rng(0).uniform(0.1, 1, (9, 24, 20))
    mask = np.random.default_rng(1).random((20, 9)) < 0.7
    return sample_files.write_raw(path / "k.h5", images, ((0, 0, 1), (1, 0, 0), (0, 1, 0)), depth=True, mask=mask)


def readouts_of_short_echoes(path):
    images = np.random.default_rng(0).uniform(0.1, 1, (9, 24, 20))
    return sample_files.write_raw(path / "k.h5", images, depth=True, first=7)


FILES = (
    *(bart_planes, bart_partitions, bart_two_directions, fastmri, fastmri_masks, single_coil_array, readouts),
    *(readouts_averaged, readouts_of_partitions, readouts_of_two_directions, readouts_of_short_echoes),
)


@pytest.mark.parametrize(("slices", "at_once"), [(slice(None), 200), (slice(None), 900), (slice(1, 3), 200)])
@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_pieces_are_those_of_the_whole(make, slices, at_once, tmp_path, monkeypatch):
    path = make(tmp_path)
    whole = mri.read_scan(path, slices)
    assert isinstance(whole, Kspace)
    monkeypatch.setattr(kspace_files, "AT_ONCE", at_once)  # less than a slice, or three
    found = mri.read_scan(path, slices)
    assert type(found) is LazyKspace
    assert isinstance(found.data, Stack)
    assert found.data.shape == whole.data.shape
    for i in (len(whole.data) - 1, *range(len(whole.data))):
        torch.testing.assert_close(found.data[i], whole.data[i], rtol=0, atol=1e-6 * float(whole.data.abs().max()))
        assert torch.equal(found.mask_of(i), whole.mask_of(i))
        if whole.maps is not None:
            assert found.maps is not None
            assert torch.equal(found.maps[i], whole.maps[i])
    assert torch.equal(found.mask, whole.mask)
    assert (found.crop, found.notes) == (whole.crop, whole.notes)
    for one, other in ((found.affine, whole.affine), (found.reference, whole.reference)):
        assert (one is None and other is None) or (one is not None and other is not None and torch.equal(one, other))


@pytest.mark.parametrize("conjugate", [False, True])
def test_images_are_those_of_the_whole(conjugate, tmp_path, monkeypatch):
    scanner, options = ls.ScannerMRI(conjugate=conjugate), {"prior": "tv", "strength": 1.0, "max_steps": 20}
    whole = ls.reconstruct(fastmri(tmp_path), acquisition=scanner, **options)
    monkeypatch.setattr(kspace_files, "AT_ONCE", 500)
    found = ls.reconstruct(tmp_path / "k.h5", acquisition=scanner, **options)
    assert torch.equal(found.images, whole.images)
    assert found.scan.summary == whole.scan.summary


def test_what_is_wrong_with_the_last_slice_is_said_first(tmp_path, monkeypatch):
    monkeypatch.setattr(kspace_files, "AT_ONCE", 500)
    values = sample_files.multi_coil()
    values[2, 1, :, 5] = 0
    np.save(tmp_path / "k.npy", values)
    with pytest.raises(FileError, match=r"lacks 1 column\(s\) in coil 1 of slice 2 that other coils have"):
        mri.read_scan(tmp_path / "k.npy")
    np.save(tmp_path / "k.npy", np.fft.ifftshift(sample_files.multi_coil(), axes=(-2, -1)))
    with pytest.raises(FileError, match="frequency zero first, not in the middle of its rows and columns"):
        mri.read_scan(tmp_path / "k.npy")
    np.save(tmp_path / "k.npy", np.zeros_like(values))
    with pytest.raises(FileError, match="zero everywhere: nothing was measured"):
        mri.read_scan(tmp_path / "k.npy")
    np.save(tmp_path / "k.npy", np.abs(sample_files.multi_coil()).astype(np.complex64))
    with pytest.raises(FileError, match="its magnitudes alone make no image"):
        mri.read_scan(tmp_path / "k.npy")
    image = np.random.default_rng(0).random((20, 16, 1, 2, *(1,) * 9, 3)) + 1j
    with pytest.raises(FileError, match="does not look like k-space"):
        mri.read_scan(sample_files.write_cfl(tmp_path / "image.cfl", image))


def test_a_file_changed_while_it_is_read_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(kspace_files, "AT_ONCE", 500)
    found = mri.read_scan(fastmri(tmp_path))
    assert isinstance(found, LazyKspace)
    with h5py.File(tmp_path / "k.h5", "r+") as file:
        del file["kspace"]
        file["kspace"] = sample_files.multi_coil()[:2]
    with pytest.raises(FileError, match="was changed while it was read"):
        found.data[0]


def test_what_needs_all_of_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(kspace_files, "AT_ONCE", 500)
    path = single_coil_array(tmp_path)
    with pytest.raises(FileError, match="3 x 1 x 20 x 16 values, too much to be held in memory; choose fewer slices"):
        mri.read(path)
    with pytest.raises(ValueError, match="too much k-space to be measured again by spokes= at once"):
        ls.ScannerMRI(spokes=8).scan(path)


def test_a_claim_that_no_file_of_its_size_can_fill_is_refused(tmp_path, monkeypatch):
    """Of the values of a sparse file nothing is on the disk: reading zeros would never end."""
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file.create_dataset("kspace", (10**6, 4, 256, 256), np.complex64, chunks=(1, 1, 256, 256))
    with pytest.raises(FileError, match=r"claims k-space of 1000000 x 4 x 256 x 256 values, 2\.1e\+03 GB"):
        mri.read_scan(tmp_path / "k.h5")
    with pytest.raises(FileError, match="claims k-space of a slice of 1 x 20000 x 20000 values"):
        monkeypatch.setattr(kspace_files, "SPARSEST", 10**12)
        (tmp_path / "some").write_bytes(b"0")
        in_pieces((9, 1, 20000, 20000), lambda _: torch.zeros(0), tmp_path / "some")


RUN = """
import json, resource, sys
import lipspline as ls
from lipspline.formats import kspace

kspace.AT_ONCE = 2**20

def run(source):
    options = {"prior": "tv", "strength": 1.0, "max_steps": 1, "cache": source + ".kept"}
    ls.reconstruct(source, acquisition="mri", **options).save(source + ".nii")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

print(json.dumps([run(source) for source in sys.argv[1:]]))
"""


def test_memory_does_not_grow_with_the_number_of_slices(tmp_path):
    rng, (coils, size) = np.random.default_rng(0), (4, 256)
    maps = np.ones((1, coils, size, size), np.complex64) / 2
    row = np.arange(size) - size // 2
    for name, count in (("few", 4), ("many", 24)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["maps"] = maps
            written = file.create_dataset("kspace", (count, coils, size, size), np.complex64)
            for k in range(count):
                spectrum = np.exp(-(row[:, None] ** 2 + row**2) / (10 + k)) * size
                noise = rng.normal(size=(coils, size, size)) + 1j * rng.normal(size=(coils, size, size))
                written[k] = spectrum + 0.01 * noise
    words = [str(tmp_path / f"{name}.h5") for name in ("few", "many")]
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout)
    assert many - few < GROWTH, (few, many)
