"""MRI slices as problems: exact where everything is measured, in a scale that does not depend on units."""

from dataclasses import replace

import pytest
import torch

import sample_files
from lipspline.formats import mri as files
from lipspline.formats.kspace import Kspace, measured
from lipspline.formats.volume import Volume
from lipspline.imaging.coil_noise import noise_in_kspace
from lipspline.imaging.coils import normalized_maps
from lipspline.imaging.mri import MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.operators import MRI, MultiCoilMRI, simulated_maps
from lipspline.operators.mri import centred_fft

IMAGES = torch.from_numpy(sample_files.images())
MAPS = torch.from_numpy(sample_files.coil_maps())
MASK = torch.from_numpy(sample_files.columns_mask())


def single(factor: float = 1.0) -> Kspace:
    data = factor * torch.from_numpy(sample_files.single_coil()).unsqueeze(1)
    return Kspace(data, torch.ones(sample_files.WIDTH, dtype=torch.bool))


def multi() -> Kspace:
    return Kspace(torch.from_numpy(sample_files.multi_coil()), torch.ones(sample_files.WIDTH, dtype=torch.bool))


def image(scan, i: int) -> torch.Tensor:
    """The direct reconstruction of a slice in the unit of the scan."""
    problem = scan.problem(i)
    return scan.values(problem.image(problem.direct), problem.scale)


def test_from_all_of_single_coil_kspace_the_direct_image_is_the_image():
    torch.testing.assert_close(image(MeasuredMRI(single()), 1), IMAGES[1].to(torch.complex64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_from_all_of_multi_coil_kspace_too_whatever_the_unit_of_the_maps(factor):
    result = image(MeasuredMRI(multi(), coils=factor * MAPS.unsqueeze(0)), 2)
    torch.testing.assert_close(result, IMAGES[2].to(torch.complex64), atol=1e-5, rtol=0)


def test_the_unit_of_kspace_changes_the_scale_and_nothing_else():
    one, other = MeasuredMRI(single()).problem(0), MeasuredMRI(single(1e-6)).problem(0)
    torch.testing.assert_close(other.y, one.y)
    assert other.scale == pytest.approx(1e-6 * one.scale)
    assert float(one.direct.abs().max()) < 1.5
    torch.testing.assert_close(image(MeasuredMRI(single(1e-6)), 0), 1e-6 * image(MeasuredMRI(single()), 0))


def test_without_maps_they_are_estimated_by_espirit():
    """The image is then right up to the phase that coil maps leave open, where there is signal."""
    shape = (48, 40)
    truth = torch.zeros(shape)
    truth[10:38, 8:32] = torch.rand(28, 24) + 0.5
    maps = simulated_maps(4, shape)
    kspace = Kspace(centred_fft(maps * truth)[None], torch.ones(shape[1], dtype=torch.bool))
    result = image(MeasuredMRI(kspace, "espirit"), 0).abs()
    torch.testing.assert_close(result[14:34, 12:28], truth[14:34, 12:28], rtol=0.02, atol=0.02)


def test_auto_takes_the_maps_of_the_file_and_espirit_does_not(tmp_path):
    found = files.read(sample_files.write_fastmri(tmp_path / "k.h5", maps=True))
    assert isinstance(found, Kspace)
    H = MeasuredMRI(found, "auto", phase="none", whiten="none").problem(0).H
    assert isinstance(H, MultiCoilMRI)
    torch.testing.assert_close(H.maps, MAPS)
    other = MeasuredMRI(found, "espirit", phase="none").problem(0).H
    assert isinstance(other, MultiCoilMRI)
    assert not torch.allclose(other.maps, MAPS, atol=1e-2)


def test_thinned_kspace_is_compared_with_the_root_sum_of_squares_of_all_of_it():
    problem = MeasuredMRI(multi(), MAPS.unsqueeze(0), Undersampling(MASK)).problem(0)
    assert isinstance(problem.H, MultiCoilMRI)
    assert torch.equal(problem.H.mask, MASK)
    assert problem.truth is not None
    torch.testing.assert_close(problem.truth * problem.scale, IMAGES[0], atol=1e-5, rtol=0)
    assert not problem.y[..., ~MASK].any()


def test_the_reference_of_the_file_is_the_truth(tmp_path):
    found = files.read(sample_files.write_fastmri(tmp_path / "k.h5", mask=True))
    assert isinstance(found, Kspace)
    problem = MeasuredMRI(found, MAPS.unsqueeze(0)).problem(1)
    assert problem.truth is not None
    torch.testing.assert_close(problem.truth * problem.scale, IMAGES[1, 2:18])
    assert problem.image(problem.direct).shape == (16, 16)


def test_images_known_to_be_real_stay_real(tmp_path):
    found = files.read(sample_files.write_tensor_folder(tmp_path / "image"))
    assert isinstance(found, Kspace)
    problem = MeasuredMRI(found).problem(0)
    assert not problem.direct.is_complex()
    x = (IMAGES[0] / problem.scale)[None, None]
    torch.testing.assert_close(problem.H.forward(x), problem.y, atol=1e-5, rtol=0)


def test_simulated_data_are_those_of_the_operator_plus_noise_where_something_is_measured():
    scan = SimulatedMRI(Volume(5 * IMAGES), Undersampling(MASK), noise=0.02)
    problem = scan.problem(1)
    assert isinstance(problem.H, MRI)
    assert problem.truth is not None
    assert float(problem.truth.max()) == 1
    assert problem.scale == float(5 * IMAGES[1].max())
    noise = problem.y - problem.H.forward(problem.truth[None, None])
    kept = noise[noise != 0]
    assert len(kept) == int(MASK.sum()) * sample_files.HEIGHT
    assert float(kept.real.std()) == pytest.approx(0.02, rel=0.15)
    assert float(kept.imag.std()) == pytest.approx(0.02, rel=0.15)


def test_the_noise_of_a_slice_does_not_depend_on_which_others_are_chosen():
    whole = SimulatedMRI(Volume(IMAGES), Undersampling(seed=3), seed=3)
    part = SimulatedMRI(Volume(IMAGES[2:]), Undersampling(seed=3), seed=3, first=2)
    assert torch.equal(whole.problem(2).y, part.problem(0).y)
    assert not torch.equal(whole.problem(2).y, SimulatedMRI(Volume(IMAGES), Undersampling(seed=4), seed=4).problem(2).y)


def test_simulated_coils_measure_through_the_maps():
    scan = SimulatedMRI(Volume(IMAGES), Undersampling(MASK), noise=0.0, maps=MAPS.unsqueeze(0))
    problem = scan.problem(0)
    assert isinstance(problem.H, MultiCoilMRI)
    assert problem.y.shape == (1, 2, sample_files.HEIGHT, sample_files.WIDTH)


@pytest.mark.parametrize("noise", [0.003, 0.3])
def test_noise_is_estimated_from_the_outer_rows(noise):
    image = torch.zeros(128, 96)
    image[40:90, 30:70] = 1
    clean = centred_fft(torch.nn.functional.avg_pool2d(image[None, None], 5, 1, 2))
    data = clean + noise * torch.randn(clean.shape, dtype=torch.complex64) * 2**0.5
    mask = torch.ones(96, dtype=torch.bool)
    assert noise_in_kspace(data, mask) == pytest.approx(noise, rel=0.1)


def test_normalized_maps_are_zero_where_no_coil_sees_anything():
    maps = 4 * MAPS.clone()
    maps[:, :3] = 0
    result = normalized_maps(maps)
    torch.testing.assert_close(result.abs().square().sum(0)[3:], torch.ones(sample_files.HEIGHT - 3, 16))
    assert not result[:, :3].any()


def test_wrong_shapes_and_words_are_refused():
    with pytest.raises(ValueError, match=r"coil maps have shape \(1, 3, 20, 16\), but k-space"):
        MeasuredMRI(multi(), torch.ones(1, 3, 20, 16, dtype=torch.complex64))
    with pytest.raises(ValueError, match="coils must be one of 'auto', 'espirit'"):
        MeasuredMRI(multi(), "bart")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mask has shape \(5,\), but k-space has \(20, 16\)"):
        MeasuredMRI(single(), undersampling=Undersampling(torch.ones(5, dtype=torch.bool))).problem(0)
    with pytest.raises(ValueError, match=r"maps have shape \(1, 2, 4, 4\), but the images"):
        SimulatedMRI(Volume(IMAGES), Undersampling(), maps=torch.ones(1, 2, 4, 4, dtype=torch.complex64))


def test_slices_without_anything_in_them_are_refused():
    with pytest.raises(ValueError, match="Slice 0 is empty"):
        SimulatedMRI(Volume(0 * IMAGES), Undersampling()).problem(0)
    with pytest.raises(ValueError, match=r"down to -1, but images to simulate from begin at zero"):
        SimulatedMRI(Volume(IMAGES - 1), Undersampling()).problem(0)
    narrow = torch.arange(sample_files.WIDTH) % 2 == 0
    narrow[5:11] = True
    with pytest.raises(ValueError, match="ESPIRiT finds no coil maps for slice 0"):
        MeasuredMRI(multi(), "espirit", Undersampling(narrow)).problem(0)


def test_each_slice_is_reconstructed_from_its_own_mask():
    """The union of the masks would count what was not measured as zeros."""
    masks = torch.stack([MASK, MASK.roll(1), MASK])
    data = torch.from_numpy(sample_files.single_coil()).unsqueeze(1) * masks[:, None, None]
    together = MeasuredMRI(Kspace(data, masks.unsqueeze(1)))
    for i in range(3):
        alone = MeasuredMRI(Kspace(data[i : i + 1], masks[i])).problem(0)
        problem = together.problem(i)
        assert torch.equal(problem.H.mask, masks[i])
        assert torch.equal(problem.y, alone.y)
        assert problem.noise == alone.noise


def test_a_coil_that_measured_nothing_sees_nothing_whatever_its_map_says():
    kspace = multi()
    kspace.data[0, 1] = 0
    other = MAPS[None].clone()
    other[:, 1] = 0
    assert torch.equal(image(MeasuredMRI(kspace, MAPS[None]), 0), image(MeasuredMRI(kspace, other), 0))


# Phase


def object_with_phase(shape: tuple[int, int] = (48, 40)) -> torch.Tensor:
    """A smooth positive object with a smooth phase, which low frequencies know."""
    rows, columns = (torch.linspace(-1, 1, n, dtype=torch.float64) for n in shape)
    modulus = torch.exp(-3 * (rows[:, None] ** 2 + 1.5 * columns**2)) * (1 + 0.2 * torch.sin(9 * rows[:, None]))
    return torch.polar(modulus, 2 * rows[:, None] + 1.5 * columns**2).to(torch.complex64)


def with_phase(coils: int, mask: torch.Tensor | None = None) -> tuple[Kspace, torch.Tensor]:
    truth = object_with_phase()
    maps = simulated_maps(coils, (48, 40)) if coils > 1 else torch.ones(1, 48, 40, dtype=torch.complex64)
    mask = torch.ones(40, dtype=torch.bool) if mask is None else mask
    return Kspace(centred_fft(maps * truth)[None] * mask, mask), maps


@pytest.mark.parametrize("coils", [1, 4])
def test_a_folded_phase_leaves_a_real_image_the_same_output_and_the_same_norm(coils):
    kspace, maps = with_phase(coils)
    plain, folded = (MeasuredMRI(kspace, maps[None], phase=phase) for phase in ("none", "fold"))
    one, other = plain.problem(0), folded.problem(0)
    assert float(one.direct.imag.norm() / one.direct.norm()) > 0.5
    assert float(other.direct.imag.norm() / other.direct.norm()) < 0.05
    assert float(other.direct.real.min()) > -0.01
    torch.testing.assert_close(image(folded, 0), image(plain, 0), rtol=0, atol=1e-5)
    torch.testing.assert_close(image(folded, 0), object_with_phase(), rtol=0, atol=1e-5)
    assert other.H.norm_bounds()[1] == pytest.approx(one.H.norm_bounds()[1], rel=1e-6)


def test_the_phase_is_folded_unless_the_middle_of_kspace_was_not_measured():
    everything, maps = with_phase(4)
    assert MeasuredMRI(everything, maps[None]).problem(0).phase is not None
    assert MeasuredMRI(everything, maps[None], phase="none").problem(0).phase is None
    mask = torch.arange(40) % 2 == 0
    gaps, _ = with_phase(4, mask)
    assert MeasuredMRI(gaps, maps[None]).problem(0).phase is None
    with pytest.raises(ValueError, match=r"The phase of slice 0 is not known: .* Give phase=none\."):
        MeasuredMRI(gaps, maps[None], phase="fold").problem(0)


@pytest.mark.parametrize("coils", [1, 4])
def test_half_of_kspace_is_enough_for_images_that_are_real_once_their_phase_is_folded(coils):
    """Partial Fourier: least squares on 24 of 40 columns, by conjugate gradients, for both kinds of unknowns."""
    mask = torch.arange(40) >= 16 - 4
    kspace, maps = with_phase(coils, mask)
    errors = {}
    for unknown in ("complex", "real"):
        problem = MeasuredMRI(kspace, maps[None], phase="fold", unknown=unknown, whiten="none").problem(0)
        x = least_squares(problem.H, problem.y)
        assert x.is_complex() == (unknown == "complex")
        found = problem.image(x) * problem.scale
        errors[unknown] = float((found.abs() - object_with_phase().abs()).norm() / object_with_phase().norm())
    assert errors["real"] < 0.5 * errors["complex"]


def least_squares(H, y: torch.Tensor, steps: int = 60) -> torch.Tensor:
    x = torch.zeros_like(H.adjoint(y))
    r = p = H.adjoint(y)
    for _ in range(steps):
        q = H.adjoint(H.forward(p))
        size = r.abs().square().sum()
        if size < 1e-12:
            break
        step = size / (p.conj() * q).real.sum()
        x, r = x + step * p, r - step * q
        p = r + p * (r.abs().square().sum() / size)
    return x


def test_a_mask_that_throws_nothing_away_leaves_nothing_to_compare_with():
    """And what has gaps already gives an aliased image, which is no truth."""
    thinned = Kspace(multi().data * MASK, MASK)
    assert MeasuredMRI(thinned, MAPS.unsqueeze(0), Undersampling(MASK)).problem(0).truth is None
    fewer = MASK.clone()
    fewer[MASK.nonzero()[0]] = False
    assert MeasuredMRI(thinned, MAPS.unsqueeze(0), Undersampling(fewer)).problem(0).truth is None
    assert MeasuredMRI(multi(), MAPS.unsqueeze(0), Undersampling(fewer)).problem(0).truth is not None


def test_a_measured_reference_is_said_to_hold_noise_and_has_scores_within_the_object():
    """Air decides the scores of a whole image otherwise."""
    kept = Undersampling(acceleration=2, center=0.2)
    scan = MeasuredMRI(single(), undersampling=kept)
    assert "The reference was measured" in scan.notes[0]
    problem = scan.problem(0)
    assert set(problem.quality(problem.direct)) == {"psnr", "ssim", "psnr_object", "ssim_object"}
    same = MeasuredMRI(replace(single(), reference=IMAGES))
    assert "holds the same noise as the data" in same.notes[0]
    assert MeasuredMRI(single()).notes == ()
    simulated = SimulatedMRI(Volume(IMAGES), kept)
    assert simulated.notes == ()
    assert set(simulated.problem(0).quality(simulated.problem(0).direct)) == {"psnr", "ssim"}


def test_noise_that_the_data_tell_themselves_is_called_estimated():
    measured = replace(multi(), noise=torch.eye(multi().coils, dtype=torch.complex64))
    assert MeasuredMRI(multi(), coils=MAPS.unsqueeze(0)).problem(0).estimated
    assert not MeasuredMRI(measured, coils=MAPS.unsqueeze(0)).problem(0).estimated
    assert not SimulatedMRI(Volume(IMAGES), Undersampling()).problem(0).estimated


def test_what_is_said_without_coil_maps_names_only_what_the_command_line_has():
    data = multi().data.clone()
    data[..., ::2] = 0
    with pytest.raises(ValueError, match="Give the maps with coils=FILE") as found:
        MeasuredMRI(Kspace(data, measured(data))).problem(0)
    assert "kernel" not in str(found.value)
    assert "paper" not in str(found.value)
    assert "middle of k-space, where frequency zero must lie" in str(found.value)
