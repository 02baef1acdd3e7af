"""Tuning: the best pair of a grid that can be computed by hand, refinement, warm starts [sec:exp_pnp]."""

import json

import pytest
import torch

from lipspline.certification import declare
from lipspline.operators import Identity, Matrix
from lipspline.pnp import ValidationProblem, fbs, tune


def towards(level: float):
    """A denoiser that returns a constant image: with H = Id the fixed point is known."""
    return declare(lambda x: torch.full_like(x, level), 1.0, "constant")


def problem(truth: float) -> ValidationProblem:
    return ValidationProblem(torch.ones(1, 1, 4, 4), Identity((1, 4, 4)), torch.full((1, 1, 4, 4), truth))


def fixed_point(level: float, beta: float) -> float:
    """H = Id and α = 1: x = β level + (1 - β) y with y = 1."""
    return beta * level + (1 - beta)


def test_scores_are_those_of_the_fixed_points_and_the_best_is_the_best():
    tuning = tune([problem(0.8)], {5: towards(0.5), 10: towards(0.0)}, (0.1, 0.4), refinements=0)
    for trial in tuning.trials:
        x = fixed_point(0.5 if trial.noise == 5 else 0.0, trial.beta)
        assert trial.score == pytest.approx(-20 * torch.tensor(abs(x - 0.8)).log10().item(), abs=0.02)
        assert trial.converged
    # 1 - 0.4 · 0.5 = 0.8 exactly
    assert (tuning.best.noise, tuning.best.beta) == (5, 0.4)
    assert len(tuning.trials) == 4


def test_refinement_halves_the_steps_around_the_best():
    """1 - β = 0.83 for β = 0.17: of the grid 0.16 is best; steps of 2 find nothing better, those of √2 neither."""
    tuning = tune([problem(0.83)], {5: towards(0.0)}, (0.04, 0.16, 0.32), refinements=2)
    betas = [trial.beta for trial in tuning.trials]
    assert betas[:3] == [0.04, 0.16, 0.32]
    assert betas[3:] == pytest.approx([0.08, 0.16 / 2**0.5, 0.16 * 2**0.5], rel=1e-5)
    assert tuning.best.beta == 0.16


def test_the_search_walks_past_the_ends_of_the_grid_but_not_past_one_half():
    """[eq:EstForward] needs β <= 1/2."""
    low = tune([problem(0.98)], {5: towards(0.0)}, (0.1, 0.2), refinements=4)
    assert abs(low.best.beta - 0.02) < 0.002
    high = tune([problem(0.3)], {5: towards(0.0)}, (0.1, 0.2), refinements=2)
    assert high.best.beta == 0.5
    assert max(trial.beta for trial in high.trials) == 0.5


def test_between_the_given_denoisers_the_noise_level_is_tuned_too():
    """At level 1 - noise the fixed point is 1 - β noise; the truth 1 - 0.3 needs more noise than is given."""
    denoisers = {noise: towards(1 - noise) for noise in (0.1, 0.4)}
    made = []

    def between(noise: float):
        made.append(noise)
        return towards(1 - noise)

    def tuned(**options):
        return tune([problem(1 - 0.3)], denoisers, (0.1, 0.4), refinements=3, **options)

    tuning = tuned(between=between)
    assert abs(tuning.best.noise * tuning.best.beta - 0.3) < 0.02
    assert len(made) == len(set(made)) >= 2
    assert {trial.noise for trial in tuned().trials} == {0.1, 0.4}
    assert tuning.best.score > tuned().best.score + 6


def test_the_search_ends_after_max_trials():
    tuning = tune([problem(0.98)], {5: towards(0.0)}, (0.1, 0.2), refinements=4, max_trials=5)
    assert len(tuning.trials) == 5


def test_a_search_that_was_interrupted_goes_on():
    whole = tune([problem(0.83)], {5: towards(0.0)}, (0.04, 0.16, 0.32))
    heard = []
    rest = tune([problem(0.83)], {5: towards(0.0)}, (0.04, 0.16, 0.32), done=whole.trials[:4], progress=heard.append)
    assert [trial.beta for trial in heard] == [trial.beta for trial in whole.trials[4:]]
    assert rest.trials[:4] == whole.trials[:4]
    assert rest.best.beta == whole.best.beta


def test_a_start_of_ones_own_is_used():
    """From the fixed point itself one call is enough."""
    y, H, truth, _ = problem(0.8)
    start = torch.full((1, 1, 4, 4), fixed_point(0.0, 0.2))
    tuning = tune([ValidationProblem(y, H, truth, start)], {5: towards(0.0)}, (0.2,))
    assert tuning.trials[0].denoiser_calls == 1


def test_the_mean_over_all_images_decides():
    tuning = tune([problem(0.9), problem(0.7)], {5: towards(0.0)}, (0.1, 0.2, 0.3), refinements=0)
    trial = tuning.trials[1]
    assert len(trial.scores) == 2
    assert trial.score == pytest.approx(sum(trial.scores) / 2)


def test_another_score_can_be_asked_for():
    def closeness(x, truth):
        return -(x - truth).abs().mean(dim=(1, 2, 3))

    tuning = tune([problem(0.7)], {5: towards(0.0)}, (0.1, 0.2, 0.3), refinements=0, score=closeness)
    assert tuning.best.beta == 0.3
    assert tuning.trials[0].score == pytest.approx(-0.2, abs=1e-4)


def test_warm_starts_save_calls():
    """From the solution for the last β it is a shorter way than from the data."""
    weights = torch.diag(torch.linspace(0.1, 1, 4, dtype=torch.float64))
    H, y = Matrix(weights), torch.rand(1, 4, dtype=torch.float64)
    shrink = declare(lambda x: 0.5 * x, 0.5, "linear")
    betas = (0.1, 0.11, 0.12)

    def closeness(x, truth):
        return -(x - truth).norm(dim=1)

    options = {"tol": 1e-6, "accelerate": False}
    tuned = tune([ValidationProblem(y, H, y)], {5: shrink}, betas, refinements=0, score=closeness, **options)
    cold = [fbs(y, H, shrink, beta, **options).denoiser_calls for beta in betas]
    assert tuned.trials[0].denoiser_calls == cold[0]
    assert all(trial.denoiser_calls < calls for trial, calls in zip(tuned.trials[1:], cold[1:], strict=True))


def test_progress_hears_of_every_trial_and_the_table_shows_them():
    heard = []
    tuning = tune([problem(0.8)], {5: towards(0.5)}, (0.1, 0.4), refinements=1, progress=heard.append)
    assert tuple(heard) == tuning.trials
    lines = str(tuning).splitlines()
    assert len(lines) == 1 + len(tuning.trials)
    assert sum(line.endswith("best") for line in lines) == 1
    assert json.loads(tuning.to_json())["best"]["beta"] == tuning.best.beta


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"problems": []}, "at least one problem"),
        ({"denoisers": {}}, r"0 denoiser\(s\)"),
        ({"betas": ()}, r"0 beta\(s\)"),
        ({"denoisers": {0: towards(0.5)}}, "Each noise level of denoisers must be a positive finite number, but is 0"),
        ({"betas": (0.5, 1.0)}, "Each of betas must lie strictly between 0 and 1, but is 1.0"),
        (
            {"problems": [ValidationProblem(torch.ones(1, 1, 4, 4), Identity((1, 4, 4)), torch.ones(1, 4, 4))]},
            "truth of problem 0",
        ),
        ({"denoisers": {5: torch.relu}}, "no Lipschitz certificate"),
    ],
)
def test_nonsense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        tune(**{"problems": [problem(0.8)], "denoisers": {5: towards(0.5)}, "betas": (0.2,), **arguments})
