"""Checkpoints: what is read is what was written, or an earlier one; nothing is unpickled."""

import logging

import pytest
import torch

from lipspline.training.checkpoint import Checkpoint, CheckpointError, Checkpoints, decode, encode


def state(value: float = 1.0) -> dict:
    """A tree with every kind of leaf, tensors that share memory, and keys that are not words."""
    tensor = torch.full((2, 3), value)
    return {
        "tensors": {"a": tensor, "tied": tensor, "column": tensor[:, 1], "scalar": torch.tensor(3)},
        "optimizer": {"state": {0: {"step": torch.tensor(2.0)}, 1: {}}},
        "list": [1, 2.5, None, True, "word", [torch.zeros(0)]],
        "half": torch.ones(2, dtype=torch.bfloat16),
    }


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    else:
        assert a == b


def test_a_state_is_read_as_it_was_written(tmp_path):
    (tmp_path / "file").write_bytes(encode(state(0.1)))
    assert_same(decode(tmp_path / "file"), state(0.1))


def test_the_newest_checkpoint_is_loaded_and_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    for step in (5, 10, 15):
        checkpoints.save(Checkpoint(step, {"value": step}))
    assert checkpoints.load() == Checkpoint(15, {"value": 15})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000010.safetensors",
        "step-000000015.safetensors",
    ]


@pytest.mark.parametrize("damage", ["truncated", "emptied", "one bit flipped", "another file"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_loaded(tmp_path, caplog, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Checkpoint(1, state(1.0)))
    newest = checkpoints.save(Checkpoint(2, state(2.0)))
    content = bytearray(newest.read_bytes())
    if damage == "one bit flipped":
        content[-3] ^= 1
    broken = {"truncated": content[:-7], "emptied": b"", "another file": b"not a checkpoint" * 9}.get(damage, content)
    newest.write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.step == 1
    assert_same(loaded.state, state(1.0))
    assert f"{newest} is damaged" in caplog.text


def test_safetensors_that_are_no_checkpoint_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "file")
    with pytest.raises(ValueError, match="no checkpoint of this program"):
        decode(tmp_path / "file")


def test_what_a_kill_in_the_middle_of_a_write_left_is_removed(tmp_path):
    (tmp_path / ".step-000000001.safetensors-half").write_bytes(b"half")
    Checkpoints(tmp_path).save(Checkpoint(2, {}))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000002.safetensors"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"step 3 could not be written to .*there is no earlier one\. Make"):
        Checkpoints(tmp_path / "file" / "folder").save(Checkpoint(3, {}))
