"""Energies that are small where features are sparse: total variation, and wavelets at every shift of the grid."""

import math
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline._infra import checks
from lipspline.kernels.wavelet import REACH, wavelet_merge, wavelet_split
from lipspline.priors.energy import AnalysisEnergy

Direction = Literal["isotropic", "anisotropic"]
DIRECTIONS = ("isotropic", "anisotropic")


@final
class TotalVariation(AnalysisEnergy):
    r"""`R(x) = Σ ‖(∇x)_p‖` over the pixels p, with differences to the next pixel below and to the right.

    It is small where the gradient is zero nearly everywhere (Rudin, Osher and Fatemi 1992).

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


@final
class WaveletSparsity(AnalysisEnergy):
    r"""The mean over all shifts of the ℓ1 norm of the orthonormal wavelet coefficients, without the coarse scale.

    It is small where few coefficients are large (Coifman and Donoho 1995).

    .. math:: R(x) = \sum_{j=1}^{J} 2^{-j} \| D_j x \|_1

    with the details `D_j x` of scale j of the undecimated transform, which is a tight frame: the energies of all
    `D_j x` and of the coarse image add up to that of x. The transform of one shift keeps one of `4^j` coefficients of
    scale j, `2^j` times as large, so that the mean over the shifts has the weight `2^{-j}`. Images wrap around.

    Args:
        levels: J; images must have at least `3 · 2^(J-1)` pixels along each axis, or fewer levels are used.

    Example:
        >>> float(WaveletSparsity()(torch.ones(1, 1, 32, 32))) < 1e-3
        True
    """

    def __init__(self, levels: int = 4):
        super().__init__()
        self.levels = checks.at_least("levels", levels, 1)

    def forward(self, x: Tensor) -> Tensor:
        details = self.analyse(x)
        return (details.abs() * self._weights(details)).flatten(1).sum(dim=1)

    def analyse(self, x: Tensor) -> Tensor:
        """The details of all scales, three bands each, `(B, 3JC, H, W)`."""
        low, details = x.reshape(-1, *x.shape[-2:]), []
        for level in range(self._depth(x)):
            low, bands = wavelet_split(low, 2**level)
            details.append(bands.reshape(len(x), -1, *x.shape[-2:]))
        return torch.cat(details, dim=1)

    def synthesise(self, p: Tensor) -> Tensor:
        """The adjoint of `analyse`."""
        depth = self._depth(p)
        details = [part.reshape(-1, 3, *p.shape[-2:]) for part in p.chunk(depth, dim=1)]
        low = torch.zeros_like(details[0][:, 0])
        for level in reversed(range(depth)):
            low = wavelet_merge(low, details[level], 2**level)
        return low.reshape(len(p), -1, *p.shape[-2:])

    @property
    def norm(self) -> float:
        """1, but for the rounding of the taps: a tight frame without its coarse scale."""
        return 1.0 + 1e-6

    def project(self, p: Tensor, radius: float) -> Tensor:
        """Shorten each coefficient of scale j to `2^{-j} radius`."""
        limits = radius * self._weights(p)
        if not p.is_complex():
            return torch.minimum(torch.maximum(p, -limits), limits)
        squares = p.real.square() + p.imag.square()  # much faster than moduli
        longest = limits.square().clamp_min(torch.finfo(p.dtype).tiny)
        return p * (limits * torch.maximum(squares, longest).rsqrt())

    def _depth(self, x: Tensor) -> int:
        return min(self.levels, int(math.log2(max(min(x.shape[-2:]) / REACH, 1.0))) + 1)

    def _weights(self, details: Tensor) -> Tensor:
        depth = self._depth(details)
        channels = details.shape[1] // depth
        scales = torch.arange(1, depth + 1, device=details.device).repeat_interleave(channels)
        return torch.exp2(-scales.to(details.real.dtype)).view(1, -1, 1, 1)

    def extra_repr(self) -> str:
        return f"levels={self.levels}"
