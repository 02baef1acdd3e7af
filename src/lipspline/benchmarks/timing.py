"""Interleaved timing: every repeat runs every case once, so that slow moments of the machine hit all alike."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Case = Callable[[], object]


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


def medians(cases: Mapping[str, Case], repeats: int = 51, warmup: int = 5) -> dict[str, float]:
    """Median seconds of each case over interleaved repeats."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(-warmup, repeats):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if repeat >= 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(title: str, cases: Mapping[str, Case], repeats: int = 51) -> Ratios:
    """Time cases against the first of them."""
    gc.collect()
    seconds = medians(cases, repeats)
    unit = next(iter(cases))
    return Ratios(title, unit, {name: value / seconds[unit] for name, value in seconds.items()})


def training_step(layer: nn.Module, x: Tensor) -> Case:
    """Forward and backward of a layer inside a network: the gradient of its input is a fresh buffer each time."""
    layer.train()
    x = x.detach().requires_grad_()
    g = torch.randn_like(layer(x))

    def step() -> None:
        x.grad = None
        for parameter in layer.parameters():
            parameter.grad = None
        layer(x).backward(g)

    return step


def inference(layer: nn.Module, x: Tensor) -> Case:
    """Forward of a layer in eval mode."""
    layer.eval()

    def step() -> None:
        with torch.no_grad():
            layer(x)

    return step


def keep_buffers_warm() -> bool:
    """Make glibc reuse freed memory instead of returning it, for the rest of the process; False where it cannot."""
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    mmap_threshold, trim_threshold, largest = -3, -1, 2**30
    return bool(libc.mallopt(mmap_threshold, largest)) and bool(libc.mallopt(trim_threshold, largest))
