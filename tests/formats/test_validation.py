"""Validation: nothing too large is read, and every failure is one sentence that names the file."""

import logging
import warnings

import pytest

from lipspline.formats import validation


def test_the_size_of_an_array_is_that_of_its_values(tmp_path):
    assert validation.affordable(tmp_path, (3, 5), 8) == 120


def test_the_largest_array_is_allowed_and_the_next_is_not(tmp_path):
    assert validation.affordable(tmp_path, (validation.LIMIT // 8,), 8) == validation.LIMIT
    with pytest.raises(validation.FileError, match=r"claims an array of 134217729 values.*; .*choose fewer slices"):
        validation.affordable(tmp_path, (validation.LIMIT // 8 + 1,), 8)


@pytest.mark.parametrize("shape", [(), (3, 0), (4, -1)])
def test_an_empty_array_is_refused(shape, tmp_path):
    with pytest.raises(validation.FileError, match="it is empty"):
        validation.affordable(tmp_path, shape, 4)


def test_slices_are_counted_as_python_counts(tmp_path):
    assert validation.chosen(tmp_path, 9, slice(3, 5)) == range(3, 5)
    assert validation.chosen(tmp_path, 9, slice(None)) == range(9)
    with pytest.raises(validation.FileError, match=r"has 9 slice\(s\), numbered from 0, and none"):
        validation.chosen(tmp_path, 9, slice(9, 12))
    with pytest.raises(ValueError, match="neighbours"):
        validation.chosen(tmp_path, 9, slice(None, None, 2))


def test_a_crash_or_a_hang_of_a_library_is_an_error_like_others(tmp_path, monkeypatch):
    path = tmp_path / "x.mat"
    assert validation.survivable(path, "MATLAB", "raise SystemExit(1)") == path  # the reader itself says it better
    with pytest.raises(validation.FileError, match=r"x.mat is damaged.*crashes or does not end"):
        validation.survivable(path, "MATLAB", "import os; os.abort()")
    monkeypatch.setattr(validation, "PATIENCE", 0.2)
    with pytest.raises(validation.FileError, match=r"x.mat is damaged.*crashes or does not end"):
        validation.survivable(path, "MATLAB", "while True: pass")


def test_what_a_library_raises_becomes_one_line_that_names_the_file(tmp_path):
    with pytest.raises(validation.FileError) as caught, validation.reading(tmp_path / "x.h5", "HDF5"):
        raise KeyError("first line\n  second line " + 300 * "x")
    assert "\n" not in str(caught.value)
    assert "x.h5 is damaged, or not a HDF5 file" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_our_own_sentences_and_missing_packages_pass_through(tmp_path):
    for error in (validation.FileError("own words"), ImportError("install it")):
        with pytest.raises(type(error), match=str(error)), validation.reading(tmp_path, "HDF5"):
            raise error


def test_libraries_neither_warn_nor_log_while_reading(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with validation.reading(tmp_path, "TIFF"):
            warnings.warn("odd tag", UserWarning, stacklevel=1)
            logging.getLogger("tifffile").error("odd page")
    assert capsys.readouterr().err == ""
    assert logging.root.manager.disable == 0


def test_a_missing_and_an_empty_file_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no NIfTI file"):
        validation.existing(tmp_path / "no.nii", "NIfTI")
    (tmp_path / "empty.nii").touch()
    with pytest.raises(validation.FileError, match="is empty"):
        validation.existing(tmp_path / "empty.nii", "NIfTI")
