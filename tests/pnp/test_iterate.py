"""The fixed-point loop on maps whose iterates are known."""

import math

import pytest
import torch

from lipspline.pnp.iterate import Anderson, iterate


def rotation(angle: float, factor: float = 1.0):
    matrix = factor * torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
    )
    return lambda x, rows: x @ matrix.mT


START = torch.tensor([[1.0, 0.0]], dtype=torch.float64)


def test_a_geometric_sequence_has_the_residuals_and_the_end_it_must_have():
    value, (run,) = iterate(lambda x, rows: 0.5 * x + 1, torch.zeros(1, 1).double(), tol=1e-6, max_steps=100)
    # x_k = 2 (1 - 2^-k) is moved by 2^-k
    assert run.residuals[1:4] == pytest.approx([0.5 / 1, 0.25 / 1.5, 0.125 / 1.75])
    assert run.steps == 20
    assert run.change == pytest.approx(2.0**-19)
    assert value.item() == pytest.approx(2 - 2.0**-19, abs=1e-15)


def test_running_out_of_steps_is_said():
    _, (run,) = iterate(rotation(1.0), START, tol=1e-6, max_steps=7)
    assert not run.converged
    assert run.calls == 7
    assert run.reason == "not converged: residual 0.959 after 7 steps, tol is 1e-06"


def test_the_map_is_told_which_images_it_gets():
    targets = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    seen = []

    def towards(x, rows):
        seen.append(rows.tolist())
        return torch.where(rows[:, None] == 1, targets[rows], (x + targets[rows]) / 2)

    value, runs = iterate(towards, torch.zeros(3, 1, dtype=torch.float64), tol=1e-9, max_steps=100)
    assert torch.allclose(value, targets)
    assert seen[0] == [0, 1, 2]
    assert seen[-1] == [0, 2]
    assert runs[1].calls == 2


def test_a_map_that_stretches_is_stopped_where_that_is_excluded():
    _, (run,) = iterate(rotation(2.0, 1.01), START, tol=1e-6, max_steps=1000)
    assert run.calls == 2
    assert "drove two iterates apart" in run.reason


def test_a_map_that_stretches_may_run_until_it_diverges_where_nothing_is_promised():
    value, (run,) = iterate(rotation(2.0, 1.1), START, tol=1e-6, max_steps=1000, nonexpansive=False)
    assert "a million times" in run.reason
    # the step grows by 1.1 a call
    assert run.calls == pytest.approx(math.log(1e6) / math.log(1.1), abs=2)
    assert torch.isfinite(value).all()


def test_round_off_is_no_stretching():
    """A float32 isometry stretches by round-off now and then."""
    angles = torch.rand(64)
    turn = torch.polar(torch.ones(64), angles)
    _, (run,) = iterate(lambda x, rows: x * turn, torch.randn(1, 64, dtype=torch.complex64), tol=1e-7, max_steps=300)
    assert run.calls == 300


@pytest.mark.parametrize("accelerator", [None, Anderson()])
def test_a_bad_first_call_returns_the_start(accelerator):
    value, (run,) = iterate(lambda x, rows: x * math.nan, START, tol=1e-6, max_steps=9, accelerator=accelerator)
    assert torch.equal(value, START)
    assert run.reason.startswith("stopped")
    assert not run.converged


def test_where_the_fixed_point_stays_out_of_reach_the_residual_decides_after_a_while():
    """Steps of constant length for ever: there is no fixed point, and no estimate of a distance ever gets small."""
    value, (run,) = iterate(
        lambda x, rows: x + 1.0, torch.zeros(1, 1).double(), tol=0.1, max_steps=1000, accelerator=Anderson()
    )
    # ‖T(x) - x‖ / ‖x‖ = 1/k <= 0.1 at x = 10, the 11th call; it waits for 4 times that
    assert run.converged
    assert run.calls == 44
    assert value.item() == 44
