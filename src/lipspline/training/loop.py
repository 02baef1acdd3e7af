"""One training loop for every task: update, log, evaluate, checkpoint, and go on after anything [eq:optim_network]."""

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lipspline._infra import checks, ranks
from lipspline._infra.randomness import random_state, set_random_state
from lipspline.training.checkpoint import Checkpoint, Checkpoints
from lipspline.training.log import JsonLines, Observer, Record
from lipspline.training.optim import Player, set_rate
from lipspline.training.schedules import Schedule, constant


class Task(Protocol):
    """What the loop needs to know of a task. A step must depend on its number and the players' state alone."""

    @property
    def players(self) -> Mapping[str, Player]:
        """The modules that are trained, by name."""
        ...

    def updates(self, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield pairs (player, loss), one for every update of the step; the update is made before the next pair."""
        ...

    def evaluate(self) -> Mapping[str, float]:
        """The metrics of the players as they are; called in evaluation mode, without gradients, in every process."""
        ...


@dataclass(frozen=True)
class Plan:
    """How long to train, and how often to do what (0: at the end only).

    Args:
        steps: number of steps.
        schedule: the learning-rate factor of each step.
        average: decay of the moving average of the weights, which is then what is evaluated and kept; None for none.
    """

    steps: int
    schedule: Schedule = constant
    average: float | None = None
    log_every: int = 100
    evaluate_every: int = 0
    checkpoint_every: int = 500

    def __post_init__(self):
        checks.at_least("steps", self.steps, 1)
        for name in ("log_every", "evaluate_every", "checkpoint_every"):
            checks.at_least(name, getattr(self, name), 0, "0 means: at the end only.")


@dataclass(frozen=True)
class Fit:
    """The evidence of a training run: its last metrics and the log of all records."""

    steps: int
    metrics: dict[str, float]
    log: list[dict[str, Any]]
    seconds: float
    resumed_at: int


class Diverged(RuntimeError):
    """The loss or a parameter is no longer finite."""


def fit(
    task: Task,
    plan: Plan,
    *,
    folder: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (),
) -> Fit:
    """Train the players of a task in place; started again with the same folder, a run goes on where it was.

    A run that was killed at any moment and started again ends with the same numbers, bit for bit, as one that was
    not (on the same machine with the same number of threads).

    Args:
        task: gives the players, the losses and the metrics.
        plan: how long, and how often to do what.
        folder: where checkpoints and `log.jsonl` go; None keeps everything in memory.
        config: whatever identifies the run; a folder that holds a run with another `config` is refused.
        observers: called with every `Record`.

    Raises:
        Diverged: a loss is NaN or infinite; the folder keeps the last good state.
        KeyboardInterrupt: on Ctrl-C, after a checkpoint of the last complete step.
        CheckpointError: a checkpoint could not be written; the folder keeps the last good one.
    """
    run = _Run(task, plan, Path(folder) if folder is not None else None, dict(config or {}), observers)
    with deferred_interrupt() as interruption, closing(run.log):
        while run.step < plan.steps:
            run.advance()
            if interruption.requested:
                run.save()
                raise KeyboardInterrupt
    return run.finish()


class _Run:
    """The state of a run between two steps, and how it moves from one to the next."""

    def __init__(self, task: Task, plan: Plan, folder: Path | None, config: dict, observers: Sequence[Observer]):
        self.task, self.plan, self.config = task, plan, config
        self.modules = {name: player.module for name, player in task.players.items()}
        self.optimizers = {name: player.optimizer() for name, player in task.players.items()}
        self.parameters = {name: _trained(module) for name, module in self.modules.items()}
        self.average = _average(task.players.values(), plan.average)
        self.window = _Window()
        self.step, self.seconds = 0, 0.0
        self.checkpoints = Checkpoints(folder) if folder is not None else None
        saved = self.checkpoints.load() if self.checkpoints is not None else None
        if saved is not None:
            self._restore(saved.state)
        self.resumed_at = self.step
        log_bytes = saved.state["log_bytes"] if saved is not None else 0
        self.writes = folder is not None and ranks.is_main()
        self.log = JsonLines(folder / "log.jsonl" if folder is not None and self.writes else None, log_bytes)
        self.observers = observers if ranks.is_main() else ()
        self.clock = time.perf_counter() - self.seconds

    def advance(self) -> None:
        """Make one step, and what is due after it."""
        factor = self.plan.schedule(self.step, self.plan.steps)
        for name, loss in self.task.updates(self.step):
            self._update(name, loss, factor)
        self.step += 1
        self.seconds = time.perf_counter() - self.clock
        ranks.share_buffers(list(self.modules.values()))
        if self.average is not None:
            self.average.update(self.step)
        evaluate = self._due(self.plan.evaluate_every)
        if evaluate or self._due(self.plan.log_every):
            self._record(self._evaluate() if evaluate else {}, factor)
        if self._due(self.plan.checkpoint_every):
            self.save()

    def finish(self) -> Fit:
        """Leave the averaged weights in the players, if there are any, and return the evidence."""
        if self.average is not None:
            self.average.apply()
        metrics = _metrics(self.log.lines[-1]) if self.log.lines else {}
        return Fit(self.step, metrics, self.log.lines, self.seconds, self.resumed_at)

    def save(self) -> None:
        """Write a checkpoint, unless the state is no longer finite or another process writes."""
        if self.checkpoints is not None and self.writes:
            self._check_parameters()
            self.checkpoints.save(Checkpoint(self.step, self._state()))

    def _update(self, name: str, loss: Tensor, factor: float) -> None:
        value = ranks.mean(loss.detach()).item()
        if not math.isfinite(value):
            raise Diverged(self._diverged(f"The loss of {name!r} became {value} at step {self.step + 1}"))
        self.window.add(name, value)
        optimizer, parameters = self.optimizers[name], self.parameters[name]
        optimizer.zero_grad()
        loss.backward(inputs=parameters)
        ranks.average_gradients(parameters)
        set_rate(optimizer, factor)
        optimizer.step()

    def _due(self, every: int) -> bool:
        return self.step == self.plan.steps or (every > 0 and self.step % every == 0)

    def _record(self, metrics: Mapping[str, float], factor: float) -> None:
        lr = factor * next(iter(self.task.players.values())).lr
        record = Record(self.step, self.plan.steps, self.window.means(), lr, self.seconds, metrics)
        self.window = _Window()
        self.log.write(record.line())
        for observer in self.observers:
            observer(record)

    @torch.no_grad()
    def _evaluate(self) -> Mapping[str, float]:
        with _evaluation_mode(self.modules.values()), self.average.applied() if self.average else nullcontext():
            return dict(self.task.evaluate())

    def _check_parameters(self) -> None:
        if not all(bool(torch.isfinite(p).all()) for group in self.parameters.values() for p in group):
            raise Diverged(self._diverged(f"A parameter became NaN or infinite by step {self.step}"))

    def _diverged(self, what: str) -> str:
        saved = self.checkpoints.load() if self.checkpoints is not None else None
        kept = f"the state of step {saved.step} is kept" if saved is not None else "no earlier state was saved"
        return f"{what}; {kept}. Try a smaller learning rate."

    def _state(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "step": self.step,
            "seconds": self.seconds,
            "players": {
                name: {"module": module.state_dict(), "optimizer": self.optimizers[name].state_dict()}
                for name, module in self.modules.items()
            },
            "average": self.average.values if self.average is not None else None,
            "window": self.window.sums,
            "random": random_state(),
            "log_bytes": self.log.sync(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        _check_same(state["config"], self.config, self.checkpoints)
        for name, saved in state["players"].items():
            self.modules[name].load_state_dict(saved["module"])
            self.optimizers[name].load_state_dict(saved["optimizer"])
        if self.average is not None:
            self.average.load(state["average"])
        self.window = _Window({name: tuple(pair) for name, pair in state["window"].items()})
        self.step, self.seconds = state["step"], state["seconds"]
        set_random_state(state["random"])


@dataclass
class _Window:
    """Sums and counts of the losses since the last record."""

    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + value, count + 1)

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.sums.items()}


def _trained(module: nn.Module) -> list[Tensor]:
    return [p for p in module.parameters() if p.requires_grad]


@contextmanager
def _evaluation_mode(modules) -> Iterator[None]:
    modules = list(modules)
    before = [module.training for module in modules]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.train(training)


def _check_same(saved: dict, config: dict, checkpoints: Checkpoints | None) -> None:
    different = [key for key in {**saved, **config} if saved.get(key) != config.get(key)]
    if different:
        key = different[0]
        folder = checkpoints.folder if checkpoints is not None else None
        raise ValueError(
            f"The folder {folder} holds a run of another configuration: {key} was {saved.get(key)!r} and is "
            f"{config.get(key)!r}. Choose another folder, or remove this one to start again."
        )


def _metrics(line: dict[str, Any]) -> dict[str, float]:
    known = {"step", "lr", "seconds", "loss"}
    return {name: value for name, value in line.items() if name not in known and not name.startswith("loss/")}


class WeightAverage:
    r"""The running average :math:`\bar θ \leftarrow d\, \bar θ + (1 - d)\, θ` of unconstrained parameters.

    What is averaged are the parameters before their parametrization, so the averaged network meets the same
    constraints. The decay starts small, `d = min(decay, (1 + t) / (10 + t))` at step t, so that the initial values
    are forgotten.
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float):
        self.parameters = list(parameters)
        self.decay = checks.within("average", decay, 0.0, 1.0, "Use 0.999, or None for no averaging.")
        self.values = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the parameters of step `step` into the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for value, parameter in zip(self.values, self.parameters, strict=True):
            value.lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average in place of the parameters inside a `with` block."""
        kept = [p.detach().clone() for p in self.parameters]
        self.apply()
        try:
            yield
        finally:
            _assign(self.parameters, kept)

    def apply(self) -> None:
        """Replace the parameters by their average."""
        _assign(self.parameters, self.values)

    def load(self, values: Sequence[Tensor]) -> None:
        """Continue from saved values."""
        _assign(self.values, values)


@torch.no_grad()
def _assign(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def _average(players: Iterable[Player], decay: float | None) -> WeightAverage | None:
    return WeightAverage([p for player in players for p in player.averaged()], decay) if decay is not None else None


@dataclass
class Interruption:
    """Whether the user has asked to stop."""

    requested: bool = False


@contextmanager
def deferred_interrupt() -> Iterator[Interruption]:
    """Note the first Ctrl-C instead of raising at once; a second one raises as usual.

    Signals reach the main thread only; elsewhere this does nothing.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        interruption.requested = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, previous)
