"""Energies whose minimisers are known in closed form, or that a reference solver can handle."""

import torch
from torch import Tensor, nn

from lipspline.priors.energy import Energy


class Quadratic(Energy):
    """`½ ⟨x, Q x⟩` for flat images and a symmetric Q; weakly convex if Q has negative eigenvalues."""

    def __init__(self, matrix: Tensor):
        super().__init__()
        self.register_buffer("matrix", matrix)
        values = torch.linalg.eigvalsh(matrix.double())
        self._lipschitz = float(values.abs().max()) * (1 + 1e-12)
        self._weak = max(0.0, -float(values.min())) * (1 + 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.gradient(x)).flatten(1).sum(1) / 2

    def gradient(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.matrix.to(x.dtype)).reshape(x.shape)

    @property
    def lipschitz(self) -> float:
        return self._lipschitz

    @property
    def weak_convexity(self) -> float:
        return self._weak


class Huber(Energy):
    """Huber's function of the differences of neighbours, circular: smooth total variation."""

    def __init__(self, width: float = 0.1):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        size = self._differences(x).abs()
        inside = size.square() / (2 * self.width)
        return torch.where(size < self.width, inside, size - self.width / 2).flatten(1).sum(1)

    def gradient(self, x: Tensor) -> Tensor:
        p = (self._differences(x) / self.width).clamp(-1, 1)
        rows, columns = p.chunk(2, dim=1)
        return rows.roll(1, -2) - rows + columns.roll(1, -1) - columns

    @property
    def lipschitz(self) -> float:
        return 8 / self.width

    def _differences(self, x: Tensor) -> Tensor:
        return torch.cat([x.roll(-1, -2) - x, x.roll(-1, -1) - x], dim=1)


class DoubleWell(Energy):
    """`Σ ψ(x_i)` with `ψ' = x` near 0, then falling with slope -ρ, then constant: a weakly convex, bounded energy."""

    def __init__(self, rho: float = 0.5):
        super().__init__()
        self.rho, self.slope = rho, nn.Parameter(torch.tensor(rho))

    def gradient(self, x: Tensor) -> Tensor:
        size = x.abs()
        return x.sign() * torch.where(size < 1, size, (1 - self.rho * (size - 1)).clamp_min(0))

    def forward(self, x: Tensor) -> Tensor:
        size = x.abs()
        past = (size - 1).clamp(0, 1 / self.rho)
        return (size.clamp_max(1) ** 2 / 2 + past - self.rho * past**2 / 2).flatten(1).sum(1)

    @property
    def lipschitz(self) -> float:
        return 1.0

    @property
    def weak_convexity(self) -> float:
        return self.rho
