"""Which denoiser, and how strong."""

import pytest
import torch

import sample_files
from lipspline import models
from lipspline.operators import Identity
from lipspline.reconstruct import strength
from lipspline.reconstruct.problem import Problem


def problem(noise: float, factor: float = 1.0) -> Problem:
    y = torch.zeros(1, 1, 4, 4)
    return Problem(y, factor * Identity((1, 4, 4)), y, 1.0, noise)


@pytest.fixture
def net(tmp_path) -> str:
    return str(sample_files.write_denoiser(tmp_path / "net.safetensors"))


def test_a_given_beta_is_used_and_must_keep_the_denoiser_averaged(net):
    chosen = strength.choose(net, "auto", 0.4, problem(0.01), "MR")
    assert (chosen.beta, chosen.chosen, chosen.name) == (0.4, "given", "net.safetensors")
    assert chosen.upper <= 1
    with pytest.raises(ValueError, match="beta must lie strictly between 0 and 1"):
        strength.choose(net, "auto", 1.0, problem(0.01), "MR")


def test_an_automatic_beta_grows_with_the_noise_and_stays_where_stability_is_proven(net):
    betas = [strength.choose(net, "auto", "auto", problem(noise), "MR").beta for noise in (0, 0.005, 0.01, 0.02, 9)]
    assert betas == sorted(betas)
    assert strength.BETAS[0] == betas[0] < betas[2] < betas[-1] == 0.5


def test_noise_is_measured_in_units_of_the_norm_of_the_operator():
    assert strength.relative_noise(problem(0.3, 5.0)) == pytest.approx(strength.relative_noise(problem(0.06)))


def test_shipped_denoisers_go_by_name_and_noise(monkeypatch, net):
    asked = []
    monkeypatch.setattr(strength, "available", lambda: {("lls", 5): "", ("lls", 15): "", ("av", 15): ""})
    monkeypatch.setattr(strength, "zoo", lambda *a: asked.append(a) or models.load(net))
    assert strength.choose("lls", "auto", 0.4, problem(0.01), "MR").name == "lls-15"
    assert strength.choose("lls", 7.5, 0.4, problem(0.01), "MR").name == "lls-7.5"
    assert asked == [("lls", 15), ("lls", 7.5)]


def test_other_names_and_networks_are_refused(net, tmp_path):
    with pytest.raises(ValueError, match=r"--model must name a shipped denoiser .* but is 'unet'"):
        strength.choose("unet", "auto", 0.4, problem(0.01), "MR")
    with pytest.raises(ValueError, match="Leave --noise out"):
        strength.choose(net, 15, 0.4, problem(0.01), "MR")
    models.save(models.mlp(2, 1, width=4, depth=2), tmp_path / "mlp.safetensors")
    with pytest.raises(ValueError, match="no denoiser of images"):
        strength.choose(str(tmp_path / "mlp.safetensors"), "auto", 0.4, problem(0.01), "MR")
