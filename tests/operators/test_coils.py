"""Multi-coil MRI, simulated sensitivities, compression."""

import math

import pytest
import torch
from operator_cases import batch_of_maps, dense, image, plane_mask, random

from lipspline.operators import (
    MRI,
    Identity,
    MultiCoilMRI,
    SoftSenseMRI,
    cartesian_mask,
    compress_coils,
    simulated_maps,
)


@pytest.mark.parametrize("convention", ["paper", "centred"])
def test_every_coil_is_a_single_coil_scan_of_the_weighted_image(convention):
    """[sec:exp_pnp]: y_c = M F S_c x"""
    mask, maps = plane_mask(6, 7), simulated_maps(3, (6, 7)).to(torch.complex128)
    x = random(2, 1, 6, 7)
    y = MultiCoilMRI(mask, maps, convention=convention).forward(x)
    real, imaginary = MRI(mask, convention=convention), MRI(mask, convention=convention)
    for c in range(3):
        expected = real.forward(x * maps[c].real) + 1j * imaginary.forward(x * maps[c].imag)
        torch.testing.assert_close(y[:, c : c + 1], expected)


def test_one_coil_of_sensitivity_one_is_single_coil_mri():
    mask, x = cartesian_mask(8, 2), random(1, 1, 5, 8)
    H, single = MultiCoilMRI(mask, torch.ones(1, 5, 8, dtype=torch.complex64)), MRI(mask)
    torch.testing.assert_close(H.forward(x), single.forward(x))
    torch.testing.assert_close(H.adjoint(H.forward(x)), single.adjoint(single.forward(x)))


def test_maps_for_each_image_of_a_batch_stay_with_their_image():
    mask, maps = plane_mask(4, 6), batch_of_maps(2, 3, (4, 6))
    H = MultiCoilMRI(mask, maps, convention="centred")
    x = random(2, 1, 4, 6, dtype=torch.complex128)
    for k in range(2):
        alone = MultiCoilMRI(mask, maps[k], convention="centred")
        torch.testing.assert_close(H.forward(x)[k], alone.forward(x[k : k + 1])[0])
        torch.testing.assert_close(H.adjoint(H.forward(x))[k], alone.adjoint(alone.forward(x[k : k + 1]))[0])
    with pytest.raises(ValueError, match=r"needs shape \(2, 1, 4, 6\), but got \(3, 1, 4, 6\)"):
        H.forward(torch.zeros(3, 1, 4, 6))


def test_full_sampling_makes_the_bounds_exact():
    """[eq:H_invert]"""
    maps = random(3, 4, 5, dtype=torch.complex128)
    H = MultiCoilMRI(torch.ones(5, dtype=torch.bool), maps, convention="centred")
    values = torch.linalg.svdvals(dense(H.forward, image(H)))
    assert H.norm_bounds()[1] == pytest.approx(float(values[0]), rel=1e-9)
    assert H.smallest_singular_value() == pytest.approx(float(values[-1]), rel=1e-9)
    assert MultiCoilMRI(cartesian_mask(5, 2), maps).smallest_singular_value() is None


def test_normalised_maps_give_norm_at_most_one():
    lower, upper = MultiCoilMRI(cartesian_mask(64), simulated_maps(8, (64, 64))).norm_bounds()
    assert 0.95 < lower <= 1.0 <= upper < 1 + 1e-6


@pytest.mark.parametrize("shape", [(32, 32), (31, 20)])
def test_simulated_maps_have_unit_square_sum_and_fall_off_with_the_distance(shape):
    maps = simulated_maps(8, shape).to(torch.complex128)
    torch.testing.assert_close(maps.abs().square().sum(0), torch.ones(shape, dtype=torch.float64))
    row, column = 3, 5
    x, y = (2 * column + 1) / shape[1] - 1, (2 * row + 1) / shape[0] - 1
    distances = torch.tensor([math.dist((x, y), (1.5 * math.cos(a), 1.5 * math.sin(a))) for a in _angles(8)])
    expected = distances[0] / distances
    torch.testing.assert_close(
        (maps[:, row, column] / maps[0, row, column]).abs(), expected.double(), rtol=1e-5, atol=0
    )


def test_simulated_coils_turn_with_the_image():
    maps = simulated_maps(4, (9, 9)).abs()
    torch.testing.assert_close(torch.rot90(maps[0], -1), maps[1])
    assert int(maps[0].argmax()) % 9 == 8  # the first coil stands to the right


def test_compressed_coils_keep_the_energy_of_the_strongest():
    kspace = random(6, 8, 9, dtype=torch.complex128) * torch.tensor([9.0, 5, 3, 1, 0.1, 0.01]).view(-1, 1, 1)
    singular_values = torch.linalg.svdvals(kspace.flatten(1))
    compressed = compress_coils(kspace, 3)
    torch.testing.assert_close(torch.linalg.svdvals(compressed.flatten(1)), singular_values[:3])
    torch.testing.assert_close(
        compress_coils(kspace, 6).abs().square().sum(0).sum(), kspace.abs().square().sum(0).sum()
    )
    torch.testing.assert_close(compress_coils(kspace.unsqueeze(0), 3)[0].abs(), compressed.abs())


def test_nonsense_is_refused():
    mask = torch.ones(8, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"Coil maps must be complex with shape \(C, H, W\) or \(B, C, H, W\)"):
        MultiCoilMRI(mask, torch.ones(3, 8, 8))
    with pytest.raises(ValueError, match=r"mask \(8,\) does not fit the \(8, 9\) pixels"):
        MultiCoilMRI(mask, simulated_maps(3, (8, 9)))
    with pytest.raises(ValueError, match="zero everywhere"):
        MultiCoilMRI(mask, torch.zeros(3, 8, 8, dtype=torch.complex64))
    with pytest.raises(ValueError, match="coil maps has 192 NaN"):
        MultiCoilMRI(mask, torch.full((3, 8, 8), float("nan"), dtype=torch.complex64))
    with pytest.raises(ValueError, match="can make 1 to 3 coils of 3, but was asked for 4"):
        compress_coils(torch.zeros(3, 8, 8, dtype=torch.complex64), 4)
    with pytest.raises(ValueError, match="The coils must stand outside the image"):
        simulated_maps(3, (8, 8), distance=1.0)


def _angles(coils):
    return [2 * math.pi * c / coils for c in range(coils)]


def test_the_support_is_where_some_coil_sees():
    maps = simulated_maps(3, (6, 7))
    assert MultiCoilMRI(plane_mask(6, 7), maps).support is None
    maps[:, 2:, 4] = 0
    maps[:2] = 0
    H = MultiCoilMRI(plane_mask(6, 7), maps)
    expected = torch.ones(1, 6, 7, dtype=torch.bool)
    expected[:, 2:, 4] = False
    for operator in (H, 2 * H, H + H, Identity(H.output_shape) @ H):
        assert operator.support is not None
        assert (operator.support == expected).all()
    everywhere = MultiCoilMRI(plane_mask(6, 7), simulated_maps(3, (6, 7)))
    assert (H + everywhere).support is None
    assert H.adjoint(random(1, 3, 6, 7, dtype=torch.complex128))[..., 2:, 4].abs().max() == 0


# Several sets of maps


def test_sets_of_maps_add_up_what_each_would_measure():
    mask, maps = plane_mask(5, 6), batch_of_maps(2, 3, (5, 6))
    H = SoftSenseMRI(mask, maps, convention="centred")
    images = random(2, 2, 5, 6, dtype=torch.complex128)
    alone = [
        MultiCoilMRI(mask, some, convention="centred").forward(images[:, m : m + 1]) for m, some in enumerate(maps)
    ]
    torch.testing.assert_close(H.forward(H.stack(images)), alone[0] + alone[1])
    torch.testing.assert_close(H.split(H.stack(images)), images)


def test_rows_between_the_images_are_outside_the_support_and_not_measured():
    maps = batch_of_maps(2, 3, (4, 5))
    maps[1, :, 2, 3] = 0
    H = SoftSenseMRI(torch.ones(5, dtype=torch.bool), maps)
    seen = torch.ones(1, 24, 5, dtype=torch.bool)
    seen[:, 4:20] = False
    seen[:, 22, 3] = False
    assert torch.equal(H.support, seen)
    assert not H.forward((~seen).double()[None]).any()


@pytest.mark.parametrize("seed", range(3))
def test_the_norm_of_sets_of_maps_is_that_of_the_worst_pixel(seed):
    check_soft_sense_bounds(seed)


@pytest.mark.slow
def test_the_norms_of_a_thousand_random_sets_of_maps():
    for seed in range(1000):
        check_soft_sense_bounds(seed)


def check_soft_sense_bounds(seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    sets, height, width = (
        int(torch.randint(low, high, (), generator=stream)) for low, high in ((1, 4), (2, 6), (2, 6))
    )
    maps = torch.randn(sets, sets + 2, height, width, generator=stream, dtype=torch.complex128)
    maps = maps * torch.rand(sets, 1, height, width, generator=stream)  # weights
    H = SoftSenseMRI(torch.ones(width, dtype=torch.bool), maps, convention="centred")
    norm = float(torch.linalg.svdvals(dense(H.forward, image(H, batch=1)))[0])
    lower, upper = H.norm_bounds()
    assert lower <= norm * (1 + 1e-12)
    assert norm <= upper
    assert upper <= 1.01 * lower


def test_sets_of_maps_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"Sets of coil maps have shape \(M, C, H, W\), but these have \(3, 4, 5\)"):
        SoftSenseMRI(torch.ones(5, dtype=torch.bool), batch_of_maps(1, 3, (4, 5))[0])
    with pytest.raises(ValueError, match="does not fit"):
        SoftSenseMRI(torch.ones(6, dtype=torch.bool), batch_of_maps(2, 3, (4, 5)))
