"""Simulated single-coil MRI: images, masks, noise [sec:exp_pnp]."""

import pytest
import torch

from lipspline.formats.validation import FileError
from lipspline.operators import MRI
from lipspline.paper import mri
from lipspline.paper.mri import Scan
from lipspline.paper.recipe import load

IMAGE = torch.rand(1, 1, 96, 80, generator=torch.Generator().manual_seed(0))


def test_the_paper_scale_is_the_published_protocol():
    """[table:reconstruction_performance]"""
    settings = load("table-mri").settings
    assert {(scan.acceleration, scan.center, scan.noise) for scan in settings.scans.values()} == {
        (4, 0.08, 0.01),
        (6, 0.06, 0.01),
    }
    comparison = settings.comparison
    assert (comparison.validation.count, comparison.test["knee"].count) == (100, 99)
    assert comparison.search.noises == comparison.search.levels == (5, 10, 15)
    assert not comparison.search.continuous
    assert list(comparison.networks) == ["relu", "av", "prelu", "hh", "lls"]
    assert load("table-mri").expect.tables["knee"]["lls"]["psnr acc4"] == (31.54,)


def test_noise_lies_on_what_was_measured_and_has_the_right_size():
    problem = mri.measure(IMAGE, Scan(4, 0.08, 0.01), "a", seed=0)
    noise = problem.y - problem.H.forward(IMAGE)
    assert isinstance(problem.H, MRI)
    measured = torch.fft.ifftshift(problem.H.mask)
    assert (noise[..., ~measured] == 0).all()
    assert noise[..., measured].real.std() == pytest.approx(0.01, rel=0.05)
    assert noise[..., measured].imag.std() == pytest.approx(0.01, rel=0.05)
    assert int(measured.sum()) == 20
    assert problem.truth is IMAGE


def test_masks_and_noise_depend_on_the_name_of_the_image_and_the_seed_alone():
    scan = Scan(4, 0.08, 0.01)
    one, same, other, reseeded = (
        mri.measure(IMAGE, scan, name, seed).y for name, seed in (("a", 0), ("a", 0), ("b", 0), ("a", 1))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one != 0, other != 0)
    assert not torch.equal(one != 0, reseeded != 0)


def test_zero_filling_is_the_adjoint_and_exact_where_all_is_measured():
    problem = mri.measure(IMAGE, Scan(1, 1, 0.0), "a", seed=0)
    torch.testing.assert_close(mri.zero_fill(problem), IMAGE)


def test_images_are_divided_by_their_own_maximum(tmp_path):
    h5py = pytest.importorskip("h5py")
    for name, scale in (("b.h5", 3.0), ("a.h5", 100.0)):
        with h5py.File(tmp_path / name, "w") as file:
            file["reconstruction_rss"] = scale * (1 + torch.arange(24.0).view(2, 3, 4)).numpy()
    images = mri.read(tmp_path)
    assert [tuple(image.shape) for image in images] == [(1, 1, 3, 4)] * 4
    assert [image.max().item() for image in images] == [1.0] * 4
    torch.testing.assert_close(images[0], images[2])
    assert images[0].min().item() == pytest.approx(1 / 12)
    torch.testing.assert_close(mri.read(tmp_path / "a.h5")[1], images[1])


def test_kspace_without_images_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["kspace"] = torch.ones(1, 2, 8, 8, dtype=torch.complex64).numpy()
    with pytest.raises(FileError, match="k-space without reference images"):
        mri.read(tmp_path / "raw.h5")
