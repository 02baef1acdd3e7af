"""The device that is chosen, what is refused, and that a reconstruction follows it."""

import pytest
import torch
import typer

import lipspline as ls
from lipspline._infra import devices
from lipspline.cli import program
from lipspline.imaging.demo import demo_scans


@pytest.fixture(autouse=True)
def _the_processor_again():
    yield
    devices.use("cpu")


def test_auto_is_cuda_where_it_is_found(monkeypatch):
    monkeypatch.setitem(devices._there, "cuda", lambda: True)
    assert devices.find("auto") == torch.device("cuda")
    monkeypatch.setitem(devices._there, "cuda", lambda: False)
    monkeypatch.setitem(devices._there, "mps", lambda: True)
    assert devices.find("auto") == torch.device("cpu")
    assert devices.find("mps") == torch.device("mps")


def test_what_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(devices._there, "cuda", lambda: False)
    with pytest.raises(ValueError, match="no device of the kind 'cuda' here, only cpu"):
        devices.use("cuda")
    with pytest.raises(ValueError, match="device must be one of 'auto', 'cpu', 'cuda', 'mps'"):
        devices.use("gpu")
    assert devices.current() == torch.device("cpu")


def test_every_command_has_the_option():
    def leaves(command, name="lipspline"):
        parts = getattr(command, "commands", None)
        if not parts:
            yield name, {option.opts[0] for option in command.params}
        for word, part in (parts or {}).items():
            yield from leaves(part, f"{name} {word}")

    import lipspline.cli  # noqa: F401  which adds the commands

    found = dict(leaves(typer.main.get_command(program.app)))
    assert len(found) > 8
    assert [name for name, options in found.items() if "--device" not in options] == []


def test_a_command_that_computes_on_the_processor_says_so(monkeypatch):
    from lipspline.cli.program import start

    monkeypatch.setitem(devices._there, "cuda", lambda: True)
    start(0, 0, "auto", only="proofs are computed on the processor")
    assert devices.current().type == "cpu"
    with pytest.raises(ValueError, match="device is 'cuda', but proofs are computed on the processor"):
        start(0, 0, "cuda", only="proofs are computed on the processor")


def test_a_problem_and_its_prior_move_together():
    """Onto a device that has shapes only: whatever stayed behind would still have values."""
    problem = next(iter(demo_scans(32).values())).problem(0)
    there = problem.to(torch.device("meta"))
    assert {there.y.device.type, there.direct.device.type, there.H.forward(there.direct).device.type} == {"meta"}
    assert there.truth is not None
    assert there.truth.device.type == "meta"
    assert there.scale == problem.scale


def test_reconstruct_asks_for_the_device_that_was_chosen(monkeypatch):
    asked = []
    from lipspline.imaging.problem import Problem

    move = Problem.to
    monkeypatch.setattr(Problem, "to", lambda self, device: asked.append(device) or move(self, device))
    square = torch.zeros(32, 32)
    square[8:24, 8:24] = 1
    scans = torch.stack([square, square])
    ls.reconstruct(scans, acquisition=ls.ScannerMRI(acceleration=2, simulate=True), prior="tv", max_steps=2)
    assert asked == [devices.current()] * 2
