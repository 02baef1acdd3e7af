"""ISMRMRD files, written by the ismrmrd library."""

import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError


def read(path, slices=slice(None)) -> Kspace:
    found = mri.read(path, slices)
    assert isinstance(found, Kspace)
    return found


def test_readouts_are_sorted_into_kspace_and_noise_scans_left_out(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5"))
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil() * sample_files.columns_mask())
    assert np.array_equal(found.mask.numpy(), sample_files.columns_mask())


def test_averages_are_averaged(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5", averages=2))
    np.testing.assert_allclose(found.data.numpy(), sample_files.multi_coil() * sample_files.columns_mask(), atol=1e-6)


def test_slices_are_chosen_by_their_number_in_the_scan(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5"), slice(1, 3))
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil()[1:3] * sample_files.columns_mask())
    assert found.affine is not None
    assert found.affine[2, 3] == 11  # the second slice of a stack 4 mm apart that begins at 7 mm


def test_a_third_dimension_is_transformed(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5", depth=True), slice(0, 2))
    depth = sample_files.multi_coil() * sample_files.columns_mask()
    expected = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(depth, axes=0), axis=0, norm="ortho"), axes=0)
    np.testing.assert_allclose(found.data.numpy(), expected[:2], atol=1e-6)


def test_oversampled_readouts_are_cropped_and_the_middle_of_the_image_lies_where_the_scanner_says(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5"))
    assert found.crop == (sample_files.HEIGHT // 2, sample_files.WIDTH)
    assert found.affine is not None
    centre = torch.tensor([sample_files.WIDTH // 2, sample_files.HEIGHT // 4, 0, 1], dtype=torch.float64)
    assert (found.affine @ centre)[:3].tolist() == [-5, -6, 7]  # to the left and back is positive for a scanner


def test_other_trajectories_are_refused(tmp_path):
    with pytest.raises(FileError, match="spiral trajectory; only Cartesian"):
        mri.read(sample_files.write_ismrmrd(tmp_path / "raw.h5", trajectory="spiral"))


def test_a_file_without_readouts_or_header_is_refused(tmp_path):
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r+") as file:
        del file["dataset/xml"]
    with pytest.raises(FileError, match="no readable XML header"):
        mri.read(path)
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["dataset/data"], file["dataset/xml"] = (
            np.zeros(3),
            sample_files.XML.format(
                rows=4, half=2, columns=4, depth=1, extent=1, last=3, middle=2, trajectory="cartesian"
            ),
        )
    with pytest.raises(FileError, match="does not hold readouts"):
        mri.read(tmp_path / "odd.h5")


def test_several_contrasts_are_refused(tmp_path):
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][:]
        lines["head"]["idx"]["contrast"][2] = 1
        file["dataset/data"][:] = lines
    with pytest.raises(FileError, match="holds 2 of the kind 'contrast'"):
        mri.read(path)


def test_a_readout_outside_the_announced_size_is_refused(tmp_path):
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][:]
        lines["head"]["idx"]["kspace_encode_step_1"][2] = 60000
        file["dataset/data"][:] = lines
    with pytest.raises(FileError, match="outside the 20 x 16 points"):
        mri.read(path)


def test_a_readout_that_claims_gigabytes_is_refused_before_they_are_allocated(tmp_path):
    """The library allocates what an entry of varying length claims, even to read the other fields."""
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"]
        start = lines.id.get_type().get_member_offset(2)
        content = bytearray(lines.id.read_direct_chunk((3,))[1])
        content[start : start + 4] = (2**30).to_bytes(4, "little")
        lines.id.write_direct_chunk((3,), bytes(content))
    with pytest.raises(FileError, match="claims 1073741824 values, more than the file holds"):
        mri.read(path)


def test_a_header_that_claims_gigabytes_is_refused_too(tmp_path):
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r") as file:
        place = file["dataset/xml"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place : place + 4] = (2**30).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(FileError, match="claims 1073741824 values"):
        mri.read(path)
