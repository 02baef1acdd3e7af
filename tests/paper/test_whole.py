"""The whole paper in one command: in an order that works, with an estimate, and on with what can run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lipspline import cli
from lipspline.paper import whole
from lipspline.paper.recipe import listing, listing_text
from lipspline.paper.run import Run, pick, prerequisites, reproduce, run_job
from paper import toy

LABELS = (Path(__file__).parent.parent / "paper_labels.txt").read_text().split()

ILLUSTRATIONS = {"fig:spline_activation"}  # drawn by hand in the paper, no result


def test_every_table_and_figure_of_the_paper_has_a_recipe():
    made = {label for entry in listing().values() for label in entry["labels"]}
    asked = {label for label in LABELS if label.startswith(("tab:", "table:", "fig:"))}
    assert made == asked - ILLUSTRATIONS
    text = listing_text()
    assert all(label in text for label in made)


def test_recipes_come_after_those_whose_trainings_they_use():
    names = [run.recipe.name for run in whole.runs("laptop")]
    assert set(names) == {name for name, entry in listing().items() if entry["labels"]}
    assert names.index("table-denoising") < names.index("table-regions")


def test_what_a_recipe_needs_of_another_is_trained_first_and_once(tmp_path):
    """The generator of w1-mnist, and the denoisers of table-regions."""
    runs = {run.recipe.name: run for run in whole.runs("smoke", tmp_path)}
    needed = [(of.recipe.name, job.name) for of, job in prerequisites(runs["w1-mnist"])]
    assert needed == [("wgan-mnist", "classifier"), ("wgan-mnist", "gs")]  # at laptop scale it is gan-digits
    assert len(prerequisites(runs["table-regions"])) == 6
    planned = whole.plan(list(runs.values()))["table-regions"]
    assert planned == pytest.approx(runs["table-regions"].recipe.minutes)


def toy_run(tmp_path, name, **settings):
    return Run(replace(toy.recipe(**settings), name=name, minutes=4.0), tmp_path)


def test_a_recipe_that_cannot_run_does_not_stop_the_others(tmp_path):
    every = [toy_run(tmp_path, "first", numbers=(3, 4), broken=4), toy_run(tmp_path, "second", numbers=(3,))]
    found = whole.reproduce_all(every, lambda run: toy.silent)
    assert list(found.results) == ["second"]
    assert "The job square-4 stopped" in found.failures["first"]
    assert found.text.splitlines()[0] == "second: 0 of 0 claims hold, 1 not judged"
    assert found.document["results"]["second"]["jobs"]["square-3"]["square"] == 9


def test_started_again_it_plans_and_runs_only_what_is_left(tmp_path):
    every = [toy_run(tmp_path, "first", numbers=(3, 4)), toy_run(tmp_path, "second", numbers=(3,))]
    run_job(every[0], pick(every[0], "square-3"), lambda record: None)
    assert whole.plan(every) == {"first": 2.0, "second": 4.0}
    whole.reproduce_all(every, lambda run: toy.silent)
    assert toy.ran(every[0].folder) == ["square-3", "square-4"]
    assert whole.plan(every) == {"first": 0.0, "second": 0.0}


def test_the_bar_counts_estimated_minutes_and_jobs_that_are_done_cost_none(tmp_path):
    every = [toy_run(tmp_path, "first", numbers=(3, 4)), toy_run(tmp_path, "second", numbers=(3,))]
    run_job(every[0], pick(every[0], "square-3"), lambda record: None)
    with whole.progress_of_all(every, Console(quiet=True)) as watch:
        for run in every:
            reproduce(run, watch(run))


def test_the_time_left_follows_the_pace():
    now = iter([0.0, 60.0, 600.0])
    pace = whole.MinutePace(10.0, lambda: next(now))
    pace.begin("a", 4.0)
    assert pace.left() is None
    pace.reach(1.0)
    assert pace.left() == 60 / 4 * 6
    pace.begin("b", 6.0)
    pace.begin("b", 6.0)  # asked for twice, it is the same job
    pace.reach(0.5)
    assert (pace.done, pace.left()) == (7.0, pytest.approx(600 / 7 * 3))


def test_the_whole_paper_does_not_start_by_accident(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lipspline", "reproduce", "all", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "The whole paper" in said
    assert "core-hours, takes about" in said
    assert "To start it, name the scale" in said
    assert not list(tmp_path.iterdir())


def test_what_could_not_run_is_told_with_exit_code_two(tmp_path, monkeypatch):
    every = [toy_run(tmp_path, "first", numbers=(4,), broken=4), toy_run(tmp_path, "second", numbers=(3,))]
    monkeypatch.setattr(whole, "runs", lambda *how: every)
    done = CliRunner().invoke(cli.app, ["reproduce", "all", "--scale", "smoke", "--json"])
    assert done.exit_code == 2
    assert set(json.loads(done.stdout)["failures"]) == {"first"}
