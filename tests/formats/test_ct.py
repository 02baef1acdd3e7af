"""CT: Hounsfield units, attenuation, sinograms and angles."""

import os
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch

import sample_files
from lipspline.formats import ct
from lipspline.formats.validation import FileError

DATA = Path(os.environ.get("LIPSPLINE_DATA", "/nonexistent")) / "ct"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="LIPSPLINE_DATA names no folder with ct/")


def test_nifti_is_taken_as_hounsfield_units(tmp_path):
    volume = ct.read(sample_files.write_nifti(tmp_path / "v.nii.gz", unit="hounsfield"))
    assert volume.unit == "hounsfield"
    assert np.array_equal(volume.slices.numpy(), np.rint(1000 * sample_files.images() - 1000))


def test_attenuation_and_hounsfield_units_undo_each_other_above_air():
    values = torch.tensor([-1000.0, -350.0, 0.0, 2000.0])
    torch.testing.assert_close(ct.hounsfield(ct.attenuation(values)), values)
    assert ct.attenuation(torch.tensor([-1000.0, 0.0, 1000.0])).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", sample_files.SINOGRAM_FILES)
def test_every_format_of_sinograms_is_read(name, tmp_path):
    path = sample_files.SINOGRAM_FILES[name](tmp_path / name)
    found = ct.read_sinograms(path)
    np.testing.assert_allclose(found.data.numpy(), sample_files.sinograms())
    np.testing.assert_allclose(ct.read_sinograms(path, slice(1, 2)).data.numpy(), sample_files.sinograms()[1:2])
    assert (found.angles is not None) == name.endswith("npz")


def test_one_sinogram_is_a_stack_of_one(tmp_path):
    path = sample_files.write_npy(tmp_path / "s.npy", sample_files.sinograms()[0])
    assert ct.read_sinograms(path).data.shape == (1, 12, 23)


def test_degrees_are_refused(tmp_path):
    path = sample_files.write_npy(tmp_path / "a.npy", np.arange(0, 180, 15.0))
    with pytest.raises(FileError, match="reach 165; give them in radians"):
        ct.read_angles(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": np.ones((2, 2)), "more": np.ones(2)}, "holds no sinogram"),
        ({"sinogram": np.ones((2, 2), complex), "more": np.ones(2)}, "is complex"),
        ({"sinogram": np.ones(4), "more": np.ones(2)}, r"shape \(4,\)"),
    ],
)
def test_what_is_no_sinogram_is_refused(arrays, message, tmp_path):
    with pytest.raises(FileError, match=message):
        ct.read_sinograms(sample_files.write_npz(tmp_path / "s.npz", **arrays))


def test_images_are_not_taken_for_sinograms(tmp_path):
    with pytest.raises(FileError, match=r"not in a known format of sinograms.*by a simulation"):
        ct.read_sinograms(sample_files.write_nifti(tmp_path / "v.nii"))


def test_kspace_is_not_taken_for_images(tmp_path):
    with pytest.raises(FileError, match="holds k-space, not images"):
        ct.read(sample_files.write_fastmri(tmp_path / "k.h5"))


@needs_data
def test_the_real_series_is_that_of_pydicom():
    volume = ct.read(DATA / "upper_abdomen_nlst")
    assert volume.slices.shape == (8, 512, 512)
    image = pydicom.dcmread(DATA / "upper_abdomen_nlst" / "slice03.dcm")
    assert np.array_equal(volume.slices[2].numpy(), image.pixel_array.astype(np.float32) - 2048)
    assert volume.voxel == pytest.approx((0.54, 0.54, 12.0))


@needs_data
def test_the_real_torso_is_in_hounsfield_units():
    volume = ct.read(DATA / "torso_acrin.nii.gz", slice(60, 61))
    assert volume.unit == "hounsfield"
    assert -1025 <= float(volume.slices.min()) < -900
    assert 0.7 < float(ct.attenuation(volume.slices)[0, 200:300, 200:300].median()) < 1.2
