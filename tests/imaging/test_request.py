"""A request is checked before anything is read; arrays mean what files mean."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch

import sample_files
from lipspline.imaging import MeasuredCT, MeasuredMRI, Request, ScannerCT, ScannerMRI, SimulatedCT, SimulatedMRI


def a_request(**options) -> Request:
    return Request(**{"data": Path("nothing.npy"), "acquisition": ScannerMRI(), **options})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ScannerMRI(mask="m.npy", acceleration=2), "mask=, acceleration=, spokes= and trajectory= all say"),
        (lambda: ScannerMRI(acceleration=0.5), "acceleration must be at least 1, but is 0.5"),
        (lambda: ScannerMRI(acceleration=float("inf")), "acceleration must be a positive finite number"),
        (lambda: ScannerMRI(center=float("nan")), "center must lie between 0 and 1, but is nan"),
        (lambda: ScannerMRI(data_noise=1), "data_noise= is for simulated data"),
        (
            lambda: ScannerCT(source_origin=500.0, source_detector=300.0),
            "source_origin=500 and source_detector=300 seem to be exchanged",
        ),
        (lambda: ScannerMRI(data_noise=1e300, simulate=True), "data_noise must lie between 0 and 1e"),
        (lambda: ScannerMRI(data_noise=float("nan"), simulate=True), "data_noise must lie between 0 and 1e"),
        (lambda: ScannerCT(angles=0), "angles must lie between 1 and 10000, but is 0"),
        (lambda: ScannerCT(detectors=1), "detectors must lie between 2 and 10000, but is 1"),
        (lambda: ScannerCT(size=10**9), "size must lie between 2 and 10000"),
        (lambda: ScannerCT(spacing=float("inf")), "spacing must be a positive finite number, but is inf"),
        (lambda: ScannerCT(size=8, simulate=True), "Leave out size=, or simulate=True"),
        (lambda: a_request(beta=1.0), "beta must lie strictly between 0 and 1"),
        (lambda: a_request(noise=0.0), "noise must be a positive finite number"),
        (lambda: a_request(strength=-1.0), "strength must be a positive finite number"),
        (lambda: a_request(strength=2.0, beta=0.1, noise=15.0), "strength= has no effect"),
        (lambda: a_request(contraction=0.0, prior="lls"), "contraction must lie above 0 and be at most 1"),
        (lambda: a_request(contraction=1.01, prior="lls"), "contraction must lie above 0 and be at most 1"),
        (lambda: a_request(contraction=0.99), "contraction= is for denoisers, but ridge-adaptive is an energy"),
        (lambda: a_request(tol=float("nan")), "tol must be a positive finite number"),
        (lambda: a_request(max_steps=0), "max_steps must be at least 1"),
        (lambda: a_request(slices=slice(0, 9, 2)), "slices must be neighbours"),
        (lambda: a_request(slices=slice(-2, None)), "slices must be neighbours"),
    ],
)
def test_every_mistake_is_found_before_anything_is_read(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_request_does_not_change():
    with pytest.raises(FrozenInstanceError):
        a_request().beta = 0.3


def test_arrays_and_files_give_the_same_scan(tmp_path):
    for values, acquisition, kind in (
        (sample_files.single_coil(), ScannerMRI(), MeasuredMRI),
        (sample_files.multi_coil(), ScannerMRI(coils=sample_files.coil_maps()), MeasuredMRI),
        (sample_files.images(), ScannerMRI(simulate=True), SimulatedMRI),
        (sample_files.sinograms(), ScannerCT(), MeasuredCT),
        (sample_files.images(), ScannerCT(simulate=True, angles=12, detectors=40), SimulatedCT),
    ):
        path = sample_files.write_npy(tmp_path / "data.npy", values)
        scans = [acquisition.scan(data, slice(1, 3)) for data in (path, str(path), values, torch.from_numpy(values))]
        assert all(isinstance(scan, kind) for scan in scans)
        expected = scans[0].problem(1)
        for scan in scans[1:]:
            assert scan.summary == scans[0].summary
            assert torch.equal(scan.problem(1).y, expected.y)
            assert scan.problem(1).scale == expected.scale


@pytest.mark.parametrize(
    ("data", "acquisition", "sentence"),
    [
        (sample_files.images(), ScannerMRI(), "The array holds images, not k-space. .* give simulate=True"),
        (sample_files.single_coil(), ScannerMRI(simulate=True), "The array holds k-space already"),
        (np.zeros((2, 8, 8), np.complex64), ScannerMRI(), "zero everywhere"),
        (np.ones((1, 1, 1, 8, 8), np.complex64), ScannerMRI(), "but has shape"),
        (np.full((8, 8), np.nan), ScannerMRI(simulate=True), "data has 64 NaN"),
        (sample_files.single_coil(), ScannerCT(), "but sinograms are"),
        (sample_files.sinograms(), ScannerCT(detectors=5), "The array holds 23 detectors, not 5"),
    ],
)
def test_arrays_that_cannot_be_reconstructed_are_refused(data, acquisition, sentence):
    with pytest.raises(ValueError, match=sentence):
        acquisition.scan(data)


@pytest.mark.parametrize("name", ["series", "slice.dcm", "volume.nii.gz", "image.png"])
def test_images_given_as_sinograms_are_to_be_simulated(name, tmp_path):
    source = sample_files.IMAGE_FILES[name](tmp_path / name)
    with pytest.raises(
        ValueError, match=r"holds images, not sinograms\. To measure and reconstruct them give simulate=True"
    ):
        ScannerCT().scan(source)


def test_slices_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match=r"There are 3 slice\(s\)"):
        ScannerMRI().scan(sample_files.single_coil(), slice(3, 5))


def test_files_are_told_apart_by_their_state_and_arrays_by_their_content(tmp_path):
    path = sample_files.write_npy(tmp_path / "k.npy", sample_files.single_coil())
    before = a_request(data=path).fingerprint()
    assert a_request(data=path).fingerprint() == before
    sample_files.write_npy(path, sample_files.single_coil()[:2])
    assert a_request(data=path).fingerprint() != before
    ones, twos = np.ones((8, 8), np.complex64), 2 * np.ones((8, 8), np.complex64)
    assert a_request(data=ones).fingerprint() == a_request(data=ones.copy()).fingerprint()
    assert a_request(data=ones).fingerprint() != a_request(data=twos).fingerprint()


def test_all_files_that_are_read_are_listed(tmp_path):
    names = ("k.npy", "mask.npy", "maps.npy", "net.safetensors")
    for name in names:
        (tmp_path / name).touch()
    acquisition = ScannerMRI(mask=tmp_path / "mask.npy", coils=str(tmp_path / "maps.npy"))
    request = a_request(data=tmp_path / "k.npy", acquisition=acquisition, prior=str(tmp_path / "net.safetensors"))
    assert {path.name for path in request.files()} == set(names)
    assert a_request().files() == []


def test_files_of_a_pattern_are_known_and_their_change_is_seen(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"s{number}.npy", np.ones((4, 5), np.float32))
    request = Request(data=tmp_path / "s*.npy", acquisition=ScannerCT())
    assert [path.name for path in request.files()] == ["s0.npy", "s1.npy", "s2.npy", "s*.npy"]
    before = request.fingerprint()
    assert request.fingerprint() == before
    np.save(tmp_path / "s1.npy", np.ones((4, 6), np.float32))
    assert request.fingerprint() != before


@pytest.mark.parametrize(
    ("name", "value"),
    [("whiten", "none"), ("map_sets", 2), ("virtual_coils", 2), ("phase", "none"), ("unknown", "real")],
)
def test_what_is_said_about_measurements_is_not_ignored_by_a_simulation(name, value):
    images = torch.rand(1, 16, 16)
    with pytest.raises(ValueError, match=f"{name}= is for measured k-space, but this is simulated"):
        ScannerMRI(simulate=True, **{name: value}).scan(images)
