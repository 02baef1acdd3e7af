"""Training of unrolled denoisers: right derivatives, a start from the energy, and an export that denoises alike."""

import pytest
import torch
from torch.nn import functional as F

from lipspline.certification import certify
from lipspline.functional.ridge import odd_tables
from lipspline.kernels import piecewise_affine
from lipspline.kernels import ridge as kernel
from lipspline.training.checkpoint import Checkpoints
from lipspline.training.energies import Crops, EnergyTraining, noise_weights, train
from lipspline.training.ridge import LearnedRidge, exported
from lipspline.training.unrolled import LOUDNESS, UnrolledLearner, exported_steps, newest, sampled_norm, score

pytestmark = pytest.mark.skipif(not kernel.has_ridge(torch.zeros(1)), reason="training needs the C kernels")

SMALL = EnergyTraining(
    channels=8, kernel=5, regions=8, radius=2.0, batch=4, size=16, groups=2, visits=2, warmup=0, minutes=0.02,
    adjoint_steps=0, own_steps=3, shared_steps=4,
)  # fmt: skip


def images(count=6, size=32):
    """Squares of different grey values."""
    coarse = torch.randint(256, (count, 1, size // 8, size // 8), generator=torch.Generator().manual_seed(0)).float()
    return F.interpolate(coarse, scale_factor=8)[:, 0].byte()


VALIDATION = list(images(2, 96))


@pytest.fixture
def learner() -> UnrolledLearner:
    learner = UnrolledLearner(SMALL, exported(LearnedRidge(SMALL), {}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return learner


def by_autograd(learner: UnrolledLearner, x: torch.Tensor, y: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The steps in plain torch, image by image."""
    for step in learner.learned:
        filters, strength = step.filters(), step.strength(noise).reshape(-1, 1, 1, 1)
        tables = [odd_tables(step.constrained_slopes(), SMALL.radius, scale) for scale in step.scale(noise)]
        bent = [piecewise_affine(F.conv2d(one[None], filters, padding=2), *t) for one, t in zip(x, tables, strict=True)]
        gradient = F.conv_transpose2d(torch.cat(bent), filters, padding=2)
        tau = 2 / (2 + strength * sampled_norm(filters))
        x = (1 - tau) * x + tau * y - tau * strength * gradient
    return x


def test_the_derivatives_are_those_of_autograd(learner):
    clean, y, noise = Crops(images(), SMALL)(0)
    kept, x = learner.visit(learner.begin(y, noise), y, noise, 0)
    torch.testing.assert_close(by_autograd(learner, kept[0], y, noise), x, atol=1e-4, rtol=0)
    weights = noise_weights(noise)
    learner.derivative_of_loss(kept, x, weights * (x - clean), noise).backward()
    found = [parameter.grad.clone() / LOUDNESS for parameter in learner.model.parameters()]
    learner.model.zero_grad()
    (weights * (by_autograd(learner, kept[0], y, noise) - clean).square()).sum().div(2).backward()
    for ours, parameter in zip(found, learner.model.parameters(), strict=True):
        theirs = parameter.grad
        assert float((ours - theirs).norm()) <= 0.1 * float(theirs.norm())  # quotients average over kinks
        assert float(F.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)) > 0.99


def test_training_begins_as_good_as_the_energy():
    """The steps with weights of their own go on towards the minimiser of the energy."""
    settings = EnergyTraining(**{**vars(SMALL), "shared_steps": 60})
    energy = exported(LearnedRidge(settings), {})
    learner, y = UnrolledLearner(settings, energy), torch.rand(1, 1, 20, 20)
    noise = torch.tensor([0.1])
    _, x = learner.visit(learner.begin(y, noise), y, noise, 0)
    torch.testing.assert_close(x, energy.denoise(y, 0.1, tol=1e-6).value, atol=1e-3, rtol=0)


def test_a_denoiser_grows_by_steps_that_it_took_already(learner):
    """With one of the first steps less and one of its own more it is the same map."""
    grown = EnergyTraining(**{**vars(SMALL), "own_steps": SMALL.own_steps + 1, "shared_steps": SMALL.shared_steps - 1})
    denoiser = exported_steps(learner.model, learner.first, {})
    first, *own = denoiser.parts()
    larger = exported_steps(UnrolledLearner(grown, first, own).model, first, {})
    y = torch.rand(1, 1, 20, 20)
    torch.testing.assert_close(larger.at(0.1)(y), denoiser.at(0.1)(y), atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match=r"own_steps is 2\. It must be at least that"):
        UnrolledLearner(EnergyTraining(**{**vars(SMALL), "own_steps": 2}), first, [first] * 3)


def test_an_exported_denoiser_is_certified_and_denoises_as_its_model(learner):
    denoiser = exported_steps(learner.model, learner.first, {"steps": 0})
    y, noise = torch.rand(1, 1, 20, 20), 0.05
    _, x = learner.visit(learner.begin(y, torch.tensor([noise])), y, torch.tensor([noise]), 0)
    assert certify(denoiser.at(noise)).upper == 1
    torch.testing.assert_close(denoiser.at(noise)(y), x, atol=1e-4, rtol=0)
    assert denoiser.provenance["trained"]["noise"] == list(SMALL.noise)


def test_a_run_leaves_a_denoiser_and_goes_on(tmp_path, learner):
    from lipspline.priors.ridge_files import save_ridge

    save_ridge(learner.first, tmp_path / "first.safetensors")
    train(learner, images(), VALIDATION, tmp_path / "run")
    first = Checkpoints(tmp_path / "run").load()
    assert first is not None
    denoiser = newest(tmp_path / "run", tmp_path / "first.safetensors")
    assert sum(denoiser.repeats) == 7
    assert score(denoiser, list(images(2)), 15) > 20
    more = first.state["minutes"] + 0.01  # whatever the first run took on a busy machine
    longer = UnrolledLearner(EnergyTraining(**{**vars(SMALL), "minutes": more}), learner.first)
    train(longer, images(), VALIDATION, tmp_path / "run")
    second = Checkpoints(tmp_path / "run").load()
    assert second is not None
    assert second.step > first.step


def test_what_it_cannot_do_is_said(learner, tmp_path):
    y = torch.zeros(1, 1, 16, 16)
    with pytest.raises(ValueError, match="Set warmup to 0"):
        learner.one_step(y, torch.tensor([0.1]))
    with pytest.raises(ValueError, match="Set adjoint_steps to 0"):
        learner.carried([], y, y, y, torch.tensor([0.1]))
    train(learner, images(), VALIDATION, tmp_path)
    with pytest.raises(ValueError, match="Give the file of that as start"):
        newest(tmp_path, None)
