"""Denoisers whose Lipschitz constant is known from mathematics: proximal operators, frames, linear maps, networks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipspline.certification import Declared, declare
from lipspline.operators import LinearOperator


def soft_threshold(threshold: float) -> Declared:
    """The proximal operator of `threshold · ‖x‖₁`."""
    return declare(lambda x: x - x.clamp(-threshold, threshold), 1.0, "proximal operator")


def reflected_soft_threshold(threshold: float) -> Declared:
    """`2 prox - Id`, which is 1-Lipschitz; averaged with β = 1/2 it is the proximal operator."""
    return declare(lambda x: x - 2 * x.clamp(-threshold, threshold), 1.0, "reflected proximal operator")


def box() -> Declared:
    """The projection onto images with values in [0, 1]."""
    return declare(lambda x: x.clamp(0, 1), 1.0, "projection onto a convex set")


def linear(matrix: Tensor) -> Declared:
    """`x ↦ A x` for flat images, A of spectral norm at most 1."""
    return declare(lambda x: x @ matrix.mT, 1.0, "spectral norm at most 1")


def linear_layer(matrix: Tensor) -> nn.Linear:
    """The same as a layer that `certify` knows."""
    layer = nn.Linear(*matrix.shape, bias=False, dtype=matrix.dtype)
    layer.weight.data = matrix
    return layer


def random_nonexpansive_matrix(n: int, symmetric: bool = False) -> Tensor:
    a = torch.randn(n, n, dtype=torch.float64)
    a = a + a.mT if symmetric else a
    return a / torch.linalg.matrix_norm(a, 2) * 0.999


def network(n: int, factor: float = 0.95) -> nn.Sequential:
    """A random network of two layers on flat images, with a certificate a little below `factor`."""
    layers = [nn.Linear(n, n, dtype=torch.float64) for _ in range(2)]
    for layer in layers:
        layer.weight.data *= factor**0.5 / torch.linalg.matrix_norm(layer.weight.data, 2) * (1 - 1e-9)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def haar_frame(threshold: float, levels: int = 3) -> Declared:
    """Soft thresholding in the undecimated Haar frame: a tight frame, so that it is 1-Lipschitz."""
    low, high = torch.tensor([1.0, 1.0]) / 2, torch.tensor([1.0, -1.0]) / 2
    filters = torch.stack([torch.outer(a, b) for a in (low, high) for b in (low, high)])[:, None]

    def shrink(x: Tensor, level: int = 0) -> Tensor:
        if level == levels:
            return x
        gap, taps = 2**level, filters.to(x)
        bands = F.conv2d(F.pad(x, (0, gap, 0, gap), mode="circular"), taps, dilation=gap)
        details = bands[:, 1:] - bands[:, 1:].clamp(-threshold, threshold)
        bands = torch.cat([shrink(bands[:, :1], level + 1), details], dim=1)
        padded = F.pad(bands, (gap, 0, gap, 0), mode="circular")
        return F.conv_transpose2d(padded, taps, dilation=gap)[:, :, gap:-gap, gap:-gap]

    return declare(shrink, 1.0, "thresholding in a tight frame")


def averaging_map(H: LinearOperator, y: Tensor, matrix: Tensor, beta: float, step: float, factor: float = 1.0):
    """`(M, b)` of the affine iteration `x ↦ M x + b` that [eq:pnp_fbs] is for a linear denoiser, flat images."""
    n = H.input_shape[0]
    columns = H.forward(torch.eye(n, dtype=y.dtype)).mT
    identity = torch.eye(n, dtype=y.dtype)
    averaged = factor * (beta * matrix + (1 - beta) * identity)
    return averaged @ (identity - step * columns.mT @ columns), step * averaged @ columns.mT @ y[0]
