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
