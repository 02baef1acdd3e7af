"""Simulated tomography: units, noise, filtered backprojection [table:reconstruction_performance_ct]."""

import pytest
import torch

from lipspline.formats import nifti
from lipspline.formats.volume import Volume
from lipspline.functional.quality import psnr
from lipspline.operators import ParallelBeamCT
from lipspline.paper import ct
from lipspline.paper.ct import Scan
from lipspline.paper.recipe import load


def disc() -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64), indexing="ij")
    return (x**2 + y**2 < 0.5).float()[None, None]


def test_the_paper_scale_is_the_published_protocol():
    settings = load("table-ct").settings
    assert [(scan.angles, scan.detectors, scan.noise) for scan in settings.scans.values()] == [
        (200, 400, 0.5),
        (200, 400, 1.0),
        (200, 400, 2.0),
    ]
    assert (settings.comparison.validation.count, settings.comparison.test["abdomen"].count) == (6, 128)
    assert load("table-ct").expect.tables["abdomen"]["fbp"]["psnr noise1"] == (27.05,)


def test_noise_is_in_the_unit_of_an_image_256_wide():
    """The line integral through the middle of a disc of ones is its diameter, 256 / sqrt(2)."""
    problem = ct.measure(disc(), Scan(20, 91, 2.0), "a", seed=0)
    clean = problem.H.forward(disc())
    assert clean[0, 0, :, 45].mean() == pytest.approx(256 / 2**0.5, rel=0.03)
    assert (problem.y - clean).std() == pytest.approx(2.0, rel=0.05)
    assert problem.y.shape == (1, 1, 20, 91)


def test_noise_depends_on_the_name_and_the_seed_alone():
    one, same, other = (ct.measure(disc(), Scan(20, 91, 1.0), *key).y for key in (("a", 0), ("a", 0), ("a", 1)))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_filtered_backprojection_is_the_start_and_the_baseline():
    problem = ct.measure(disc(), Scan(90, 91, 0.5), "a", seed=0)
    sharp, smooth = ct.sharpest(problem), ct.smoothest(problem)
    assert problem.start is not None
    assert torch.equal(problem.start, smooth)
    assert psnr(smooth, disc()).item() > 15
    blank = torch.zeros_like(disc())
    noise = ct.measure(blank, Scan(90, 91, 0.5), "a", seed=0)
    assert ct.sharpest(noise).std() > 2 * ct.smoothest(noise).std()
    assert not torch.equal(sharp, smooth)


def test_images_are_attenuations_divided_by_their_own_maximum(tmp_path):
    """[sec:exp_pnp]: air is 0, the densest pixel 1."""
    pytest.importorskip("nibabel")
    slices = torch.tensor([[[-3000.0, -1000.0], [0.0, 1000.0]], [[-1000.0, 0.0], [0.0, 0.0]]])
    nifti.write(tmp_path / "a.nii.gz", Volume(slices))
    first, second = ct.read(tmp_path / "a.nii.gz")
    assert first.tolist() == [[[[0.0, 0.0], [0.5, 1.0]]]]
    assert second.tolist() == [[[[0.0, 1.0], [1.0, 1.0]]]]


def test_a_geometry_is_made_once():
    one, other = (ct.measure(disc(), Scan(20, 91, noise), "a", seed=0).H for noise in (0.5, 1.0))
    assert isinstance(one, ParallelBeamCT)
    assert one is other
