"""The log: one JSON object a line, cut back to a checkpoint; TensorBoard on request."""

import json

import pytest

from lipspline.training.log import JsonLines, Record, TensorBoard


def record(step: int = 3, **metrics: float) -> Record:
    return Record(step, 10, {"model": 0.5}, 0.1, 1.23456, metrics)


def test_a_record_is_one_flat_line():
    assert record(psnr=30.0).line() == {"step": 3, "loss": 0.5, "psnr": 30.0, "lr": 0.1, "seconds": 1.235}


def test_the_losses_of_two_players_are_told_apart():
    line = Record(1, 2, {"critic": -1.0, "generator": 2.0}, 0.1, 0.0).line()
    assert (line["loss/critic"], line["loss/generator"]) == (-1.0, 2.0)
    assert "loss" not in line


def test_a_log_continues_at_the_length_a_checkpoint_knows(tmp_path):
    path = tmp_path / "folder" / "log.jsonl"
    log = JsonLines(path)
    log.write({"step": 1})
    length = log.sync()
    log.write({"step": 2})
    log.close()
    assert length == len('{"step": 1}\n')
    continued = JsonLines(path, length)
    continued.write({"step": 2, "again": True})
    continued.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == continued.lines == [{"step": 1}, {"step": 2, "again": True}]


def test_without_a_file_the_lines_are_kept_in_memory():
    log = JsonLines(None)
    log.write({"step": 1})
    assert (log.lines, log.sync()) == ([{"step": 1}], 0)
    log.close()


def test_tensorboard_receives_scalars_and_pictures(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(1, 1))
    board = TensorBoard(tmp_path, pictures=lambda: {"activations": figure})
    board(record(1))
    board(record(2, psnr=30.0))
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in events.Scalars("loss/model")] == [0.5, 0.5]
    assert [(event.step, event.value) for event in events.Scalars("psnr")] == [(2, 30.0)]
    assert [event.step for event in events.Images("activations")] == [2]
