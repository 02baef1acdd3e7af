"""Interleaved timing: every repeat runs every case once, so that slow moments of the machine hit all alike."""

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

TimedCase = Callable[[], float]
"""Does something once and returns the seconds that what is measured took."""


@dataclass(frozen=True)
class Ratios:
    """Median times of cases in units of the first one."""

    title: str
    unit: str
    values: dict[str, float]

    def __str__(self) -> str:
        width = max(map(len, self.values))
        lines = [f"{self.title} (in {self.unit})"]
        return "\n".join([*lines, *(f"  {name:<{width}}  {value:8.3f}" for name, value in self.values.items())])


def medians(cases: Mapping[str, TimedCase], repeats: int, warmup: int = 5) -> dict[str, float]:
    """Median seconds of each case over interleaved repeats."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(-warmup, repeats):
        for name, case in cases.items():
            seconds = case()
            if repeat >= 0:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(title: str, cases: Mapping[str, TimedCase], repeats: int = 51, warmup: int = 5) -> Ratios:
    """Time cases against the first of them."""
    gc.collect()
    seconds = medians(cases, repeats, warmup)
    unit = next(iter(cases))
    return Ratios(title, unit, {name: value / seconds[unit] for name, value in seconds.items()})


def whole(step: Callable[[], object]) -> TimedCase:
    """A case that measures all of a step."""

    def case() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    return case


def training_step(layer: nn.Module, x: Tensor) -> TimedCase:
    """Forward and backward of a layer on its own, again and again on the same input."""
    layer.train()
    x = x.detach().requires_grad_()
    g = torch.randn_like(layer(x))

    def step() -> None:
        x.grad = None
        for parameter in layer.parameters():
            parameter.grad = None
        layer(x).backward(g)

    return whole(step)


def inference(layer: nn.Module, x: Tensor) -> TimedCase:
    """Forward of a layer in eval mode."""
    layer.eval()

    def step() -> None:
        with torch.no_grad():
            layer(x)

    return whole(step)


class Stopwatch(nn.Module):
    """A layer that adds up the seconds spent in its forward and its backward, wherever it stands in a network.

    Backward counts from the moment the gradient of the output is complete to the moment the layer before is started
    with the gradient of the input.
    """

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        x.register_hook(self._stop)
        self._start()
        y = self.layer(x)
        self._stop()
        y.register_hook(self._start)
        return y

    def _start(self, _: Tensor | None = None) -> None:
        self.seconds -= time.perf_counter()

    def _stop(self, _: Tensor | None = None) -> None:
        self.seconds += time.perf_counter()


def within_network(network: nn.Module, x: Tensor) -> TimedCase:
    """What a training step of a network spends in its layers of type `Stopwatch`.

    This is what a layer costs where it is used. Its input was just written by the layer before it, its saved tensors
    have left the caches when backward comes, and its output and gradient are new buffers among those of all other
    layers: some recycled by the allocator, some fresh pages that the system must clear at the first touch. How many of
    each depends on what the process has allocated before, so compare networks in processes of their own.
    """
    network.train()
    watches = [module for module in network.modules() if isinstance(module, Stopwatch)]

    def case() -> float:
        for parameter in network.parameters():
            parameter.grad = None
        for watch in watches:
            watch.seconds = 0.0
        network(x).square().mean().backward()
        return sum(watch.seconds for watch in watches)

    return case


@contextmanager
def isolated(makers: Mapping[str, Callable[[], TimedCase]]) -> Iterator[dict[str, TimedCase]]:
    """Make each case in a new process, with as many threads as here; the processes take turns and end with the block.

    Args:
        makers: what makes each case; must survive pickling, so no lambdas.
    """
    with ExitStack() as stack:
        yield {name: stack.enter_context(_isolated(make)) for name, make in makers.items()}


@contextmanager
def _isolated(make: Callable[[], TimedCase]) -> Iterator[TimedCase]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, make, torch.get_num_threads()), daemon=True)
    process.start()
    there.close()  # so that the end of the process is seen as the end of the pipe

    def case() -> float:
        here.send(True)
        return here.recv()

    try:
        yield case
    finally:
        here.close()
        process.join()


def _serve(pipe: Connection, make: Callable[[], TimedCase], threads: int) -> None:
    """Run the case at every request until the other end closes."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    case = make()
    try:
        while pipe.recv():
            pipe.send(case())
    except EOFError:
        pass
