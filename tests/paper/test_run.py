"""Runs: what is done is kept, a stopped run goes on, processes share the jobs, results say what they are."""

import fcntl
import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lipspline._infra import files
from lipspline.paper.experiment import Judgement, Verdict
from lipspline.paper.run import Run, chain, machine, minutes_left, pick, reproduce, run_job, train
from paper import toy
from paper.toy import silent


def test_results_hold_numbers_claims_differences_and_the_class_of_machine(tmp_path):
    results = reproduce(Run(toy.recipe(numbers=(3, 4)), tmp_path, seed=0), silent)
    document = json.loads((tmp_path / "results" / "toy-smoke.json").read_text())
    assert document == results.document
    assert document["jobs"]["square-3"] == {"seconds": 0.5, "square": 9}
    assert document["seconds"] == 1.0
    assert document["claims"]["grow"] == {"claim": "squares grow", "holds": None, "evidence": "they do"}
    assert document["differs_from_paper"] == {"numbers": [[1], [1, 2]]}
    assert document["tables"][0]["paper"] == {"all": {"square-3": [9.0]}}
    assert document["machine"] == machine()
    assert {"version", "torch", "threads", "seed", "settings"} <= document.keys()
    assert "curve" not in json.dumps(document)
    assert (tmp_path / "results" / "figures" / "toy-smoke-plot.png").stat().st_size > 1000
    assert "[too short to judge] squares grow: they do" in results.text
    assert "numbers: [1] (paper: [1, 2])" in results.text


def test_jobs_that_are_done_are_not_run_again(tmp_path):
    run = Run(toy.recipe(numbers=(3, 4), broken=4), tmp_path)
    with pytest.raises(ValueError, match="The job square-4 stopped: The loss became nan at step 3"):
        reproduce(run, silent)
    assert toy.ran(run.folder) == ["square-3"]
    (run.folder / "square-3.json").write_text(
        (run.folder / "square-3.json").read_text().replace('"broken": 4', '"broken": -1')
    )
    reproduce(Run(toy.recipe(numbers=(3, 4)), tmp_path), silent)
    assert toy.ran(run.folder) == ["square-3", "square-4"]


def test_an_outcome_of_another_configuration_is_refused_by_name(tmp_path):
    reproduce(Run(toy.recipe(numbers=(3,)), tmp_path), silent)
    with pytest.raises(ValueError, match=r"another configuration: pause was 0.0 and is 0.25. Choose another folder"):
        reproduce(Run(toy.recipe(numbers=(3,), pause=0.25), tmp_path), silent)


def test_another_seed_has_folders_and_results_of_its_own(tmp_path):
    first, second = (reproduce(Run(toy.recipe(numbers=(3,)), tmp_path, seed=seed), silent) for seed in (0, 7))
    assert [result.document["jobs"]["square-3"]["square"] for result in (first, second)] == [9, 16]
    assert (tmp_path / "results" / "toy-smoke-seed7.json").is_file()
    assert Run(toy.recipe(numbers=(3,)), tmp_path, seed=7).sibling("other").name == "other-smoke-seed7"


def test_a_job_that_another_process_has_claimed_is_waited_for_and_not_run_twice(tmp_path):
    run = Run(toy.recipe(numbers=(3, 4)), tmp_path)
    run.folder.mkdir(parents=True)
    with (run.folder / "square-3.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=reproduce, args=(run, silent))
        thread.start()
        while not (run.folder / "square-4.json").is_file():
            time.sleep(0.01)
        assert toy.ran(run.folder) == ["square-4"]
        assert thread.is_alive()
    thread.join(timeout=20)
    assert toy.ran(run.folder) == ["square-4", "square-3"]


def test_a_job_waits_for_those_it_needs(tmp_path):
    run = Run(toy.recipe(numbers=(2, 1)), tmp_path)
    results = reproduce(run, silent)
    assert toy.ran(run.folder) == ["square-1", "square-2"]
    assert list(results.document["jobs"]) == ["square-2", "square-1"]


def test_the_job_of_a_recipe_is_picked_by_name_or_because_it_is_the_only_one(tmp_path):
    run = Run(toy.recipe(numbers=(3, 4)), tmp_path)
    assert pick(run, "square-4").number == 4
    assert pick(Run(toy.recipe(numbers=(5,)), tmp_path), None).number == 5
    with pytest.raises(
        ValueError, match=r"has 2 trainings and it does not say which\. Name one as job: square-3, square-4"
    ):
        pick(run, None)
    with pytest.raises(ValueError, match="'square-9' is none of them"):
        pick(run, "square-9")


def test_running_one_job_keeps_its_outcome(tmp_path):
    run = Run(toy.recipe(numbers=(3, 4)), tmp_path)
    outcome = run_job(run, pick(run, "square-3"), lambda record: None)
    assert run_job(run, pick(run, "square-3"), lambda record: None) == outcome
    assert toy.ran(run.folder) == ["square-3"]


def test_two_jobs_with_one_name_are_refused(tmp_path):
    """They would wait for one another for ever."""
    with pytest.raises(ValueError, match="has 2 jobs with the name 'square-3'"):
        Run(toy.recipe(numbers=(3, 3)), tmp_path).jobs()


def test_a_name_that_would_leave_the_folder_is_refused(tmp_path):
    experiment = replace(toy.EXPERIMENT, jobs=lambda settings: [SimpleNamespace(name="../elsewhere")])
    with pytest.raises(ValueError, match="cannot be that of a file"):
        Run(replace(toy.recipe(numbers=(3,)), experiment=experiment), tmp_path).jobs()


def test_a_damaged_outcome_is_named_with_the_way_out(tmp_path):
    run = Run(toy.recipe(numbers=(3,)), tmp_path)
    (job,) = run.jobs()
    run_job(run, job, lambda record: None)
    run.outcome(job.name).write_text('{"job": {"num')
    with pytest.raises(ValueError, match=r"square-3\.json is damaged .* Remove it"):
        run_job(run, job, lambda record: None)


def test_a_job_that_needs_another_says_which(tmp_path):
    experiment = replace(toy.EXPERIMENT, needs=lambda job: ("first",))
    run = Run(replace(toy.recipe(numbers=(3,)), experiment=experiment), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"square-3 needs the outcome of first, .*Run it first"):
        run_job(run, run.jobs()[0], lambda record: None)


def test_outcomes_know_the_folder_they_are_in_now(tmp_path):
    run = Run(toy.recipe(numbers=(3,)), tmp_path / "before")
    run_job(run, run.jobs()[0], lambda record: None)
    (tmp_path / "before").rename(tmp_path / "after")
    moved = replace(run, out=tmp_path / "after")
    outcome = run_job(moved, moved.jobs()[0], lambda record: None)
    assert outcome.folder == moved.folder / "square-3"
    assert "before" not in moved.outcome("square-3").read_text()


def test_the_smoke_scale_is_too_short_to_judge_trainings_but_not_proofs():
    assert [Verdict(holds, "").judgement("laptop") for holds in (True, False)] == [Judgement.HOLDS, Judgement.FAILS]
    assert Verdict(True, "").judgement("smoke") is Judgement.TOO_SHORT
    assert Verdict(True, "", of_training=False).judgement("smoke") is Judgement.HOLDS
    assert Verdict(False, "", of_training=False).judgement("smoke") is Judgement.FAILS


def test_training_a_job_runs_what_it_needs_first_and_nothing_twice(tmp_path):
    run = Run(toy.recipe(numbers=(1, 2, 3)), tmp_path)
    assert [job.name for _, job in chain(run, pick(run, "square-2"))] == ["square-1", "square-2"]
    for _ in range(2):
        train(run, pick(run, "square-2"), silent)
    assert toy.ran(run.folder) == ["square-1", "square-2"]


def test_training_what_another_process_trains_is_one_sentence(tmp_path):
    run = Run(toy.recipe(numbers=(3,)), tmp_path)
    (job,) = run.jobs()
    with (
        files.locked(run.folder / "square-3.lock", "it"),
        pytest.raises(BlockingIOError, match=r"The training square-3 in .* is being written by another lipspline"),
    ):
        train(run, job, silent)
    assert train(run, job, silent).numbers == {"square": 9}


def test_the_time_that_is_left_is_the_part_of_the_jobs_that_are_not_done(tmp_path):
    run = Run(toy.recipe(numbers=(3, 4)), tmp_path)
    both = [(run, job) for job in run.jobs()]
    assert minutes_left(both) == 1.0
    run_job(run, pick(run, "square-3"), lambda record: None)
    assert minutes_left(both) == 0.5
