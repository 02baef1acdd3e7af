"""The wording of argument errors, once: what was given, what is wanted, what to do."""

import importlib
import math
from collections.abc import Iterable
from types import ModuleType

import torch
from torch import Tensor, nn


def at_least(name: str, value: int, minimum: int, hint: str = "") -> int:
    """Return `value` if it is an integer not below `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, but is {value!r}.{_pad(hint)}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, but is {value}.{_pad(hint)}")
    return value


def number(name: str, value: float) -> float:
    """Return `value` as a float if it is one real number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a number, but is {value!r}.") from None


def positive(name: str, value: float, hint: str = "") -> float:
    """Return `value` if it is a finite number above zero."""
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a positive finite number, but is {value!r}.{_pad(hint)}")
    return float(value)


def within(name: str, value: float, low: float, high: float, hint: str = "") -> float:
    """Return `value` if it lies strictly between `low` and `high`."""
    if not isinstance(value, (int, float)) or not low < value < high:
        raise ValueError(f"{name} must lie strictly between {low:g} and {high:g}, but is {value!r}.{_pad(hint)}")
    return float(value)


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of the words in `choices`."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, but is {value!r}.")
    return value


def interval(name: str, value: tuple[float, float]) -> tuple[float, float]:
    """Return `value` if it is a pair (low, high) with low < high."""
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (low, high), but is {value!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{name} must be an interval (low, high) with low < high, but is {value!r}: it is empty.")
    return low, high


def divides(name: str, size: int, what: str, total: int, hint: str = "") -> None:
    """Check that `size` divides `total`."""
    if size < 1 or total % size != 0:
        raise ValueError(f"{name} {size} must divide {what}, but {total} is not a multiple of {size}.{_pad(hint)}")


def finite(name: str, value: Tensor, hint: str = "") -> Tensor:
    """Return `value` if it holds neither NaN nor infinity."""
    if not torch.isfinite(value).all():
        bad = int((~torch.isfinite(value)).sum())
        raise ValueError(f"{name} has {bad} NaN or infinite value(s) of {value.numel()}.{_pad(hint)}")
    return value


def floating(owner: str, x: Tensor) -> Tensor:
    """Return `x` if it has a floating-point dtype."""
    if not x.is_floating_point():
        raise ValueError(f"{owner} needs a floating-point input, but got {x.dtype}. Convert it with x.float().")
    return x


def channels(owner: str, x: Tensor, wanted: int, dim: int) -> Tensor:
    """Return `x` if its dimension `dim` holds `wanted` channels."""
    batched(owner, x)
    if x.shape[dim] != wanted:
        raise ValueError(
            f"{owner} has {wanted} channels but the input has {x.shape[dim]} (shape {tuple(x.shape)}). "
            f"Dimension {dim} must be the channel dimension."
        )
    return x


def grouped(owner: str, x: Tensor, size: int, dim: int) -> Tensor:
    """Return `x` if the channels in dimension `dim` come in groups of `size`."""
    batched(owner, x)
    divides(
        f"{owner}: group size",
        size,
        "the number of channels",
        x.shape[dim],
        f"The input has shape {tuple(x.shape)} and dimension {dim} must be the channel dimension.",
    )
    return x


def module(owner: str, value: object) -> nn.Module:
    """Return `value` if it is an `nn.Module`, and no class of them."""
    if not isinstance(value, nn.Module):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise ValueError(f"{owner} needs a network, an nn.Module, but got {given}.")
    return value


def batched(owner: str, x: Tensor) -> Tensor:
    """Return `x` if it has at least a batch and a channel dimension."""
    if x.ndim < 2:
        raise ValueError(
            f"{owner} needs an input of rank 2 or more, (batch, channels, ...), but got shape {tuple(x.shape)}. "
            f"Add a batch dimension with x.unsqueeze(0)."
        )
    return x


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it, or why the one that is there cannot be imported."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package:
            complaint = f"which is not installed. Install it with: pip install 'lipspline[{extra}]'"
        else:  # packages that were built for one another fail in many ways
            complaint = f"which is installed but cannot be imported: {type(error).__name__}: {error}"
        raise ImportError(f"{purpose} needs {package}, {complaint}") from error


def _pad(hint: str) -> str:
    return f" {hint}" if hint else ""
