"""Simulated and measured multi-coil MRI with maps from the data [table:reconstruction_performance_mri]."""

import pytest
import torch

from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.functional.quality import psnr
from lipspline.operators import MultiCoilMRI, simulated_maps
from lipspline.operators.mri import centred_fft
from lipspline.paper import multicoil
from lipspline.paper.multicoil import CoilScan
from lipspline.paper.recipe import load


def disc(height: int = 96, width: int = 96) -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    image = ((x**2 + y**2 < 0.6) * (0.6 + 0.4 * torch.cos(7 * x) * torch.sin(5 * y))).clamp_min(0)
    return (image / image.max())[None, None]


def kspace() -> Kspace:
    maps = simulated_maps(4, (96, 96))
    phase = torch.polar(torch.ones(96, 96), torch.linspace(0, 1, 96).expand(96, 96).contiguous())
    return Kspace(37 * centred_fft(maps * phase * disc()), torch.ones(96, dtype=torch.bool))


def test_the_paper_scale_is_the_published_protocol():
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
    problem = multicoil.measure(disc(), scan, "a", seed=0)
    assert isinstance(problem.H, MultiCoilMRI)
    assert problem.H.maps.shape == (6, 96, 96)
    assert not torch.allclose(problem.H.maps, simulated_maps(6, (96, 96)), atol=1e-3)
    misfit = (problem.H.forward(disc()) - problem.y).norm()
    expected = 2e-3 * (2 * int((problem.y != 0).sum())) ** 0.5
    assert expected * 0.8 < misfit < 3 * expected
    assert (problem.H.maps.abs().square().sum(0) > 0.99).all()


def test_measured_kspace_is_undersampled_without_adding_noise():
    found = kspace()
    problem = multicoil.measure(found, CoilScan(2, 0.25, 5.0, 99), "a", seed=0)
    measured = problem.y != 0
    assert int(measured.any(dim=(0, 1, 2)).sum()) == 48
    ratio = (found.data[measured] / problem.y[measured]).real
    assert ratio.std() < 1e-3 * ratio.mean()
    assert problem.truth.max() == 1


def test_with_all_columns_the_truth_is_the_magnitude_of_the_image():
    problem = multicoil.measure(kspace(), CoilScan(1, 1, 0.0, 1), "a", seed=0)
    assert psnr(problem.truth, disc()).item() > 40
    torch.testing.assert_close(problem.H.adjoint(problem.y).abs(), problem.truth, atol=1e-5, rtol=1e-4)


def test_undersampled_kspace_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = torch.ones(1, 2, 8, 8, dtype=torch.complex64)
    with h5py.File(tmp_path / "full.h5", "w") as file:
        file["kspace"] = data.repeat(3, 1, 1, 1).numpy()
    assert [tuple(one.data.shape) for one in multicoil.read(tmp_path / "full.h5") if isinstance(one, Kspace)] == [
        (1, 2, 8, 8)
    ] * 3
    data[..., 3] = 0
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["kspace"] = data.numpy()
    with pytest.raises(FileError, match="is undersampled: this experiment drops columns of fully sampled k-space"):
        multicoil.read(tmp_path / "part.h5")
