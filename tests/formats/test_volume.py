"""Volumes: where their voxels lie."""

import torch

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
