"""Which denoiser, and how strong."""

from dataclasses import replace

import pytest
import torch

import sample_files
from lipspline import models
from lipspline.formats.builtin import shepp_logan
from lipspline.formats.volume import Volume
from lipspline.imaging import held_out, strength
from lipspline.imaging.mri import SimulatedMRI, Undersampling
from lipspline.imaging.problem import Iteration, Problem, solve_problem
from lipspline.operators import Identity
from lipspline.priors import EnergyPrior, resolve


def problem(noise: float, factor: float = 1.0) -> Problem:
    y = torch.zeros(1, 1, 4, 4)
    return Problem(y, factor * Identity((1, 4, 4)), y, 1.0, noise)


@pytest.fixture
def net(tmp_path) -> str:
    return str(sample_files.write_denoiser(tmp_path / "net.safetensors"))


def test_a_given_beta_is_used_and_must_keep_the_denoiser_averaged(net):
    chosen = strength.choose(net, "auto", 0.4, problem(0.01))
    assert (chosen.weight, chosen.chosen, chosen.name) == (0.4, "given", "net.safetensors")
    assert chosen.upper <= 1
    with pytest.raises(ValueError, match="beta must lie strictly between 0 and 1"):
        strength.choose(net, "auto", 1.0, problem(0.01))


def test_an_automatic_beta_grows_with_the_noise_and_stays_where_stability_is_proven(net):
    betas = [strength.choose(net, "auto", "auto", problem(noise)).weight for noise in (0, 0.01, 0.02, 0.03, 9)]
    assert betas == sorted(betas)
    assert strength.BETAS[0] == betas[0] < betas[2] < betas[3] < betas[-1] == 0.5


@pytest.mark.parametrize("relative", [0.003, 0.01, 0.03])
def test_noise_level_and_beta_match_the_noise_in_the_data(relative):
    """β s² = (n/‖H‖)², whichever of the two is given."""
    s = strength.matching_noise(relative, 0.1)
    assert 0.1 * (s / 255) ** 2 == pytest.approx(relative**2)
    assert strength.matching_beta(relative, s) == pytest.approx(0.1)


def test_a_quadratic_prior_makes_the_rule_exact():
    """For x ~ N(0, 1) the denoiser at noise s is x/(1 + s²); with small s the fixed point is the posterior mean."""
    s, beta, norm = 0.05, 0.1, 3.0
    n = norm * s * beta**0.5
    y, x = 2.0, 0.0
    for _ in range(20000):
        z = x - (norm * x - y) / norm
        x = beta * z / (1 + s**2) + (1 - beta) * z
    assert x == pytest.approx(norm * y / (norm**2 + n**2), rel=1e-5)


def test_a_quarter_of_the_prior_is_that_of_half_the_noise():
    assert strength.relative_noise(problem(0.02), 0.25) == pytest.approx(strength.relative_noise(problem(0.01), 1.0))


def test_noise_is_measured_in_units_of_the_norm_of_the_operator():
    assert strength.relative_noise(problem(0.3, 5.0)) == pytest.approx(strength.relative_noise(problem(0.06)))


def test_noise_in_the_data_and_in_the_image_have_two_names():
    """The certificate has the first as `noise` of the slice."""
    words = "auto, from noise 0.3 in the data, which is 0.06 of the brightness of the image"
    assert strength.choose("lls", "auto", "auto", problem(0.3, 5.0)).chosen == words


def test_shipped_denoisers_go_by_name_and_noise():
    assert strength.choose("lls", 7.5, 0.4, problem(0.01)).name == "lls-7.5"
    automatic = strength.choose("lls", "auto", "auto", problem(0.01), factor=1 / strength.PRIOR)
    assert (automatic.name, automatic.weight) == ("lls-8.06", pytest.approx(strength.USUAL_BETA))
    assert automatic.chosen == f"{1 / strength.PRIOR:g} times auto, from noise 0.01 in the data"
    assert strength.choose("lls", "auto", "auto", problem(0.02)).name == f"lls-{8.06 * 2 * strength.PRIOR**0.5:.3g}"
    assert strength.choose("av", 10, "auto", problem(0.01), factor=1 / strength.PRIOR).weight == strength.matching_beta(
        0.01, 10
    )
    assert strength.choose("av", "auto", 0.4, problem(0.01)).weight == 0.4


def test_little_noise_lowers_beta_rather_than_the_level_of_the_denoiser():
    """Below the levels it was trained for a denoiser sees images that are brighter than in its training."""
    chosen = strength.choose("lls", "auto", "auto", problem(0.004), factor=1 / strength.PRIOR)
    assert (chosen.name, chosen.weight) == ("lls-5", strength.matching_beta(0.004, 5))
    assert strength.choose("av", "auto", "auto", problem(0.004), factor=1 / strength.PRIOR).name == "av-5"
    assert strength.choose("lls", "auto", 0.1, problem(0.004), factor=1 / strength.PRIOR).name == "lls-3.23"


def test_complex_images_are_served_in_their_own_range():
    """Real and imaginary parts lie in [-1, 1], and a network knows only the values it was trained on."""
    y = torch.zeros(1, 1, 4, 4, dtype=torch.complex64)
    chosen = strength.choose("lls", 8, 0.1, Problem(y, Identity((1, 4, 4)), y, 1.0, 0.01))
    x = 2 * torch.rand(1, 1, 4, 4) - 1
    wanted = 2 * (models.zoo("lls", 4)((x + 1) / 2) - 0.5)
    torch.testing.assert_close(chosen.served(x), wanted, rtol=1e-5, atol=1e-6)
    assert chosen.upper <= 1


@pytest.mark.parametrize("provenance", [{"noise": 5}, {"trained": {"noise": 5}}])
def test_a_file_that_says_what_it_was_trained_for_is_taken_at_its_word(tmp_path, provenance):
    """In either of the places where files have it."""
    network = models.denoiser("lls", channels=4, depth=2)
    models.save(network, tmp_path / "n.safetensors", provenance)
    chosen = strength.choose(str(tmp_path / "n.safetensors"), "auto", "auto", problem(0.01), factor=1 / strength.PRIOR)
    assert chosen.weight == strength.matching_beta(0.01, 5)


def test_a_file_that_does_not_say_it_needs_beta(tmp_path):
    models.save(models.denoiser("lls", channels=4, depth=2), tmp_path / "n.safetensors")
    with pytest.raises(ValueError, match="does not say which noise level it was trained for"):
        strength.choose(str(tmp_path / "n.safetensors"), "auto", "auto", problem(0.01))
    assert strength.choose(str(tmp_path / "n.safetensors"), "auto", 0.3, problem(0.01)).weight == 0.3


def test_other_names_and_networks_are_refused(net, tmp_path):
    with pytest.raises(ValueError, match=r"prior must be one of .*lls.* but is 'unet'"):
        strength.choose("unet", "auto", 0.4, problem(0.01))
    models.save(models.mlp(2, 1, width=4, depth=2), tmp_path / "mlp.safetensors")
    with pytest.raises(ValueError, match="is not a denoiser of grey images"):
        strength.choose(str(tmp_path / "mlp.safetensors"), "auto", 0.4, problem(0.01))


def test_an_energy_gets_the_weight_that_the_noise_asks_for():
    """λ(s) n² / s², times the fraction that was found best, whatever the norm of H is."""
    prior = resolve("ridge")
    assert isinstance(prior, EnergyPrior)
    chosen = strength.choose("ridge", 10, "auto", problem(0.02, 5.0))
    assert chosen.weight == pytest.approx(strength.ENERGY * prior.strength(10) * (255 * 0.02 / 10) ** 2)
    assert strength.choose("ridge", 10, "auto", problem(0.02), 3.0).weight == pytest.approx(3 * chosen.weight)
    assert strength.choose("ridge", 10, "auto", problem(0.02), 3.0).chosen.startswith("3 times auto, from noise")
    assert strength.choose("lls", "auto", "auto", problem(0.02), 0.5).chosen.startswith("0.5 times auto, from noise")
    automatic = strength.choose("ridge", "auto", "auto", problem(0.02))
    assert automatic.noise == pytest.approx(255 * 0.02 * strength.ABOVE)
    assert strength.choose("ridge", "auto", "auto", problem(0.0)).noise == strength.ENERGY_NOISES[0]
    assert strength.choose("ridge", "auto", "auto", problem(0.0)).weight > 0


def test_beta_is_not_for_energies():
    with pytest.raises(ValueError, match="beta is the weight of a denoiser, but ridge is an energy"):
        strength.choose("ridge", "auto", 0.4, problem(0.01))


SIZE = 64


def undersampled(noise: float = 0.02) -> Problem:
    """A phantom with half of its columns measured."""
    truth = shepp_logan(SIZE)
    scan = SimulatedMRI(Volume(truth[None]), Undersampling(acceleration=2, center=0.1), noise)
    return scan.problem(0)


def test_whole_readouts_are_held_out_but_none_of_the_centre():
    found = undersampled()
    kept = held_out.held_out(found)
    assert kept is not None
    there = found.y.abs().sum(dim=(0, 1, 2)) > 0
    columns = kept.all(dim=(0, 1, 2))
    assert torch.equal(columns, kept.any(dim=(0, 1, 2)))
    held = (~columns).nonzero().squeeze(1)
    assert held_out.LEAST_HELD <= len(held) <= int(there.sum()) // held_out.HELD + 1
    assert there[held].all()
    assert torch.minimum(held, SIZE - held).min() > held_out.CENTRE * SIZE  # frequency zero comes first


def test_projections_are_held_out_evenly():
    y = torch.rand(1, 1, 60, 20) + 1
    found = Problem(y, Identity((1, 60, 20)), y, 1.0, 0.1, along=-2)
    kept = held_out.held_out(found)
    assert kept is not None
    held = (~kept[0, 0].all(dim=1)).nonzero().squeeze(1)
    assert held.tolist() == list(range(3, 60, 6))


def test_too_few_readouts_are_not_held_out():
    y = torch.rand(1, 1, 8, 20) + 1
    assert held_out.held_out(Problem(y, Identity((1, 8, 20)), y, 1.0, 0.1, along=-2)) is None
    assert held_out.held_out(Problem(y, Identity((1, 8, 20)), y, 1.0, 0.1)) is None


@pytest.mark.parametrize("wrong", [0.3, pytest.param(1.0, marks=pytest.mark.slow), 4.0])
def test_the_refined_weight_is_nearly_the_best_even_if_the_noise_is_misjudged(wrong):
    """Against the truth, which the refinement does not see."""
    found = replace(undersampled(), noise=0.02 * wrong)
    chosen = strength.choose("tv", "auto", "auto", found)
    assert "held out" in chosen.chosen

    def score(weight: float) -> float:
        image = solve_problem("", found, chosen.served, weight, Iteration(tol=1e-3)).solution.value
        return found.quality(image)["psnr"]

    true = 0.02**2 / 0.06  # what the noise asks for, with the width of total variation
    best = max(score(true * 2.0**k) for k in range(-2, 3))
    assert score(chosen.weight) > best - 0.5


def test_an_energy_that_is_not_convex_is_refined_by_the_convex_one():
    """By the same factor on what the noise asks for."""
    found, factors = undersampled(), []
    for name in ("ridge", "ridge-weak"):
        chosen, by_noise = (strength.choose(name, "auto", "auto", found, refine=how) for how in (True, False))
        assert "held out" in chosen.chosen
        factors.append(chosen.weight / by_noise.weight)
    assert factors[1] == pytest.approx(factors[0])


def test_the_vertex_is_that_of_the_parabola():
    errors = {k: (k - 0.3) ** 2 + 5 for k in (-1, 0, 1)}
    assert held_out.vertex(errors, 0) == pytest.approx(0.3)
    assert held_out.vertex({0: 1.0, 1: 2.0}, 0) == 0.0


def test_beta_is_tried_on_what_is_held_out_and_stays_where_stability_is_proven(net):
    found = undersampled()
    chosen, by_noise = (strength.choose(net, 5, "auto", found, refine=how) for how in (True, False))
    assert chosen.chosen == f"{by_noise.chosen}, {strength.FROM_HELD_OUT}"
    assert strength.BETAS[0] <= chosen.weight <= strength.BETAS[1]
    assert chosen.noise == by_noise.noise
    assert strength.choose(net, 5, 0.3, found).weight == 0.3
    twice = strength.choose(net, 5, "auto", found, 2.0)
    assert twice.weight == pytest.approx(min(2 * chosen.weight, strength.BETAS[1]))


def test_betas_beyond_the_bounds_are_not_tried(monkeypatch):
    tried = []

    def solve(y, H, denoiser, weight, **options):
        tried.append(weight)
        return strength.solve_problem("", undersampled(), resolve("tv").at(5), 1e-3, Iteration(1e-2, 3)).solution

    monkeypatch.setattr(held_out, "fbs", solve)
    held_out.refined_beta(torch.nn.Identity(), 0.3, (0.2, 0.5), undersampled())
    assert tried == [0.3]


def test_a_beta_that_is_far_too_large_is_found_to_be():
    """For an image that the denoiser spoils, the least weight predicts best."""
    found = replace(undersampled(0.002), noise=0.05)
    chosen, by_noise = (strength.choose("lls", 25, "auto", found, refine=how) for how in (True, False))
    assert chosen.weight < by_noise.weight
