"""PSNR and SSIM against scikit-image, under both profiles [sec:exp_pnp]."""

import numpy as np
import pytest
import torch

from lipspline.functional.quality import object_mask, psnr, ssim

metrics = pytest.importorskip("skimage.metrics")


def pair(*shape: int, dtype=torch.float64, scale: float = 1.0):
    reference = torch.rand(shape, dtype=dtype).cumsum(-1)
    reference = scale * reference / reference.amax()
    return reference + 0.1 * scale * torch.randn(shape, dtype=dtype), reference


def test_paper_profile_is_scikit_image_with_range_1_and_clipping():
    """[sec:exp_pnp]: equal to 1e-10, image by image."""
    estimate, reference = pair(3, 1, 20, 31)
    assert estimate.min() < 0 < 1 < estimate.max()
    clipped = estimate.clamp(0, 1)
    for i in range(3):
        x, y = clipped[i, 0].numpy(), reference[i, 0].numpy()
        wanted = metrics.peak_signal_noise_ratio(y, x, data_range=1.0)
        assert psnr(estimate, reference)[i].item() == pytest.approx(wanted, abs=1e-10)
        wanted = metrics.structural_similarity(y, x, data_range=1.0)
        assert ssim(estimate, reference)[i].item() == pytest.approx(wanted, abs=1e-10)


def test_fastmri_profile_takes_the_maximum_of_the_volume_and_clips_nothing():
    estimate, reference = pair(2, 5, 24, 24, scale=3e-4)
    for i in range(2):
        x, y = estimate[i].numpy(), reference[i].numpy()
        wanted = metrics.peak_signal_noise_ratio(y, x, data_range=y.max())
        assert psnr(estimate, reference, "fastmri")[i].item() == pytest.approx(wanted, abs=1e-10)
        wanted = np.mean([metrics.structural_similarity(y[s], x[s], data_range=y.max()) for s in range(5)])
        assert ssim(estimate, reference, "fastmri")[i].item() == pytest.approx(wanted, abs=1e-10)


def test_channels_of_an_image_are_averaged_like_scikit_image():
    estimate, reference = pair(1, 3, 16, 18)
    x, y = estimate.clamp(0, 1)[0].numpy(), reference[0].numpy()
    wanted = metrics.structural_similarity(y, x, data_range=1.0, channel_axis=0)
    assert ssim(estimate, reference).item() == pytest.approx(wanted, abs=1e-10)


def test_float32_images_are_compared_in_float64():
    estimate, reference = pair(2, 1, 16, 16, dtype=torch.float32)
    assert psnr(estimate, reference).dtype == torch.float64
    assert torch.equal(ssim(estimate, reference), ssim(estimate.double(), reference.double()))


def test_the_profiles_differ_where_the_conventions_do():
    estimate, reference = pair(1, 1, 16, 16, scale=0.5)
    gap = psnr(estimate, reference, "fastmri") - psnr(estimate.clamp(0, 1), reference, "fastmri")
    assert gap.item() < 0
    decibels = psnr(estimate.clamp(0, 1), reference) - psnr(estimate.clamp(0, 1), reference, "fastmri")
    assert decibels.item() == pytest.approx(20 * np.log10(2), abs=1e-10)


def test_equal_images_have_ssim_1_and_infinite_psnr():
    image = torch.rand(2, 1, 9, 9)
    assert ssim(image, image).tolist() == pytest.approx([1.0, 1.0])
    assert psnr(image, image).tolist() == [float("inf")] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: psnr(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 9)), r"estimate has shape \(1, 1, 8, 8\) and the"),
        (lambda: ssim(torch.ones(8, 8), torch.ones(8, 8)), r"equal shape \(B, C, H, W\)"),
        (lambda: ssim(torch.ones(1, 1, 8, 6), torch.ones(1, 1, 8, 6)), "7 x 7 pixels, but the images have 8 x 6"),
        (
            lambda: psnr(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8), "skimage"),
            "profile must be one of 'paper', 'fastmri', but is 'skimage'",
        ),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_complex_images_are_compared_by_their_magnitudes():
    x, y = torch.rand(2, 1, 16, 16), torch.rand(2, 1, 16, 16)
    turned = x * torch.polar(torch.ones(()), torch.tensor(2.0))
    assert psnr(turned, y) == pytest.approx(psnr(x, y), abs=1e-4)
    assert ssim(y + 0j, turned) == pytest.approx(ssim(y, x), abs=1e-4)


def test_scores_within_a_mask_do_not_see_what_lies_outside():
    estimate, reference = pair(1, 1, 40, 40)
    within = torch.zeros(40, 40, dtype=torch.bool)
    within[10:30, 12:30] = True
    part = (slice(None), slice(None), slice(10, 30), slice(12, 30))
    assert psnr(estimate, reference, within=within).item() == pytest.approx(
        psnr(estimate[part], reference[part]).item(), abs=1e-10
    )
    wide = (slice(None), slice(None), slice(7, 33), slice(9, 33))  # windows reach three pixels beyond
    assert ssim(estimate, reference, within=within).item() == pytest.approx(
        ssim(estimate[wide], reference[wide]).item(), abs=1e-10
    )
    assert torch.equal(psnr(estimate, reference, within=torch.ones_like(within)), psnr(estimate, reference))


def test_the_object_has_its_cavities_and_not_the_noise_of_the_air():
    rows, columns = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    radius = ((rows - 47.5).square() + (columns - 47.5).square()).sqrt()
    image = ((radius < 30) & (radius > 10)).double() + 0.05 * torch.randn(96, 96).abs()
    mask = object_mask(image)
    assert mask[radius < 30].all()
    assert not mask[radius > 36].any()
