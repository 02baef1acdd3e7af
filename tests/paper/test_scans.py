"""Simulated measurements: images, masks, noise, coil maps, filtered backprojection [sec:exp_pnp].

[table:reconstruction_performance, table:reconstruction_performance_mri, table:reconstruction_performance_ct]
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lipspline.formats import nifti
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume
from lipspline.functional.quality import psnr
from lipspline.operators import MRI, MultiCoilMRI, ParallelBeamCT, simulated_maps
from lipspline.operators.mri import centred_fft
from lipspline.paper import scans
from lipspline.paper.recipe import load
from lipspline.paper.reconstruction import visible
from lipspline.paper.scans import CoilScan, CtScan, MriScan

# Single-coil MRI

IMAGE = torch.rand(1, 1, 96, 80, generator=torch.Generator().manual_seed(0))


def test_the_paper_scale_of_single_coil_mri_is_the_published_protocol():
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
    assert list(comparison.networks) == ["relu", "av", "prelu", "gs", "hh", "lls"]  # GroupSort is ours
    assert load("table-mri").expect.tables["knee"]["lls"]["psnr acc4"] == (31.54,)


def test_noise_lies_on_what_was_measured_and_has_the_right_size():
    problem = scans.measure_mri(IMAGE, MriScan(4, 0.08, 0.01), "a", seed=0)
    noise = problem.y - problem.H.forward(IMAGE)
    assert isinstance(problem.H, MRI)
    measured = torch.fft.ifftshift(problem.H.mask)
    assert (noise[..., ~measured] == 0).all()
    assert noise[..., measured].real.std() == pytest.approx(0.01, rel=0.05)
    assert noise[..., measured].imag.std() == pytest.approx(0.01, rel=0.05)
    assert int(measured.sum()) == 20
    assert problem.truth is IMAGE


def test_masks_and_noise_depend_on_the_name_of_the_image_and_the_seed_alone():
    scan = MriScan(4, 0.08, 0.01)
    one, same, other, reseeded = (
        scans.measure_mri(IMAGE, scan, name, seed).y for name, seed in (("a", 0), ("a", 0), ("b", 0), ("a", 1))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one != 0, other != 0)
    assert not torch.equal(one != 0, reseeded != 0)


def test_zero_filling_is_the_adjoint_and_exact_where_all_is_measured():
    problem = scans.measure_mri(IMAGE, MriScan(1, 1, 0.0), "a", seed=0)
    torch.testing.assert_close(scans.zero_fill(problem), IMAGE)


def test_images_are_divided_by_their_own_maximum(tmp_path):
    h5py = pytest.importorskip("h5py")
    for name, scale in (("b.h5", 3.0), ("a.h5", 100.0)):
        with h5py.File(tmp_path / name, "w") as file:
            file["reconstruction_rss"] = scale * (1 + torch.arange(24.0).view(2, 3, 4)).numpy()
    images = scans.read_magnitudes(tmp_path)
    assert [tuple(image.shape) for image in images] == [(1, 1, 3, 4)] * 4
    assert [image.max().item() for image in images] == [1.0] * 4
    torch.testing.assert_close(images[0], images[2])
    assert images[0].min().item() == pytest.approx(1 / 12)
    torch.testing.assert_close(scans.read_magnitudes(tmp_path / "a.h5")[1], images[1])


def test_kspace_without_images_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["kspace"] = torch.ones(1, 2, 8, 8, dtype=torch.complex64).numpy()
    with pytest.raises(FileError, match="k-space without reference images"):
        scans.read_magnitudes(tmp_path / "raw.h5")


# Multi-coil MRI


def disc(height: int = 96, width: int = 96) -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    image = ((x**2 + y**2 < 0.6) * (0.6 + 0.4 * torch.cos(7 * x) * torch.sin(5 * y))).clamp_min(0)
    return (image / image.max())[None, None]


def kspace() -> Kspace:
    maps = simulated_maps(4, (96, 96))
    phase = torch.polar(torch.ones(96, 96), torch.linspace(0, 1, 96).expand(96, 96).contiguous())
    return Kspace(37 * centred_fft(maps * phase * disc()), torch.ones(96, dtype=torch.bool))


def test_the_paper_scale_of_multi_coil_mri_is_the_published_protocol():
    settings = load("table-multicoil").settings
    assert {(s.acceleration, s.center, s.noise, s.coils) for s in settings.scans.values()} == {
        (4, 0.08, 2e-3, 15),
        (8, 0.04, 2e-3, 15),
    }
    assert list(settings.comparison.test) == ["knee-pd", "knee-pdfs"]
    assert load("table-multicoil").expect.tables["knee-pdfs"]["lls"]["psnr acc8"] == (33.61,)


def test_the_maps_come_from_the_data_and_explain_them():
    """The operator with ESPIRiT's maps fits the data of the true image nearly as well as the true one does."""
    scan = CoilScan(3, 0.2, 2e-3, 6)
    problem = scans.measure_multicoil(disc(), scan, "a", seed=0)
    assert isinstance(problem.H, MultiCoilMRI)
    assert problem.H.maps.shape == (6, 96, 96)
    assert not torch.allclose(problem.H.maps, simulated_maps(6, (96, 96)), atol=1e-3)
    misfit = (problem.H.forward(disc()) - problem.y).norm()
    expected = 2e-3 * (2 * int((problem.y != 0).sum())) ** 0.5
    assert expected * 0.8 < misfit < 3 * expected
    assert (problem.H.maps.abs().square().sum(0) > 0.99).all()


def test_measured_kspace_is_undersampled_without_adding_noise():
    found = kspace()
    problem = scans.measure_multicoil(found, CoilScan(2, 0.25, 5.0, 99), "a", seed=0)
    measured = problem.y != 0
    assert int(measured.any(dim=(0, 1, 2)).sum()) == 48
    ratio = (found.data[measured] / problem.y[measured]).real
    assert ratio.std() < 1e-3 * ratio.mean()
    assert problem.truth.max() == 1


def test_with_all_columns_the_truth_is_the_magnitude_of_the_image():
    problem = scans.measure_multicoil(kspace(), CoilScan(1, 1, 0.0, 1), "a", seed=0)
    assert psnr(problem.truth, disc()).item() > 40
    torch.testing.assert_close(problem.H.adjoint(problem.y).abs(), problem.truth, atol=1e-5, rtol=1e-4)


def test_undersampled_kspace_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = torch.ones(1, 2, 8, 8, dtype=torch.complex64)
    with h5py.File(tmp_path / "full.h5", "w") as file:
        file["kspace"] = data.repeat(3, 1, 1, 1).numpy()
    assert [tuple(one.data.shape) for one in scans.read_multicoil(tmp_path / "full.h5") if isinstance(one, Kspace)] == [
        (1, 2, 8, 8)
    ] * 3
    data[..., 3] = 0
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["kspace"] = data.numpy()
    with pytest.raises(FileError, match="is undersampled: this experiment drops columns of fully sampled k-space"):
        scans.read_multicoil(tmp_path / "part.h5")


# CT


def flat_disc() -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64), indexing="ij")
    return (x**2 + y**2 < 0.5).float()[None, None]


def test_the_paper_scale_of_ct_is_the_published_protocol():
    settings = load("table-ct").settings
    assert [(scan.angles, scan.detectors, scan.noise) for scan in settings.scans.values()] == [
        (200, 400, 0.5),
        (200, 400, 1.0),
        (200, 400, 2.0),
    ]
    assert (settings.comparison.validation.count, settings.comparison.test["abdomen"].count) == (6, 128)
    assert load("table-ct").expect.tables["abdomen"]["fbp"]["psnr noise1"] == (27.05,)


def test_noise_is_in_the_unit_of_an_image_256_wide():
    """The line integral through the middle of a flat_disc of ones is its diameter, 256 / sqrt(2)."""
    problem = scans.measure_ct(flat_disc(), CtScan(20, 91, 2.0), "a", seed=0)
    clean = problem.H.forward(flat_disc())
    assert clean[0, 0, :, 45].mean() == pytest.approx(256 / 2**0.5, rel=0.03)
    assert (problem.y - clean).std() == pytest.approx(2.0, rel=0.05)
    assert problem.y.shape == (1, 1, 20, 91)


def test_noise_of_ct_depends_on_the_name_and_the_seed_alone():
    one, same, other = (
        scans.measure_ct(flat_disc(), CtScan(20, 91, 1.0), *key).y for key in (("a", 0), ("a", 0), ("a", 1))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_filtered_backprojection_is_the_start_and_the_baseline():
    problem = scans.measure_ct(flat_disc(), CtScan(90, 91, 0.5), "a", seed=0)
    sharp, smooth = scans.sharpest(problem), scans.smoothest(problem)
    assert problem.start is not None
    assert torch.equal(problem.start, smooth)
    assert psnr(smooth, flat_disc()).item() > 15
    blank = torch.zeros_like(flat_disc())
    noise = scans.measure_ct(blank, CtScan(90, 91, 0.5), "a", seed=0)
    assert scans.sharpest(noise).std() > 2 * scans.smoothest(noise).std()
    assert not torch.equal(sharp, smooth)


def test_images_are_attenuations_divided_by_their_own_maximum(tmp_path):
    """[sec:exp_pnp]: air is 0, the densest pixel 1."""
    pytest.importorskip("nibabel")
    slices = torch.tensor([[[-3000.0, -1000.0], [0.0, 1000.0]], [[-1000.0, 0.0], [0.0, 0.0]]])
    nifti.write(tmp_path / "a.nii.gz", Volume(slices))
    first, second = scans.read_attenuations(tmp_path / "a.nii.gz")
    assert first.tolist() == [[[[0.0, 0.0], [0.5, 1.0]]]]
    assert second.tolist() == [[[[0.0, 1.0], [1.0, 1.0]]]]


def test_a_geometry_is_made_once():
    one, other = (scans.measure_ct(flat_disc(), CtScan(20, 91, noise), "a", seed=0).H for noise in (0.5, 1.0))
    assert isinstance(one, ParallelBeamCT)
    assert one is other


# The authors' own measurements, in files of their layout

ACC4 = MriScan(4, 0.08, 0.01)


@pytest.fixture(params=[1, 3], ids=["single-coil", "multi-coil"])
def authors(request, tmp_path):
    """One image, measured over a readout that is longer than what is looked at, with frequency zero first."""
    image = torch.zeros(1, 1, 24, 12)
    image[..., 4:20, 1:11] = torch.rand(1, 1, 16, 10, generator=torch.Generator().manual_seed(1))
    maps = simulated_maps(request.param, (24, 12))[None] if request.param > 1 else None
    columns = torch.rand(12, generator=torch.Generator().manual_seed(2)) < 0.6
    mask = torch.fft.ifftshift(columns.expand(24, 12), dim=(-2, -1))[None, None]
    y = torch.fft.fft2(image if maps is None else image * maps, norm="ortho") * mask
    folder = tmp_path / "zenodo" / "singlecoil_acc_4_cf_0.08_noisesd_0.01" / "pd" / "val_images" / "file1000000"
    folder.mkdir(parents=True)
    tensors = {"y": y, "mask": mask.float(), "x_crop": image[..., 4:20, 1:11]} | (
        {} if maps is None else {"smaps": maps}
    )
    for name, tensor in tensors.items():
        torch.save(tensor.clone(), folder / f"{name}.pt")
    return SimpleNamespace(data=tmp_path, folder=folder, image=image, y=y)


def test_what_the_authors_measured_is_found_and_read_with_their_mask_and_maps(authors):
    images = load("table-mri").settings.comparison.validation
    path = images.path(authors.data, ACC4)
    assert path == authors.folder.parent
    (subject,) = scans.read_multicoil(path)
    problem = scans.measure_multicoil(subject, CoilScan(4, 0.08, 0.01, 15), "name", 0)
    torch.testing.assert_close(problem.y, authors.y.to(torch.complex64), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(problem.H.forward(authors.image), problem.y, atol=1e-6, rtol=1e-5)
    assert torch.equal(visible(authors.image, problem.truth), problem.truth)
    assert scans.read_magnitudes(path) == [authors.folder]


def test_where_the_authors_set_is_not_the_file_is_taken(tmp_path):
    images = load("table-mri").settings.comparison.validation
    assert images.path(tmp_path, ACC4) == tmp_path / "mri/fastmri_knee/validation"
    assert replace(images, prepared="").path(tmp_path, ACC4) == tmp_path / "mri/fastmri_knee/validation"


def test_prepared_data_without_the_image_is_one_sentence(authors):
    (authors.folder / "x_crop.pt").unlink()
    with pytest.raises(FileError, match=r"has no x_crop\.pt, the image that reconstructions are compared with"):
        scans.measure_mri(authors.folder, ACC4, "name", 0)


def test_phantoms_of_the_authors_are_attenuations_already(tmp_path):
    for number, scale in enumerate((0.5, 2.0)):
        np.save(tmp_path / f"{number}.npy", scale * np.eye(6, dtype=np.float32))
    first, second = scans.read_attenuations(tmp_path)
    assert first.shape == (1, 1, 6, 6)
    assert torch.equal(first, second)
    assert torch.equal(first[0, 0], torch.eye(6))
