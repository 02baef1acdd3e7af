"""Measured stability against the bounds, on every kind of operator [prop:stability1, prop:stability2]."""

import json
from dataclasses import replace

import pytest
import torch
from certified_denoisers import averaging_map, haar_frame, linear, network, random_nonexpansive_matrix, soft_threshold
from energies import Quadratic
from stability_hunt import OPERATORS, SIZE, attack

from lipspline.certification import declare
from lipspline.operators import Identity, Matrix
from lipspline.pnp import fbs, stability
from lipspline.pnp._stability import _pull_back, _ratios


@pytest.mark.parametrize("contraction", [1.0, 0.9])
@pytest.mark.parametrize("name", OPERATORS)
def test_random_and_optimised_perturbations_obey_the_estimates(name, contraction):
    """[eq:EstForward] always, [eq:EstCont] for K = 0.9; the optimised perturbations are the worse ones."""
    H = OPERATORS[name]
    y = H.forward(torch.rand(1, 1, SIZE, SIZE, dtype=torch.float64))
    evidence = stability(
        y, H, haar_frame(0.02, 1), 0.4, contraction=contraction, perturbations=8, ascents=3, ascent_steps=2, tol=1e-6
    )
    claimed = {e.label for e in evidence.solution.certificate.estimates if e.constant is not None}
    assert {"eq:EstForward"} | ({"eq:EstCont"} if contraction < 1 else set()) <= claimed
    assert len(evidence.perturbations) == 11
    assert all(perturbation.converged for perturbation in evidence.perturbations)
    assert evidence.holds, str(evidence)
    assert evidence.worst("eq:EstForward", optimised=True) >= evidence.worst("eq:EstForward", optimised=False)
    # an idle bound would prove nothing: data consistency is nearly attained
    assert evidence.worst("eq:EstForward", optimised=True) > 0.7


@pytest.mark.parametrize("seed", range(4))
def test_no_prior_that_ships_is_moved_beyond_its_constants(seed):
    """Thousands more by `python tests/pnp/stability_hunt.py`."""
    name, evidence = attack(seed, perturbations=5, ascents=1)
    assert evidence.holds, f"{name}\n{evidence}"


def test_the_bound_is_attained_where_it_is_tight():
    """H = Id, D = Id: the reconstruction is the data, and every ratio is 1."""
    identity = declare(lambda x: x, 1.0, "identity")
    evidence = stability(torch.rand(1, 5, dtype=torch.float64), Identity((5,)), identity, perturbations=3, ascents=2)
    for perturbation in evidence.perturbations:
        assert perturbation.ratios[0].measured == pytest.approx(1.0)
        assert perturbation.ratios[1].measured == pytest.approx(1.0)
    assert evidence.holds


def test_the_ascent_finds_the_largest_singular_value_of_a_linear_reconstruction():
    """For linear denoisers data are mapped to images by a matrix, `(Id - M)⁻¹ B`: its norm is the worst ratio."""
    H, matrix = Matrix(torch.randn(4, 6, dtype=torch.float64)), random_nonexpansive_matrix(6)
    y = torch.randn(1, 4, dtype=torch.float64)
    options = {"contraction": 0.7, "tol": 1e-9}
    evidence = stability(y, H, linear(matrix), 0.4, perturbations=20, ascents=4, ascent_steps=30, **options)
    step = evidence.solution.certificate.setting.step
    m, _ = averaging_map(H, y, matrix, 0.4, step, factor=0.7)
    columns = [averaging_map(H, e[None], matrix, 0.4, step, factor=0.7)[1] for e in torch.eye(4, dtype=torch.float64)]
    solution_map = torch.linalg.solve(torch.eye(6, dtype=torch.float64) - m, torch.stack(columns, dim=1))
    worst = torch.linalg.matrix_norm(solution_map, 2).item()
    assert evidence.worst("eq:EstCont", optimised=True) == pytest.approx(worst, rel=1e-3)
    assert evidence.worst("eq:EstCont", optimised=False) < worst
    assert worst <= evidence.solution.certificate.estimates[2].constant


def test_the_gradient_through_the_fixed_point_is_that_of_finite_differences():
    H, denoiser = Matrix(torch.randn(5, 4, dtype=torch.float64)), network(4, 0.5)
    y, w = torch.randn(1, 5, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64)
    options = {"contraction": 0.5, "tol": 1e-14}
    base = fbs(y, H, denoiser, **options)
    gradient = _pull_back(w, base.value, y, H, denoiser, base.certificate.setting)
    for i in range(5):
        bump = 1e-6 * torch.eye(5, dtype=torch.float64)[i]
        difference = fbs(y + bump, H, denoiser, **options).value - fbs(y - bump, H, denoiser, **options).value
        assert float((w * difference).sum() / 2e-6) == pytest.approx(float(gradient[0, i]), rel=1e-3, abs=1e-6)


@pytest.fixture
def believed(monkeypatch):
    """What a denoiser promises is not tried before the first step: some lies are not seen there."""
    monkeypatch.setattr("lipspline.pnp._fbs.denoiser_violations", lambda *_: [])


def test_an_expansive_denoiser_breaks_the_estimate(believed):
    """The test can fail: `x ↦ 1.5 x` declared to be 1-Lipschitz gives `1.25 y`, a ratio above 1."""
    lie = declare(lambda x: 1.5 * x, 1.0, "a lie")
    evidence = stability(torch.rand(1, 5), Identity((5,)), lie, perturbations=50, ascents=10)
    assert not evidence.holds
    assert evidence.worst("eq:EstForward", optimised=False) == pytest.approx(1.25, rel=1e-3)
    assert "BROKEN" in str(evidence)


def test_an_expansive_denoiser_breaks_the_estimate_for_contractions(believed):
    """K = 0.9 is claimed, but D_β is really 0.9 · 1.1: the ratio exceeds α ‖H‖ K / (1 - K) = 9."""
    lie = declare(lambda x: 1.2 * x, 1.0, "a lie")
    H = 0.3 * Identity((5,))
    y = torch.rand(1, 5, dtype=torch.float64)
    truth = stability(
        y, H, declare(lambda x: x, 1.0, "identity"), contraction=0.9, step=1.0, perturbations=5, ascents=0
    )
    broken = stability(y, H, lie, contraction=0.9, step=1.0, perturbations=5, ascents=0)
    assert truth.holds
    # x = K (x - α H (H x - y)) / with K = 0.9 gives 0.27 / (1 - 0.9 · 0.91) = 1.49 of at most 2.7
    assert truth.worst("eq:EstCont", optimised=False) == pytest.approx(0.27 / (1 - 0.9 * 0.91), rel=1e-4)
    # with K = 0.99 it is 0.297 / (1 - 0.99 · 0.91) = 3.0
    assert broken.worst("eq:EstCont", optimised=False) == pytest.approx(0.297 / (1 - 0.99 * 0.91), rel=1e-4)
    assert not broken.holds


def test_beyond_one_half_the_estimate_can_fail_and_is_not_claimed():
    """β <= 1/2 is needed in [prop:stability1]: D = -Id with β = 0.9 gives x = -0.8 (x - α (x - y))."""
    flip = declare(lambda x: -x, 1.0, "isometry")
    evidence = stability(torch.rand(1, 3), Identity((3,)), flip, 0.9, step=1.9, perturbations=5, ascents=0)
    # x = -0.8 (-0.9 x + 1.9 y)  =>  0.28 x = -1.52 y
    assert evidence.worst("eq:EstForward", optimised=False) == pytest.approx(1.52 / 0.28, rel=1e-3)
    assert evidence.holds
    assert "not claimed" in str(evidence)


def test_a_known_solution_is_not_solved_again():
    """[eq:EstForward]: with `start` the unperturbed problem costs a few calls, and the evidence is as good."""
    H, denoiser = OPERATORS["ct"], haar_frame(0.05, 1)
    y = H.forward(torch.rand(1, 1, SIZE, SIZE, dtype=torch.float64))
    known = fbs(y, H, denoiser, 0.3, tol=1e-7, accelerate=True)
    evidence = stability(y, H, denoiser, 0.3, perturbations=3, ascents=0, tol=1e-6, start=known.value)
    assert evidence.solution.denoiser_calls <= 3 < known.denoiser_calls / 3
    assert evidence.holds


def test_limits_tend_to_the_bounds_as_the_residual_vanishes():
    solution = fbs(torch.rand(1, 3), Identity((3,)), soft_threshold(0.1), contraction=0.8)
    forward, inverse, contract, _ = _ratios(solution, 2.0, 1.0, 1.0, residual=0.0)
    assert (forward.limit, inverse.limit) == (1.0, pytest.approx(1.0))
    assert contract.limit == pytest.approx(solution.certificate.estimates[2].constant)
    later = _ratios(solution, 2.0, 1.0, 1.0, residual=0.1)
    # a² = a d + ‖Δx‖ ‖Δg‖ / α at the limit, with d = 2, ‖Δx‖ = 1, α = 1
    assert (2 * later[0].limit) ** 2 == pytest.approx(2 * later[0].limit * 2 + 0.1)
    assert later[2].limit == pytest.approx(contract.limit + 0.8 * 0.1 / (0.2 * 2.0))


def test_the_table_and_the_json_say_it_all():
    evidence = stability(torch.rand(2, 5), Identity((5,)), soft_threshold(0.1), perturbations=3, ascents=2)
    text = str(evidence)
    assert "estimate" in text
    assert "[eq:EstForward]     1 " in text
    assert "holds" in text
    assert "not claimed" in text
    document = json.loads(evidence.to_json())
    assert document["holds"] is True
    assert len(document["perturbations"]) == 2 * 5
    assert {p["kind"] for p in document["perturbations"]} == {"random", "data", "image"}


class TestOfMinimisers:
    def test_optimised_perturbations_come_within_a_tenth_of_both_constants(self):
        """Without an energy, with a singular value where the constant of the image is attained."""
        H = Matrix(torch.diag(torch.tensor([1.0, 0.1, 0.03], dtype=torch.float64)))
        y = torch.tensor([[0.3, 0.2, 0.1]], dtype=torch.float64)
        quiet = Quadratic(torch.zeros(3, 3, dtype=torch.float64))
        evidence = stability(y, H, quiet, 1.0, perturbations=20, ascents=4, ascent_steps=8, tol=1e-10)
        assert evidence.holds
        data, image = evidence.solution.certificate.estimates
        for estimate, size in ((data, 1.0), (image, 1 / (0.03 + 1e-4 / 0.03))):
            assert evidence.worst(estimate.label, optimised=True) == pytest.approx(size, rel=0.02)
            assert evidence.worst(estimate.label, optimised=True) <= estimate.constant * (1 + 1e-6)
        assert evidence.worst(data.label, optimised=True) >= 0.9 * data.constant

    def test_the_constant_of_the_image_is_nearly_attained_at_the_worst_singular_value(self):
        H = Matrix(torch.diag(torch.tensor([1.0, 0.01], dtype=torch.float64)))
        y = torch.tensor([[0.3, 0.2]], dtype=torch.float64)
        quiet = Quadratic(torch.zeros(2, 2, dtype=torch.float64))
        evidence = stability(y, H, quiet, 1.0, perturbations=2, ascents=2, ascent_steps=6, tol=1e-12)
        constant = evidence.solution.certificate.estimates[1].constant
        assert evidence.holds
        assert evidence.worst("minimiser:image", optimised=True) == pytest.approx(constant, rel=1e-6)

    def test_a_wrong_constant_is_found_out(self):
        H, y = Matrix(torch.eye(2, dtype=torch.float64)), torch.ones(1, 2, dtype=torch.float64)
        quiet = Quadratic(torch.zeros(2, 2, dtype=torch.float64))
        evidence = stability(y, H, quiet, 1.0, perturbations=2, ascents=0, tol=1e-12)
        ratio = evidence.perturbations[0].ratios[1]
        assert ratio.holds
        assert not replace(ratio, limit=0.5 * ratio.limit).holds

    def test_step_and_contraction_are_refused(self):
        quiet = Quadratic(torch.zeros(2, 2, dtype=torch.float64))
        with pytest.raises(ValueError, match="for denoisers"):
            stability(torch.ones(1, 2, dtype=torch.float64), Matrix(torch.eye(2).double()), quiet, 1.0, contraction=0.9)
