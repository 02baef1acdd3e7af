"""Networks made of networks: averages with the identity, and scalings."""

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
