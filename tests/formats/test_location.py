"""The data folder: named by the user, and missing data explained."""

import pytest

from lipspline.formats.location import DATASETS, data_dir, locate


def test_the_option_wins_over_the_environment(tmp_path, monkeypatch):
    for name in ("option", "variable"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("LIPSPLINE_DATA", str(tmp_path / "variable"))
    assert data_dir() == tmp_path / "variable"
    assert data_dir(tmp_path / "option") == tmp_path / "option"


def test_without_a_folder_the_error_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv("LIPSPLINE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="Give --data DIR or set LIPSPLINE_DATA=DIR"):
        data_dir()


def test_a_folder_that_does_not_exist_is_named_with_its_source(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nowhere \(--data\) does not exist"):
        data_dir(tmp_path / "nowhere")
    monkeypatch.setenv("LIPSPLINE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"nowhere \(LIPSPLINE_DATA\) does not exist"):
        data_dir()


@pytest.mark.parametrize("name", DATASETS)
def test_a_missing_dataset_says_its_layout_and_origin(tmp_path, name):
    with pytest.raises(FileNotFoundError) as error:
        locate(name, tmp_path)
    assert DATASETS[name].layout in str(error.value)
    assert DATASETS[name].origin in str(error.value)
    assert str(tmp_path / DATASETS[name].folder) in str(error.value)


def test_a_dataset_that_is_there_is_found(tmp_path):
    (tmp_path / "bsd" / "set12").mkdir(parents=True)
    assert locate("set12", tmp_path) == tmp_path / "bsd" / "set12"


def test_an_unknown_dataset_prints_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="dataset must be one of 'train400', 'bsd68'"):
        locate("imagenet", tmp_path)
