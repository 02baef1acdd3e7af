"""What was not measured is said, where it is much."""

import numpy as np
import pytest
import torch

import lipspline as ls
import sample_files
from lipspline.imaging.mri import NOISY_REFERENCE, kspace_notes, trajectory_notes
from lipspline.operators import cartesian_mask
from lipspline.operators.mri import centred_fft


@pytest.mark.parametrize(("acceleration", "said"), [(2, False), (4, False), (6, True), (8, True)])
def test_few_columns_are_told_with_what_to_expect(acceleration, said):
    image = torch.rand(64, 64)
    scanner = ls.ScannerMRI(simulate=True, acceleration=acceleration, center=0.06)
    notes = scanner.scan(image).notes
    assert bool(notes) == said
    if said:
        columns = int(cartesian_mask(64, acceleration, 0.06, 0).sum())
        assert f"Only {columns} of 64 columns of k-space are used, " in notes[0]
        assert "Expect ghosts and blur from left to right" in notes[0]
        assert "no certificate says that it is right" in notes[0]


def test_measured_k_space_that_is_thinned_has_the_sentence_and_that_about_the_reference():
    kspace = torch.from_numpy(sample_files.multi_coil())
    few, reference = ls.ScannerMRI(mask=np.arange(kspace.shape[-1]) % 6 == 0).scan(kspace).notes
    assert few.startswith("Only ")
    assert reference == NOISY_REFERENCE
    assert ls.ScannerMRI(mask=np.arange(kspace.shape[-1]) % 3 == 0).scan(kspace).notes == (NOISY_REFERENCE,)


def test_points_in_a_plane_are_counted_as_points():
    mask = torch.zeros(32, 32)
    mask[::4, ::4] = 1
    assert "Only 6.2 % of the points of k-space are used." in kspace_notes(mask)[0]
    assert "ghosts and blur in both directions" in kspace_notes(mask)[0]
    assert kspace_notes(torch.ones(32)) == ()


@pytest.mark.parametrize(("spokes", "said"), [(4, True), (8, True), (32, False), (64, False)])
def test_few_readouts_of_a_trajectory_are_told_with_what_to_expect(spokes, said):
    simulated = ls.ScannerMRI(simulate=True, spokes=spokes).scan(torch.rand(64, 64))
    again = ls.ScannerMRI(spokes=spokes).scan(centred_fft(torch.rand(64, 64).to(torch.complex64)))
    for scan in (simulated, again):
        few = [note for note in scan.notes if note != NOISY_REFERENCE]
        assert bool(few) == said
        if said:
            assert few[0].startswith(f"The {spokes} readouts pass near ")
            assert "Expect streaks and blur" in few[0]
            assert "no certificate says that it is right" in few[0]


def test_a_single_readout_may_measure_enough():
    rows, columns = torch.meshgrid(torch.arange(-16.0, 16.0), torch.arange(-16.0, 16.0), indexing="ij")
    points = torch.stack([rows, columns], dim=-1)
    assert trajectory_notes(points.reshape(1, -1, 2), (32, 32)) == ()
    assert trajectory_notes(points[:, ::8].reshape(1, -1, 2), (32, 32))[0].startswith("The readout passes near 11 %")
