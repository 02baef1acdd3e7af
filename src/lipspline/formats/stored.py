"""Arrays that lie in a file under a name, read only when asked for and never more than is affordable."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline.formats.guard import FileError, affordable, chosen


@dataclass(frozen=True)
class Stored:
    """One array of numbers in a file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[range], NDArray[Any]]
    """Some rows of the array."""

    def rows(self, numbers: range) -> Tensor:
        """Some rows as float32 or complex64; NaN is refused."""
        if not self.shape or numbers[-1] >= self.shape[0]:
            raise FileError(f"{self.path}: {self.name} has shape {self.shape}, too few for what else is in the file.")
        used = 8 if self.dtype.kind == "c" else 4
        affordable(self.path, (len(numbers), *self.shape[1:]), max(self.dtype.itemsize, used), self.name)
        values = torch.from_numpy(np.ascontiguousarray(self.load(numbers), _native(self.dtype)))
        values = values.to(torch.complex64 if self.dtype.kind == "c" else torch.float32)
        if not torch.isfinite(values).all():
            raise FileError(f"{self.path}: {self.name} has NaN or infinite values.")
        return values

    def whole(self) -> Tensor:
        """All of it."""
        return self.rows(range(self.shape[0] if self.shape else 0) or range(1))

    def as_stack(self, rank: int) -> "Stored":
        """The array itself, or, if it has this rank, a stack of which it is the only element."""
        if len(self.shape) != rank:
            return self
        return replace(self, shape=(1, *self.shape), load=lambda _: self.load(range(self.shape[0]))[None])

    def stack(self, ranks: dict[int, str], slices: slice = slice(None)) -> range:
        """The numbers of the chosen rows, if the array has one of the ranks, each given with what it means."""
        if len(self.shape) not in ranks:
            wanted = " or ".join(ranks.values())
            raise FileError(f"{self.path}: {self.name} has shape {self.shape}; it should be {wanted}.")
        return chosen(self.path, self.shape[0], slices)


def _native(dtype: np.dtype) -> np.dtype:
    """The dtype that torch knows: little end first, and bool or half as floats."""
    return np.dtype(np.float32) if dtype.kind == "b" else dtype.newbyteorder("=")


@dataclass(frozen=True)
class Container:
    """The arrays of one file by name; a file with a single array may have it under any."""

    path: Path
    names: tuple[str, ...]
    get: Callable[[str], Stored]

    def find(self, *names: str) -> Stored | None:
        """The first array of these names, or None."""
        return next((self.get(name) for name in names if name in self.names), None)

    def find_or_only(self, *names: str) -> Stored | None:
        """The first array of these names, or the only one there is."""
        if len(self.names) == 1:
            return self.get(self.names[0])
        return self.find(*names)
