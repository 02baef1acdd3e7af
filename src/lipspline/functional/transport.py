r"""Wasserstein-1 distances: the dual estimate, and pairs of distributions whose distance is known [wasserstein]."""

from typing import NamedTuple

import torch
from torch import Tensor

from lipspline._infra import checks


def dual_gap(f1: Tensor, f2: Tensor) -> Tensor:
    r"""The dual estimate of `W1(P1, P2)` from values of a potential on samples of both [wasserstein].

    .. math:: \frac1n \sum_i f(x_i) - \frac1m \sum_j f(y_j), \qquad x_i \sim P_1,\ y_j \sim P_2

    For a 1-Lipschitz `f` that does not depend on the samples its expectation is a lower bound of the distance.

    Example:
        >>> dual_gap(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]))
        tensor(1.5000)
    """
    return f1.mean() - f2.mean()


def min_funnel(x: Tensor, centres: Tensor, heights: Tensor) -> Tensor:
    r"""The 1-Lipschitz potential `u(x) = min_n |x - a_n| + b_n`, `(B, N), (F, N), (F,) -> (B,)`.

    Example:
        >>> min_funnel(torch.tensor([[3.0], [8.0]]), torch.tensor([[0.0], [9.0]]), torch.tensor([0.0, 0.5]))
        tensor([3.0000, 1.5000])
    """
    return (torch.cdist(x, centres) + heights).amin(dim=-1)


def push_along_rays(x: Tensor, centres: Tensor, heights: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    r"""Move samples down the rays of a `min_funnel`, so that the distance they travel is a Wasserstein-1 distance.

    Every sample goes straight towards the centre `a_n` of its funnel, by `distance` or until it arrives. Along the
    way the potential falls at rate 1, so the move is an optimal plan and `u` an optimal potential [wasserstein]:
    between the samples and their images, W1 is exactly the mean of the lengths.

    Returns:
        The images `(B, N)` and the lengths `(B,)` of the moves.

    Example:
        >>> centres, heights = torch.tensor([[0.0], [9.0]]), torch.tensor([0.0, 0.5])
        >>> push_along_rays(torch.tensor([[3.0], [8.0]]), centres, heights, distance=2.0)
        (tensor([[1.], [9.]]), tensor([2., 1.]))
    """
    checks.positive("distance", distance)
    active = centres[(torch.cdist(x, centres) + heights).argmin(dim=-1)]
    offset = x - active
    radius = offset.norm(dim=-1)
    length = radius.clamp(max=distance)
    fraction = torch.where(radius > 0, length / radius, torch.zeros_like(radius))
    return x - fraction.unsqueeze(-1) * offset, length


class Mixture(NamedTuple):
    """Gaussians `N(μ_k, A_kᵀ A_k)` with equal weights: `means (K, N)` and `factors (K, N, N)`."""

    means: Tensor
    factors: Tensor

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent samples `(count, N)`."""
        component = torch.randint(len(self.means), (count,), generator=generator)
        normal = torch.randn(count, self.means.shape[1], generator=generator, dtype=self.means.dtype)
        spread = torch.stack([normal @ factor for factor in self.factors])[component, torch.arange(count)]
        return self.means[component] + spread


def random_mixture(size: int, generator: torch.Generator, components: int = 2) -> Mixture:
    r"""The paper's random mixture in dimension `size`: `(μ_k)_n` and `(A_k)_{nm}` standard normal [sec:EvalExp].

    Example:
        >>> mixture = random_mixture(5, torch.Generator().manual_seed(0))
        >>> mixture.sample(1000, torch.Generator().manual_seed(1)).shape
        torch.Size([1000, 5])
    """
    return Mixture(
        torch.randn(components, size, generator=generator), torch.randn(components, size, size, generator=generator)
    )


def discrete_w1(x: Tensor, y: Tensor) -> float:
    """The exact W1 between two sets of samples `(n, N)`, `(m, N)` with equal weights, by linear programming.

    It needs n·m memory and about n³ time, and for samples of continuous distributions in high dimension it is far
    above the distance of the distributions.

    Example:
        >>> discrete_w1(torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0], [1.0]]))
        2.5
    """
    solver = checks.require("ot", "transport", "Exact discrete optimal transport")
    cost = torch.cdist(x.double(), y.double()).numpy()
    return float(solver.emd2([], [], cost, numItermax=10_000_000))
