"""Several processes compute what one does with the whole batch, and survive the loss of one."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lipspline._infra import ranks
from lipspline.training.checkpoint import decode
from training import parallel_run


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(processes, folder: Path, count: int) -> dict[str, torch.Tensor]:
    """Run in `count` processes, with the environment that torchrun would give them."""
    folder.mkdir()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    workers = []
    for number in range(count):
        environment = {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
        workers.append(
            processes.Process(target=parallel_run.run, args=(folder, 4), kwargs={"environment": environment})
        )
        workers[-1].start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return decode(folder / "final")


def torchrun(folder: Path, *options: str) -> dict[str, torch.Tensor]:
    folder.mkdir()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    command = [*launcher, *where, str(parallel_run.__file__), str(folder), "4", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return decode(folder / "final")


def log(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_two_processes_equal_one_with_the_whole_batch(processes, tmp_path):
    one, two = start(processes, tmp_path / "one", 1), start(processes, tmp_path / "two", 2)
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-12)
    for ours, theirs in zip(log(tmp_path / "two"), log(tmp_path / "one"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.slow
def test_a_killed_worker_of_torchrun_changes_nothing_bit_for_bit(tmp_path):
    survived, undisturbed = torchrun(tmp_path / "killed", "die"), torchrun(tmp_path / "whole")
    assert all(torch.equal(survived[name], undisturbed[name]) for name in undisturbed)
    assert log(tmp_path / "killed") == log(tmp_path / "whole")


def test_alone_a_process_has_everything():
    assert (ranks.world(), ranks.rank(), ranks.is_main()) == (1, 0, True)
    assert ranks.rows(6) == slice(0, 6)
    assert ranks.shard([1, 2, 3]) == [1, 2, 3]
    assert ranks.mean(torch.tensor(2.0)) == 2
    with ranks.session():
        assert ranks.world() == 1


@pytest.fixture
def third_of_four(monkeypatch):
    monkeypatch.setattr(ranks, "world", lambda: 4)
    monkeypatch.setattr(ranks, "rank", lambda: 2)


@pytest.mark.usefixtures("third_of_four")
def test_rows_and_shards_are_the_part_of_the_process():
    assert ranks.rows(8) == slice(4, 6)
    assert ranks.shard(list(range(10))) == [2, 6]
    with pytest.raises(ValueError, match="batch size 6 must be a multiple of the number of processes, 4"):
        ranks.rows(6)
