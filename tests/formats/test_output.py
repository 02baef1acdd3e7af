"""Outputs: by their ending, whole or not at all."""

import h5py
import numpy as np
import pytest
import torch

from lipspline.formats import mri, output
from lipspline.formats.volume import Volume, from_voxel_size

VOLUME = Volume(torch.rand(3, 8, 7), from_voxel_size(0.5, 0.6, 2.0))
ONE = Volume(VOLUME.slices[:1], VOLUME.affine)


@pytest.mark.parametrize("name", ["o.npy", "o.h5", "o.nii", "o.nii.gz", "o.tif", "series"])
def test_a_volume_comes_back(name, tmp_path):
    output.write(tmp_path / name, output.Image(VOLUME, "MR", "test"))
    found = mri.read(tmp_path / name)
    assert isinstance(found, Volume)
    torch.testing.assert_close(found.slices, VOLUME.slices, atol=1e-5, rtol=0)
    if name not in ("o.npy", "o.tif"):
        assert found.voxel == pytest.approx((0.5, 0.6, 2.0))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["o.png", "o.dcm"])
def test_one_slice_fits_into_one_file(name, tmp_path):
    output.write(tmp_path / name, output.Image(ONE, "MR", "test"))
    assert (tmp_path / name).is_file()
    with pytest.raises(ValueError, match=rf"{name} can hold one slice, but there are 3"):
        output.writer(tmp_path / name, 3)


def test_hdf5_keeps_the_phase(tmp_path):
    values = torch.randn(1, 8, 7, dtype=torch.complex64)
    output.write(tmp_path / "o.h5", output.Image(ONE, "MR", "test", values))
    with h5py.File(tmp_path / "o.h5") as file:
        assert np.array_equal(file["complex"][:], values.numpy())


def test_unknown_endings_are_refused_before_the_work(tmp_path):
    with pytest.raises(ValueError, match=r"o\.jpg is not in a known format.*\.nii\.gz"):
        output.writer(tmp_path / "o.jpg", 1)


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_writer_that_fails_leaves_what_was_there(old, tmp_path):
    path = tmp_path / "o.npy"
    if old is not None:
        path.write_bytes(old)

    def fail(draft):
        draft.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        output.put(path, fail)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if old is None else [old])


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "series"
    output.write(folder, output.Image(VOLUME, "MR", "test"))
    output.write(folder, output.Image(ONE, "MR", "test"))
    assert [file.name for file in folder.iterdir()] == ["0001.dcm"]
    assert [path.name for path in tmp_path.iterdir()] == ["series"]
