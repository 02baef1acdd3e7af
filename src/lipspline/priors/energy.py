"""What priors are: objects that know name, levels, range and checksum; and energies, with the constants proofs need."""

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from torch import Tensor, nn

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


# Energies


class Energy(nn.Module, ABC):
    r"""A function R of an image, bounded from below, to be minimised together with the data term by `pnp.minimize`.

    A subclass is final and fills in `forward`, `gradient` and `lipschitz`, and `weak_convexity` if it is not convex.
    Images are real, `(B, C, H, W)`: of a complex image the energies of real and imaginary part are added.
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The energy of each image: `(B, C, H, W) -> (B,)`."""

    @abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of the energy; where R has a kink, one of its subgradients."""

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """A proven upper bound on the Lipschitz constant of the gradient, for every image size; `inf` with kinks."""

    @property
    def weak_convexity(self) -> float:
        """A proven ρ such that `R + ρ/2 ‖x‖²` is convex; 0 for a convex energy."""
        return 0.0

    def select(self, rows: Tensor, parts: int) -> "Energy":
        """The energy for some images of a batch; itself unless it was made for the images of one batch.

        Args:
            rows: their numbers in the batch.
            parts: 2 if each image is complex, and stands in the batch as its real and its imaginary part; else 1.
        """
        return self

    def wide(self) -> Self:
        """The same energy in float64, for certificates: its weights are taken as exact. The original stays."""
        return copy.deepcopy(self).double()


class AnalysisEnergy(Energy):
    r"""`R(x) = Σ_i w_i ‖(Dx)_i‖`: the sum of the norms of linear features, with the norm in groups of channels.

    Convex, with kinks, and certified by duality: `R(x) = max ⟨p, Dx⟩` over the p with `‖p_i‖ <= w_i`. Features may
    be complex, for complex images: then a norm is that of the modulus. A subclass is final and fills in `analyse`,
    `synthesise`, `norm`, `forward` and `project`.
    """

    @abstractmethod
    def analyse(self, x: Tensor) -> Tensor:
        """`D x`, linear: `(B, C, H, W) -> (B, F, H, W)`."""

    @abstractmethod
    def synthesise(self, p: Tensor) -> Tensor:
        """`Dᵀ p`, the adjoint of `analyse`."""

    @property
    @abstractmethod
    def norm(self) -> float:
        """A proven upper bound on ‖D‖, for every image size."""

    @abstractmethod
    def project(self, p: Tensor, radius: float) -> Tensor:
        """The nearest p with `‖p_i‖ <= radius w_i` for every group i."""

    @property
    def lipschitz(self) -> float:
        """Infinite: the energy has kinks where features vanish."""
        return math.inf

    def gradient(self, x: Tensor) -> Tensor:
        """A subgradient: `Dᵀ p` for a p that attains the maximum in `R(x) = max ⟨p, Dx⟩`."""
        features = self.analyse(x)
        size = float(features.abs().max()) or 1.0
        return self.synthesise(self.project(features * (1e12 / size), 1.0))


class AdaptiveEnergy(Energy):
    """A convex energy for a first pass, and a map from its minimiser to the convex energy of a second pass.

    `forward` and `gradient` are those of the first pass. A subclass is final and fills in what follows too.

    Attributes:
        pulls: the convexities of the two passes, over that which `pnp.minimize` is given. They are large: the first
            image is only looked at for weights, and the second is pulled towards the first.
    """

    pulls: tuple[float, float] = (10.0, 10.0)

    @property
    @abstractmethod
    def first_pass(self) -> Energy:
        """The energy of the first pass by itself."""

    @property
    @abstractmethod
    def first_strength(self) -> float:
        """The strength of the first pass over that of the second."""

    @abstractmethod
    def adapted(self, x: Tensor) -> Energy:
        """The energy R_x of the second pass after the first image x."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """A proven S with `‖∇R_a(z) - ∇R_b(z)‖ <= S ‖a - b‖` for all images a, b and z."""
