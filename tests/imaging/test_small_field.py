"""A field of view that is smaller than the object: two sets of coil maps tell apart what falls on one pixel."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import lipspline
from lipspline.formats.kspace import Kspace
from lipspline.imaging.mri import MeasuredMRI, Undersampling
from lipspline.imaging.problem import Iteration, middle, solve_problem
from lipspline.operators import simulated_maps
from lipspline.operators.mri import centred_fft, centred_ifft
from lipspline.priors import resolve

HEIGHT, OBJECT, FIELD = 48, 64, 48
"""Rows, columns of the object, and columns of the field of view."""


def coil_images(noise: float = 2e-3) -> torch.Tensor:
    """Of an ellipse with spots in it, 60 columns wide, seen by 6 coils."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, HEIGHT), torch.linspace(-1, 1, OBJECT), indexing="ij")
    body = ((x / 0.94) ** 2 + (y / 0.8) ** 2 < 1).float() * (0.6 + 0.2 * torch.sin(9 * x) * torch.cos(7 * y))
    spots = 0.4 * ((torch.sin(20 * x) > 0.9) & (torch.cos(17 * y) > 0.8) & (body > 0))
    stream = torch.Generator().manual_seed(0)
    seen = simulated_maps(6, (HEIGHT, OBJECT)) * (body + spots)
    return seen + noise * torch.randn(seen.shape, generator=stream, dtype=torch.complex64)


def folded(images: torch.Tensor, width: int) -> torch.Tensor:
    """What a field of view of fewer columns shows: the rest comes in from the other side."""
    columns = torch.arange(images.shape[-1]) - images.shape[-1] // 2 + width // 2
    return torch.zeros(*images.shape[:-1], width, dtype=images.dtype).index_add(-1, columns % width, images)


def measured(width: int) -> Kspace:
    return Kspace(centred_fft(folded(coil_images(), width))[None], torch.ones(width, dtype=torch.bool))


def solve(scan: MeasuredMRI):
    problem = scan.problem(0)
    solution = solve_problem("", problem, resolve("ridge").at(4), 0.3, Iteration(1e-4, 200)).solution
    return problem, solution


def test_two_sets_of_maps_are_better_by_far_where_the_object_is_larger():
    thinned = Undersampling(acceleration=2, center=0.4)
    (one, first), (two, second) = (
        solve(MeasuredMRI(measured(FIELD), undersampling=thinned, map_sets=sets)) for sets in (1, 2)
    )
    assert second.certificate.guaranteed
    assert two.quality(second.value)["psnr"] > one.quality(first.value)["psnr"] + 5
    lower, upper = two.H.norm_bounds()
    assert lower <= upper <= 1.01 * lower


def test_all_of_kspace_gives_the_root_sum_of_squares_of_the_coils():
    problem = MeasuredMRI(measured(FIELD), map_sets=2, whiten="none").problem(0)
    found = problem.image(problem.direct).abs() * problem.scale
    truth = torch.linalg.vector_norm(folded(coil_images(), FIELD), dim=0)
    one = MeasuredMRI(measured(FIELD), map_sets=1, whiten="none").problem(0)
    single = one.image(one.direct).abs() * one.scale
    assert (found - truth).norm() < 0.04 * truth.norm()
    assert (single - truth).norm() > 2 * (found - truth).norm()


def test_the_images_of_both_sets_are_one_problem_and_it_is_said():
    scan = MeasuredMRI(measured(FIELD), map_sets=2)
    assert "two sets of coil maps" in scan.summary
    assert "sets" not in MeasuredMRI(measured(FIELD)).summary
    assert scan.problem(0).y.shape[-3:] == (6, HEIGHT, FIELD)
    assert scan.problem(0).direct.shape[-2:] == (2 * HEIGHT + 16, FIELD)


def test_two_sets_need_coils_that_can_tell_them_apart():
    kspace = measured(FIELD)
    few = Kspace(kspace.data[:, :2], kspace.mask)
    for scan in (few, Kspace(kspace.data, kspace.mask, maps=torch.ones_like(kspace.data))):
        with pytest.raises(ValueError, match="map_sets=2 estimates maps of at least three coils"):
            MeasuredMRI(scan, map_sets=2)
    with pytest.raises(ValueError, match="map_sets must be 1 or 2, but is 3"):
        lipspline.ScannerMRI(map_sets=3)
    with pytest.raises(ValueError, match="map_sets=2 estimates maps"):
        lipspline.ScannerMRI(map_sets=2, spokes=8).scan(kspace.data)


def test_a_file_of_the_whole_is_saved_with_a_phase_and_a_certificate(tmp_path):
    twice = lipspline.ScannerMRI(map_sets=2)
    done = lipspline.reconstruct(measured(FIELD).data, acquisition=twice, prior="ridge", max_steps=20)
    document = done.save(tmp_path / "small.h5")
    assert done.images.shape == (1, HEIGHT, FIELD)
    assert done.images.is_complex()
    assert document["guaranteed"]
    assert "two sets of coil maps" in document["scan"]


@pytest.mark.skipif("LIPSPLINE_DATA" not in os.environ, reason="needs the measured head of LIPSPLINE_DATA")
@pytest.mark.slow  # of simulated coils the same is shown above
def test_a_measured_head_in_a_field_of_view_that_is_too_narrow():
    """At half the resolution; the head is about 162 of 256 columns wide."""
    with h5py.File(Path(os.environ["LIPSPLINE_DATA"]) / "mri" / "brain_mprage_4ch.h5") as file:
        images = centred_ifft(torch.as_tensor(np.asarray(file["kspace"])[0]))
    kspace = middle(centred_fft(folded(images, 144)), (128, 72))[None]
    one, two = (
        lipspline.reconstruct(
            kspace,
            acquisition=lipspline.ScannerMRI(acceleration=2, center=0.25, map_sets=sets),
            prior="ridge",
        ).document()
        for sets in (1, 2)
    )
    assert two["mean"]["psnr"] > one["mean"]["psnr"] + 4
    assert two["misfit_explained"]
    assert not one["misfit_explained"]
