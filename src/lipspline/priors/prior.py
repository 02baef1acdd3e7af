"""What every prior is: one typed object that knows its name, its noise levels, its range and its checksum."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import nn

from lipspline._infra import checks

UNIT_RANGE = (0.0, 1.0)
"""The grey values that images have unless something else is said."""
COMPLEX_RANGE = (-1.0, 1.0)
"""The values of real and imaginary parts of complex images whose modulus is at most 1."""
FOLDED_RANGE = (-0.15, 1.25)
"""The same for images whose phase, as far as it is known, is a part of the operator: they are nearly real and positive,
with imaginary parts between -0.7 and 0.7, and may be a quarter brighter than the zero-filled image."""


class Kind(StrEnum):
    """What a prior is used as."""

    DENOISER = "denoiser"
    """A certified 1-Lipschitz map, for `pnp.fbs`."""
    ENERGY = "energy"
    """A function to be minimised together with the data term, by `pnp.minimize`."""


@dataclass(frozen=True, kw_only=True)
class Prior(ABC):
    """What is known about images before they are measured, found by `resolve`.

    Noise levels are standard deviations in units of 1/255 for grey values in [0, 1], here and everywhere.
    """

    name: str
    """As the catalogue or the file names it."""
    sha256: str
    """Of everything that it was read from; empty for a formula without weights."""
    levels: tuple[float, ...]
    """The noise levels that it was trained for; empty if it was not trained, or if its file does not say."""
    range: tuple[float, float] = UNIT_RANGE
    """The grey values that it was trained on."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What it is used as."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """What it is, in a sentence for catalogues and help texts."""

    @abstractmethod
    def at(self, noise: float | None = None, *, range: tuple[float, float] = UNIT_RANGE) -> nn.Module:
        """The prior for images with values in `range` and noise of this level; as it was trained if None.

        Args:
            noise: the noise level, in units of 1/255 for values in [0, 1], whatever `range` is.
            range: the values that occur, such as (-1, 1) for complex images. It is that of real parts; that of
                imaginary parts is as wide, with 0 in the middle.
        """

    @property
    def caution(self) -> str:
        """What to mind before it is used, a sentence; empty if nothing."""
        return ""

    def levels_for(self, range: tuple[float, float]) -> tuple[float, ...]:
        """The noise levels at which it serves values in `range` as it was trained."""
        return self.levels

    def document(self) -> dict[str, Any]:
        """What stands in a certificate, as JSON values."""
        return {"name": self.name, "kind": str(self.kind), "sha256": self.sha256, "levels": list(self.levels)}


def checked_range(value: tuple[float, float]) -> tuple[float, float]:
    """A range with its lower end first."""
    return checks.interval("range", value)
