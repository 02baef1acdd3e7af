"""Wasserstein-1: the dual estimate, and pairs with a known distance, against exact discrete transport [wasserstein]."""

import pytest
import torch

from lipspline.functional.transport import (
    Mixture,
    discrete_w1,
    dual_gap,
    min_funnel,
    push_along_rays,
    random_mixture,
)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def funnel(size: int, funnels: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    centres = 2 * torch.randn(funnels, size, generator=stream(1), dtype=torch.float64)
    return centres, torch.rand(funnels, generator=stream(2), dtype=torch.float64)


def samples(count: int, size: int, seed: int = 3) -> torch.Tensor:
    return 2 * torch.randn(count, size, generator=stream(seed), dtype=torch.float64)


def test_discrete_transport_on_the_line_is_the_mean_distance_of_sorted_samples():
    """[wasserstein] In one dimension the optimal plan is monotone."""
    x, y = samples(50, 1), samples(50, 1, seed=4) + 0.5
    expected = (x.sort(dim=0).values - y.sort(dim=0).values).abs().mean().item()
    assert discrete_w1(x, y) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("distance", [0.3, 1.0, 30.0])
def test_samples_pushed_along_rays_travel_exactly_the_wasserstein_distance(size, distance):
    """[wasserstein] The oracle is exact discrete optimal transport; 30 is beyond every centre."""
    x, (centres, heights) = samples(80, size), funnel(size)
    y, length = push_along_rays(x, centres, heights, distance)
    assert (x - y).norm(dim=1) == pytest.approx(length)
    assert length.max() <= distance
    assert discrete_w1(x, y) == pytest.approx(length.mean().item(), rel=1e-9)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_funnel_is_an_optimal_potential_for_them(size):
    """[wasserstein] The dual estimate with u attains the primal cost."""
    x, (centres, heights) = samples(80, size), funnel(size)
    y, length = push_along_rays(x, centres, heights, 0.7)
    gap = dual_gap(min_funnel(x, centres, heights), min_funnel(y, centres, heights))
    assert gap.item() == pytest.approx(length.mean().item(), rel=1e-9)


def test_some_samples_arrive_and_some_do_not():
    """Otherwise the two tests above would check one of the two cases only."""
    x, (centres, heights) = samples(80, 2), funnel(2)
    _, length = push_along_rays(x, centres, heights, 1.0)
    assert 0 < int((length < 1.0).sum()) < 80


def test_the_funnel_is_the_minimum_of_cones_and_has_slope_one():
    x, (centres, heights) = samples(40, 3), funnel(3)
    expected = torch.stack([(x - a).norm(dim=1) + b for a, b in zip(centres, heights, strict=True)]).amin(dim=0)
    torch.testing.assert_close(min_funnel(x, centres, heights), expected)
    x.requires_grad_(True)
    (gradient,) = torch.autograd.grad(min_funnel(x, centres, heights).sum(), x)
    torch.testing.assert_close(gradient.norm(dim=1), torch.ones(40, dtype=torch.float64))


def test_a_sample_at_a_centre_stays():
    centres, heights = funnel(2)
    lowest = centres[heights.argmin()].unsqueeze(0)
    y, length = push_along_rays(lowest, centres, heights, 1.0)
    assert torch.equal(y, lowest)
    assert length.item() == 0


def test_a_translation_by_v_has_distance_the_norm_of_v():
    """[wasserstein]"""
    x, v = samples(60, 3), torch.tensor([0.3, -0.4, 1.2], dtype=torch.float64)
    assert discrete_w1(x, x + v) == pytest.approx(1.3, rel=1e-9)
    assert dual_gap((x + v) @ v / 1.3, x @ v / 1.3).item() == pytest.approx(1.3)


def test_no_1_lipschitz_function_exceeds_the_distance():
    """[wasserstein]"""
    x, y = samples(60, 2), samples(60, 2, seed=9) + 1
    distance = discrete_w1(x, y)
    for angle in torch.linspace(0, 6.28, 20):
        direction = torch.stack([angle.cos(), angle.sin()]).double()
        assert dual_gap(x @ direction, y @ direction) <= distance + 1e-9


def test_the_distance_to_push_is_positive():
    with pytest.raises(ValueError, match="distance must be a positive"):
        push_along_rays(samples(3, 2), *funnel(2), 0.0)


def test_a_mixture_has_the_mean_and_covariance_of_its_components():
    """[sec:EvalExp] E = (μ1 + μ2)/2 and Cov = (A1ᵀA1 + A2ᵀA2)/2 + (μ1 - μ2)(μ1 - μ2)ᵀ/4."""
    mixture = random_mixture(3, stream(5))
    x = mixture.sample(200_000, stream(6))
    means, factors = mixture
    torch.testing.assert_close(x.mean(dim=0), means.mean(dim=0), rtol=0, atol=0.03)
    difference = means[0] - means[1]
    covariance = (factors.mT @ factors).mean(dim=0) + torch.outer(difference, difference) / 4
    torch.testing.assert_close(x.T.cov(), covariance, rtol=0.02, atol=0.05)


def test_a_mixture_draws_from_one_component_at_a_time():
    """[sec:EvalExp] Far apart, half of the samples lie near either mean, and none between."""
    mixture = Mixture(torch.tensor([[100.0], [-100.0]]), torch.ones(2, 1, 1))
    x = mixture.sample(10_000, stream())
    assert ((x.abs() - 100).abs() < 6).all()
    assert (x > 0).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_the_paper_s_mixtures_are_standard_normal_in_every_entry():
    """[sec:EvalExp]"""
    mixture = random_mixture(60, stream(7))
    assert mixture.means.shape == (2, 60)
    assert mixture.factors.std().item() == pytest.approx(1, abs=0.03)
    assert mixture.factors.mean().item() == pytest.approx(0, abs=0.03)
