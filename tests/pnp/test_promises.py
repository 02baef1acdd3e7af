"""What is promised of operators, denoisers and energies, and contradicted by an image, is refused before a step."""

import math

import pytest
import torch
from energies import DoubleWell, Huber, Quadratic
from torch import nn

from lipspline.certification import declare
from lipspline.operators import LinearOperator, Space
from lipspline.pnp import ValidationProblem, fbs, minimize, promise, tune

GAINS = torch.linspace(0.5, 1.5, 16).view(1, 4, 4)
DATA = GAINS[None] * 0.7


class Gains(LinearOperator):
    """Every pixel has a gain of its own, and the bounds are what they are said to be."""

    domain = codomain = Space((1, 4, 4))

    def __init__(self, norm=(1.5, 1.5), smallest: float | None = 0.5):
        self.norm, self.smallest = norm, smallest

    def _apply(self, x):
        return x * GAINS.to(x.dtype)

    def _apply_adjoint(self, y):
        return y * GAINS.to(y.dtype)

    def norm_bounds(self):
        return self.norm

    def smallest_singular_value(self):
        return self.smallest


def energy(**wrong):
    """Huber's energy with another part in the place of a right one."""
    return type("Bent", (Huber,), wrong)()


@pytest.mark.parametrize("run", ["fbs", "minimize"])
class TestOperators:
    def solve(self, run, H):
        return fbs(DATA, H, nn.ReLU()) if run == "fbs" else minimize(DATA, H, Huber(), 0.01)

    def test_what_is_right_is_solved(self, run):
        assert self.solve(run, Gains()).certificate.guaranteed

    def test_a_lower_bound_that_an_image_is_below_of(self, run):
        with pytest.raises(
            ValueError, match=r"only, less than the lower bound 1\.4 that its smallest_singular_value\(\)"
        ):
            self.solve(run, Gains(smallest=1.4))

    @pytest.mark.parametrize("smallest", [math.nan, -5.0, math.inf])
    def test_a_lower_bound_that_is_none(self, run, smallest):
        """(-5)² = 25 would have made the objective strongly convex."""
        with pytest.raises(ValueError, match=r"smallest_singular_value\(\) of .* must be a positive finite number"):
            self.solve(run, Gains(smallest=smallest))

    @pytest.mark.parametrize("norm", [(9.0, 1.5), (math.nan, 1.5)])
    def test_bounds_in_the_wrong_order(self, run, norm):
        with pytest.raises(ValueError, match=r"norm_bounds\(\) gives a lower bound"):
            self.solve(run, Gains(norm=norm))


class TestDenoisers:
    def test_one_that_stretches_more_than_was_vouched_for(self):
        lie = declare(lambda z: 1.7 * z, 1.0, "I think so")
        with pytest.raises(ValueError, match=r"1\.7 times as large, but 1 was vouched for \(I think so\)"):
            fbs(DATA, Gains(), lie)
        assert not fbs(DATA, Gains(), lie, guarantee=False, max_steps=3).certificate.guaranteed

    def test_the_table_says_what_is_not_proven(self):
        table = str(fbs(DATA, Gains(), declare(lambda z: z.clamp(0, 1), 1.0, "a projection")).certificate)
        assert "not proven but vouched for: a projection" in table
        assert "vouched" not in str(fbs(DATA, Gains(), nn.ReLU()).certificate)

    def test_an_energy_is_sent_to_minimize(self):
        with pytest.raises(ValueError, match=r"Huber is an energy\. Minimise it with pnp\.minimize"):
            fbs(DATA, Gains(), Huber())


class TestEnergies:
    @pytest.mark.parametrize("right", [Huber(), DoubleWell(), Quadratic(torch.eye(16)), Quadratic(-torch.eye(16))])
    def test_what_is_right_passes(self, right):
        minimize(DATA, Gains(), right, 0.01, max_steps=2)

    @pytest.mark.parametrize("factor", [-1.0, 0.5, 2.0])
    def test_a_gradient_of_something_else(self, factor):
        wrong = energy(gradient=lambda self, x: factor * Huber.gradient(self, x))
        with pytest.raises(ValueError, match=r"or gradient\(\) is not the gradient of forward\(\)"):
            minimize(DATA, Gains(), wrong, 0.01)

    def test_one_that_is_not_convex(self):
        wrong = energy(
            forward=lambda self, x: -Huber.forward(self, x), gradient=lambda self, x: -Huber.gradient(self, x)
        )
        with pytest.raises(ValueError, match="falls below its tangent by more than weak_convexity = 0 allows"):
            minimize(DATA, Gains(), wrong, 0.01)

    def test_a_constant_that_is_too_small(self):
        with pytest.raises(ValueError, match=r"rises above its tangent by more than lipschitz = 0\.001 allows"):
            minimize(DATA, Gains(), energy(lipschitz=0.001), 0.01)

    def test_one_number_for_all_images(self):
        wrong = energy(forward=lambda self, x: Huber.forward(self, x).sum())
        with pytest.raises(ValueError, match=r"must return the energy of each image, shape \(1,\), but returned \(\)"):
            minimize(DATA, Gains(), wrong, 0.01)

    @pytest.mark.parametrize("name", ["lipschitz", "weak_convexity"])
    @pytest.mark.parametrize("value", [math.nan, -1.0])
    def test_constants_that_are_none(self, name, value):
        with pytest.raises(ValueError, match=f"{name} of Bent must be"):
            promise(Gains(), energy(**{name: value}), 0.01)


def test_tuning_needs_truths_that_are_numbers():
    problem = ValidationProblem(DATA, Gains(), torch.full((1, 1, 4, 4), math.nan))
    with pytest.raises(ValueError, match="The truth of problem 0 has 16 NaN or infinite"):
        tune([problem], {5: nn.ReLU()}, (0.1,))
