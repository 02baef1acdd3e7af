"""The device that computes, chosen once for a process: data are moved there as they enter, and the rest follows."""

import torch

from lipspline._infra import checks

DEVICES = ("auto", "cpu", "cuda", "mps")
_there = {"cpu": lambda: True, "cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
_chosen = [torch.device("cpu")]


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
