"""A reduced fuzz run in this process: some damaged files of every format; `make fuzz` damages thousands."""

import pytest

import fuzz
import sample_files

ROUNDS, READS = 1, 240
MRI = "reconstruct mri {file} {out}"


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory):
    return sample_files.write_denoiser(tmp_path_factory.mktemp("net") / "denoiser.safetensors")


def test_damaged_files_are_refused_in_one_sentence_or_make_sense(denoiser, tmp_path):
    count = ROUNDS * len(fuzz.sound_files(tmp_path / "counted"))
    complaints = {
        path.name: text
        for command, path in fuzz.damaged_files(tmp_path, count, seed=7)
        if (text := fuzz.complaint(command, path, denoiser))
    }
    assert complaints == {}


def test_readers_refuse_damaged_files_in_one_sentence_or_make_sense_of_them(tmp_path):
    complaints = {
        path.name: text
        for command, path in fuzz.damaged_files(tmp_path, READS, seed=8)
        if (text := fuzz.complaint_about_reader(command, path))
    }
    assert complaints == {}


def test_a_reader_that_lets_something_through_is_noticed(tmp_path, monkeypatch):
    """Proof that the test above can fail."""
    from lipspline.formats import mri

    path = sample_files.MRI_FILES["kspace.npy"](tmp_path / "kspace.npy")
    monkeypatch.setattr(mri, "read_scan", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in fuzz.complaint_about_reader(MRI, path)

    def refused(*_):
        raise ValueError("first\nsecond, and more")

    monkeypatch.setattr(mri, "read_scan", refused)
    assert "not one sentence" in fuzz.complaint_about_reader(MRI, path)


def test_sound_files_pass(denoiser, tmp_path):
    for command, path in fuzz.sound_files(tmp_path):
        assert fuzz.complaint(command, path, denoiser) == "", path.name


def test_a_program_that_loses_its_temper_is_noticed(denoiser, tmp_path, monkeypatch):
    """Proof that the test above can fail."""
    from lipspline.formats import mri

    path = sample_files.MRI_FILES["kspace.npy"](tmp_path / "kspace.npy")
    monkeypatch.setattr(mri, "read_scan", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in fuzz.complaint(MRI, path, denoiser)

    def interrupted(*_, **__):
        raise OSError("first\n" + 999 * "x")

    monkeypatch.setattr(mri, "read_scan", interrupted)
    assert "not one sentence" in fuzz.complaint(MRI, path, denoiser)


def test_a_process_that_dies_is_the_complaint_of_its_last_file():
    output = "FILE a\nSAYS ''\nFILE b\nSAYS 'odd'\nFILE c\n"
    assert list(fuzz.verdicts(output, -11)) == [("a", ""), ("b", "odd"), ("c", "the process ended with code -11")]
