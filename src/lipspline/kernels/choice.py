"""Which implementation the operators run: chosen by device, or by hand in tests and comparisons."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.kernels import native

Implementation = Literal["eager", "c", "triton"]
IMPLEMENTATIONS = ("eager", "c", "triton")

_forced = threading.local()


def implementation(x: Tensor) -> str:
    """The implementation for tensors like `x`: C on the CPU if it was built, Triton on CUDA, plain torch elsewhere."""
    forced = getattr(_forced, "name", None)
    if forced is not None:
        return forced
    if x.is_cuda:
        return "triton" if _has_triton() else "eager"
    return "c" if native.library is not None and x.is_cpu else "eager"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@contextmanager
def using(name: Implementation) -> Iterator[None]:
    """Run every kernel called by this thread with one implementation, whatever the device.

    Autograd runs the backward of CPU tensors on the thread that asked for it, so this holds for backward too.

    Example:
        >>> from lipspline import kernels
        >>> with kernels.using("eager"):
        ...     kernels.active()
        'plain torch'
    """
    checks.one_of("name", name, IMPLEMENTATIONS)
    if name == "c" and native.library is None:
        raise RuntimeError(
            "The C kernels are not built, so they cannot be used. Install lipspline on a machine with a C compiler."
        )
    before = getattr(_forced, "name", None)
    _forced.name = name
    try:
        yield
    finally:
        _forced.name = before


def active() -> str:
    """What CPU tensors run on at present, in words."""
    name = implementation(torch.empty(0))
    if name == "c":
        return native.description()
    if name == "triton":
        return "Triton"
    return "plain torch" if native.library is not None else "plain torch (the C kernels are not built)"
