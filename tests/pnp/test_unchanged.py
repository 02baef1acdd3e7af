"""No call of `pnp` changes the network it is given: weights, statistics, modes, hooks, gradients."""

import contextlib

import pytest
import torch
from torch import nn

from lipspline.networks.builders import denoiser as build_denoiser
from lipspline.operators import Identity
from lipspline.pnp import ValidationProblem, fbs, lipschitz_bound, stability, tune

SHAPE = (1, 8, 8)


def with_statistics() -> nn.Module:
    """A network whose mode matters: batch normalisation, dropout, a part that is frozen in eval mode."""
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.ReLU(), nn.BatchNorm2d(1))
    model[0].running_var.fill_(4.0)
    model[3].eval()
    return model


def with_constraints() -> nn.Module:
    return build_denoiser("lls", channels=4, depth=3)


CALLS = {
    "fbs": lambda D, y, H: fbs(y, H, D, contraction=0.9),
    "accelerated fbs": lambda D, y, H: fbs(y, H, D, contraction=0.9, accelerate=True),
    "stability": lambda D, y, H: stability(y, H, D, perturbations=2, ascents=2, contraction=0.99),
    "tune": lambda D, y, H: tune([ValidationProblem(y, H, y)], {5.0: D}, [0.1], refinements=0),
    "lipschitz_bound": lambda D, y, H: lipschitz_bound(D),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [with_statistics, with_constraints])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_leaves_the_network_as_it_was(call, build, training):
    model = build()
    if training:
        model[0].train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    wants = [p.requires_grad for p in model.parameters()]
    H = 0.99 * Identity(SHAPE)
    with contextlib.suppress(ValueError):  # a network that is refused stays as it was too
        CALLS[call](model, torch.rand(2, *SHAPE), H)
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wants
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_statistics_that_matter_do_not_break_the_theorem():
    """In training mode batch normalisation expands: the perturbations are sought in eval mode, as it was certified."""
    evidence = stability(
        torch.rand(2, *SHAPE), Identity(SHAPE), with_statistics().train(), perturbations=3, ascents=4, tol=1e-5
    )
    assert evidence.holds
