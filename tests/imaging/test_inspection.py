"""What `lipspline inspect` says of a file."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lipspline as ls
import sample_files
from lipspline import cli
from lipspline.formats import mri, nifti, pictures
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume
from lipspline.imaging.inspection import inspect_file
from lipspline.imaging.scanners import ScannerMRI


@pytest.mark.parametrize("name", sample_files.MRI_FILES)
def test_every_format_of_kspace_is_recognised(name, tmp_path):
    found = inspect_file(sample_files.MRI_FILES[name](tmp_path / name))
    kspace = next(finding for finding in found.findings if "k-space" in finding.what)
    assert f"{sample_files.HEIGHT} x {sample_files.WIDTH}" in kspace.facts["k-space"]
    assert kspace.command.startswith("lipspline reconstruct mri IN")
    assert found.size > 0
    assert kspace.what in str(found)


def test_our_own_results_are_known_by_image_certificate_and_page(tmp_path):
    source = sample_files.write_npy(tmp_path / "k.npy", sample_files.single_coil())
    done = ls.reconstruct(source, prior="tv", max_steps=3)
    done.save(tmp_path / "out.npy", report=True)
    for name in ("out.npy", "out.npy.json", "out.npy.html"):
        found = inspect_file(tmp_path / name).findings[0]
        assert found.what == "A result of lipspline"
        assert found.command == "lipspline verify IN"
        assert (found.facts["made from"], found.facts["slices"]) == (str(source), "3")
        assert found.facts["here"] == "out.npy, out.npy.json, out.npy.html"
    (tmp_path / "out.npy").unlink()
    assert inspect_file(tmp_path / "out.npy.json").findings[0].missing == ("the image out.npy",)
    assert inspect_file(source).findings[0].what.startswith("Measured k-space")


def test_our_own_weights_are_to_be_certified(tmp_path):
    found = inspect_file(sample_files.write_denoiser(tmp_path / "net.safetensors")).findings[0]
    assert (found.what, found.command) == ("Weights of a network", "lipspline certify IN")


def test_images_are_to_be_simulated_from_and_a_real_array_may_be_a_sinogram(tmp_path):
    found = inspect_file(sample_files.write_npy(tmp_path / "a.npy", sample_files.sinograms()))
    assert [finding.what.split()[0].strip(",") for finding in found.findings] == ["Images", "Sinograms"]
    assert "simulate=True" in found.findings[0].command


def test_a_sinogram_as_radon_returns_it_is_proposed_with_the_command_that_works(tmp_path):
    radon = sample_files.sinograms()[0].T
    found = inspect_file(sample_files.write_npy(tmp_path / "radon.npy", radon)).findings[-1]
    assert (found.facts["angles"], found.facts["detectors"]) == ("12", "23")
    assert found.command == "lipspline reconstruct ct IN OUT.nii.gz convention=scikit-image"
    plain = inspect_file(sample_files.write_npy(tmp_path / "plain.npy", sample_files.sinograms()[0])).findings[-1]
    assert plain.command == "lipspline reconstruct ct IN OUT.nii.gz"


def test_what_reconstruct_would_refuse_as_a_sinogram_is_not_proposed_as_one(tmp_path):
    image = np.zeros((24, 24), np.float32)
    image[8:12, 10:20] = 1
    found = inspect_file(sample_files.write_npy(tmp_path / "image.npy", image))
    assert [finding.what for finding in found.findings] == ["Images"]


def test_negative_line_integrals_are_seen(tmp_path):
    found = inspect_file(sample_files.write_npy(tmp_path / "s.npy", -sample_files.sinograms())).findings[-1]
    assert "their sign may be turned, or -log was not taken" in found.facts["sign"]


@pytest.mark.parametrize(("name", "colours"), [("a.png", 3), ("a.tif", 3), ("a.jpg", 3), ("a.png", 1)])
def test_a_photograph_is_to_be_denoised_and_in_colour_nothing_else(name, colours, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (24, 30, colours), np.uint8).squeeze()
    if name.endswith(".jpg"):
        pytest.importorskip("PIL.Image").fromarray(pixels).save(tmp_path / name)
    else:
        pictures.write(tmp_path / name, pixels)
    findings = inspect_file(tmp_path / name).findings
    assert findings[0].command == f"lipspline denoise IN {'OUT.tif' if name == 'a.tif' else 'OUT.png'}"
    assert findings[0].facts["colours"] == ("red, green and blue" if colours == 3 else "gray")
    assert len(findings) == (1 if colours == 3 else 2)


def test_a_volume_with_the_values_of_air_is_ct(tmp_path):
    """NIfTI has no unit."""
    slices = torch.rand(2, 16, 16) * 300 - 100
    nifti.write(tmp_path / "mr.nii", Volume(slices))
    slices[:, :4] = -1000
    nifti.write(tmp_path / "ct.nii", Volume(slices))
    ct, mr = (inspect_file(tmp_path / f"{name}.nii").findings[0] for name in ("ct", "mr"))
    assert ct.facts["unit"] == "hounsfield, by the values of air"
    assert ct.command.startswith("lipspline reconstruct ct IN")
    assert mr.command.startswith("lipspline reconstruct mri IN")


def test_kspace_on_a_trajectory_is_recognised(tmp_path):
    found = inspect_file(sample_files.write_spirals(tmp_path / "k.h5")).findings[0]
    assert found.what == "Measured k-space of 2 coils on a trajectory"
    assert found.facts["readouts"] == "16 of 40 samples"
    assert found.facts["images"] == "10 x 16"
    assert "spiral trajectory" in found.facts["on reading"]


def test_what_is_in_the_file_is_not_missing(tmp_path):
    with_maps = inspect_file(sample_files.write_fastmri(tmp_path / "a.h5", maps=True, mask=True)).findings[0]
    without = inspect_file(sample_files.write_fastmri(tmp_path / "b.h5")).findings[0]
    assert "take the coil maps of the file" in with_maps.steps
    assert "estimate coil maps by ESPIRiT" in without.steps
    assert "100 %" not in with_maps.facts["measured"]
    assert "100 %" in without.facts["measured"]


def test_nothing_recognised_says_why_and_ends_with_1(tmp_path):
    (tmp_path / "scan.xyz").write_text("nothing")
    found = inspect_file(tmp_path / "scan.xyz")
    assert not found.findings
    assert "not in a known format" in str(found)
    with pytest.raises(FileNotFoundError):
        inspect_file(tmp_path / "none.h5")


def test_the_command_prints_one_document(tmp_path):
    path = sample_files.write_npy(tmp_path / "k.npy", sample_files.single_coil() + 1)  # no point is exactly zero
    done = CliRunner().invoke(cli.app, ["inspect", str(path), "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)["findings"][0]
    assert found["facts"]["coils"] == "1"
    assert any("--acceleration 4" in one for one in found["missing"])


UNCENTRED = {
    "fastmri.h5": lambda path, k: sample_files.write_hdf5(path, kspace=k),
    "kspace.npy": sample_files.write_npy,
    "kspace.npz": lambda path, k: sample_files.write_npz(path, kspace=k),
    "kspace.cfl": lambda path, k: sample_files.write_cfl(path, k[1].transpose(1, 2, 0)[:, :, None]),
}


@pytest.mark.parametrize("name", UNCENTRED)
@pytest.mark.parametrize(("axes", "where"), [((-2, -1), "rows and columns"), ((-2,), "rows"), ((-1,), "columns")])
def test_frequency_zero_first_is_named_in_every_cartesian_format(name, axes, where, tmp_path):
    """Such data gave a wrong image with a certificate: signal lay where noise is looked for."""
    shifted = np.fft.ifftshift(sample_files.multi_coil(), axes=axes)
    found = inspect_file(UNCENTRED[name](tmp_path / name, shifted))
    assert not found.findings
    assert f"frequency zero first, not in the middle of its {where}:" in str(found)
    assert f"numpy.fft.fftshift(kspace, axes={axes})" in str(found)


def test_frequency_zero_first_is_refused_in_arrays_too():
    with pytest.raises(ValueError, match="the array has frequency zero first"):
        ScannerMRI().scan(np.fft.ifftshift(sample_files.multi_coil(), axes=(-2, -1)))


@pytest.mark.parametrize("size", [0, 20, 500, -3])
def test_a_certificate_that_is_not_whole_is_said_to_be_truncated_or_changed(size, tmp_path):
    done = ls.reconstruct(sample_files.single_coil(), prior="tv", max_steps=3)
    done.save(tmp_path / "out.npy")
    certificate = tmp_path / "out.npy.json"
    certificate.write_bytes(certificate.read_bytes()[:size])
    found = inspect_file(certificate)
    assert not found.findings
    (problem,) = found.problems
    assert "is truncated or was changed since lipspline wrote it as a certificate" in problem


def test_a_result_for_bart_is_known_by_both_files(tmp_path):
    ls.reconstruct(sample_files.single_coil(), prior="tv", max_steps=3).save(tmp_path / "o.cfl")
    for name in ("o.cfl", "o.hdr", "o.cfl.json"):
        assert inspect_file(tmp_path / name).findings[0].what == "A result of lipspline"


def test_what_several_readers_say_of_a_damaged_picture_is_said_once(tmp_path):
    pictures.write(tmp_path / "a.png", np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:2000])
    (problem,) = inspect_file(tmp_path / "a.png").problems
    assert problem.startswith("pictures, MRI: ")


@pytest.mark.parametrize("shape", [(1, 160, 160, 4), (160, 160, 4)])
def test_coils_that_come_last_are_not_taken_for_columns(tmp_path, shape):
    """They were 160 coils with four columns each, or 160 slices."""
    np.save(tmp_path / "k.npy", np.ones(shape, np.complex64))
    with pytest.raises(FileError, match="Move the coils to the second place"):
        mri.read_scan(tmp_path / "k.npy")
    problems = inspect_file(tmp_path / "k.npy").problems
    assert any("slices, coils, readout and phase encoding, in this order" in problem for problem in problems)


def test_only_the_reader_of_its_format_speaks_of_a_damaged_file(tmp_path):
    weights = tmp_path / "net.safetensors"
    ls.models.save(ls.models.mlp(2, 1), weights)
    weights.write_bytes(weights.read_bytes()[:300])
    (problem,) = inspect_file(weights).problems
    assert problem.startswith("weights: ")
    assert "truncated" in problem
    kspace = sample_files.write_npy(tmp_path / "k.npy", sample_files.single_coil())
    kspace.rename(tmp_path / "k.unknown")
    assert len(inspect_file(tmp_path / "k.unknown").problems) == 2
