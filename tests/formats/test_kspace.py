"""k-space in one convention: what was measured, and how other conventions become this one."""

import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats.kspace import Kspace, from_uncentred, measured, transform_partitions, with_mask
from lipspline.formats.validation import FileError
from lipspline.operators.mri import centred_fft


def test_whole_columns_give_a_mask_of_columns_and_parts_of_them_one_of_points():
    data = torch.ones(2, 3, 4, 5, dtype=torch.complex64)
    data[..., 2] = 0
    assert measured(data).tolist() == [True, True, False, True, True]
    data[..., 1, 0] = 0
    assert measured(data).shape == (4, 5)
    assert int(measured(data).sum()) == 15


def test_a_mask_keeps_what_it_claims_and_what_is_there():
    data = torch.ones(1, 1, 2, 4, dtype=torch.complex64)
    data[..., 3] = 0
    kept, mask = with_mask(data, torch.tensor([True, False, True, True]), "file")
    assert mask.tolist() == [True, False, True, False]
    assert kept[0, 0, 0].real.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("mask", "message"),
    [(torch.ones(3, dtype=torch.bool), "does not fit"), (torch.zeros(4, dtype=torch.bool), "zero everywhere")],
)
def test_a_mask_that_does_not_fit_or_keeps_nothing_is_refused(mask, message):
    with pytest.raises(FileError, match=message):
        with_mask(torch.ones(1, 1, 2, 4, dtype=torch.complex64), mask, "file")


def test_uncentred_kspace_becomes_the_centred_kspace_of_the_same_image():
    for shape in ((6, 8), (5, 7)):
        image = torch.randn(shape, dtype=torch.complex128)
        uncentred = torch.fft.fft2(image, norm="ortho")
        torch.testing.assert_close(from_uncentred(uncentred), centred_fft(image))


def test_partitions_become_slices_by_the_centred_transform_in_depth():
    volume = sample_files.multi_coil()
    depth = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(volume, axes=0), axis=0, norm="ortho"), axes=0)
    result = transform_partitions(torch.from_numpy(depth.astype(np.complex64)), "file")
    np.testing.assert_allclose(result.numpy(), volume, atol=1e-5)


def test_undersampling_in_depth_is_refused():
    data = torch.ones(3, 1, 2, 4, dtype=torch.complex64)
    data[1, ..., 2] = 0
    with pytest.raises(FileError, match="undersampled in depth"):
        transform_partitions(data, "file")


def test_each_slice_has_its_own_mask_where_they_differ():
    data = torch.ones(3, 2, 4, 5, dtype=torch.complex64)
    data[0, ..., 1] = data[1, ..., 2] = data[2, ..., 2] = 0
    kept, mask = with_mask(data, None, "file")
    kspace = Kspace(kept, mask)
    assert kspace.mask.shape == (3, 1, 5)
    for i in range(3):
        assert torch.equal(kspace.mask_of(i), (data[i] != 0).any(dim=0)[0])
    data[1, :, 0, 0] = 0
    kspace = Kspace(data, measured(data))
    assert kspace.mask.shape == (3, 4, 5)
    assert kspace.mask_of(0).shape == (5,)
    assert torch.equal(kspace.mask_of(1), (data[1] != 0).any(dim=0))


def test_a_slice_without_data_does_not_part_the_masks_of_the_others():
    data = torch.ones(3, 1, 4, 5, dtype=torch.complex64)
    data[..., 2] = data[1] = 0
    assert measured(data).tolist() == [True, True, False, True, True]


def test_a_mask_for_each_slice_keeps_what_it_claims_in_that_slice():
    data = torch.ones(2, 1, 3, 4, dtype=torch.complex64)
    claimed = torch.tensor([[[True, True, False, True]], [[True, False, True, True]]])
    kept, mask = with_mask(data, claimed, "file")
    assert torch.equal(mask, claimed)
    assert torch.equal(kept[:, 0, 0].real.bool(), claimed[:, 0])


def test_a_zero_in_one_coil_is_a_measurement_and_a_column_that_only_one_coil_lacks_is_refused():
    data = torch.ones(2, 3, 4, 5, dtype=torch.complex64)
    data[1, 0, 2, 3] = 0
    assert measured(data).all()
    data[0, 2] = 0  # a coil that is switched off in a slice
    assert with_mask(data, None, "file")[1].all()
    data[1, 1, :, 4] = 0
    with pytest.raises(FileError, match=r"file lacks 1 column\(s\) in coil 1 of slice 1 that other coils have"):
        with_mask(data, None, "file")
