"""The device that computes, chosen once for a process, and what the process keeps: freed memory, and costly numbers.

Data are moved to the device as they enter, and the rest follows.
"""

import ctypes
import functools
import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from lipspline._infra import checks

DEVICES = ("auto", "cpu", "cuda", "mps")
_there = {"cpu": lambda: True, "cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
_chosen = [torch.device("cpu")]
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc.h
NEVER = 2**31 - 1


def find(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA where torch finds it, and else the processor.

    Apple's MPS has no double precision, in which certificates are computed, so that it is taken only if it is named.

    Raises:
        ValueError: torch finds none of that kind.

    Example:
        >>> find("cpu")
        device(type='cpu')
    """
    checks.one_of("device", name, DEVICES)
    if name == "auto":
        name = "cuda" if _there["cuda"]() else "cpu"
    if not _there[name]():
        here = ", ".join(kind for kind, is_there in _there.items() if is_there())
        raise ValueError(f"torch finds no device of the kind {name!r} here, only {here}. Leave device= out.")
    return torch.device(name)


def use(name: str) -> torch.device:
    """Compute on the device of that name from now on; returns it."""
    _chosen[0] = find(name)
    return current()


def current() -> torch.device:
    """The device that was chosen last, the processor to begin with."""
    return _chosen[0]


def keep_memory() -> bool:
    """Make the allocator reuse freed memory instead of returning it, until the process ends; False where it cannot."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, NEVER))


def remembered(function: Callable[[Tensor], float], size: int = 256) -> Callable[[Tensor], float]:
    """Remember the last `size` results of a pure function of one tensor.

    A result is found by the type, shape and SHA-256 of the values, not by the identity of the tensor: however a weight
    was changed, also in place or behind the back of autograd, its bound is computed anew.

    Example:
        >>> calls = []
        >>> @remembered
        ... def total(x):
        ...     calls.append(x)
        ...     return float(x.sum())
        >>> x = torch.ones(3)
        >>> total(x), total(x.clone()), total(x.mul_(2)), len(calls)
        (3.0, 3.0, 6.0, 2)
    """
    known: dict[tuple[torch.dtype, torch.Size, bytes], float] = {}

    @functools.wraps(function)
    def look_up(x: Tensor) -> float:
        key = (x.dtype, x.shape, _digest(x))
        value = known.get(key)
        if value is None:
            value = known[key] = function(x)
            for oldest in list(known)[:-size]:
                known.pop(oldest, None)
        return value

    return look_up


def _digest(x: Tensor) -> bytes:
    values = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(values.numpy().data).digest()
