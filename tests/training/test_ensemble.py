"""Ensembles: many models at once equal the same models one after another."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lipspline.networks import mlp
from lipspline.nn import LinearSpline
from lipspline.training import Plan, fit, param_groups
from lipspline.training.ensemble import Ensemble, member_mse, regressions
from lipspline.training.schedules import one_cycle
from lipspline.training.tasks import Pairs, regression

SEEDS = (3, 4, 5)


def network(seed: int, activation: str = "lls", constraint: str = "orthonormal") -> nn.Module:
    """A small network; the slopes of splines differ: where they are equal, the gradient of TV² is round-off."""
    torch.manual_seed(seed)
    options = {"radius": 0.5, "regions": 20} if activation == "lls" else {}
    model = mlp(1, 1, width=10, depth=3, activation=activation, constraint=constraint, activation_options=options)
    for spline in (module for module in model.modules() if isinstance(module, LinearSpline)):
        nn.init.normal_(spline.coefficients, std=0.02)
    return model.double()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(len(SEEDS), 23, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    return x, torch.stack([(x[i] * (i + 2)).sin() / (i + 2) for i in range(len(SEEDS))])


def constrained_state(model: nn.Module) -> list[torch.Tensor]:
    """Everything the output depends on; of a raw matrix, orthonormalization ignores some directions."""
    splines = [table for module in model.modules() if isinstance(module, LinearSpline) for table in module.tables()[:3]]
    return splines + [value for m in model.modules() if isinstance(m, nn.Linear) for value in (m.weight, m.bias)]


@pytest.mark.parametrize(
    ("activation", "constraint", "steps"),
    [("lls", "orthonormal", 15), ("lls", "spectral", 15)]
    + [(activation, "orthonormal", 6) for activation in ("relu", "av", "prelu", "gs", "hh")],
)
def test_an_ensemble_trains_each_member_as_if_it_were_alone(activation, constraint, steps):
    """To 1e-10 in double precision; spectral layers have buffers that change in the forward pass."""
    x, y = data()
    options = {"batch": 5, "lr": 1e-2, "tv2_weight": 1e-5}
    plan = Plan(steps, schedule=one_cycle)
    models = [network(seed, activation, constraint) for seed in SEEDS]
    together = regressions(models, x, y, x, y, seeds=SEEDS, **options)
    fit(together, plan)
    for index, alone in enumerate(models):
        pairs = Pairs(x[index], y[index])
        result = fit(regression(alone, pairs, pairs, seed=SEEDS[index], **options), plan)
        member = together.model.member(index)
        for ours, theirs in zip(constrained_state(member.eval()), constrained_state(alone.eval()), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        error = member_mse(together.model.eval()(x), y)[index].item()
        assert error == pytest.approx(result.metrics["mse"], rel=1e-8)


def test_an_ensemble_turns_each_matrix_as_if_it_were_alone():
    """Stacks of orthonormal matrices, one of which is a row and one a column."""
    x, y = data()
    options = {"batch": 5, "lr": 1e-2, "tv2_weight": 1e-5}
    models = [network(seed) for seed in SEEDS]
    together = regressions(models, x, y, x, y, seeds=SEEDS, rotations=0.05, **options)
    assert any(group.get("rotates") for group in together.players["model"].groups())
    fit(together, Plan(20))
    for index, alone in enumerate(models):
        pairs = Pairs(x[index], y[index])
        task = regression(alone, pairs, pairs, seed=SEEDS[index], **options)
        fit(replace(task, rotations=0.05), Plan(20))
        for ours, theirs in zip(constrained_state(together.model.member(index)), constrained_state(alone), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_members_with_different_seeds_end_differently():
    x, y = data()
    task = regressions([network(s) for s in SEEDS], x, y, x, y, seeds=SEEDS, batch=5, lr=1e-2)
    fit(task, Plan(5))
    first, second = task.model.member(0), task.model.member(1)
    assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_parameters_of_an_ensemble_have_the_paper_s_three_rates():
    alone, together = param_groups(network(0), 0.4), param_groups(Ensemble([network(s) for s in SEEDS]), 0.4)
    assert [(g["lr"], len(g["params"])) for g in together] == [(g["lr"], len(g["params"])) for g in alone]


def test_parameters_that_are_not_learned_stay_so():
    models = [nn.Sequential(LinearSpline(2, learn_scale=False)) for _ in range(3)]
    assert [p.requires_grad for p in Ensemble(models).parameters()] == [True, False]


def test_the_metrics_are_quartiles_of_the_members_errors():
    x, y = data()
    task = regressions([network(s) for s in SEEDS], x, y, x, y, seeds=SEEDS, batch=5, lr=1e-2)
    with torch.no_grad():
        errors = member_mse(task.model(x), y).sort().values
        assert task.evaluate()["mse"] == pytest.approx(errors[1].item())
        assert task.evaluate()["mse_lower"] == pytest.approx(((errors[0] + errors[1]) / 2).item())


def test_members_must_have_one_architecture():
    with pytest.raises(ValueError, match="model 1 differs from model 0"):
        Ensemble([nn.Linear(2, 1), nn.Linear(3, 1)])
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([])


def test_the_first_dimension_of_the_input_is_the_member():
    with pytest.raises(ValueError, match=r"3 members but the input has 2 batches .*x\.expand\(3"):
        Ensemble([nn.Linear(2, 1) for _ in range(3)])(torch.zeros(2, 5, 2))


def test_every_member_needs_a_seed_of_its_own():
    models, x = [nn.Linear(1, 1) for _ in range(2)], torch.zeros(2, 4, 1)
    with pytest.raises(ValueError, match="2 models, 2 inputs, 2 targets and 1 seeds"):
        regressions(models, x, x, x, x, seeds=[0], batch=2, lr=0.1)
