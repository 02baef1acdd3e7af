"""Clocks measure what they say."""

import os
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lipspline.benchmarks import timing
from lipspline.benchmarks.timing import (
    Ratios,
    Stopwatch,
    compare,
    inference,
    isolated,
    training_step,
    whole,
    within_network,
)


class Clock:
    """A clock that only moves when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


class Sleepy(torch.autograd.Function):
    """The identity; takes one second forward and two backward."""

    @staticmethod
    def forward(ctx, x, clock):
        ctx.clock = clock
        clock.sleep(1)
        return x.clone()

    @staticmethod
    def backward(ctx, *grads):
        ctx.clock.sleep(2)
        return grads[0].clone(), None


class Nap(nn.Module):
    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def forward(self, x: Tensor) -> Tensor:
        return Sleepy.apply(x, self.clock)  # type: ignore[return-value]


def test_a_stopwatch_counts_the_forward_and_backward_of_its_layer_alone(clock):
    layers = [Stopwatch(nn.Identity()), Nap(clock), nn.Linear(2, 2), Stopwatch(Nap(clock)), Nap(clock)]
    assert within_network(nn.Sequential(nn.Linear(2, 2), *layers), torch.zeros(1, 2))() == 3


def test_a_stopwatch_starts_from_zero_at_each_step(clock):
    case = within_network(nn.Sequential(nn.Linear(2, 2), Stopwatch(Nap(clock))), torch.zeros(1, 2))
    assert [case(), case()] == [3, 3]


def test_ratios_are_in_units_of_the_first_case(clock):
    naps = {"two": whole(lambda: clock.sleep(2)), "six": whole(lambda: clock.sleep(6))}
    ratios = compare("naps", naps, repeats=3, warmup=0)
    assert ratios.unit == "two"
    assert ratios.values == {"two": 1, "six": 3}


def test_the_median_ignores_a_slow_moment():
    seconds = iter([1.0, 50.0, 1.0])
    assert compare("spike", {"case": lambda: next(seconds)}, repeats=3, warmup=0).values == {"case": 1.0}


def test_warming_up_is_not_counted():
    seconds = iter([100.0, 1.0, 2.0, 3.0])
    cases = {"unit": lambda: 1.0, "case": lambda: next(seconds)}
    assert compare("warm", cases, repeats=3, warmup=1).values["case"] == 2


def test_a_training_step_leaves_fresh_gradients_and_inference_none():
    layer, x = nn.Linear(2, 2), torch.zeros(1, 2)
    inference(layer, x)()
    assert layer.weight.grad is None
    assert not layer.training
    case = training_step(layer, x + 1)
    case()
    first = layer.weight.grad
    case()
    assert first is not None
    assert layer.weight.grad is not first
    assert layer.training


def test_ratios_are_printed_with_their_unit():
    assert str(Ratios("Cost", "ReLU", {"ReLU": 1.0, "spline": 1.25})) == (
        "Cost (in ReLU)\n  ReLU       1.000\n  spline     1.250"
    )


def number(function: Callable[[], int]) -> Callable[[], float]:
    return lambda: float(function())


def test_each_case_has_a_process_of_its_own_with_the_threads_of_this_one():
    makers = {"first": partial(number, os.getpid), "second": partial(number, os.getpid)}
    with isolated({**makers, "threads": partial(number, torch.get_num_threads)}) as cases:
        first, second = cases["first"](), cases["second"]()
        assert len({first, second, float(os.getpid())}) == 3
        assert cases["first"]() == first
        assert cases["threads"]() == torch.get_num_threads()
