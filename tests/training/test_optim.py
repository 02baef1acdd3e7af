"""Adam with the paper's three learning rates [sec:EvalExp]."""

import pytest
import torch
from torch import nn

from lipspline.nn import LinearSpline
from lipspline.training import Player, param_groups
from lipspline.training.optim import set_rate


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
