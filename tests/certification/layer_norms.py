"""What certificates of layers are held against."""

import math

import torch
from torch import Tensor, nn

from lipspline.certification import certify
from lipspline.nn import (
    LinearSpline,
)

SAMPLED = 1.025  # a bound over all frequencies from samples may exceed the norm by this factor


def dense(layer: nn.Module, *shape: int) -> Tensor:
    """The matrix of an affine layer for inputs of one shape, column by column."""
    layer = layer.double()
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return (layer(basis) - layer(torch.zeros_like(basis[:1]))).flatten(1).mT


def norm(layer: nn.Module, *shape: int) -> float:
    """The largest singular value of an affine layer for inputs of one shape."""
    return float(torch.linalg.matrix_norm(dense(layer, *shape), ord=2))


def upper(layer: nn.Module) -> float:
    return certify(layer).upper


def learned(channels: int, size: float = 1.0, **options) -> LinearSpline:
    """A spline with random coefficients and scales."""
    spline = LinearSpline(channels, **options)
    with torch.no_grad():
        spline.coefficients.add_(size * spline.radius * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(0.5 * torch.randn_like(spline.log_scale))
    return spline


def ill_conditioned() -> nn.Linear:
    """A layer of torch that is orthogonal in float64, but not in the float32 it runs with: its norm is above 1."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
    with torch.no_grad():
        raw = layer.parametrizations.weight.original  # type: ignore[union-attr]
        raw.copy_(1e5 * torch.randn(8, 8, generator=generator))
    return layer
