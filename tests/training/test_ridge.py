"""Training of ridge energies: constraints hold, derivatives are right, a run goes on where it stopped."""

import math

import pytest
import torch

from lipspline.kernels import ridge as kernel
from lipspline.priors.ridge_files import load_ridge, save_ridge
from lipspline.training.checkpoint import Checkpoints
from lipspline.training.energies import Crops, EnergyTraining, train
from lipspline.training.ridge import (
    LearnedRidge,
    RidgeLearner,
    adjoint,
    clip,
    cosine_filters,
    denoise,
    derivative_of_loss,
    exported,
    newest,
    score,
)

pytestmark = pytest.mark.skipif(not kernel.has_ridge(torch.zeros(1)), reason="training needs the C kernels")

SMALL = EnergyTraining(
    channels=8, kernel=5, regions=8, radius=2.0, batch=4, size=16, groups=2, visits=2, warmup=0.01, minutes=0.02
)


def images(count=6, size=32):
    """Squares of different grey values: something that a denoiser can learn at once."""
    g = torch.Generator().manual_seed(0)
    coarse = torch.randint(256, (count, 1, size // 8, size // 8), generator=g).float()
    return torch.nn.functional.interpolate(coarse, scale_factor=8)[:, 0].byte()


@pytest.mark.parametrize("convexity", [0.0, 0.9])
def test_any_parameters_give_a_feasible_energy(convexity):
    model = LearnedRidge(EnergyTraining(channels=8, kernel=5, regions=8, convexity=convexity))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    energy = exported(model, {})
    assert energy.upper <= 1
    assert energy.weak <= convexity / model.settings.top * (1 + 1e-5)
    assert energy.denoising_convexity > 0
    values = energy.slopes.cumsum(dim=1)
    assert float(values.min()) >= -1e-6  # splines are nonnegative on the right, so the energy is
    assert float(energy.slopes[:, -1].min()) >= 0
    assert float(energy.filters.mean(dim=(2, 3)).abs().max()) < 1e-6


def test_an_exported_energy_denoises_as_its_model():
    model = LearnedRidge(SMALL)
    y, noise = torch.rand(1, 1, 20, 20), 10 / 255
    expected = denoise(model, y, torch.tensor([noise]), y, steps=80)
    torch.testing.assert_close(exported(model, {}).denoise(y, noise, tol=1e-6).value, expected, atol=1e-4, rtol=0)


def test_cosine_filters_are_a_tight_frame_without_the_constant():
    """Their power and that of the constant, over n², is 1 at every frequency."""
    filters = cosine_filters(48, 13)
    power = torch.fft.fft2(filters, s=(32, 32)).abs().square().sum(dim=0)
    constant = torch.fft.fft2(torch.full((7, 7), 1 / 49), s=(32, 32)).abs().square()
    torch.testing.assert_close(power + constant, torch.ones(32, 32))
    torch.testing.assert_close(filters[:24], filters[:24].flip(1, 2))
    torch.testing.assert_close(filters[24:], -filters[24:].flip(1, 2))


def test_clipped_slopes_can_come_back():
    slopes = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    clipped = clip(slopes, torch.tensor(-0.1))
    assert clipped.tolist() == pytest.approx([-0.1, 0.5, 1.0])
    (outward,) = torch.autograd.grad(clipped @ torch.tensor([1.0, 1.0, -1.0]), slopes, retain_graph=True)
    (inward,) = torch.autograd.grad(clipped @ torch.tensor([-1.0, 1.0, 1.0]), slopes)
    assert outward.tolist() == [0, 1, 0]
    assert inward.tolist() == [-1, 1, 1]


def test_the_implicit_derivative_is_that_of_the_minimiser():
    """Against differences of half the squared error of minimisers for scales a little larger and smaller."""
    settings = EnergyTraining(
        channels=8, kernel=5, regions=8, radius=2.0, top=4.0, strength=2.0, adjoint_steps=50, adjoint_size=0.01
    )
    model = LearnedRidge(settings)
    g = torch.Generator().manual_seed(3)
    clean = images()[:2, :24, :24].unsqueeze(1).float() / 255
    y, noise = clean + 0.1 * torch.randn(clean.shape, generator=g), torch.tensor([0.1, 0.08])

    def loss():
        x = denoise(model, y, noise, y, steps=60)
        return float((x - clean).double().square().sum()) / 2

    x = denoise(model, y, noise, y, steps=60)
    direction = adjoint(model, x, y, x - clean, noise)
    derivative_of_loss(model, x, direction, noise).backward()
    for parameter in (model.log_scale, model.gap):
        assert parameter.grad is not None
        differences = []
        for size in (0.02, -0.02):
            with torch.no_grad():
                parameter += size
            differences.append(loss())
            with torch.no_grad():
                parameter -= size
        expected = (differences[0] - differences[1]) / 0.04
        assert float(parameter.grad.sum()) == pytest.approx(expected, rel=0.03)


def test_crops_depend_on_their_number_only():
    crops = Crops(images(), SMALL)
    for first, second in zip(crops(7), crops(7), strict=True):
        assert torch.equal(first, second)
    clean, y, noise = crops(8)
    assert not torch.equal(clean, crops(7)[0])
    assert y.shape == (4, 1, 16, 16)
    assert float(noise.min()) >= SMALL.noise[0]
    assert float(noise.max()) <= SMALL.noise[1]


def test_a_run_learns_stops_goes_on_and_is_exported(tmp_path, capsys):
    validation = list(images(2, 96))
    before = score(exported(LearnedRidge(SMALL), {}), validation, 15)
    train(RidgeLearner(SMALL), images(), validation, tmp_path)
    first = Checkpoints(tmp_path).load()
    assert first is not None
    more = first.state["minutes"] + 0.04  # whatever the first run took on a busy machine
    longer = EnergyTraining(**{**vars(SMALL), "minutes": more})
    train(RidgeLearner(longer), images(), validation, tmp_path)
    second = Checkpoints(tmp_path).load()
    assert second is not None
    assert 0 < first.step < second.step
    assert "validation at 5/15" in capsys.readouterr().out
    energy = newest(tmp_path)
    save_ridge(energy, tmp_path / "energy.safetensors")
    energy = load_ridge(tmp_path / "energy.safetensors")
    assert energy.provenance["steps"] == second.step
    assert energy.provenance["trained"]["noise"] == list(SMALL.noise)
    assert score(energy, validation, 15) > max(before, 20 * math.log10(255 / 15) + 0.5)
