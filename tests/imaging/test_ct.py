"""CT slices as problems: geometry, units, noise."""

import math

import pytest
import torch

import sample_files
from lipspline.formats.ct import Sinograms
from lipspline.formats.volume import Volume
from lipspline.imaging.ct import MeasuredCT, SimulatedCT, noise_in_sinogram
from lipspline.operators import ParallelBeamCT

IMAGES = torch.from_numpy(sample_files.images())
SINOGRAMS = Sinograms(torch.from_numpy(sample_files.sinograms()))


def test_without_a_size_detectors_are_one_pixel_apart_and_see_all_of_the_image():
    H = MeasuredCT(SINOGRAMS).geometry
    assert (H.size, H.spacing, len(H.angles), H.detectors) == (16, 1.0, 12, 23)


def test_with_a_size_detectors_span_the_diagonal_and_with_a_spacing_they_have_it():
    assert MeasuredCT(SINOGRAMS, size=40).geometry.spacing == pytest.approx(40 * math.sqrt(2) / 23)
    assert MeasuredCT(SINOGRAMS, size=20, spacing=1.5).geometry.spacing == 1.5
    assert MeasuredCT(SINOGRAMS, spacing=2.0).geometry.size == 32


def test_angles_come_from_the_user_else_from_the_file_else_are_even():
    even = torch.arange(12, dtype=torch.float64) * (math.pi / 12)
    assert torch.equal(MeasuredCT(SINOGRAMS).geometry.angles, even)
    of_file = Sinograms(SINOGRAMS.data, even + 0.1)
    assert torch.equal(MeasuredCT(of_file).geometry.angles, even + 0.1)
    assert torch.equal(MeasuredCT(of_file, even + 0.2).geometry.angles, even + 0.2)


def test_the_unit_of_the_sinogram_changes_the_scale_and_nothing_else():
    one, other = MeasuredCT(SINOGRAMS).problem(1), MeasuredCT(Sinograms(1e4 * SINOGRAMS.data)).problem(1)
    torch.testing.assert_close(one.y, other.y)
    assert other.scale == pytest.approx(1e4 * one.scale)
    assert 0.5 < float(one.direct.abs().max()) < 2


def test_a_wrong_number_of_angles_is_refused_and_a_turned_sinogram_named():
    with pytest.raises(ValueError, match=r"has 12 rows, but 23 angles are given\. It seems to be turned"):
        MeasuredCT(SINOGRAMS, 23).problem(0)
    with pytest.raises(ValueError, match=r"has 12 rows, but 7 angles are given\.$"):
        MeasuredCT(SINOGRAMS, 7).problem(0)


def test_simulated_sinograms_are_the_papers_operator_plus_noise():
    square = Volume(torch.rand(2, 64, 64))
    problem = SimulatedCT(square, 40, 60, noise=2.0).problem(1)
    assert problem.truth is not None
    H = ParallelBeamCT.paper(64, angles=40, detectors=60)
    noise = problem.y - H.forward(problem.truth[None, None])
    assert float(noise.std()) == pytest.approx(2.0, rel=0.05)
    assert float(problem.truth.max()) == 1


def test_hounsfield_units_are_undone_in_the_result():
    volume = Volume(1500 * torch.rand(1, 20, 20) - 1000, unit="hounsfield")
    scan = SimulatedCT(volume, 30, 40)
    problem = scan.problem(0)
    assert problem.truth is not None
    torch.testing.assert_close(scan.values(problem.truth, problem.scale), volume.slices[0], atol=1e-3, rtol=0)


def test_images_that_are_no_squares_are_padded_and_cropped():
    scan = SimulatedCT(Volume(IMAGES), 60, 40, noise=0.0)
    problem = scan.problem(0)
    assert problem.direct.shape[-2:] == (20, 20)
    assert problem.truth is not None
    found = problem.image(problem.direct)
    assert found.shape == problem.truth.shape == (20, 16)
    assert float((found - problem.truth).abs().mean()) < 0.1


def test_the_noise_of_a_slice_does_not_depend_on_which_others_are_chosen():
    whole = SimulatedCT(Volume(IMAGES), 12, 30, seed=3).problem(2)
    part = SimulatedCT(Volume(IMAGES[2:]), 12, 30, seed=3, first=2).problem(0)
    assert torch.equal(whole.y, part.y)


def test_noise_is_estimated_from_second_differences():
    smooth = torch.linspace(0, 3, 400).sin().expand(1, 1, 200, 400)
    assert noise_in_sinogram(smooth + 0.2 * torch.randn(1, 1, 200, 400)) == pytest.approx(0.2, rel=0.03)
    assert noise_in_sinogram(torch.zeros(1, 1, 3, 2)) == 0


def test_air_is_refused():
    with pytest.raises(ValueError, match="zero everywhere"):
        SimulatedCT(Volume(torch.full((1, 16, 16), -1000.0), unit="hounsfield"), 12, 30).problem(0)
    with pytest.raises(ValueError, match="zero everywhere"):
        MeasuredCT(Sinograms(0 * SINOGRAMS.data)).problem(0)
