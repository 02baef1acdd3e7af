"""One place where a name or a file becomes a prior."""

import pytest
import torch

from lipspline import models, priors
from lipspline.priors import DenoiserPrior, EnergyPrior, Kind, resolve
from lipspline.priors.lookup import names
from lipspline.priors.ridge_files import load_ridge, save_ridge


def test_every_name_of_the_catalogue_resolves_to_a_prior_of_that_name():
    found = priors.catalogue()
    assert list(found) == names()
    for name, prior in found.items():
        assert prior.name == name
        assert prior.kind in tuple(Kind)
        assert prior.summary


def test_auto_is_the_first_of_the_catalogue():
    assert resolve("auto").name == names()[0]


def test_a_prior_resolves_to_itself():
    prior = resolve("lls")
    assert resolve(prior) is prior


def test_a_file_is_told_by_what_it_holds(tmp_path):
    models.save(models.denoiser("lls", channels=4, depth=2), tmp_path / "a.safetensors", {"noise": 7})
    denoiser = resolve(tmp_path / "a.safetensors")
    assert isinstance(denoiser, DenoiserPrior)
    assert denoiser.levels == (7.0,)
    save_ridge(load_ridge(_shipped("ridge")), tmp_path / "b.safetensors")
    energy = resolve(str(tmp_path / "b.safetensors"))
    assert isinstance(energy, EnergyPrior)
    assert energy.name == "b.safetensors"


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(
        ValueError, match=r"prior must be one of ridge-adaptive, .*lls.*, or a \.safetensors file, but is 'unet'"
    ):
        resolve("unet")


@pytest.mark.parametrize(("name", "convex"), [("ridge", True), ("ridge-weak", False)])
def test_the_shipped_ridge_energies_are_proven_again_when_they_are_loaded(name, convex):
    prior = resolve(name)
    assert isinstance(prior, EnergyPrior)
    assert prior.convex is convex
    energy = prior.at(10)
    assert 0.5 < energy.lipschitz <= 1
    assert (energy.weak_convexity == 0) is convex
    x = torch.rand(1, 1, 24, 24, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (slope,) = torch.autograd.grad(energy(x).sum(), x)
    torch.testing.assert_close(energy.gradient(x.detach()), slope, rtol=1e-4, atol=1e-5)


def test_the_strength_for_other_data_follows_from_the_noise():
    prior = resolve("ridge")
    assert isinstance(prior, EnergyPrior)
    assert prior.strength(10, data_noise=5) == pytest.approx(prior.strength(10) / 4)
    assert prior.strength(10, data_noise=10) == prior.strength(10)


def _shipped(name: str):
    from importlib import resources

    return resources.files("lipspline.weights") / f"{name}.safetensors"
