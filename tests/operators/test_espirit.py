"""ESPIRiT against sigpy, against known maps and on a real scan."""

import os
import time
from pathlib import Path

import pytest
import torch
from operator_cases import random

from lipspline.operators import MRI, MultiCoilMRI, cartesian_mask, espirit, espirit_sets, simulated_maps
from lipspline.operators._espirit import window_correlation
from lipspline.operators.mri import calibration_region, centred_fft, uncentred_fft


def disks(height=64, width=56):
    """A smooth-edged object that leaves the rim of the image empty."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    body = torch.sigmoid((0.75 - (x.square() + 1.2 * y.square()).sqrt()) * 40)
    return body - 0.6 * torch.sigmoid((0.25 - ((x - 0.2).square() + y.square()).sqrt()) * 40)


def misfit(maps, others):
    """Mean of 1 - |cos| of the angle between the maps where both are there, and where only one of them is."""
    both = maps.any(0) & others.any(0)
    lengths = torch.linalg.vector_norm(maps, dim=0) * torch.linalg.vector_norm(others, dim=0)
    cosine = (maps * others.conj()).sum(0).abs() / lengths.clamp_min(1e-12)
    return float((1 - cosine[both]).mean()), float((maps.any(0) ^ others.any(0)).double().mean())


def sigpy_maps(kspace, **options):
    app = pytest.importorskip("sigpy.mri.app")
    return torch.from_numpy(app.EspiritCalib(kspace.numpy(), show_pbar=False, **options).run())


@pytest.mark.parametrize(("shape", "coils", "kernel"), [((64, 56), 4, 6), ((51, 64), 5, 5)])
def test_it_agrees_with_sigpy(shape, coils, kernel):
    kspace = centred_fft(simulated_maps(coils, shape) * disks(*shape))
    kspace += 1e-3 * random(coils, *shape, dtype=torch.complex64)
    ours = espirit(kspace, kernel=kernel, calibration=20, crop=0.9, convention="centred")
    theirs = sigpy_maps(kspace, kernel_width=kernel, calib_width=20, crop=0.9)
    angle, one_only = misfit(ours, theirs)
    assert angle <= 1e-4
    assert one_only <= 0.02
    both = ours.any(0) & theirs.any(0)
    assert (ours - theirs)[:, both].abs().mean() <= 1e-3  # the phase too: real in the first coil


@pytest.mark.parametrize(("convention", "transform"), [("paper", uncentred_fft), ("centred", centred_fft)])
def test_it_finds_the_maps_that_made_the_data(convention, transform):
    """[sec:exp_pnp]"""
    maps, image = simulated_maps(6, (64, 56)), disks()
    estimate = espirit(transform(maps * image), convention=convention)
    inside = image > 0.3
    assert misfit(estimate * inside, maps * inside)[0] <= 1e-3
    torch.testing.assert_close(estimate.abs().square().sum(0), estimate.any(0).float(), rtol=0, atol=1e-5)


def test_under_the_paper_convention_the_phase_of_the_maps_suits_a_real_image():
    maps, image = simulated_maps(6, (64, 56)), disks()
    estimate = espirit(uncentred_fft(maps * image), convention="paper")
    inside = image > 0.3
    assert (estimate - maps)[:, inside].abs().max() <= 0.1
    H = MultiCoilMRI(torch.ones(56, dtype=torch.bool), estimate)
    combined = H.adjoint(uncentred_fft(maps * image).unsqueeze(0))[0, 0]
    assert (combined - image)[inside].abs().max() <= 0.02


def test_undersampled_data_give_the_maps_of_their_calibration_columns():
    """[sec:exp_pnp]: the maps are estimated from the data y themselves."""
    maps, image = simulated_maps(4, (64, 64)), disks(64, 64)
    H = MRI(cartesian_mask(64, 4, 0.2), convention="centred")
    y = H.forward((maps * image).unsqueeze(1)).squeeze(1)
    estimate = espirit(y, convention="centred")
    coils, height, width = calibration_region(y, 24, 6).shape
    assert (coils, height) == (4, 24)
    assert 12 <= width <= 14  # the calibration columns, perhaps with a random neighbour
    inside = image > 0.3
    assert misfit(estimate * inside, maps * inside)[0] <= 2e-3


def test_a_batch_is_estimated_item_by_item():
    kspace = torch.stack([centred_fft(simulated_maps(3, (32, 32)) * disks(32, 32) * s) for s in (1, 2)])
    batch = espirit(kspace, convention="centred")
    torch.testing.assert_close(batch[1], espirit(kspace[1], convention="centred"))
    assert batch.shape == kspace.shape


def test_the_scale_and_the_precision_of_the_data_do_not_matter():
    kspace = centred_fft(simulated_maps(3, (32, 32)) * disks(32, 32)).to(torch.complex128)
    maps = espirit(kspace, convention="centred")
    assert maps.dtype == torch.complex128
    single = espirit((1e-6 * kspace).to(torch.complex64), convention="centred")
    assert misfit(single.to(torch.complex128), maps)[0] <= 1e-5


def test_the_correlation_of_windows_is_hermitian_and_counts_the_space():
    region = random(3, 10, 9, dtype=torch.complex128)
    correlation = window_correlation(region, 3, 0.02)
    torch.testing.assert_close(correlation.flip(0, 1).mH, correlation)
    dimension = float(correlation[2, 2].diagonal().sum().real) * 9
    assert dimension == pytest.approx(27)  # noise fills all of C k² dimensions


def test_nonsense_is_refused():
    kspace = random(3, 32, 32, dtype=torch.complex64)
    with pytest.raises(
        ValueError, match=r"complex k-space of shape \(C, H, W\) or \(B, C, H, W\), but got torch\.float32"
    ):
        espirit(torch.zeros(3, 32, 32))
    with pytest.raises(ValueError, match="kspace has 1 NaN"):
        espirit(torch.where(torch.arange(3072).view(3, 32, 32) == 7, float("nan"), kspace))
    with pytest.raises(
        ValueError, match=r"No window of 6x6 points in the middle of k-space \(32, 32\) is fully sampled"
    ):
        espirit(kspace * cartesian_mask(32, 8, 0.1), convention="centred")
    with pytest.raises(ValueError, match="calibration must be at least 6, but is 4"):
        espirit(kspace, calibration=4)
    with pytest.raises(ValueError, match="crop must lie strictly between 0 and 1"):
        espirit(kspace, crop=1.0)


@pytest.fixture
def brain():
    """Fully sampled k-space of a real scan, complex64 `(4, 256, 256)`, centred."""
    path = Path(os.environ.get("LIPSPLINE_DATA", "")) / "mri" / "brain_mprage_4ch.h5"
    if "LIPSPLINE_DATA" not in os.environ or not path.exists():
        pytest.skip("LIPSPLINE_DATA does not name a folder with mri/brain_mprage_4ch.h5")
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        return torch.from_numpy(file["kspace"][0])


@pytest.mark.slow  # of simulated coils the same is shown above
def test_maps_of_a_real_scan_explain_its_data(brain):
    maps = espirit(brain, convention="centred")
    assert misfit(maps, sigpy_maps(brain))[0] <= 1e-4
    H = MultiCoilMRI(torch.ones(256, dtype=torch.bool), maps, convention="centred")
    combined = H.adjoint(brain.unsqueeze(0))
    images = torch.fft.fftshift(torch.fft.ifft2(torch.fft.ifftshift(brain, dim=(-2, -1)), norm="ortho"), dim=(-2, -1))
    seen = maps.any(0)
    residual = (maps * combined[0] - images)[:, seen]
    assert torch.linalg.vector_norm(residual) <= 0.06 * torch.linalg.vector_norm(images[:, seen])


@pytest.mark.slow
def test_it_is_faster_than_sigpy(brain):
    espirit(brain, convention="centred")
    start = time.perf_counter()
    espirit(brain, convention="centred")
    middle = time.perf_counter()
    sigpy_maps(brain)
    ratio = (time.perf_counter() - middle) / (middle - start)
    print(f"\nESPIRiT, 4 coils, 256x256: {middle - start:.3f} s, {ratio:.1f} times faster than sigpy")
    assert ratio > 1


def test_sets_of_maps_are_orthonormal_and_the_first_is_that_of_espirit():
    kspace = centred_fft(simulated_maps(4, (32, 32)) * disks(32, 32))
    maps, values = espirit_sets(kspace, 2)
    gram = torch.einsum("achw,bchw->abhw", maps.conj(), maps)
    torch.testing.assert_close(gram, torch.eye(2).to(gram)[..., None, None].expand_as(gram), atol=1e-4, rtol=0)
    assert (values[0] >= values[1]).all()
    assert float(values.max()) <= 1 + 1e-4
    single = espirit(kspace, crop=1e-3, convention="centred")
    torch.testing.assert_close((maps[0].conj() * single).sum(dim=0).abs(), torch.ones(32, 32), atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="makes 1 to C sets of k-space"):
        espirit_sets(kspace, 5)
