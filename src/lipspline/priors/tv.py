"""Total variation: images whose gradient is zero nearly everywhere (Rudin, Osher and Fatemi 1992)."""

import math
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline._infra import checks
from lipspline.priors.energy import AnalysisEnergy

Direction = Literal["isotropic", "anisotropic"]
DIRECTIONS = ("isotropic", "anisotropic")


@final
class TotalVariation(AnalysisEnergy):
    r"""`R(x) = Σ ‖(∇x)_p‖` over the pixels p, with differences to the next pixel below and to the right.

    Differences across the border are zero. Several channels, and real and imaginary part, share one norm, so that edges
    in all of them count once.

    Args:
        direction: "isotropic" takes the Euclidean norm of both differences, "anisotropic" the sum of their moduli.

    Example:
        >>> step = torch.tensor([[[[0.0, 0.0, 3.0], [0.0, 0.0, 3.0]]]])
        >>> TotalVariation()(step)
        tensor([6.])
    """

    def __init__(self, direction: Direction = "isotropic"):
        super().__init__()
        self.direction = checks.one_of("direction", direction, DIRECTIONS)

    def forward(self, x: Tensor) -> Tensor:
        return self._sizes(self.analyse(x)).flatten(1).sum(dim=1)

    def analyse(self, x: Tensor) -> Tensor:
        """The differences, `(B, 2C, H, W)`: downwards first, then to the right."""
        down = F.pad(x[..., 1:, :] - x[..., :-1, :], (0, 0, 0, 1))
        right = F.pad(x[..., 1:] - x[..., :-1], (0, 1))
        return torch.cat([down, right], dim=1)

    def synthesise(self, p: Tensor) -> Tensor:
        """Minus the divergence."""
        down, right = p.chunk(2, dim=1)
        down, right = down[..., :-1, :], right[..., :-1]
        x = F.pad(down, (0, 0, 1, 0)) - F.pad(down, (0, 0, 0, 1))
        return x + F.pad(right, (1, 0)) - F.pad(right, (0, 1))

    @property
    def norm(self) -> float:
        """√8: a pixel is in four differences, and `(a - b)² <= 2a² + 2b²`."""
        return math.sqrt(8.0)

    def project(self, p: Tensor, radius: float) -> Tensor:
        """Shorten the differences of each pixel to `radius`."""
        sizes = self._sizes(p)
        return p * (radius / sizes.clamp_min(max(radius, torch.finfo(p.dtype).tiny)))

    def _sizes(self, p: Tensor) -> Tensor:
        if self.direction == "anisotropic":
            return p.abs()
        squares = p.real.square() + p.imag.square() if p.is_complex() else p.square()
        return squares.sum(dim=1, keepdim=True).sqrt()  # many times faster than a norm along this dimension

    def extra_repr(self) -> str:
        return str(self.direction)
