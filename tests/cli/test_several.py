"""Several scans by one command: a folder, or a pattern, of raw data."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import sample_files
from lipspline import cli
from lipspline.cli.several import inspected, scans


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return sample_files.write_denoiser(tmp_path_factory.mktemp("net") / "net.safetensors")


@pytest.fixture
def run(net, monkeypatch, capsys):
    """Run `reconstruct mri` as a shell would; returns exit code and stderr."""

    def call(*arguments: object, tol: str = "1e-3") -> tuple[int, str]:
        options = ["--model", net, "--max-steps", 3, "--tol", tol]
        monkeypatch.setattr("sys.argv", ["lipspline", "reconstruct", "mri", *map(str, [*arguments, *options])])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr().err

    return call


@pytest.fixture
def folder(tmp_path):
    """Three scans of three formats, and what is no scan."""
    raw = tmp_path / "raw"
    raw.mkdir()
    sample_files.write_fastmri(raw / "b.h5")
    sample_files.write_bart(raw / "c.cfl")
    np.save(raw / "a.npy", sample_files.multi_coil())
    (raw / "notes.txt").write_text("three scans")
    return raw


def test_a_folder_of_raw_data_stands_for_its_scans(folder):
    assert [path.name for path in scans(folder)] == ["a.npy", "b.h5", "c.cfl"]
    assert [path.name for path in scans(folder / "[bc].*")] == ["b.h5", "c.cfl"]
    assert scans(folder / "b.h5") == []


def test_every_scan_gives_the_image_that_it_gives_alone(folder, run, tmp_path):
    code, err = run(folder, tmp_path / "out" / "*.npy")
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "out").glob("*.npy")) == ["a.npy", "b.npy", "c.npy"]
    assert "2 of 3" in err
    for name in ("a.npy", "b.h5", "c.cfl"):
        assert run(folder / name, tmp_path / "alone.npy", "--force")[0] == 0
        together = np.load(tmp_path / "out" / f"{name[0]}.npy")
        assert np.array_equal(together, np.load(tmp_path / "alone.npy"))


def test_the_same_command_goes_on_and_another_does_not_replace(folder, run, tmp_path):
    shutil.move(folder / "b.h5", tmp_path / "later.h5")
    assert run(folder, tmp_path / "*.nii")[0] == 0
    before = (tmp_path / "a.nii").stat().st_mtime_ns
    shutil.move(tmp_path / "later.h5", folder / "b.h5")
    code, err = run(folder, tmp_path / "*.nii")
    assert code == 0
    assert err.count("was made by the same command, and is kept") == 2
    assert (tmp_path / "b.nii").exists()
    assert (tmp_path / "a.nii").stat().st_mtime_ns == before
    code, err = run(folder, tmp_path / "*.nii", tol="1e-2")
    assert code == 2
    assert "3 of 3 files were not reconstructed: a.npy, b.h5, c.cfl." in err
    np.save(folder / "a.npy", 2 * sample_files.multi_coil())
    code, err = run(folder, tmp_path / "*.nii")
    assert code == 2, "the scan has changed, so its old image is not kept in silence"
    assert "1 of 3 files were not reconstructed: a.npy." in err
    assert run(folder, tmp_path / "*.nii", "--force")[0] == 0


def test_what_is_wrong_with_one_file_does_not_stop_the_others(folder, run, tmp_path):
    (folder / "b.h5").write_bytes(b"nothing")
    code, err = run(folder / "*", tmp_path / "*.npy")
    assert code == 2
    assert "b.h5 is damaged, or not a HDF5 file" in err
    assert "notes.txt is not in a known format" in err
    assert "2 of 4 files were not reconstructed: b.h5, notes.txt." in err
    assert "2 reconstructed, 0 kept from before, 2 failed." in err
    assert (tmp_path / "c.npy").exists()


def test_several_scans_need_several_names(folder, run, tmp_path, monkeypatch):
    code, err = run(folder, tmp_path / "out.npy")
    assert code == 2
    assert "stands for 3 file(s), so OUT needs a star for their names" in err
    assert run(folder / "*.dat", tmp_path / "*.npy") == (2, f"lipspline: No file is called like {folder}/*.dat.\n")
    np.save(folder / "b.npy", sample_files.multi_coil())
    assert f"b.h5 and b.npy would both become {tmp_path / 'b.npy'}" in run(folder, tmp_path / "*.npy")[1]
    (folder / "b.npy").unlink()
    assert "leave out --json" in run(folder, tmp_path / "*.npy", "--json")[1]
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    assert "under torchrun name one of them" in run(folder, tmp_path / "*.npy")[1]
    monkeypatch.delitem(os.environ, "WORLD_SIZE")
    (folder / "z.dcm").write_bytes(b"")
    assert "holds raw data, such as a.npy, and DICOM images, such as z.dcm" in run(folder, tmp_path / "*.npy")[1]


def test_inspect_looks_at_each_scan_of_a_folder(folder):
    document, words, recognised = inspected(folder)
    assert [Path(one["input"]).name for one in document["scans"]] == [path.name for path in scans(folder)]
    assert recognised
    assert words.count("k-space of") == len(document["scans"])
    alone, _, recognised = inspected(scans(folder)[0])
    assert recognised
    assert alone == document["scans"][0]
