"""Energies: functions that are small on images and large on what is not an image, with the constants proofs need."""

import copy
import math
from abc import ABC, abstractmethod
from typing import Self

from torch import Tensor, nn


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
