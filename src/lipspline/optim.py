"""Optimizers for networks with orthonormal weights, as ordinary ones of torch."""

from typing import Any

from torch import nn

from lipspline._infra import checks
from lipspline.training.optim import Rotating, orthonormalize_, param_groups

__all__ = ["Rotating", "param_groups", "rotating"]


def rotating(model: nn.Module, lr: float = 1e-3, *, angle: float = 0.02, **options: Any) -> Rotating:
    """Adam for everything but the orthonormal matrices of a model, which turn by about `angle` radians a step.

    The root of the mean square of a matrix's turns is at most 1.45 times `angle`. Schedulers of torch scale both rates.
    The model's raw matrices are made orthonormal first, which does not change its weights (up to rounding).

    Args:
        model: a network with layers of `nn.linear(constraint="orthonormal")` or `nn.conv2d(constraint="orthogonal")`.
        lr: learning rate of everything else, see `param_groups`.
        angle: the angle, in radians.
        options: of `torch.optim.Adam`, e.g. `betas` or `foreach`.

    Example:
        >>> import lipspline as ls, torch
        >>> model = ls.models.mlp(4, 2, width=8, depth=2)
        >>> optimizer = rotating(model, lr=1e-3, angle=0.05)
        >>> model(torch.ones(1, 4)).square().sum().backward()
        >>> optimizer.step()
        >>> ls.certify(model).upper < 1.001
        True
    """
    checks.module("rotating", model)
    checks.positive("lr", lr)
    checks.positive("angle", angle)
    orthonormalize_(model)
    return Rotating(param_groups(model, lr, rotations=angle), lr=lr, **options)
