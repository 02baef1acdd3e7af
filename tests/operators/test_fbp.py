"""Filtered backprojection."""

import math

import pytest
import torch

from lipspline.operators import FanBeamCT, Identity, ParallelBeamCT, fbp
from lipspline.operators._fbp import WINDOWS, angle_weights, fan_weights, ramp_response


def disk(size, radius=0.6, center=(0.1, -0.2)):
    position = torch.linspace(-1, 1, size, dtype=torch.float64)
    x, y = position.view(1, -1), position.view(-1, 1)
    distance = ((x - center[0]).square() + (y - center[1]).square()).sqrt()
    return (distance < radius).double().view(1, 1, size, size), distance


@pytest.mark.parametrize("filter", WINDOWS)
@pytest.mark.parametrize(("pixel", "spacing"), [(1.0, 1.0), (0.5, 0.905), (2.0, 1.5)])
def test_the_intensity_of_a_disk_comes_back(filter, pixel, spacing):
    """[table:reconstruction_performance_ct]"""
    H = ParallelBeamCT(128, 180, math.ceil(128 * 1.5 * pixel / spacing), spacing=spacing, pixel=pixel)
    x, distance = disk(128)
    z = fbp(3.0 * H.forward(x), H, filter=filter)
    assert float(z[0, 0][distance < 0.45].mean()) == pytest.approx(3.0, rel=0.005)
    assert float(z[0, 0][(distance > 0.75) & (distance < 0.85)].mean()) == pytest.approx(0.0, abs=0.03)
    assert float((z[0, 0] - 3.0)[distance < 0.45].abs().max()) < 0.3


def test_it_needs_no_even_angles():
    x, distance = disk(64)
    for angles in (torch.linspace(0, math.pi, 121), torch.arange(240) * (2 * math.pi / 240), torch.rand(300) * 7):
        H = ParallelBeamCT(64, angles, 91, spacing=1.0)
        z = fbp(H.forward(x), H)
        assert float(z[0, 0][distance < 0.4].mean()) == pytest.approx(1.0, rel=0.02)


def test_it_agrees_with_scikit_image():
    transform = pytest.importorskip("skimage.transform")
    x, _ = disk(97)  # at even sizes its images are half a pixel off the centre
    H = ParallelBeamCT(97, 120, 139, spacing=1.0)
    y = H.forward(x)
    degrees = torch.rad2deg(H.angles).numpy()
    theirs = transform.iradon(y[0, 0].mT.numpy(), degrees, output_size=97, filter_name="hann", circle=False)
    difference = fbp(y, H, filter="hann")[0, 0] - torch.from_numpy(theirs)
    assert torch.linalg.vector_norm(difference) <= 0.01 * torch.linalg.vector_norm(x)


def test_even_angles_weigh_the_same_and_all_weights_add_up_to_a_half_circle():
    torch.testing.assert_close(angle_weights(ParallelBeamCT(8, 9, 12).angles), torch.full((9,), math.pi / 9).double())
    weights = angle_weights(torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(weights.sum(), torch.tensor(math.pi, dtype=torch.float64))
    torch.testing.assert_close(angle_weights(torch.tensor([4.0])), torch.tensor([math.pi]))


def test_a_missing_wedge_is_not_given_to_the_angles_at_its_edge():
    weights = angle_weights(torch.linspace(0, 2, 101, dtype=torch.float64))
    assert float(weights.max()) <= 4 * float(weights.median())


def test_the_ramp_rises_like_the_frequency_and_keeps_a_little_of_the_mean():
    response = ramp_response(200, 0.5)
    nu = torch.linspace(0, 1, len(response), dtype=torch.float64)
    torch.testing.assert_close(response, nu / 2 / 0.5, rtol=0, atol=1e-3)
    assert 0 < float(response[0]) < 1e-3


def test_it_is_linear_batched_and_keeps_the_precision():
    H = ParallelBeamCT(16, 12, 23)
    y = torch.randn(3, 1, 12, 23)
    z = fbp(y, H)
    assert z.shape == (3, 1, 16, 16)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z[1:2], fbp(y[1:2], H))
    torch.testing.assert_close(fbp(2 * y, H), 2 * z)


def test_nonsense_is_refused():
    H = ParallelBeamCT(16, 12, 23)
    with pytest.raises(ValueError, match=r"filter must be one of 'ramp', 'shepp-logan', .* but is 'ram-lak'"):
        fbp(torch.zeros(1, 1, 12, 23), H, filter="ram-lak")  # pyright: ignore
    with pytest.raises(ValueError, match=r"fbp needs shape \(B, 1, 12, 23\), but got \(1, 1, 23, 12\)"):
        fbp(torch.zeros(1, 1, 23, 12), H)


def test_another_operator_is_refused():
    with pytest.raises(ValueError, match="needs the ParallelBeamCT or FanBeamCT that measured y, but got a Identity"):
        fbp(torch.zeros(1, 1, 4, 4), Identity((1, 4, 4)))


# Fans


def fan(arc, angles, detector="flat", **options):
    theta = 0.4 + torch.arange(angles, dtype=torch.float64) * (arc / angles)
    distances = {"source_origin": 250.0, "source_detector": 400.0, "spacing": 1.5, **options}
    return FanBeamCT(128, theta, 215, detector=detector, **distances)


@pytest.mark.parametrize("filter", ["ramp", "hann"])
@pytest.mark.parametrize("detector", ["flat", "curved"])
@pytest.mark.parametrize("arc", [2 * math.pi, 1.35 * math.pi, 1.7 * math.pi], ids=["full", "short", "more"])
@pytest.mark.parametrize("offset", [0.0, 3.3])
def test_the_intensity_of_a_disk_comes_back_from_fans(filter, detector, arc, offset):
    H = fan(arc, 360, detector, offset=offset)
    x, distance = disk(128)
    z = fbp(3.0 * H.forward(x), H, filter=filter)
    assert float(z[0, 0][distance < 0.45].mean()) == pytest.approx(3.0, rel=0.005)
    assert float(z[0, 0][(distance > 0.75) & (distance < 0.85)].mean()) == pytest.approx(0.0, abs=0.03)
    assert float((z[0, 0] - 3.0)[distance < 0.45].abs().max()) < 0.3


def test_a_source_far_away_gives_the_image_of_parallel_beams():
    x, _ = disk(128)
    parallel = ParallelBeamCT(128, 180, 215, spacing=1.0)
    far = FanBeamCT(128, 360, 215, 1.0, source_origin=1e6, source_detector=1e6)
    one, other = fbp(parallel.forward(x), parallel), fbp(far.forward(x), far)
    assert float((one - other).norm() / one.norm()) < 0.01


def test_the_unit_of_length_does_not_matter():
    x, _ = disk(128)
    for detector in ("flat", "curved"):
        one = fan(2 * math.pi, 90, detector)
        half = FanBeamCT(
            128, one.angles, 215, 0.75, source_origin=125.0, source_detector=200.0, detector=detector, pixel=0.5
        )
        torch.testing.assert_close(fbp(half.forward(x), half), fbp(one.forward(x), one))


def test_every_line_of_a_full_or_short_scan_counts_once():
    """The two rays of one line share it: their weights, without the steps of the angles, add up to 1."""
    H = fan(1.4 * math.pi, 700)
    step = 1.4 * math.pi / 700
    share = fan_weights(H) / step
    for a, d in ((20, 30), (100, 180), (10, 200), (350, 107)):
        opposite = (H.angles[a] + math.pi - 2 * H.fan_angles[d] - 0.4) % (2 * math.pi)
        b = int((opposite / step).round())
        twin = float(share[b, H.detectors - 1 - d]) if b < 700 else 0.0
        assert float(share[a, d]) + twin == pytest.approx(1, abs=0.02), (a, d)
    torch.testing.assert_close(fan_weights(fan(2 * math.pi, 90)), torch.full((90, 215), math.pi / 90).double())


def test_a_limited_scan_is_finite_and_about_as_bright_as_the_disk():
    H = fan(math.pi / 2, 181)
    x, distance = disk(128)
    z = fbp(H.forward(x), H)
    assert torch.isfinite(z).all()
    assert 0.2 < float(z[0, 0][distance < 0.45].mean()) < 1.2
