"""Adam with the paper's three learning rates [sec:EvalExp], matrices that turn by angles, and schedules."""

import pytest
import torch
from torch import nn

from lipspline.functional.matrices import orthonormalize
from lipspline.nn import LinearSpline, conv2d, linear
from lipspline.training.optim import (
    Player,
    Rotating,
    RowAdam,
    nearly_polar,
    orthonormal_parameters,
    orthonormalize_,
    param_groups,
    set_rate,
)
from lipspline.training.schedules import SCHEDULES, constant, cosine, halving, one_cycle, trapezoid
from lipspline.training.slopes import learn_slopes, slope_parameters


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), LinearSpline(3), nn.Linear(3, 3), LinearSpline(3, learn_scale=False))


def test_weights_scales_and_coefficients_have_the_rates_of_the_paper():
    """[sec:EvalExp]"""
    model = network()
    weights, scales, coefficients = param_groups(model, lr=0.8)
    assert (weights["lr"], scales["lr"], coefficients["lr"]) == (0.8, 0.8 / 4, 0.8 / 40)
    expected = [model[0].weight, model[0].bias, model[2].weight, model[2].bias]
    assert [id(p) for p in weights["params"]] == [id(p) for p in expected]
    assert [id(p) for p in scales["params"]] == [id(model[1].log_scale)]
    assert [id(p) for p in coefficients["params"]] == [id(model[1].coefficients), id(model[3].coefficients)]


def test_the_divisor_of_the_coefficients_can_be_chosen():
    groups = Player(network(), lr=0.8, coefficients=400).optimizer().param_groups
    assert [group["lr"] for group in groups] == pytest.approx([0.8, 0.2, 0.002])


def test_a_network_without_splines_has_one_group():
    assert len(param_groups(nn.Linear(2, 2), lr=1e-3)) == 1


def test_the_rate_must_be_positive():
    with pytest.raises(ValueError, match="lr must be a positive finite number, but is 0"):
        param_groups(nn.Linear(2, 2), lr=0)


def test_the_schedule_scales_every_rate_from_where_it_started():
    optimizer = Player(network(), lr=0.8).optimizer()
    for factor in (0.5, 0.25):
        set_rate(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [factor * rate for rate in (0.8, 0.2, 0.02)]


def test_the_optimizer_is_adam_with_its_default_settings():
    """[sec:EvalExp]"""
    model = nn.Linear(3, 1)
    ours = Player(model, lr=0.01).optimizer()
    default = torch.optim.Adam(model.parameters(), lr=0.01)
    differing = {k for k, v in default.defaults.items() if ours.defaults[k] != v}
    assert differing <= {"fused"}  # which kernel runs, not what it computes


# Rotations


def convolutions(**options) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(conv2d(1, 6, 3, **options), LinearSpline(6), conv2d(6, 6, 3, **options))


def defect(matrix):
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    return float((tall.mT @ tall - torch.eye(tall.shape[-1])).detach().abs().max())


@pytest.mark.parametrize("shape", [(5, 5), (3, 8, 4), (2, 2, 4, 8), (7, 1)])
def test_a_matrix_turns_by_its_angle_and_stays_orthonormal(shape):
    torch.manual_seed(1)
    matrix = nn.Parameter(torch.empty(shape))
    with torch.no_grad():
        for block in matrix.reshape(-1, *shape[-2:]):
            nn.init.orthogonal_(block)
    optimizer = Rotating([{"params": [matrix], "lr": 0.02, "rotates": True}], lr=1.0, fused=True)
    for scale in (1e-6, 1.0, 1e6):
        before = matrix.detach().clone()
        matrix.grad = scale * torch.randn(shape)
        optimizer.step()
        assert defect(matrix) < 1e-6
        turned = torch.linalg.matrix_norm(matrix.detach() - before, 2)
        assert turned.max() < 0.03
        if shape[-2:] != (7, 1):  # whose gradient may be along itself
            assert turned.min() > 0.004


def test_a_turn_goes_downhill_and_to_the_end():
    """From a random rotation to a wanted one, the minimum of a quadratic function."""
    torch.manual_seed(2)
    wanted, matrix = (torch.linalg.qr(torch.randn(6, 6))[0] for _ in range(2))
    matrix[:, 0] *= torch.sign(torch.det(matrix) * torch.det(wanted))  # a rotation apart
    matrix = nn.Parameter(matrix)
    optimizer = Rotating([{"params": [matrix], "lr": 0.05, "rotates": True}], lr=1.0, fused=True)
    distances = []
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 200)
        optimizer.zero_grad()
        (orthonormalize(matrix) - wanted).square().sum().backward()
        optimizer.step()
        distances.append(float((matrix.detach() - wanted).norm()))
    assert distances[20] < distances[0]
    assert distances[-1] < 0.01


def test_nothing_turns_without_a_gradient():
    matrix = nn.Parameter(torch.eye(3))
    optimizer = Rotating([{"params": [matrix], "lr": 0.1, "rotates": True}], lr=1.0, fused=True)
    optimizer.step()
    matrix.grad = torch.zeros(3, 3)
    optimizer.step()
    assert (matrix == torch.eye(3)).all()


def test_the_polar_factor_of_a_gradient_is_met_where_it_has_a_size():
    torch.manual_seed(3)
    u, s, v = torch.linalg.svd(torch.randn(2, 9, 5), full_matrices=False)
    found = u.mT @ nearly_polar(u @ torch.diag_embed(s) @ v) @ v.mT
    assert found.diagonal(dim1=-2, dim2=-1).min() > 0.8
    assert found.diagonal(dim1=-2, dim2=-1).max() < 1.1
    assert (found - torch.diag_embed(found.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-4
    assert (nearly_polar(torch.zeros(3, 2)) == 0).all()


def test_only_orthonormal_matrices_turn():
    model = nn.Sequential(convolutions(), nn.Linear(6, 6), linear(6, 6), linear(6, 6, constraint="spectral"))
    turning = {id(raw) for raw, _ in orthonormal_parameters(model)}
    assert len(turning) == 5
    groups = param_groups(model, lr=0.4, rotations=0.05)
    assert [group["lr"] for group in groups] == [0.4, 0.1, 0.01, 0.05]
    assert {id(p) for p in groups[-1]["params"]} == turning
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert len(param_groups(model, lr=0.4)) == 3


def test_cayley_has_no_matrix_to_turn():
    assert not list(orthonormal_parameters(linear(4, 4, method="cayley")))


@pytest.mark.parametrize("method", ["qr", "polar", "bjorck"])
def test_a_network_is_the_same_when_its_matrices_become_orthonormal(method):
    model, x = convolutions(method=method), torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        for raw, _ in orthonormal_parameters(model):
            raw.add_(0.2 * torch.randn_like(raw))
    before = model(x)
    assert max(defect(raw) for raw, _ in orthonormal_parameters(model)) > 0.1
    orthonormalize_(model)
    assert max(defect(raw) for raw, _ in orthonormal_parameters(model)) < 1e-6
    assert (model(x) - before).abs().max() < 1e-5


def test_a_player_turns_matrices_and_moves_the_rest_as_adam_does():
    torch.manual_seed(0)
    x = torch.randn(4, 1, 8, 8)
    models = [convolutions(), convolutions()]
    optimizers = [Player(models[0], lr=1e-3, rotations=0.01).optimizer(), Player(models[1], lr=1e-3).optimizer()]
    for model, optimizer in zip(models, optimizers, strict=True):
        model(x).square().mean().backward()
        optimizer.step()
    for (name, ours), adam in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        same = bool((ours - adam).abs().max() < 1e-6)
        assert same != name.startswith(("0.parametrizations", "2.parametrizations")), name


def test_entries_of_a_row_share_their_second_moment():
    """Beside the formula, over several steps; Adam itself would move the small entries as far as the large ones."""
    g = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1.0, 1e-3, 0.1])
    rows = nn.Parameter(torch.zeros(2, 3, dtype=torch.float64))
    optimizer = RowAdam([{"params": [rows], "rowwise": True}], lr=0.01)
    expected, mean, square = torch.zeros(2, 3, dtype=torch.float64), 0.0, 0.0
    for step in range(1, 6):
        gradient = sizes * torch.randn(2, 3, dtype=torch.float64, generator=g)
        rows.grad = gradient
        optimizer.step()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.square().mean(dim=1, keepdim=True)
        expected -= 0.01 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    assert torch.allclose(rows, expected, rtol=1e-12)
    assert rows.grad is gradient


def test_rows_of_one_entry_are_moved_by_adam():
    gradients = torch.randn(4, 5, 1, generator=torch.Generator().manual_seed(0))
    moved = []
    for kind, options in ((RowAdam, {"rowwise": True}), (torch.optim.Adam, {})):
        column = nn.Parameter(torch.zeros(5, 1))
        optimizer = kind([{"params": [column]} | options], lr=0.01)
        for gradient in gradients:
            column.grad = gradient
            optimizer.step()
        moved.append(column.detach())
    assert torch.allclose(*moved, atol=1e-7)


def test_shared_moments_go_on_where_they_stopped():
    def made() -> tuple[nn.Parameter, RowAdam]:
        rows = nn.Parameter(torch.ones(2, 3))
        return rows, RowAdam([{"params": [rows], "rowwise": True}], lr=0.01, fused=True)

    gradients = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    (whole, first), (part, second), (rest, third) = made(), made(), made()
    for gradient in gradients:
        whole.grad = gradient
        first.step()
    for gradient in gradients[:2]:
        part.grad = gradient
        second.step()
    third.load_state_dict(second.state_dict())
    rest.data.copy_(part.detach())
    for gradient in gradients[2:]:
        rest.grad = gradient
        third.step()
    assert torch.equal(whole, rest)


@pytest.mark.parametrize("kind", [RowAdam, Rotating])
def test_hooks_are_called_once_a_step(kind):
    """torch wraps the step of a class when its first optimizer is made: that of Adam must not call them again."""
    made = [other([nn.Parameter(torch.ones(1))]) for other in (torch.optim.Adam, RowAdam)]
    assert all(type(optimizer).step.hooked for optimizer in made)
    rows, calls = nn.Parameter(torch.ones(2, 3)), []
    optimizer = kind([rows], lr=0.01)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    rows.grad = torch.ones(2, 3)
    optimizer.step()
    assert calls == [1]


def test_slopes_of_a_player_share_moments_if_it_says_so():
    model = nn.Sequential(nn.Linear(2, 3), LinearSpline(3, regions=8))
    learn_slopes(model)
    for rotations in (None, 0.01):
        kinds = [
            group.get("rowwise", False) for group in Player(model, 0.1, rowwise=True, rotations=rotations).groups()
        ]
        assert kinds == [False, False, False, True]
        assert not any("rowwise" in group for group in Player(model, 0.1, rotations=rotations).groups())
    (_, _, slopes), optimizer = next(slope_parameters(model)), Player(model, 0.1, rowwise=True).optimizer()
    model(torch.randn(50, 2)).square().mean().backward()
    optimizer.step()
    assert optimizer.state[slopes]["exp_avg_sq"].shape == (3, 1)


# Schedules


def torch_factors(make_scheduler, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make_scheduler(optimizer)
    factors = []
    for _ in range(steps):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


def test_one_cycle_is_torch_s():
    factors = torch_factors(
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=51), steps=50
    )
    assert [one_cycle(step, 51) for step in range(50)] == pytest.approx(factors)
    assert one_cycle(50, 51) == pytest.approx(1e-4 / 25)


def test_cosine_is_torch_s():
    factors = torch_factors(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=40), steps=40)
    assert [cosine(step, 40) for step in range(40)] == pytest.approx(factors)


def test_halving_is_a_staircase():
    assert [halving(step, 10) for step in range(10)] == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625]


def test_a_trapezoid_that_is_made_longer_keeps_its_past():
    """Rise and plateau are those of the longer run, step for step."""
    assert [trapezoid(step, 1000) for step in range(700)] == [trapezoid(step, 2000) for step in range(700)]
    assert trapezoid(850, 1000) == pytest.approx(0.5)


def test_constant_is_constant():
    assert {constant(step, 7) for step in range(7)} == {1.0}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("steps", [1, 2, 100])
def test_every_schedule_stays_between_zero_and_one(schedule, steps):
    assert all(0 <= schedule(step, steps) <= 1 for step in range(steps))
