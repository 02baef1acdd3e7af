"""The loop: resuming bit for bit after kills, divergence, Ctrl-C, averaging."""

import json
import logging
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from lipspline._infra.randomness import random_state, set_random_state
from lipspline.training import Diverged, Plan, Player, fit
from lipspline.training.checkpoint import Checkpoints, decode
from training import killable


def log_lines(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def kill_until_done(processes, folder: Path, steps: int, kills: int) -> int:
    """Start the run again and again, killing it `kills` times soon after it has got further; then let it finish."""
    moments = random.Random(0)
    done = 0
    while not (folder / "final").exists():
        process = processes.Process(target=killable.run, args=(str(folder), steps))
        before = newest_checkpoint(folder)
        process.start()
        while done < kills and process.is_alive() and newest_checkpoint(folder) == before:
            time.sleep(0.001)
        process.join(timeout=moments.uniform(0, 0.05) if done < kills else None)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            done += 1
        assert process.exitcode in (0, -signal.SIGKILL)
    return done


def newest_checkpoint(folder: Path) -> str:
    return max((path.name for path in folder.glob("step-*")), default="")


def check_kills(processes, tmp_path: Path, steps: int, kills: int) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    kill_until_done(processes, tmp_path / "whole", steps, kills=0)
    survived = kill_until_done(processes, tmp_path / "killed", steps, kills)
    assert survived == kills, "the run was too short to be killed as often as wanted"
    whole, killed = (decode(tmp_path / name / "final") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(killed[name], value) for name, value in whole.items())
    assert log_lines(tmp_path / "killed") == log_lines(tmp_path / "whole")


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(processes, tmp_path):
    check_kills(processes, tmp_path, steps=100, kills=3)


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_with_the_same_bits(processes, tmp_path):
    check_kills(processes, tmp_path, steps=800, kills=20)


class Quadratic:
    """Minimise |w - 1|², with a loss that can be spoilt at one step."""

    def __init__(self, spoil_at: int = -1, spoil: float = float("nan"), on_step=lambda step: None):
        self.model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.spoil_at, self.spoil, self.on_step = spoil_at, spoil, on_step

    @property
    def players(self):
        return {"model": Player(self.model, lr=0.1)}

    def updates(self, step):
        self.on_step(step)
        loss = (self.model.weight - 1).square().sum()
        yield "model", loss * self.spoil if step == self.spoil_at else loss

    def evaluate(self):
        return {"distance": (self.model.weight - 1).norm().item()}


def test_fit_minimises_and_reports_evidence():
    task = Quadratic()
    result = fit(task, Plan(200, log_every=50))
    assert result.steps == 200
    assert [line["step"] for line in result.log] == [50, 100, 150, 200]
    assert result.metrics == {"distance": task.evaluate()["distance"]}
    assert result.metrics["distance"] < 1e-2


def test_the_logged_loss_is_the_mean_since_the_last_record():
    values = []
    task = Quadratic(on_step=lambda step: values.append((task.model.weight - 1).square().sum().item()))
    result = fit(task, Plan(10, log_every=5))
    assert [line["loss"] for line in result.log] == pytest.approx([sum(values[:5]) / 5, sum(values[5:]) / 5])


@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, spoil):
    with pytest.raises(Diverged, match=r"loss of 'model' became (nan|inf) at step 8; the state of step 6 is kept"):
        fit(Quadratic(spoil_at=7, spoil=spoil), Plan(20, checkpoint_every=3), folder=tmp_path)
    good = Quadratic()
    fit(good, Plan(6), folder=tmp_path / "good")
    saved = Checkpoints(tmp_path).load()
    assert saved is not None
    assert torch.equal(saved.state["players"]["model"]["module"]["weight"], good.model.weight)


def test_parameters_that_are_not_finite_are_never_saved(tmp_path):
    def spoil(step):
        if step == 4:
            with torch.no_grad():
                task.model.weight[0, 0] = float("inf")

    class Blind(Quadratic):
        def updates(self, step):
            self.on_step(step)
            yield "model", self.model.weight[0, 1].square()

    task = Blind(on_step=spoil)
    with pytest.raises(Diverged, match="by step 6; the state of step 3 is kept"):
        fit(task, Plan(9, checkpoint_every=3), folder=tmp_path)


@pytest.fixture
def ctrl_c():
    """Python's answer to Ctrl-C, also where the tests were started in the background and the shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_saves_the_last_complete_step_and_the_run_goes_on_from_it(tmp_path):
    whole = Quadratic()
    fit(whole, Plan(12), folder=tmp_path / "whole")

    interrupted = Quadratic(on_step=lambda step: step == 4 and signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        fit(interrupted, Plan(12), folder=tmp_path / "run")
    assert Checkpoints(tmp_path / "run").load().step == 5

    resumed = Quadratic()
    assert fit(resumed, Plan(12), folder=tmp_path / "run").resumed_at == 5
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_stops_at_once():
    def press_twice(step):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    task = Quadratic(on_step=press_twice)
    with pytest.raises(KeyboardInterrupt):
        fit(task, Plan(5))
    assert task.model.weight.abs().sum() == 0


def test_fit_works_outside_the_main_thread():
    task = Quadratic()
    thread = threading.Thread(target=fit, args=(task, Plan(3)))
    thread.start()
    thread.join()
    assert task.model.weight.abs().sum() > 0


def test_a_truncated_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, caplog):
    whole, resumed = Quadratic(), Quadratic()
    fit(whole, Plan(20), folder=tmp_path / "whole")
    with pytest.raises(Diverged):
        fit(Quadratic(spoil_at=13), Plan(20, checkpoint_every=4), folder=tmp_path / "run")
    newest = tmp_path / "run" / "step-000000012.safetensors"
    newest.write_bytes(newest.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        assert fit(resumed, Plan(20, checkpoint_every=4), folder=tmp_path / "run").resumed_at == 8
    assert "step-000000012.safetensors is damaged" in caplog.text
    assert torch.equal(resumed.model.weight, whole.model.weight)


def test_a_full_disk_stops_the_run_with_one_sentence_and_keeps_the_last_good_state(tmp_path, no_space):
    no_space("step-000000008")
    with pytest.raises(OSError, match=r"step 8 could not be written .*No space left.*last good one is step-000000004"):
        fit(Quadratic(), Plan(20, checkpoint_every=4), folder=tmp_path)
    assert Checkpoints(tmp_path).load().step == 4
    assert not list(tmp_path.glob(".*"))


def test_a_log_that_cannot_be_written_is_one_sentence_too(tmp_path, no_space):
    no_space("log.jsonl")
    with pytest.raises(OSError, match=r"log .*log\.jsonl could not be written \(No space left on device\)"):
        fit(Quadratic(), Plan(4), folder=tmp_path)


def test_a_folder_with_a_run_of_another_configuration_is_refused(tmp_path):
    fit(Quadratic(), Plan(3), folder=tmp_path, config={"lr": 0.1})
    with pytest.raises(ValueError, match=r"lr was 0\.1 and is 0\.2\. Choose another folder"):
        fit(Quadratic(), Plan(3), folder=tmp_path, config={"lr": 0.2})


def test_a_finished_run_started_again_returns_the_same_result(tmp_path):
    first_model, second_model = killable.model(), killable.model()
    first = fit(killable.task(first_model), killable.plan(6), folder=tmp_path)
    second = fit(killable.task(second_model), killable.plan(6), folder=tmp_path)
    assert (second.resumed_at, second.metrics, second.log) == (6, first.metrics, first.log)
    assert all(torch.equal(a, b) for a, b in zip(first_model.parameters(), second_model.parameters(), strict=True))


def test_the_average_of_the_weights_is_evaluated_and_kept():
    weights = []
    task = Quadratic(on_step=lambda step: weights.append(task.model.weight.detach().clone()))
    result = fit(task, Plan(30, average=0.5))
    plain = Quadratic()
    fit(plain, Plan(30))
    average = weights[0]
    for step, weight in enumerate([*weights[1:], plain.model.weight.detach()], start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weight
    torch.testing.assert_close(task.model.weight.detach(), average)
    assert result.metrics["distance"] == pytest.approx((average - 1).norm().item(), rel=1e-5)


def test_two_players_are_updated_in_turn_each_from_its_own_loss():
    class Tug:
        """min over a, max over b of (a - b)²: what an update sees depends on the one before."""

        def __init__(self):
            self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
            self.seen = []

        @property
        def players(self):
            return {"a": Player(self.a, lr=0.1), "b": Player(self.b, lr=0.1)}

        def updates(self, step):
            self.seen.append(self.a.weight.item())
            yield "b", -(self.a.weight - self.b.weight).square().sum()
            yield "a", (self.a.weight - self.b.weight).square().sum()
            self.seen.append(self.a.weight.item())

        def evaluate(self):
            return {}

    task = Tug()
    result = fit(task, Plan(1))
    assert task.seen[0] != task.seen[1], "the update of a is made before the generator goes on"
    assert set(result.log[0]) == {"step", "loss/a", "loss/b", "lr", "seconds"}


def test_random_state_continues_every_stream():
    import numpy as np

    saved = random_state()
    first = (torch.rand(3), np.random.rand(3), random.random())  # noqa: NPY002
    set_random_state(saved)
    again = (torch.rand(3), np.random.rand(3), random.random())  # noqa: NPY002
    assert torch.equal(first[0], again[0])
    assert (first[1] == again[1]).all()
    assert first[2] == again[2]


def test_observers_see_every_record_with_the_elapsed_time():
    records = []
    start = time.perf_counter()
    fit(Quadratic(), Plan(4, log_every=2), observers=[records.append])
    assert [record.step for record in records] == [2, 4]
    assert 0 < records[0].seconds < records[1].seconds < time.perf_counter() - start


def test_a_plan_is_checked():
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Plan(0)
    with pytest.raises(ValueError, match="log_every must be at least 0"):
        Plan(5, log_every=-1)
