"""The authors' own folders of tensors."""

import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import mri, tensor_folder
from lipspline.formats.guard import FileError
from lipspline.formats.kspace import Kspace


def test_a_folder_becomes_centred_kspace_of_a_real_image(tmp_path):
    found = mri.read(sample_files.write_tensor_folder(tmp_path / "image"))
    assert isinstance(found, Kspace)
    expected = sample_files.multi_coil()[:1] * sample_files.columns_mask()
    np.testing.assert_allclose(found.data.numpy(), expected, atol=1e-6)
    assert np.array_equal(found.mask.numpy(), sample_files.columns_mask())
    assert found.real
    assert found.crop == (16, 16)
    assert found.reference is not None
    assert np.array_equal(found.reference.numpy(), sample_files.images()[:1, 2:18])


def test_files_that_would_run_code_are_refused(tmp_path):
    folder = sample_files.write_tensor_folder(tmp_path / "image")

    class Code:
        def __reduce__(self):
            return print, ("code ran",)

    torch.save(Code(), folder / "y.pt")
    with pytest.raises(FileError, match=r"y\.pt is damaged"):
        tensor_folder.read(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y.pt", torch.ones(4, 4), r"shape \(1, C, H, W\)"),
        ("y.pt", {"a": 1}, r"shape \(1, C, H, W\)"),
        ("y.pt", torch.full((1, 1, 4, 4), torch.nan), "NaN"),
        ("y.pt", torch.ones(1).expand(1, 10**5, 10**5, 10**3), "GB"),
        ("smaps.pt", torch.ones(1, 3, 4, 4, dtype=torch.complex64), "smaps.pt has shape"),
    ],
)
def test_wrong_tensors_are_one_sentence(name, value, message, tmp_path):
    folder = sample_files.write_tensor_folder(tmp_path / "image")
    torch.save(value, folder / name)
    with pytest.raises(FileError, match=message):
        tensor_folder.read(folder)


def test_torchs_old_format_is_refused(tmp_path):
    folder = sample_files.write_tensor_folder(tmp_path / "image")
    torch.save(torch.ones(1, 1, 4, 4), folder / "y.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(FileError, match=r"y\.pt is damaged"):
        tensor_folder.read(folder)
