"""The three functions, and the smoke scale of the one-dimensional fits [fig:1d_functions, fig:1d_performances]."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipspline.models import load as load_network
from lipspline.paper import fitting
from lipspline.paper.fitting import piecewise_linear, target
from lipspline.paper.recipe import load

X = torch.linspace(-1, 1, 200_001, dtype=torch.float64)


def slopes(name, knots=9, seed=0):
    return target(name, knots, seed)(X).diff() / X.diff()


@given(st.integers(1, 12), st.integers(0, 50), st.sampled_from(["f1", "f2", "f3"]))
def test_every_function_is_1_lipschitz_with_mean_zero(knots, seed, name):
    """[fig:1d_functions]"""
    values = target(name, knots, seed)(X)
    assert (values.diff().abs() <= X.diff() * (1 + 1e-9)).all()
    assert abs(torch.trapezoid(values, X).item()) < 1e-6


def test_f1_has_slopes_plus_and_minus_one_in_turns():
    found = slopes("f1")
    inside = found[(found.abs() - 1).abs() < 1e-6].sign()
    assert len(inside) >= len(X) - 1 - 9
    assert (inside.diff() != 0).sum() == 9


def test_f2_alternates_between_slope_zero_and_slopes_of_size_one():
    found = slopes("f2").abs()
    flat, steep = found < 1e-6, (found - 1).abs() < 1e-6
    assert (flat | steep).sum() >= len(X) - 1 - 9
    assert (steep[flat | steep].int().diff() != 0).sum() == 9
    assert steep[0]


def test_f3_is_the_papers_sine():
    x = torch.tensor([1 / 14])
    assert target("f3", 9, 0)(x).item() == pytest.approx(1 / (7 * math.pi))


def test_the_functions_depend_on_their_seed_alone():
    assert torch.equal(target("f1", 9, 3)(X), target("f1", 9, 3)(X))
    assert not torch.equal(target("f1", 9, 3)(X), target("f1", 9, 4)(X))


@given(st.lists(st.floats(-0.99, 0.99), min_size=1, max_size=5, unique=True))
def test_a_piecewise_linear_function_is_the_integral_of_its_slopes(knots):
    knots = torch.tensor(sorted(knots), dtype=torch.float64)
    slope = torch.arange(len(knots) + 1, dtype=torch.float64) - 1
    f = piecewise_linear(knots, slope)
    ends = torch.cat([-torch.ones(1), knots, torch.ones(1)])
    assert torch.allclose(f(ends).diff(), slope * ends.diff(), atol=1e-12)


def test_functions_with_one_learning_rate_are_one_ensemble():
    settings = load("fig-1d").settings
    names = [job.name for job in fitting.jobs(settings)]
    assert "lls-new-orthonormal-f1f2f3" in names
    assert {"gs-spectral-f1f2", "gs-spectral-f3"} <= set(names)
    assert len(names) == 24


def test_the_smoke_scale_gives_a_score_a_certified_network_and_a_curve_for_every_cell(smoke, tmp_path):
    """[fig:1d_performances]"""
    results = smoke("fig-1d")
    jobs = results.document["jobs"]
    assert len(jobs) == 14
    for name, numbers in jobs.items():
        scores = numbers["f1"]
        ordered = sorted(scores["mse"])
        assert scores["median"] == pytest.approx(sum(ordered) / 2)
        assert scores["lower"] <= scores["median"] <= scores["upper"]
        assert scores["certificate"] <= 1
        network = load_network(tmp_path / "runs" / "fig-1d-smoke" / name / "median-0.safetensors")
        x = torch.linspace(-1, 1, 100).unsqueeze(1)
        error = (network(x) - target("f1", 9, 0)(x)).square().mean().item()
        assert error == pytest.approx(ordered[1], rel=2e-2)
    assert {path.name for path in results.files} == {
        "fig-1d-smoke.json",
        "fig-1d-smoke-performance.png",
        "fig-1d-smoke-functions.png",
    }


def test_verdicts_count_the_panels_that_lls_new_wins():
    panel = {"lls-new": {"median": 1.0}, "lls-old": {"median": 2.0}, "gs": {"median": 0.5}}
    verdicts = fitting._verdicts({"a": panel, "b": panel | {"gs": {"median": 3.0}}})
    assert (verdicts["lls-best"].holds, verdicts["lls-best"].evidence) == (False, "in 1 of 2 panels")
    assert (verdicts["new-beats-old"].holds, verdicts["new-beats-old"].evidence) == (True, "in 2 of 2 panels")
