"""The time to go: what is told while a solver runs, against what then happens."""

import pytest
import torch

from lipspline.operators import MRI, cartesian_mask
from lipspline.pnp import fbs, minimize, promise
from lipspline.pnp.batch import Clock
from lipspline.priors import resolve


def estimate(residuals, calls, *, tol=1e-4, max_steps=1000, patience=1.0):
    clock = Clock(tol, max_steps, None, patience)
    for residual in residuals[:calls]:
        clock.best.append(min([residual, *clock.best[-1:]]))
    return clock.calls_to_go()


GEOMETRIC = [0.8**k for k in range(100)]  # 42 calls to 1e-4
POWER = [(k + 1) ** -3.0 for k in range(100)]  # 22 calls to 1e-4
UNEVEN = [0.8**k * (3 if k % 4 == 1 else 1) for k in range(100)]


@pytest.mark.parametrize(("residuals", "calls", "left"), [(GEOMETRIC, 25, 17), (POWER, 11, 11), (UNEVEN, 26, 17)])
def test_the_way_to_go_is_estimated_within_a_factor_of_two(residuals, calls, left):
    assert left / 2 < estimate(residuals, calls) < 2 * left


def test_it_is_never_more_than_the_steps_that_are_left():
    assert estimate(GEOMETRIC, 25, max_steps=30) == 5


def test_a_run_that_goes_on_beyond_the_tolerance_is_known_to():
    """Arrived at call 43, it goes on to at most four times that."""
    assert estimate(GEOMETRIC, 50, patience=4.0) == 4 * 43 - 50
    assert estimate(GEOMETRIC, 42, patience=4.0) > 4 * 43 - 50


@pytest.mark.parametrize("residuals", [[1.0] * 50, [1.0, 0.5], [float("inf")] * 20])
def test_nothing_is_said_where_nothing_falls(residuals):
    assert estimate(residuals, len(residuals)) is None


def watched(solver, prior, weight):
    H = MRI(cartesian_mask(32, acceleration=2))
    y = H.forward(torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0)))
    told = []
    solver(y, H, prior, weight, tol=1e-5, max_steps=300, progress=told.append)
    return told


def test_two_passes_are_told_as_one():
    told = watched(minimize, resolve("ridge-adaptive").at(10), 0.5)
    assert [one.calls for one in told] == list(range(1, len(told) + 1))
    assert [one.running for one in told] == [1] * (len(told) - 1) + [0]
    seconds = [one.seconds for one in told]
    assert seconds == sorted(seconds)
    assert told[-1].eta == 0


def test_the_promise_of_a_denoiser_is_what_its_certificate_says():
    """With a contraction the shipped network is certified again in float64, after it has run in float32."""
    H, denoiser = MRI(cartesian_mask(32, acceleration=2)), resolve("lls").at(5)
    y = H.forward(torch.rand(1, 1, 32, 32))
    setting = fbs(y, H, denoiser, 0.3, contraction=0.9, max_steps=2).certificate.setting
    assert promise(H, denoiser, 0.3, contraction=0.9) == setting


@pytest.mark.parametrize("name", ["ridge", "ridge-adaptive", "ridge-weak", "tv", "wavelet"])
def test_the_promise_of_an_energy_is_what_its_certificate_says(name):
    H, energy = MRI(cartesian_mask(32, acceleration=2)), resolve(name).at(5)
    y = H.forward(torch.rand(1, 1, 32, 32))
    setting = minimize(y, H, energy, 0.1, positive=True, max_steps=2).certificate.setting
    assert promise(H, energy, 0.1, positive=True) == setting
