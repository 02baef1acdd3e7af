"""Energies in the lab: chosen, promised, solved, compared and kept as denoisers are, by the same functions."""

import json
import threading

import pytest

from lipspline import priors
from lipspline.imaging.problem import solve_problem, tolerance
from lipspline.imaging.strength import choose
from lipspline.lab.request import parse
from lipspline.lab.result import CERTIFICATES, DOWNLOADS
from lipspline.lab.session import ITERATION
from live_lab import ORDER

ENERGIES = [name for name, prior in priors.catalogue().items() if prior.kind is priors.Kind.ENERGY]
AUTOMATIC = {"level": None, "beta": None}
HELD_OUT = {"kind": "ct", "angles": 30, "noise": 0.5}  # enough projections to refine the strength by some of them


def solve(lab, **changes):
    """A job to its end: its events, and the result."""
    status, answer, _ = lab.order(**{**AUTOMATIC, **changes})
    assert status == 202, answer
    events = lab.finish(answer["job"])
    assert events[-1][0] == "done", events[-1]
    return events, lab.session.result


@pytest.mark.parametrize("changes", [{}, HELD_OUT])
def test_an_energy_is_solved_with_the_strength_that_the_library_chooses(lab, changes):
    events, result = solve(lab, model="ridge", **changes)
    assert ("trial" in [kind for kind, _ in events]) == bool(changes)
    strength = choose("ridge", "auto", "auto", result.problem)
    alone = solve_problem("ridge", result.problem, strength.served, strength.weight, ITERATION)
    assert (result.solved[-1].solution.value == alone.solution.value).all()
    assert result.solved[-1].solution.certificate.setting.strength == strength.weight


def test_the_strength_is_relative_to_the_automatic_one_which_is_chosen_once(lab):
    first, result = solve(lab, model="tv", **HELD_OUT)
    assert [kind for kind, _ in first].count("trial") > 0
    automatic = result.solved[-1].solution.certificate.setting.strength
    second, result = solve(lab, model="tv", **HELD_OUT, strength=2.0)
    assert [kind for kind, _ in second].count("trial") == 0
    assert result.solved[-1].solution.certificate.setting.strength == pytest.approx(2 * automatic)
    assert result.solved[-1].name == "tv, strength × 2"


def test_the_strength_of_a_denoiser_is_relative_too(lab):
    weights = [
        lab.order("/preview", model="lls", level=10, beta=None, noise=0.02, strength=factor)[1]["suited"]["beta"]
        for factor in (1, 2)
    ]
    assert weights[1] == pytest.approx(2 * weights[0])


@pytest.mark.parametrize("model", ENERGIES)
def test_every_energy_promises_before_it_is_solved_what_its_certificate_says(lab, model):
    """But for the strength λ, which is refined when it is solved."""
    solve(lab, model=model, **HELD_OUT, strength=0.5)  # now the refined one is known
    promise = lab.order("/preview", **AUTOMATIC, model=model, **HELD_OUT, strength=0.5)[1]["promise"]
    setting = lab.session.result.solved[-1].solution.certificate.setting
    for estimate in setting.estimates():
        claimed = estimate.constant is not None
        row = promise.split("Data stability" if "data" in estimate.label else "Image stability")[1].split("</tr>")[0]
        assert ("proven" in row) == claimed
    assert f"{setting.strength:.4g}" in promise.split("Strength λ")[1].split("</tr>")[0]


@pytest.mark.parametrize("model", ENERGIES)
def test_every_energy_is_watched_certified_and_kept(lab, model):
    events, result = solve(lab, model=model)
    calls = [data["calls"] for kind, data in events if kind == "step"]
    assert calls == list(range(1, len(calls) + 1))
    residuals = [data["residual"] for kind, data in events if kind == "step"]
    solution = result.solved[-1].solution
    assert tuple(residuals) == tuple(solution.images[0].residuals)
    assert residuals[-1] <= tolerance(priors.resolve(model).at(), ITERATION) or not solution.converged
    for ending in (*CERTIFICATES, *DOWNLOADS):
        assert result.file(ending)
    document = json.loads(result.file(".npy.json"))
    assert document["guaranteed"] is True
    page = lab.ask("GET", "/report.html")[1]
    assert "Certificate of" in page
    assert "NaN" not in page


def test_priors_are_compared_on_the_same_data(lab):
    for changes in ({"model": "tv"}, {"model": "ridge"}, {"model": "small", "beta": 0.2}):
        _, result = solve(lab, **changes, noise=0.013)
    assert [one.name for one in result.solved] == ["tv", "ridge", "small, β = 0.2"]
    page = result.page.decode()
    assert all(f"Certificate of {one.name}" in page for one in result.solved)
    _, result = solve(lab, model="tv", noise=0.014)
    assert [one.name for one in result.solved] == ["tv"]


def test_a_job_can_be_cancelled_while_the_strength_is_chosen(lab, monkeypatch):
    chosen, go = threading.Event(), threading.Event()

    def choosing(*args, watch, **options):
        chosen.set()
        go.wait(10)
        watch(type("Progress", (), {"calls": 1}))
        raise AssertionError("not reached")

    monkeypatch.setattr("lipspline.lab.session.choose", choosing)
    number = lab.order(**AUTOMATIC, model="ridge", noise=0.015)[1]["job"]
    assert chosen.wait(10)
    lab.ask("POST", f"/jobs/{number}/cancel", b"{}")
    go.set()
    assert lab.finish(number)[-1][0] == "cancelled"


@pytest.mark.parametrize("changes", [{"beta": 0.2}, {"contraction": 0.9}])
@pytest.mark.parametrize("path", ["/jobs", "/preview"])
def test_what_an_energy_does_not_have_is_refused(lab, path, changes):
    status, answer, _ = lab.order(path, **{**AUTOMATIC, "model": "ridge", **changes})
    assert status == 400
    assert answer["error"] == "beta and contraction are for denoisers, but ridge is an energy."


def test_few_choices_are_kept_in_memory(session):
    for level in range(5, 12):
        session.preview(parse({**ORDER, "model": "lls", "level": level}))
    kept = [key[2] for key in session._strengths]
    assert kept == [8, 9, 10, 11]
