"""Checkpoints that survive a kill, a full disk and a damaged file, each a state in one file that is written whole."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lipspline._infra.files import decode, encode, write_whole

KEPT = 2
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
