"""Averages with the identity, sums, concatenations, and scalings."""

import re

import pytest
import torch
from torch import nn

from lipspline.nn import Averaged, Concatenated, Scaled, Sum


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9, 1, 1.0])
def test_averaged_is_the_convex_combination(beta: float):
    """β R + (1 - β) Id [sec:PnPReconstruction], against its matrix."""
    inner = nn.Linear(4, 4).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    matrix = beta * inner.weight + (1 - beta) * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(Averaged(inner, beta)(x), x @ matrix.mT + beta * inner.bias)


def test_averaged_trains_what_is_inside():
    """The inner network is a submodule."""
    averaged = Averaged(nn.Linear(2, 2), beta=0.25)
    averaged(torch.randn(3, 2)).sum().backward()
    assert {name for name, p in averaged.named_parameters() if p.grad is not None} == {"inner.weight", "inner.bias"}
    assert "beta=0.25" in repr(averaged)


@pytest.mark.parametrize("beta", [0, 0.0, -0.5, 1.5, float("nan"), "half"])
def test_averaged_refuses_a_beta_outside_of_zero_to_one(beta):
    """[sec:PnPReconstruction]: β in (0, 1]; one is R itself."""
    with pytest.raises(
        ValueError, match="^" + re.escape(f"beta must lie strictly between 0 and 1, but is {beta!r}.") + "$"
    ):
        Averaged(nn.Identity(), beta)


def test_averaged_refuses_an_inner_network_that_changes_the_shape():
    """β R + (1 - β) Id has a meaning only if R maps a space to itself; broadcasting would hide that."""
    with pytest.raises(ValueError, match=r"keeps the shape, but it maps \(2, 4\) to \(2, 1\)\."):
        Averaged(nn.Linear(4, 1), 0.5)(torch.randn(2, 4))


@pytest.mark.parametrize("factor", [2.0, -0.5, 0, 3])
def test_scaled_multiplies(factor: float):
    """`factor * x`."""
    x = torch.randn(3, 2)
    torch.testing.assert_close(Scaled(factor)(x), factor * x)
    assert repr(Scaled(2.5)) == "Scaled(2.5)"


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_scaled_refuses_what_is_no_number(factor: float):
    """A network scaled by NaN or infinity has no Lipschitz constant."""
    with pytest.raises(ValueError, match=rf"^factor must be a finite number, but is {factor}\.$"):
        Scaled(factor)


def test_sums_add_outputs_and_concatenations_join_them():
    """Against torch."""
    x = torch.randn(3, 2)
    torch.testing.assert_close(Sum(nn.Identity(), nn.ReLU(), Scaled(2.0))(x), 3 * x + x.relu())
    torch.testing.assert_close(Concatenated(nn.Tanh(), nn.ReLU())(x), torch.cat([x.tanh(), x.relu()], dim=1))
    torch.testing.assert_close(Concatenated(nn.Tanh(), nn.ReLU(), dim=0)(x), torch.cat([x.tanh(), x.relu()]))
    assert "dim=0" in repr(Concatenated(nn.Tanh(), dim=0))


def test_a_sum_refuses_to_broadcast():
    """A column added to a matrix counts several times."""
    with pytest.raises(ValueError, match=r"outputs of one shape, but got \(3, 2\) and \(3, 1\)\.$"):
        Sum(nn.Identity(), nn.Linear(2, 1))(torch.randn(3, 2))


@pytest.mark.parametrize("kind", [Sum, Concatenated])
def test_nothing_cannot_be_combined(kind):
    """At least one branch."""
    with pytest.raises(ValueError, match=r"^The number of branches must be at least 1, but is 0"):
        kind()
