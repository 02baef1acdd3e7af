"""Tasks: each learns what it should, and its metric is what it says."""

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import nn

from lipspline.functional.transport import push_along_rays
from lipspline.networks import mlp, tv2
from lipspline.nn import LinearSpline
from lipspline.training import Plan, Player, fit
from lipspline.training.schedules import cosine
from lipspline.training.tasks import (
    Minimize,
    Pairs,
    WassersteinGAN,
    classification,
    denoising,
    dual_estimate,
    kantorovich,
    mean_quality,
    regression,
)
from training import killable


def test_the_objective_is_the_loss_plus_lambda_times_tv2():
    """[eq:optim_network]"""
    model = nn.Sequential(nn.Linear(2, 3), LinearSpline(3, init="abs"))
    task = Minimize(model, 0.1, loss=lambda step: torch.tensor(2.0), score=dict, tv2_weight=0.5)
    ((player, loss),) = task.updates(0)
    assert player == "model"
    assert loss.item() == pytest.approx(2.0 + 0.5 * tv2(model).item())
    assert tv2(model).item() == pytest.approx(6.0, rel=1e-3)


def test_regression_uses_the_rows_of_its_shuffled_epochs():
    x = torch.arange(6.0).unsqueeze(1)
    pairs = Pairs(x, 10 * x)
    batches = [pairs.batch(step, 2, seed=4) for step in range(3)]
    assert sorted(torch.cat([b.x for b in batches]).flatten().tolist()) == x.flatten().tolist()
    assert all(torch.equal(b.y, 10 * b.x) for b in batches)


def test_regression_fits_a_line():
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    model = nn.Linear(1, 1)
    result = fit(regression(model, Pairs(x, 0.5 * x - 1), Pairs(x, 0.5 * x - 1), batch=8, lr=0.05), Plan(300))
    assert result.metrics["mse"] < 1e-4
    assert model.weight.item() == pytest.approx(0.5, abs=0.02)


def test_classification_separates_two_clouds():
    torch.manual_seed(0)
    x = torch.randn(1300, 2) + 3 * (torch.arange(1300) % 2).unsqueeze(1)
    pairs = Pairs(x, torch.arange(1300) % 2)
    result = fit(classification(nn.Linear(2, 2), pairs, pairs, batch=50, lr=0.1), Plan(150))
    expected = (x.sum(dim=1) > 3).eq(pairs.y.bool()).float().mean().item()
    assert result.metrics["accuracy"] == pytest.approx(expected, abs=0.01)


def test_denoising_learns_and_draws_new_noise_in_every_step():
    """[sec:exp_pnp]"""
    torch.manual_seed(0)
    model = nn.Conv2d(1, 1, 5, padding=2)
    nn.init.dirac_(model.weight)
    task = killable.task(model)
    before = task.evaluate()["psnr"]
    result = fit(task, Plan(150))
    assert before == pytest.approx(20.0, abs=1.0), "noise 0.1 is 20 dB"
    assert result.metrics["psnr"] > before + 1


def test_the_noise_of_a_step_has_the_wanted_size_and_depends_on_the_step_alone():
    """The identity has the loss noise², and a constant patch shows the noise itself."""

    class Flat:
        def batch(self, step, size, rows=slice(None)):
            return torch.full((size, 1, 32, 32), 0.5)[rows]

    model = nn.Conv2d(1, 1, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    task, again = (denoising(model, Flat(), [], noise=0.2, batch=32, lr=1.0) for _ in range(2))
    assert task.loss(3).item() == pytest.approx(0.04, rel=0.02)
    assert task.loss(3).item() == again.loss(3).item() != task.loss(4).item()


def test_the_mean_quality_is_scikit_image_s_on_clipped_images():
    """[table:performance] Profile `paper`: data range 1, output clipped."""
    images = killable.noisy_images(killable.images(3), noise=0.3)
    pairs = [(image.clean[0, 0].numpy(), image.noisy[0, 0].clamp(0, 1).numpy()) for image in images]
    quality = mean_quality(lambda noisy: noisy, images)
    for name, oracle in (("psnr", peak_signal_noise_ratio), ("ssim", structural_similarity)):
        expected = sum(float(oracle(clean, noisy, data_range=1.0)) for clean, noisy in pairs) / 3
        assert quality[name] == pytest.approx(expected, rel=1e-4)


def test_a_potential_finds_the_distance_of_a_known_pair_from_below():
    """[wasserstein] Samples pushed along the rays of a funnel; the network is 1-Lipschitz."""
    torch.manual_seed(0)
    centres, heights = torch.tensor([[1.0, 0.0], [-1.0, 0.5]]), torch.tensor([0.0, 0.2])

    def sampler(count, generator):
        x = 2 * torch.randn(count, 2, generator=generator)
        return x, push_along_rays(x, centres, heights, 0.6)[0]

    model = mlp(2, 1, width=16, depth=3, activation="av")
    task = kantorovich(model, sampler, batch=128, lr=2e-2, test_samples=5000)
    result = fit(task, Plan(150, schedule=cosine))
    x = 2 * torch.randn(100_000, 2)
    truth = push_along_rays(x, centres, heights, 0.6)[1].mean().item()
    assert 0.85 * truth < result.metrics["w1"] < 1.01 * truth


def test_the_dual_estimate_in_chunks_is_the_whole_one():
    """[wasserstein]"""
    model, x1, x2 = nn.Linear(3, 1), torch.randn(50, 3), torch.randn(70, 3)
    expected = (model(x1).mean() - model(x2).mean()).item()
    assert dual_estimate(model, x1, x2, chunk=16) == pytest.approx(expected, rel=1e-4)


def gan(critic: nn.Module, generate: nn.Module, **options) -> WassersteinGAN:
    images = torch.tensor([[2.0], [2.0]])
    players = (Player(module, lr=0.05, betas=(0.0, 0.9)) for module in (critic, generate))
    return WassersteinGAN(*players, images, latent=1, score=dict, batch=8, **options)


def test_a_gan_moves_the_generator_to_the_images():
    """[sec:WGAN] The images are the point 2, the generator starts at the point 0, the critic learns cones."""
    torch.manual_seed(0)
    generate = nn.Linear(1, 1)
    for parameter in generate.parameters():
        nn.init.zeros_(parameter)
    fit(gan(mlp(1, 1, width=4, depth=2, activation="av"), generate, critic_steps=2), Plan(120, schedule=cosine))
    assert generate.bias.item() == pytest.approx(2.0, abs=0.3)


def test_the_critic_is_updated_several_times_before_the_generator_and_is_regularised():
    """[sec:WGAN]"""
    critic = nn.Sequential(nn.Linear(1, 3), LinearSpline(3, init="abs"), nn.Linear(3, 1))
    task = gan(critic, nn.Linear(1, 1), critic_steps=3, tv2_weight=100.0)
    updates = list(task.updates(0))
    assert [player for player, _ in updates] == ["critic", "critic", "critic", "generator"]
    assert updates[0][1].item() == pytest.approx(600, rel=0.05)
    updates[0][1].backward()
    assert all(p.grad is None for p in task.generator.module.parameters()), "the critic's loss is not the generator's"


@pytest.mark.parametrize(("inputs", "targets"), [(4, 3), (0, 0)])
def test_pairs_come_in_pairs(inputs, targets):
    with pytest.raises(ValueError, match=f"at least one: {inputs} x, {targets} y"):
        Pairs(torch.zeros(inputs, 1), torch.zeros(targets, 1))
