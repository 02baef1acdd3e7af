"""Convolution with 3 x 3 kernels by Winograd's algorithm, in C: for inference, with a quarter of the products."""

from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline.kernels import native
from lipspline.kernels.dispatch import Kernel
from lipspline.kernels.native import PANEL

POINTS = (0.0, sqrt(0.5), -sqrt(0.5), sqrt(2), -sqrt(2))
"""Where polynomials are evaluated, beside infinity; balanced, so that the round-off is only twice that of a sum."""


def has_winograd() -> bool:
    """Whether the processor can run it: it needs AVX2, and the C library."""
    return native.library is not None and bool(native.library.lipspline_has_winograd())


def runs_winograd(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `convolve` may run on these tensors."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return winograd.in_c(*tensors) and has_winograd()


@torch.no_grad()
def prepare(weight: Tensor) -> Tensor:
    """The kernels `(out, in, 3, 3)` at all pairs of points, `G w Gᵀ`, as `convolve` wants them."""
    g = torch.tensor([*map(_values, POINTS), [0.0, 0.0, 1.0]], dtype=torch.float64)
    u = torch.einsum("ip,jq,nkpq->ijkn", g, g, weight.double())
    inputs, outputs = u.shape[2:]
    u = F.pad(u, (0, -outputs % PANEL)).reshape(36, inputs, -1, PANEL)
    return u.transpose(1, 2).contiguous().to(weight.dtype)


def convolve(x: Tensor, prepared: Tensor, bias: Tensor) -> Tensor:
    """`conv2d(x, weight, bias, padding=1)` without derivatives; channels last, whatever the layout of `x`.

    Args:
        x: `(B, in, H, W)`, of which `runs_winograd` is true.
        prepared: `prepare(weight)`.
        bias: `(out,)`.
    """
    images, inputs, height, width = x.shape
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.empty(images, len(bias), height, width, memory_format=torch.channels_last)
    if y.numel():
        native.call("winograd", (), (images, height, width, inputs, len(bias)), x, prepared, bias.contiguous(), y)
    return y


def _values(point: float) -> list[float]:
    """What three weights are multiplied with at a point: its powers, over the product of its distances to others."""
    scale = prod(point - other for other in POINTS if other != point)
    return [point**power / scale for power in range(3)]


winograd = Kernel(
    "winograd(Tensor x, Tensor weight, Tensor bias) -> Tensor",
    eager=lambda x, weight, bias: F.conv2d(x, weight, bias, padding=1),
    c=lambda x, weight, bias: convolve(x, prepare(weight), bias),
    c_function="winograd",
    derivatives="none",
)
