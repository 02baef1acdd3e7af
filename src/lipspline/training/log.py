"""The log of a run: one JSON object a line, and TensorBoard for those who ask for it."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lipspline._infra import checks


@dataclass(frozen=True)
class Record:
    """What is known after `step` of `steps`: mean losses since the last record, learning rate, metrics if evaluated."""

    step: int
    steps: int
    losses: Mapping[str, float]
    lr: float
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """The record as it is logged."""
        losses = _prefixed("loss", self.losses)
        if len(losses) == 1:
            losses = {"loss": losses.popitem()[1]}
        return {"step": self.step, **losses, **self.metrics, "lr": self.lr, "seconds": round(self.seconds, 3)}


class Observer(Protocol):
    """Something that watches a run, such as a progress bar; it cannot influence it."""

    def __call__(self, record: Record) -> None: ...


class JsonLines:
    """A log file with one JSON object a line, which continues exactly where a checkpoint was taken.

    Without a path the records are kept in memory only.
    """

    def __init__(self, path: Path | None, offset: int = 0):
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            self._file.truncate(offset)
            self.lines = [json.loads(line) for line in path.read_bytes().splitlines()]

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        self.lines.append(line)
        if self._file is not None:
            with self._explained():
                self._file.write(json.dumps(line).encode() + b"\n")

    def sync(self) -> int:
        """Make sure that everything is on disk; returns the length of the file."""
        if self._file is None:
            return 0
        with self._explained():
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"The log {self.path} could not be written ({error.strerror or error}); the checkpoints beside it are "
                f"untouched. Make room and start the same command again."
            ) from error


class TensorBoard:
    """An observer that writes losses, metrics, learning rate and pictures for TensorBoard.

    Args:
        folder: where TensorBoard looks.
        pictures: gives matplotlib figures by name, such as the learned activations; drawn whenever there are metrics.
    """

    def __init__(self, folder: Path, pictures: Callable[[], Mapping[str, Any]] | None = None):
        self._tensorboard = checks.require("torch.utils.tensorboard", "tensorboard", "Logging to TensorBoard")
        self._folder, self._pictures, self._writer = folder, pictures, None

    def __call__(self, record: Record) -> None:
        if self._writer is None:  # what a run that was killed wrote beyond its last checkpoint is not shown
            self._writer = self._tensorboard.SummaryWriter(str(self._folder), purge_step=record.step)
        for name, value in {**_prefixed("loss", record.losses), **record.metrics, "lr": record.lr}.items():
            self._writer.add_scalar(name, value, record.step)
        if record.metrics and self._pictures is not None:
            for name, figure in self._pictures().items():
                self._writer.add_figure(name, figure, record.step)
        self._writer.flush()


def _prefixed(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in values.items()}
