"""The rotations as an ordinary optimizer of torch."""

import copy

import pytest
import torch
from torch import nn

import lipspline as ls


def network() -> nn.Module:
    torch.manual_seed(0)
    return ls.models.mlp(4, 3, width=6, depth=4, activation="relu")


def loss_of(model: nn.Module) -> torch.Tensor:
    x = torch.linspace(-1, 1, 40).reshape(10, 4)
    return (model(x) - 0.5 * x[:, :3]).square().mean()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, scheduler=None) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_a_state_dict_goes_on_where_it_stopped():
    whole, half = network(), network()
    optimizer = ls.optim.rotating(whole, 1e-2, angle=0.05)
    steps(whole, optimizer, 6)
    first = ls.optim.rotating(half, 1e-2, angle=0.05)
    steps(half, first, 3)
    resumed = copy.deepcopy(half)
    second = ls.optim.rotating(resumed, 1e-2, angle=0.05)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    steps(resumed, second, 3)
    for x, y in zip(weights(whole), weights(resumed), strict=True):
        assert torch.allclose(x, y, atol=1e-5)


def test_together_and_one_by_one_are_the_same():
    together, alone = network(), network()
    steps(together, ls.optim.rotating(together, 1e-2, foreach=True), 4)
    steps(alone, ls.optim.rotating(alone, 1e-2, foreach=False), 4)
    for x, y in zip(weights(together), weights(alone), strict=True):
        assert torch.allclose(x, y, atol=1e-5)


def test_a_scheduler_scales_the_angle_too():
    model = network()
    optimizer = ls.optim.rotating(model, 1e-2, angle=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    steps(model, optimizer, 2, scheduler)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.0025, 0.0125])


def test_a_step_turns_by_the_angle_and_stays_orthonormal():
    model = ls.nn.linear(8, 8, bias=False)
    optimizer = ls.optim.rotating(model, angle=0.01)
    before = model.weight.detach().clone()
    (model(torch.eye(8)) * torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).sum().backward()
    optimizer.step()
    turned = before.mT @ model.weight.detach()
    angles = torch.linalg.eigvals(turned.double()).angle().abs()
    assert 0.003 < float(angles.max()) < 0.01 * 1.2 * 2**0.5 * 1.05  # singular values to 1.2, and QR adds up to √2
    assert torch.allclose(model.weight.mT @ model.weight, torch.eye(8), atol=1e-5)


def test_a_closure_is_called_before_the_step():
    """The gradient that is used is the closure's, and the loss is returned."""
    by_closure, by_hand = network(), network()
    one, other = ls.optim.rotating(by_closure, 1e-2), ls.optim.rotating(by_hand, 1e-2)

    def closure():
        one.zero_grad()
        loss = loss_of(by_closure)
        loss.backward()
        return loss

    assert float(one.step(closure)) == pytest.approx(float(loss_of(by_hand)))
    steps(by_hand, other, 1)
    for x, y in zip(weights(by_closure), weights(by_hand), strict=True):
        assert torch.allclose(x, y, atol=1e-6)


def test_gradients_stay_after_a_step():
    model = network()
    steps(model, ls.optim.rotating(model), 1)
    assert all(p.grad is not None for p in model.parameters())


def test_a_matrix_that_is_not_orthonormal_is_refused():
    with pytest.raises(ValueError, match="no orthonormal matrix"):
        ls.optim.Rotating([{"params": [nn.Parameter(2 * torch.eye(3))], "rotates": True}])
