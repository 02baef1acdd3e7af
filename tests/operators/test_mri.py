"""Single-coil MRI against explicit Fourier matrices, and the sampling masks."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operator_cases import dense, image, plane_mask, random

from lipspline.operators import MRI, MultiCoilMRI, cartesian_mask, simulated_maps


def fourier_matrix(size, middle):
    """Orthonormal DFT matrix; positions and frequencies are counted from index `middle`."""
    n = torch.arange(size, dtype=torch.float64) - middle
    return torch.polar(torch.tensor(1 / math.sqrt(size), dtype=torch.float64), -2 * torch.pi * torch.outer(n, n) / size)


@pytest.mark.parametrize(("height", "width"), [(6, 8), (5, 7), (4, 9)])
def test_the_paper_convention_is_the_uncentred_transform_of_real_images(height, width):
    """[sec:exp_pnp]"""
    x, mask = random(2, 1, height, width), plane_mask(height, width)
    transform = fourier_matrix(height, 0) @ x.to(torch.complex128) @ fourier_matrix(width, 0).mT
    kept = mask.roll((-(height // 2), -(width // 2)), dims=(0, 1))  # the middle of the mask moves to index 0
    torch.testing.assert_close(MRI(mask).forward(x), transform * kept)


@pytest.mark.parametrize(("height", "width"), [(6, 8), (5, 7), (4, 9)])
def test_the_centred_convention_counts_from_the_middle(height, width):
    x, mask = random(2, 1, height, width, dtype=torch.complex128), plane_mask(height, width)
    transform = fourier_matrix(height, height // 2) @ x @ fourier_matrix(width, width // 2).mT
    torch.testing.assert_close(MRI(mask, convention="centred").forward(x), transform * mask)


def test_the_conventions_measure_the_same_frequencies():
    mask = plane_mask(6, 7)
    x = random(1, 1, 6, 7)
    shifted = torch.fft.fftshift(x, dim=(-2, -1)).to(torch.complex128)
    y = torch.fft.fftshift(MRI(mask).forward(x), dim=(-2, -1))
    torch.testing.assert_close(MRI(mask, convention="centred").forward(shifted), y)


def test_a_mask_of_columns_serves_images_of_any_height():
    mask = cartesian_mask(16, 2)
    for height in (1, 5, 16):
        x = random(1, 1, height, 16)
        torch.testing.assert_close(MRI(mask).forward(x), MRI(mask.expand(height, 16)).forward(x))
    assert MRI(mask).input_shape == (1, None, 16)


def test_what_was_not_measured_is_zero_and_ignored():
    H = MRI(cartesian_mask(32), convention="centred")
    unseen = ~H.mask
    assert not H.forward(random(1, 1, 8, 32))[..., unseen].any()
    y = random(1, 1, 8, 32, dtype=torch.complex128)
    torch.testing.assert_close(H.adjoint(y), H.adjoint(y * H.mask))


@pytest.mark.parametrize("height", [1, 4, 5])
@pytest.mark.parametrize(
    "columns",
    ["0000100000", "0000010000", "0100000000", "1000000000", "0001010000", "1111100000", "11111", "01000", "00110"],
)
@pytest.mark.parametrize("convention", ["paper", "centred"])
def test_norm_and_smallest_singular_value_are_exact(height, columns, convention):
    """[eq:H_invert]; a frequency of a real image measured on one side only counts sqrt(1/2)."""
    H = MRI(torch.tensor([c == "1" for c in columns]).expand(height, -1), convention=convention)
    values = torch.linalg.svdvals(dense(H.forward, image(H)))
    assert H.norm_bounds() == pytest.approx((float(values[0]), float(values[0])), rel=1e-12)
    smallest = H.smallest_singular_value()
    assert (smallest or 0.0) == pytest.approx(float(values[-1]), abs=1e-12)


def test_half_of_k_space_determines_a_real_image():
    mask = torch.ones(9, dtype=torch.bool)
    mask[:4] = False
    assert MRI(mask.expand(1, 9)).smallest_singular_value() == pytest.approx(math.sqrt(0.5))
    assert MRI(mask, convention="centred").smallest_singular_value() is None


@given(
    width=st.integers(1, 400),
    acceleration=st.floats(1, 12),
    share=st.floats(0, 1),
    seed=st.integers(0, 5),
)
def test_a_mask_has_exactly_the_columns_asked_for(width, acceleration, share, seed):
    """[sec:exp_pnp]: ⌊width·center⌋ columns in the middle and ⌊width/acceleration⌋ in all."""
    center = share / acceleration
    low, total = math.floor(width * center), math.floor(width / acceleration)
    if total == 0 or low > total:
        return
    mask = cartesian_mask(width, acceleration, center, seed)
    assert mask.shape == (width,)
    assert mask.dtype == torch.bool
    assert int(mask.sum()) == total
    assert mask[width // 2 - low // 2 :][:low].all()
    assert torch.equal(mask, cartesian_mask(width, acceleration, center, seed))


@pytest.mark.parametrize(
    ("acceleration", "center", "low", "total"), [(4, 0.08, 25, 80), (6, 0.06, 19, 53), (8, 0.04, 12, 40)]
)
def test_the_masks_of_the_paper(acceleration, center, low, total):
    """[sec:exp_pnp]"""
    masks = torch.stack([cartesian_mask(320, acceleration, center, seed) for seed in range(60)])
    assert (masks.sum(1) == total).all()
    always = masks.all(0).nonzero().squeeze(1)
    assert len(always) == low  # the other columns change with the seed
    assert abs(float(always.double().mean()) - 160) <= 0.5
    assert (masks[:, : 160 - low].any(0)).float().mean() > 0.9


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="is false everywhere: nothing would be measured"):
        MRI(torch.zeros(8, dtype=torch.bool))
    with pytest.raises(
        ValueError, match=r"must be a bool tensor, but has dtype torch\.float32\. Convert with mask != 0"
    ):
        MRI(torch.ones(8))
    with pytest.raises(ValueError, match=r"must have shape \(W,\) or \(H, W\), but has shape \(1, 8, 8\)"):
        MRI(torch.ones(1, 8, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match="convention must be one of 'paper', 'centred', but is 'fastmri'"):
        MRI(torch.ones(8, dtype=torch.bool), convention="fastmri")
    with pytest.raises(ValueError, match="25 columns in the middle of 16 in all"):
        cartesian_mask(320, acceleration=20, center=0.08)
    with pytest.raises(ValueError, match="0 in all"):
        cartesian_mask(3, acceleration=4, center=0)


def test_columns_are_counted_as_the_fraction_is_written():
    """100 times 0.29 is 28.999999999999996 in floating-point numbers."""
    for center, low in ((0.29, 29), (0.57, 57), (0.58, 58), (0.0, 0)):
        mask = cartesian_mask(100, acceleration=1.25, center=center)
        start = 50 - low // 2
        assert mask[start : start + low].all()
        assert int(mask.sum()) == 80
        if low:
            others = cartesian_mask(100, 1.25, center, seed=1)
            assert (mask & others).sum() < 80


@pytest.mark.parametrize("center", [float("nan"), float("inf"), -0.1, 1.1])
def test_a_fraction_that_is_none_is_refused(center):
    with pytest.raises(ValueError, match="center must lie"):
        cartesian_mask(64, center=center)


def test_what_was_not_measured_is_ignored_whatever_it_is():
    mask = cartesian_mask(16)
    y = MRI(mask).forward(torch.rand(1, 1, 16, 16))
    spoilt = torch.where(torch.fft.ifftshift(mask), y, torch.nan)
    assert torch.equal(MRI(mask).adjoint(spoilt), MRI(mask).adjoint(y))
    maps = simulated_maps(3, (16, 16))
    many = MultiCoilMRI(mask, maps)
    y = many.forward(torch.rand(1, 1, 16, 16))
    assert torch.equal(many.adjoint(torch.where(torch.fft.ifftshift(mask), y, torch.nan)), many.adjoint(y))


def test_masks_may_be_arrays_or_lists():
    mask = cartesian_mask(16)
    x = torch.rand(1, 1, 16, 16)
    for other in (mask.numpy(), mask.tolist()):
        assert torch.equal(MRI(other).forward(x), MRI(mask).forward(x))
