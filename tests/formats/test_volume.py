"""Volumes: where their voxels lie."""

import pytest
import torch

from lipspline.formats import dicom, nifti
from lipspline.formats.volume import Volume, from_voxel_size, shifted, voxel_size


def test_voxel_sizes_are_the_lengths_of_the_steps_however_they_are_turned():
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    affine = torch.eye(4, dtype=torch.float64)
    affine[:3, :3] = turn * torch.tensor([0.5, 0.7, 3.0], dtype=torch.float64)
    torch.testing.assert_close(torch.tensor(voxel_size(affine)), torch.tensor([0.5, 0.7, 3.0]))


def test_a_part_of_a_volume_lies_where_it_lay_in_the_whole():
    affine = torch.randn(4, 4, dtype=torch.float64)
    affine[3] = torch.tensor([0.0, 0, 0, 1])
    part = shifted(affine, column=2, row=3, depth=5)
    assert part is not None
    origin, there = (torch.tensor(p, dtype=torch.float64) for p in ([1.0, 1, 1, 1], [3.0, 4, 6, 1]))
    torch.testing.assert_close(part @ origin, affine @ there)


def test_nothing_known_stays_nothing_known():
    assert shifted(None, depth=3) is None
    assert Volume(torch.zeros(1, 2, 2)).voxel == (1.0, 1.0, 1.0)
    assert voxel_size(from_voxel_size(1, 2, 3)) == (1.0, 2.0, 3.0)


def test_a_volume_of_known_voxels_and_unknown_place_is_not_upside_down(tmp_path):
    """Row 0 is at the front and column 0 on the right-hand side, as in the axial slices of DICOM, in both formats."""
    nibabel, pydicom = pytest.importorskip("nibabel"), pytest.importorskip("pydicom")
    volume = Volume(torch.rand(2, 4, 5), from_voxel_size(1, 2, 3))
    nifti.write(tmp_path / "v.nii", volume)
    assert nibabel.aff2axcodes(nibabel.load(tmp_path / "v.nii").affine) == ("L", "P", "S")
    dicom.write(tmp_path / "out", volume, modality="MR", description="test")
    assert list(pydicom.dcmread(tmp_path / "out" / "0001.dcm").ImageOrientationPatient) == [1, 0, 0, 0, 1, 0]
