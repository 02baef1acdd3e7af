"""Checkpoints that survive a kill, a full disk and a damaged file: safetensors and JSON, written atomically.

A checkpoint is one safetensors file. Its tensors are the leaves of the saved state; its metadata holds the rest of
the state as JSON and a checksum of everything. Nothing is ever unpickled.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lipspline._infra.files import write_whole

KEPT = 2
_TENSOR = "$tensor"
_PAIRS = "$pairs"
_log = logging.getLogger(__name__)


class CheckpointError(OSError):
    """A checkpoint could not be written; the earlier ones are untouched."""


@dataclass(frozen=True)
class Checkpoint:
    """A state and the number of steps after which it was saved."""

    step: int
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run in one folder; the two newest are kept."""

    def __init__(self, folder: Path):
        self.folder = folder

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint: it exists completely or not at all. Then remove the outdated ones."""
        path = self.folder / f"step-{checkpoint.step:09d}.safetensors"
        try:
            write_whole(path, encode(checkpoint.state))
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint of step {checkpoint.step} could not be written to {self.folder} "
                f"({error.strerror or error}); {self._last_good()}. Make room and start the same command again."
            ) from error
        unfinished = self.folder.glob(".step-*")  # a kill in the middle of a write leaves one
        for old in (*self._paths()[KEPT:], *unfinished):
            old.unlink(missing_ok=True)
        return path

    def load(self) -> Checkpoint | None:
        """The newest undamaged checkpoint, or None if there is none; a damaged one is reported and skipped."""
        for path in self._paths():
            try:
                state = decode(path)
            except (SafetensorError, ValueError) as error:
                _log.warning("The checkpoint %s is damaged (%s); going back to the one before.", path, error)
                continue
            return Checkpoint(int(path.stem.partition("-")[2]), state)
        return None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def _last_good(self) -> str:
        paths = self._paths()
        return f"the last good one is {paths[0].name}" if paths else "there is no earlier one"


def encode(state: dict[str, Any]) -> bytes:
    """A tree of dicts, lists, tensors and JSON values as the bytes of a safetensors file with a checksum."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_split(state, "", tensors))
    metadata = {"state": text, "checksum": _checksum(text, tensors)}
    return save(tensors, metadata)


def decode(path: Path) -> dict[str, Any]:
    """Read what `encode` wrote.

    Raises:
        ValueError, SafetensorError: the file is truncated or was changed.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if {"state", "checksum"} - metadata.keys():
        raise ValueError("it is no checkpoint of this program")
    if _checksum(metadata["state"], tensors) != metadata["checksum"]:
        raise ValueError("its checksum is wrong")
    return _join(json.loads(metadata["state"]), tensors)


def _split(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for `node`, with its tensors moved into `tensors` under their path."""
    if isinstance(node, Tensor):
        tensors[path] = node.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: path}
    if isinstance(node, dict):
        return {_PAIRS: [[key, _split(value, f"{path}/{key}", tensors)] for key, value in node.items()]}
    if isinstance(node, (list, tuple)):
        return [_split(value, f"{path}/{i}", tensors) for i, value in enumerate(node)]
    return node


def _join(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_join(value, tensors) for value in node]
    if isinstance(node, dict):
        return tensors[node[_TENSOR]] if _TENSOR in node else {k: _join(v, tensors) for k, v in node[_PAIRS]}
    return node


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
