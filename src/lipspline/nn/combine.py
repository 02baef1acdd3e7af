"""Networks made of networks: averages with the identity, sums, concatenations, and scalings."""

import math

import torch
from torch import Tensor, nn

from lipspline._infra import checks


class Averaged(nn.Module):
    r"""`β R(x) + (1 - β) x`, the averaged operator of [sec:PnPReconstruction]; 1-Lipschitz if R is.

    Example:
        >>> Averaged(nn.ReLU(), beta=0.5)(torch.tensor([[-2.0, 2.0]]))
        tensor([[-1.,  2.]])
    """

    def __init__(self, inner: nn.Module, beta: float):
        super().__init__()
        self.inner = inner
        self.beta = beta if beta == 1 else checks.within("beta", beta, 0.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if y.shape != x.shape:
            raise ValueError(
                f"Averaged needs an inner network that keeps the shape, but it maps {tuple(x.shape)} to "
                f"{tuple(y.shape)}. Only then is beta R + (1 - beta) Id an average."
            )
        return torch.lerp(x, y, self.beta)

    def extra_repr(self) -> str:
        return f"beta={self.beta:g}"


class Sum(nn.Module):
    """`f(x) + g(x) + ...`; a residual block is `Sum(nn.Identity(), f)`. Lipschitz constants add up.

    Example:
        >>> Sum(nn.Identity(), nn.ReLU())(torch.tensor([[-2.0, 2.0]]))
        tensor([[-2.,  4.]])
    """

    def __init__(self, *branches: nn.Module):
        super().__init__()
        checks.at_least("The number of branches", len(branches), 1)
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        total, *terms = [branch(x) for branch in self.branches]
        for term in terms:
            if term.shape != total.shape:
                raise ValueError(
                    f"Sum needs branches with outputs of one shape, but got {tuple(total.shape)} and "
                    f"{tuple(term.shape)}."
                )
            total = total + term
        return total


class Concatenated(nn.Module):
    """The outputs of several branches, joined along `dim`. Their constants combine as sqrt(a² + b² + ...).

    Example:
        >>> Concatenated(nn.Identity(), nn.ReLU())(torch.tensor([[-2.0, 2.0]]))
        tensor([[-2.,  2.,  0.,  2.]])
    """

    def __init__(self, *branches: nn.Module, dim: int = 1):
        super().__init__()
        checks.at_least("The number of branches", len(branches), 1)
        self.branches = nn.ModuleList(branches)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Scaled(nn.Module):
    """`factor * x`: a layer that sets the Lipschitz constant of what it follows."""

    def __init__(self, factor: float):
        super().__init__()
        if not math.isfinite(factor):
            raise ValueError(f"factor must be a finite number, but is {factor!r}.")
        self.factor = float(factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def extra_repr(self) -> str:
        return f"{self.factor:g}"
