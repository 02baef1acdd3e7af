"""MRI files by their content, masks and maps, and the real files."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume

DATA = Path(os.environ.get("LIPSPLINE_DATA", "/nonexistent")) / "mri"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="LIPSPLINE_DATA names no folder with mri/")


@pytest.mark.parametrize("name", sample_files.MRI_FILES)
def test_every_format_of_kspace_is_recognised(name, tmp_path):
    found = mri.read(sample_files.MRI_FILES[name](tmp_path / name))
    assert isinstance(found, Kspace)
    assert found.data.dtype == torch.complex64
    assert found.data.shape[-2:] == (sample_files.HEIGHT, sample_files.WIDTH)


@pytest.mark.parametrize("name", sample_files.IMAGE_FILES)
def test_every_format_of_images_is_recognised(name, tmp_path):
    found = mri.read(sample_files.IMAGE_FILES[name](tmp_path / name))
    assert isinstance(found, Volume)
    assert found.slices.dtype == torch.float32
    assert found.slices.shape[-2:] == (sample_files.HEIGHT, sample_files.WIDTH)


def test_masks_are_read_as_what_is_not_zero(tmp_path):
    path = sample_files.write_npy(tmp_path / "m.npy", 2.0 * sample_files.columns_mask()[None])
    assert np.array_equal(mri.read_mask(path).numpy(), sample_files.columns_mask())


def test_maps_are_read_for_one_slice_or_for_each(tmp_path):
    maps = sample_files.coil_maps()
    assert mri.read_maps(sample_files.write_npy(tmp_path / "a.npy", maps)).shape == (1, *maps.shape)
    assert mri.read_maps(sample_files.write_npz(tmp_path / "a.npz", maps=np.stack([maps] * 3))).shape[0] == 3
    with pytest.raises(FileError, match="complex coil maps"):
        mri.read_maps(sample_files.write_npy(tmp_path / "b.npy", sample_files.images()))


def test_unknown_and_missing_files_are_told_apart(tmp_path):
    (tmp_path / "scan.xyz").touch()
    with pytest.raises(FileError, match=r"not in a known format.*\.h5.*\.nii"):
        mri.read(tmp_path / "scan.xyz")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        mri.read(tmp_path / "nothing.xyz")


@needs_data
def test_the_real_knees_are_images_and_the_real_brain_is_kspace():
    knees, brain = mri.read(DATA / "knee_stanford.h5"), mri.read(DATA / "brain_mprage_4ch.h5")
    assert isinstance(knees, Volume)
    assert knees.slices.shape == (20, 320, 256)
    assert isinstance(brain, Kspace)
    assert brain.data.shape == (1, 4, 256, 256)
    assert brain.maps is not None


@needs_data
def test_the_real_volume_is_that_of_nibabel():
    import nibabel

    volume = mri.read(DATA / "brain_vsseg.nii.gz", slice(2, 4))
    assert isinstance(volume, Volume)
    expected = nibabel.load(DATA / "brain_vsseg.nii.gz").dataobj[..., 2:4].transpose(2, 1, 0)
    assert np.array_equal(volume.slices.numpy(), expected.astype(np.float32))
