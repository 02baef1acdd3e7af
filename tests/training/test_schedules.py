"""Schedules against torch's own, and their names."""

import pytest
import torch

from lipspline.training.schedules import SCHEDULES, constant, cosine, halving, one_cycle, trapezoid


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
