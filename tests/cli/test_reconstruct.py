"""`lipspline reconstruct`: every format in and out, a certificate beside every image, one sentence for every error."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import torch

import sample_files
from lipspline import cli
from lipspline.cli.program import SliceDisplay, parse_number, parse_slices
from lipspline.cli.results import interrupted
from lipspline.formats import mri as files
from lipspline.formats.output import Output
from lipspline.formats.volume import Volume
from lipspline.functional.quality import psnr
from lipspline.imaging.reconstruction import carry_out
from lipspline.imaging.request import Request
from lipspline.imaging.scanners import ScannerMRI

DATA = Path(os.environ.get("LIPSPLINE_DATA", "/nonexistent"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="LIPSPLINE_DATA names no folder")


@pytest.fixture(scope="module")
def net(tmp_path_factory) -> Path:
    return sample_files.write_denoiser(tmp_path_factory.mktemp("net") / "net.safetensors")


@pytest.fixture
def run(net, monkeypatch, capsys):
    """Run the command as a shell would; returns exit code, stdout and stderr."""

    def call(*arguments: object, steps: int = 3) -> tuple[int, str, str]:
        options = ["--model", net, "--max-steps", steps, "--tol", "1e-3"]
        monkeypatch.setattr("sys.argv", ["lipspline", "reconstruct", *map(str, [*arguments, *options])])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        streams = capsys.readouterr()
        return int(stop.value.code or 0), streams.out, streams.err

    return call


def images(path: Path) -> torch.Tensor:
    found = files.read(path)
    assert isinstance(found, Volume)
    return found.slices


@pytest.mark.parametrize("name", sample_files.MRI_FILES)
def test_every_format_of_kspace_is_reconstructed(name, run, tmp_path):
    source = sample_files.MRI_FILES[name](tmp_path / name)
    code, _, err = run("mri", source, tmp_path / "out.npy")
    assert code == 0, err
    result = np.load(tmp_path / "out.npy")
    assert np.isfinite(result).all()
    truth = sample_files.images() if name not in ("bart.cfl", "tensors") else sample_files.images()[:1]
    if name in ("single.h5", "multi.h5", "masked.h5", "tensors"):
        truth = truth[:, 2:18]  # what the reference of the file shows
    if name in ("raw.h5", "raw-more.h5", "raw-averages.h5", "raw-doubled.h5"):
        truth = truth[:, 5:15]  # what the field of view holds
    if name == "raw3d.h5":
        assert result.shape == (3, 10, 16)
    else:
        assert np.corrcoef(result.ravel(), truth.ravel())[0, 1] > 0.9


def test_a_folder_that_was_made_for_the_output_is_named(run, tmp_path):
    source = sample_files.write_npy(tmp_path / "s.npy", sample_files.sinograms()[:1])
    code, _, err = run("ct", source, tmp_path / "new" / "deeper" / "out.npy")
    assert code == 0
    assert f"made the folder {tmp_path / 'new'}." in err
    assert "made the folder" not in run("ct", source, tmp_path / "new" / "other.npy")[2]
    code, _, err = run("ct", source, tmp_path / "newer" / "out.npy", "--water", 1)
    assert code == 2
    assert "made the folder" not in err
    assert not (tmp_path / "newer").exists()


def test_what_the_values_of_ct_images_are_is_said(run, tmp_path):
    source = sample_files.write_npy(tmp_path / "s.npy", sample_files.sinograms()[:1])
    for extra, unit, words in (
        ((), "per pixel", "attenuations per pixel"),
        (("--pixel-size", 0.5), "per millimetre", "attenuations per millimetre"),
        (("--pixel-size", 0.5, "--water", 0.02), "hounsfield", "values in Hounsfield units"),
    ):
        code, out, _ = run("ct", source, tmp_path / "out.npy", "--force", *extra)
        assert code == 0
        assert words in out.splitlines()[0]
        assert json.loads((tmp_path / "out.npy.json").read_text())["unit"] == unit


@pytest.mark.parametrize("name", sample_files.IMAGE_FILES)
@pytest.mark.parametrize("kind", ["mri", "ct"])
def test_every_format_of_images_is_simulated_and_scored(name, kind, run, tmp_path):
    source = sample_files.IMAGE_FILES[name](tmp_path / name)
    extra = ["--angles", 30, "--detectors", 40] if kind == "ct" else ["--acceleration", 2, "--center", 0.25]
    code, _, err = run(kind, source, tmp_path / "out.npy", "--simulate", "--data-noise", 0.01, *extra)
    assert code == 0, err
    document = json.loads((tmp_path / "out.npy.json").read_text())
    assert document["mean"]["psnr"] > 10
    assert np.load(tmp_path / "out.npy").shape[1:] == (sample_files.HEIGHT, sample_files.WIDTH)


@pytest.mark.parametrize("name", sample_files.SINOGRAM_FILES)
def test_every_format_of_sinograms_is_reconstructed(name, run, tmp_path):
    source = sample_files.SINOGRAM_FILES[name](tmp_path / name)
    code, _, err = run("ct", source, tmp_path / "out.npy", "--angles", 12, "--detectors", 23, "--size", 16)
    assert code == 0, err
    result = np.load(tmp_path / "out.npy")
    assert result.shape == (3, 16, 16)
    assert np.corrcoef(result.ravel(), sample_files.images()[:, 2:18].ravel())[0, 1] > 0.9


@pytest.mark.parametrize("name", ["out.npy", "out.h5", "out.nii", "out.nii.gz", "out.tif", "out"])
def test_every_output_holds_the_same_volume(name, run, tmp_path):
    source = sample_files.write_nifti(tmp_path / "v.nii.gz")
    run("mri", source, tmp_path / "reference.npy", "--simulate")
    code, out, err = run("mri", source, tmp_path / name, "--simulate")
    assert code == 0, err
    assert name in out.replace("\n", "")
    expected = torch.from_numpy(np.load(tmp_path / "reference.npy"))
    torch.testing.assert_close(images(tmp_path / name), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["out.png", "out.dcm"])
def test_one_slice_goes_into_a_picture_and_several_do_not(name, run, tmp_path):
    source = sample_files.write_nifti(tmp_path / "v.nii.gz")
    assert run("mri", source, tmp_path / name, "--simulate", "--slices", "1")[0] == 0
    assert images(tmp_path / name).shape == (1, sample_files.HEIGHT, sample_files.WIDTH)
    code, _, err = run("mri", source, tmp_path / f"all{name}", "--simulate")
    assert code == 2
    assert "can hold one slice, but there are 3" in " ".join(err.split())


def test_the_place_of_a_volume_is_kept_from_nifti_to_nifti_and_dicom(run, tmp_path):
    source = sample_files.write_nifti(tmp_path / "v.nii.gz")
    run("mri", source, tmp_path / "out.nii.gz", "--simulate", "--slices", "1:3")
    run("mri", source, tmp_path / "out", "--simulate", "--slices", "1:3")
    affine = nibabel.load(source).affine
    expected = affine.copy()
    expected[:3, 3] += affine[:3, 2]
    np.testing.assert_allclose(nibabel.load(tmp_path / "out.nii.gz").affine, expected, atol=1e-5)
    corners = [pydicom.dcmread(file).ImagePositionPatient for file in sorted((tmp_path / "out").iterdir())]
    for number, corner in enumerate(corners):
        place = expected @ [0, 0, number, 1]
        assert list(corner) == pytest.approx([-place[0], -place[1], place[2]])


def test_a_dicom_series_stays_with_its_patient_and_in_hounsfield_units(run, tmp_path):
    source = sample_files.write_dicom_series(tmp_path / "series")
    extra = ["--simulate", "--angles", 40, "--detectors", 40, "--data-noise", 0]
    assert run("ct", source, tmp_path / "out", *extra, steps=30)[0] == 0
    one = pydicom.dcmread(tmp_path / "out" / "0001.dcm")
    assert (one.PatientID, one.StudyInstanceUID, one.RescaleType) == ("7", "1.2.30", "HU")
    assert one.SeriesInstanceUID != "1.2.31"
    assert float((images(tmp_path / "out") - images(source)).abs().mean()) < 100


def test_the_unit_of_kspace_is_that_of_the_result(run, tmp_path):
    small = sample_files.write_npy(tmp_path / "small.npy", 1e-5 * sample_files.single_coil())
    large = sample_files.write_npy(tmp_path / "large.npy", 1e3 * sample_files.single_coil())
    for source in (small, large):
        assert run("mri", source, f"{source}.out.npy")[0] == 0
    np.testing.assert_allclose(np.load(f"{large}.out.npy"), 1e8 * np.load(f"{small}.out.npy"), rtol=1e-3, atol=1)


def test_the_certificate_says_what_was_done_and_what_is_proven(run, net, tmp_path):
    source = sample_files.write_fastmri(tmp_path / "k.h5", maps=True)
    code, out, _ = run(
        "mri", source, tmp_path / "out.npy", "--acceleration", 2, "--center", 0.3, "--json", "--beta", 0.4
    )
    assert code == 0
    document = json.loads(out)
    assert document == json.loads((tmp_path / "out.npy.json").read_text())
    assert document["guaranteed"] is True
    assert document["weight"] == {"value": 0.4, "chosen": "given"}
    assert document["prior"]["certificate"] <= 1
    assert document["options"]["acceleration"] == 2
    assert [entry["slice"] for entry in document["slices"]] == [0, 1, 2]
    estimate = document["slices"][0]["certificate"]["estimates"][0]
    assert (estimate["label"], estimate["constant"]) == ("eq:EstForward", 1.0)


def test_the_score_is_that_of_the_written_image_against_the_images(run, tmp_path):
    source = sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    run("mri", source, tmp_path / "out.npy", "--simulate", "--slices", "2")
    document = json.loads((tmp_path / "out.npy.json").read_text())
    truth = torch.from_numpy(sample_files.images()[2:])[None]
    result = torch.from_numpy(np.load(tmp_path / "out.npy"))[None]
    assert document["mean"]["psnr"] == pytest.approx(float(psnr(result / truth.max(), truth / truth.max())), abs=1e-4)
    assert document["slices"][0]["slice"] == 2


def test_a_mask_and_maps_can_be_given_as_files(run, tmp_path):
    kspace = sample_files.write_npy(tmp_path / "k.npy", sample_files.multi_coil())
    mask = sample_files.write_npy(tmp_path / "mask.npy", sample_files.columns_mask())
    maps = sample_files.write_npy(tmp_path / "maps.npy", sample_files.coil_maps())
    code, _, err = run("mri", kspace, tmp_path / "out.npy", "--mask", mask, "--coils", maps)
    assert code == 0, err
    assert json.loads((tmp_path / "out.npy.json").read_text())["mean"]["psnr"] > 15
    angles = sample_files.write_npy(tmp_path / "angles.npy", np.arange(12) * np.pi / 12)
    sinogram = sample_files.write_npy(tmp_path / "s.npy", sample_files.sinograms())
    assert run("ct", sinogram, tmp_path / "ct.npy", "--angles", angles)[0] == 0


def test_a_report_is_written_beside_the_image(run, tmp_path):
    source = sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    code, out, err = run("mri", source, tmp_path / "out.npy", "--simulate", "--report")
    assert code == 0, err
    page = (tmp_path / "out.npy.html").read_text()
    assert "Zero-filled" in page
    assert "out.npy.html" in out.replace("\n", "")


# Outputs


def test_results_are_replaced_with_force_only_and_nothing_else_ever(run, tmp_path):
    source = sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    for name in ("out.npy", "out.npy.json"):
        (tmp_path / name).write_text("mine")
        for force in ([], ["--force"]):
            code, _, err = run("mri", source, tmp_path / "out.npy", "--simulate", *force)
            assert code == 2
            assert "lipspline did not write it" in " ".join(err.split())
            assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    assert run("mri", source, tmp_path / "out.npy", "--simulate")[0] == 0
    code, _, err = run("mri", source, tmp_path / "out.npy", "--simulate")
    assert code == 2
    assert "exists already. Choose another name, or replace it with --force." in " ".join(err.split())
    assert run("mri", source, tmp_path / "out.npy", "--simulate", "--force", "--slices", "1")[0] == 0
    assert np.load(tmp_path / "out.npy").shape == (1, *sample_files.images().shape[1:])


def test_a_folder_with_notes_and_the_measurement_itself_are_never_touched(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("precious").mkdir()
    Path("precious/notes.txt").write_text("a")
    source = sample_files.write_npy(Path("precious/k.npy"), sample_files.single_coil())
    Path("soft.npy").symlink_to(source)
    Path("hard.npy").hardlink_to(source)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for output in ("precious", "precious/k.npy", "soft.npy", "hard.npy", ".", "..", str(tmp_path), "precious/.."):
        code, _, err = run("mri", source, output, "--force")
        assert (code, err.startswith("lipspline: ")) == (2, True), output
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, output
    mask = sample_files.write_npy(Path("mask.npy"), sample_files.columns_mask())
    code, _, err = run("mri", source, mask, "--mask", mask, "--force")
    assert (code, "is the input mask.npy" in err) == (2, True)


def test_nothing_but_the_outputs_is_left(run, tmp_path):
    source = sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    run("mri", source, tmp_path / "out" / "o.npy", "--simulate")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["o.npy", "o.npy.json"]


def test_a_run_that_fails_leaves_no_output_but_what_it_needs_to_go_on(run, tmp_path, monkeypatch):
    from lipspline.imaging import reconstruction as pipeline

    volume = sample_files.images()
    source = sample_files.write_npy(tmp_path / "v.npy", volume)
    solve, calls = pipeline.solve_problem, []

    def stop_at_the_second(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise OSError("No space left on device")
        return solve(*arguments, **options)

    monkeypatch.setattr(pipeline, "solve_problem", stop_at_the_second)
    code, _, err = run("mri", source, tmp_path / "out.npy", "--simulate")
    assert (code, err.strip()) == (2, "lipspline: No space left on device")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy.parts", "v.npy"]
    assert run("mri", source, tmp_path / "out.npy", "--simulate")[0] == 0
    assert len(calls) == 2 + 2  # the first slice was kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "out.npy.json", "v.npy"]


def test_parts_of_an_input_that_has_changed_are_not_used(run, tmp_path, monkeypatch):
    source = sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    options, ramp = ("--simulate", "--acceleration", 1.5, "--center", 0.5), np.linspace(0, 1, 16, dtype=np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(Output, "commit", lambda *_: (_ for _ in ()).throw(OSError("unplugged")))
        assert run("mri", source, tmp_path / "out.npy", *options)[0] == 2
    assert len(list((tmp_path / "out.npy.parts").glob("slice-*"))) == 3
    sample_files.write_npy(source, sample_files.images() * ramp)
    os.utime(source, ns=(1, 1))
    assert run("mri", source, tmp_path / "out.npy", *options)[0] == 0
    expected = sample_files.images() * ramp
    assert np.corrcoef(np.load(tmp_path / "out.npy").ravel(), expected.ravel())[0, 1] > 0.9


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("mri", "v.npy", "o.npy"),
            "holds images, not k-space, which is complex. To measure and reconstruct them give --simulate",
        ),
        (("mri", "k.npy", "o.npy", "--simulate"), "holds k-space already"),
        (("mri", "nothing.h5", "o.npy"), "There is no HDF5 file"),
        (("mri", "k.npy", "o.bmp"), "not in a known format"),
        (("mri", "k.npy", "o.jpg"), "is not written: JPEG changes the pixels. Name it o.png"),
        (("mri", "k.npy", "o.npy", "--slices", "9:12"), "has 3 slice(s)"),
        (("mri", "k.npy", "o.npy", "--slices", "a"), "--slices must be first:last"),
        (("mri", "k.npy", "o.npy", "--beta", "2"), "beta must lie strictly between 0 and 1"),
        (("mri", "k.npy", "o.npy", "--beta", "much"), "--beta must be auto or a number"),
        (("mri", "k.npy", "o.npy", "--mask", "m.npy", "--acceleration", "4"), "Give one of them"),
        (("mri", "k.npy", "o.npy", "--mask", "v.npy"), "The mask has shape"),
        (("mri", "k.npy", "o.npy", "--coils", "v.npy"), "does not hold complex coil maps"),
        (("mri", "k.npy", "o.npy", "--acceleration", "0.5"), "acceleration must be at least 1, but is 0.5"),
        (("mri", "k.npy", "o.npy", "--tol", "0"), "tol"),
        (("ct", "v.npy", "o.npy", "--angles", "5"), "has 20 rows, but 5 angles are given"),
        (("ct", "v.npy", "o.npy", "--detectors", "5"), "holds 16 detectors, not 5"),
        (("ct", "v.npy", "o.npy", "--data-noise", "1"), "--data-noise is for simulated data. Give --simulate too"),
        (("ct", "v.npy", "o.npy", "--simulate", "--size", "8"), "Leave out --size, or --simulate"),
        (("ct", "v.npy", "o.npy", "--simulate", "--angles", "1", "--detectors", "2"), "Use more"),
        (("mri", "v.npy", "o.npy", "--simulate", "--data-noise", "1e300"), "data-noise must lie between 0 and 1e+06"),
        (("mri", "v.npy", "o.npy", "--simulate", "--data-noise", "nan"), "data-noise must lie between"),
        (("mri", "v.npy", "o.npy", "--simulate", "--center", "nan"), "center must lie between 0 and 1, but is nan"),
        (("mri", "k.npy", "n" * 246 + ".npy"), "shorten it by 1"),
        (("ct", "v.npy", "o.npy", "--simulate", "--data-noise", "1e300"), "data-noise must lie between 0 and 1e+06"),
        (("ct", "v.npy", "o.npy", "--spacing", "inf"), "spacing must be a positive finite number, but is inf"),
        (("ct", "v.npy", "o.npy", "--spacing", "nan"), "spacing must be a positive finite number, but is nan"),
        (("ct", "v.npy", "o.npy", "--spacing", "1e300"), "the image would be 1.6e+301 pixels wide"),
        (("ct", "v.npy", "o.npy", "--axis", "left"), "--axis must be auto, middle or a detector, but is 'left'"),
        (("ct", "v.npy", "o.npy", "--source-origin", "9"), "Give both --source-origin and --source-detector"),
        (("ct", "v.npy", "o.npy", "--convention", "matlab"), "convention must be one of 'plain', 'scikit-image'"),
        (("ct", "v.npy", "o.npy", "--files", "volumes"), "files must be one of 'sinograms', 'projections'"),
        (("ct", "v.npy", "o.npy", "--dark", "v.npy"), "Give --flat FILE"),
        (("ct", "v.npy", "o.npy", "--water", "0.02"), "or --pixel-size 1 if --water is per pixel"),
        (("ct", "v.npy", "o.npy", "--every", "0"), "every must be at least 1"),
        (("ct", "t.npy", "o.npy"), "The sinogram may be turned (give --convention scikit-image for"),
        (("ct", "k.npy", "o.npy"), "is complex, but real numbers are wanted"),
        (("ct", "v.npy", "o.npy", "--angles", "gone.npy"), "There is no numpy file"),
    ],
)
def test_every_mistake_is_one_sentence_and_exit_code_2(arguments, message, net, tmp_path, monkeypatch, capsys):
    sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    sample_files.write_npy(tmp_path / "k.npy", sample_files.single_coil())
    sample_files.write_npy(tmp_path / "m.npy", sample_files.columns_mask())
    sample_files.write_npy(tmp_path / "t.npy", sample_files.sinograms()[0].T)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lipspline", "reconstruct", *arguments, "--model", str(net)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("lipspline: ")
    assert message in " ".join(err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.npy", "m.npy", "t.npy", "v.npy"]


EMPTY = {
    "measured": lambda path, volume: sample_files.write_npy(path, sample_files.centred_fft(volume)),
    "simulated": sample_files.write_npy,
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_slice_is_skipped_with_a_note(kind, run, tmp_path):
    """Also if it is the middle one, which the strength is chosen from."""
    volume = sample_files.images()
    volume[1] = 0
    source = EMPTY[kind](tmp_path / "v.npy", volume)
    extra = ["--simulate"] if kind == "simulated" else []
    code, out, err = run("mri", source, tmp_path / "out.npy", "--json", *extra)
    assert code == 0, err
    assert "slice(s) 1 are empty" in " ".join(err.split())
    result, entries = np.load(tmp_path / "out.npy"), json.loads(out)["slices"]
    assert not result[1].any()
    assert result[0].any()
    assert [entry.get("empty", False) for entry in entries] == [False, True, False]
    assert "certificate" not in entries[1]
    code, _, err = run("mri", source, tmp_path / "none.npy", "--slices", "1", *extra)
    assert (code, "empty" in err or "zero everywhere" in err) == (2, True)


def test_an_empty_sinogram_is_skipped_with_a_note(run, tmp_path):
    sinograms = sample_files.sinograms()
    sinograms[2] = 0
    source = sample_files.write_npy(tmp_path / "s.npy", sinograms)
    code, _, err = run("ct", source, tmp_path / "out", "--report")
    assert code == 0, err
    assert "slice(s) 2 are empty" in " ".join(err.split())
    assert float(images(tmp_path / "out")[2].abs().max()) < 1e-5  # 16 bits


def test_a_noise_level_that_was_meant_as_a_part_of_the_brightness_is_told(run, tmp_path):
    source = sample_files.write_npy(tmp_path / "s.npy", sample_files.sinograms())
    code, _, err = run("ct", source, tmp_path / "out.npy", "--noise", "0.08")
    assert code == 0, err
    assert "If it was meant as a part of the brightness, give --noise 20.4." in " ".join(err.split())


def test_a_terminal_without_greek_letters_gets_words(net, tmp_path):
    source = sample_files.write_npy(tmp_path / "k.npy", sample_files.single_coil())
    order = [sys.executable, "-m", "lipspline", "reconstruct", "mri", source, tmp_path / "ö.npy", "--model", net]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([*map(str, order), "--max-steps", "3"], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"beta" in done.stdout
    assert (tmp_path / "ö.npy.json").exists()


def test_numbers_and_slices_are_parsed():
    assert (parse_number("--beta", "auto"), parse_number("--beta", "0.25")) == ("auto", 0.25)
    assert (parse_slices("3:"), parse_slices(":4")) == (slice(3, None), slice(None, 4))
    for text in ("", "1:2:3", "-1", "1.5"):
        with pytest.raises(ValueError, match="must be first:last"):
            parse_slices(text)


# Real processes and real data


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, to count system calls")
@pytest.mark.parametrize("name", ["out.npy", "out.nii.gz", "out"])
def test_a_process_killed_at_any_system_call_that_writes_is_finished_by_the_same_command(name):
    """A file, a volume and a folder, new and replaced: each call by its number; `make faults` does all formats."""
    script = Path(__file__).parents[1] / "faults.py"
    done = subprocess.run([sys.executable, script, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = [int(count) for count in re.findall(r"^(\d+) kills of", done.stdout, flags=re.MULTILINE)]
    assert len(kills) == 2
    assert min(kills) > 20


@pytest.mark.slow
def test_under_torchrun_the_slices_are_shared_out_and_the_result_is_the_same(net, run, tmp_path):
    source = sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    assert run("mri", source, tmp_path / "one.npy", "--simulate")[0] == 0
    order = ["reconstruct", "mri", source, tmp_path / "two.npy", "--simulate", "--json"]
    options = ["--model", net, "--max-steps", 3, "--tol", "1e-3"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "lipspline"]
    result = subprocess.run([*map(str, [*launcher, *order, *options])], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["slices"]) == 3
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))


REAL = {
    "knees": ("mri", "mri/knee_stanford.h5", "--simulate", "--slices", "7"),
    "brain": ("mri", "mri/brain_mprage_4ch.h5", "--acceleration", "3"),
    "brain by ESPIRiT": ("mri", "mri/brain_mprage_4ch.h5", "--acceleration", "3", "--coils", "espirit"),
    "head": ("mri", "mri/brain_vsseg.nii.gz", "--simulate", "--slices", "4"),
    "torso": ("ct", "ct/torso_acrin.nii.gz", "--simulate", "--slices", "60", "--angles", "60"),
    "abdomen": ("ct", "ct/upper_abdomen_nlst", "--simulate", "--slices", "3", "--angles", "60"),
}


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("case", REAL)
def test_the_real_files_are_reconstructed(case, run, tmp_path):
    kind, source, *extra = REAL[case]
    code, _, err = run(kind, DATA / source, tmp_path / "out.nii.gz", *extra)
    assert code == 0, err
    document = json.loads((tmp_path / "out.nii.gz.json").read_text())
    assert document["guaranteed"]
    assert document["mean"]["psnr"] > 20


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tooth_aps.h5", "htc2022_tb_90degrees.mat"])
def test_measured_ct_needs_no_number_given_by_hand(name, tmp_path):
    """Counts of a tooth, whose axis of rotation is near detector 296; a disc seen by a fan over 90 degrees."""
    order = ["reconstruct", "ct", str(DATA / "ct" / "measured" / name), str(tmp_path / "out.nii.gz")]
    done = subprocess.run([sys.executable, "-m", "lipspline", *order], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "out.nii.gz.json").read_text())
    assert document["guaranteed"]
    assert document["misfit_explained"]
    if name.startswith("tooth"):
        assert "axis of rotation at detector 29" in document["scan"]
    else:
        assert "fan beam" in document["scan"]


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("case", ["knees", "brain by ESPIRiT", "torso"])
def test_real_scans_gain_by_the_denoiser_that_ships(case, tmp_path):
    kind, source, *extra = REAL[case]
    order = ["reconstruct", kind, str(DATA / source), str(tmp_path / "out.nii.gz"), *extra]
    done = subprocess.run([sys.executable, "-m", "lipspline", *order], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "out.nii.gz.json").read_text())
    assert document["mean"]["psnr"] > document["mean_direct"]["psnr"] + 2


def test_what_the_data_leave_open_is_said_in_terminal_certificate_and_page(run, tmp_path):
    np.save(tmp_path / "angles.npy", np.linspace(0, np.pi / 2, 12, endpoint=False))
    source = sample_files.write_npy(tmp_path / "sino.npy", sample_files.sinograms()[:1])
    code, _, err = run("ct", source, tmp_path / "out.npy", "--angles", tmp_path / "angles.npy", "--report")
    assert code == 0
    note = json.loads((tmp_path / "out.npy.json").read_text())["notes"][0]
    assert note.startswith("The angles cover 90 of the 180 degrees")
    assert note in err.replace("\n", " ")
    assert note in (tmp_path / "out.npy.html").read_text()


def test_a_measured_reference_has_scores_within_the_object_in_terminal_and_certificate(run, tmp_path):
    source = sample_files.write_fastmri(tmp_path / "k.h5", coils=False)
    code, out, err = run("mri", source, tmp_path / "out.npy")
    assert code == 0
    assert "within the object SSIM" in out
    document = json.loads((tmp_path / "out.npy.json").read_text())
    assert "The reference was measured" in document["notes"][0]
    assert document["notes"][0] in err
    assert set(document["mean"]) == {"psnr", "ssim", "psnr_object", "ssim_object"}


class Seen:
    """What would be drawn."""

    def __init__(self):
        self.lines = []

    def show(self, key, done, total=1.0, *, label="", note="", left=None):
        self.lines.append((done, total, note, left))


def test_the_display_names_the_prior_and_the_trial_and_promises_no_time_it_does_not_know():
    seen = Seen()
    shown = SliceDisplay(seen, slices=1, first=5, rivals=2)
    carry_out(
        Request(
            data=sample_files.centred_fft(np.kron(sample_files.images()[:1], np.ones((1, 3, 4)))),
            acquisition=ScannerMRI(),
            prior="tv",
            compare=("tv", "ridge"),
            max_steps=5,
        ),
        watch=shown.step,
        tell=shown.tell,
    )
    notes = [note for _, _, note, _ in seen.lines]
    assert notes[0] == "0/1, prior 1 of 3, choosing the strength"
    assert "0/1, prior 1 of 3, choosing the strength, trial 2 of at most 6" in notes
    assert any(note.startswith("0/1, prior 1 of 3, slice 5: 1 steps, residual") for note in notes)
    assert any(note.startswith("1/1, prior 3 of 3, predicting what is held out, slice 5: 1 steps") for note in notes)
    assert any(note.startswith("1/1, prior 3 of 3, slice 5: ") for note in notes)
    assert all(left == math.inf for *_, left in seen.lines)
    assert all(done < total for done, total, _, _ in seen.lines)


def test_without_other_priors_the_trial_is_shown_alone():
    seen = Seen()
    shown = SliceDisplay(seen, slices=2, first=0, rivals=0)
    shown.tell(1, 1, "choosing the strength, trial 2 of at most 6")
    assert seen.lines[-1] == (0, 2, "0/2, choosing the strength, trial 2 of at most 6", None)


def test_a_run_that_is_stopped_after_the_last_slice_has_no_others_to_do(tmp_path):
    parts = tmp_path / "o.npy.parts"
    parts.mkdir()
    for number in range(2):
        (parts / f"slice-{number:05d}.safetensors").touch()
    assert "The same command does the others and writes" in interrupted(Output(tmp_path / "o.npy"), 3)
    said = interrupted(Output(tmp_path / "o.npy"), 2)
    assert said.startswith("2 of 2 slice(s) are finished")
    assert "The same command does what is left besides, and writes" in said


def test_an_axis_beside_the_middle_is_said_with_the_flags_that_help(run, tmp_path):
    across, angles = np.arange(32.0), np.linspace(0, np.pi, 40, endpoint=False)[:, None]
    np.save(tmp_path / "s.npy", np.sqrt(np.clip(64 - (across - 16 - 3 * np.cos(angles)) ** 2, 0, None)))
    code, _, errors = run("ct", tmp_path / "s.npy", tmp_path / "o.npy")
    assert code == 0
    assert "Give --axis auto, or --convention scikit-image" in errors
