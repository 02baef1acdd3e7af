"""Convolution with 3 x 3 kernels by Winograd's algorithm, in C, with a quarter of the products; and its gradients."""

# pyright: reportIncompatibleMethodOverride=false
# (`backward` of an autograd function is declared with *args, but is meant to name them)

from functools import cache
from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from lipspline.kernels import native
from lipspline.kernels.dispatch import Kernel, is_ordinary
from lipspline.kernels.native import LANES, PANEL

POINTS = (0.0, sqrt(0.5), -sqrt(0.5), sqrt(2), -sqrt(2))
"""Where polynomials are evaluated, beside infinity; balanced, so that the round-off is only twice that of a sum."""
PARTS, TILES_OF_A_PART = 8, 200
"""How a gradient of weights is cut for threads: by its size alone, so that their number changes no bit."""


def has_winograd() -> bool:
    """Whether the processor can run it: it needs AVX2, and the C library."""
    return native.library is not None and bool(native.library.lipspline_has_winograd())


def runs_winograd(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `convolve` may run on these tensors."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return winograd.in_c(*tensors) and has_winograd()


def learns_winograd(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `convolution` may run on these tensors: values, and derivatives by `backward`."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return _weights.in_c(*tensors) and has_winograd()


@torch.no_grad()
def prepare(weight: Tensor) -> Tensor:
    """The kernels `(out, in, 3, 3)` at all pairs of points, `G w Gᵀ`, as `convolve` wants them."""
    outputs, inputs = weight.shape[:2]
    u = (_both_axes() @ weight.permute(2, 3, 1, 0).double().reshape(9, -1)).view(36, inputs, outputs)
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


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`conv2d(x, weight, bias, padding=1)` with gradients, where `learns_winograd` is true; channels last."""
    return _Convolution.apply(x, weight, bias)  # type: ignore[return-value]


@torch.no_grad()
def weight_gradient(x: Tensor, g: Tensor) -> Tensor:
    """The gradient `(out, in, 3, 3)` of the kernels, `g (B, out, H, W)` being that of `conv2d(x, w, padding=1)`."""
    (images, inputs, height, width), outputs = x.shape, g.shape[1]
    x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))
    parts = max(1, min(PARTS, images * -(-height // 4) * -(-width // 4) // TILES_OF_A_PART))
    by_part = torch.empty(parts, 9, inputs + -inputs % LANES, outputs + -outputs % PANEL)
    native.call("winograd_weights", (), (images, height, width, inputs, outputs, parts), x, g, by_part)
    total = by_part.sum(dim=0) if parts > 1 else by_part[0]
    return total[:, :inputs, :outputs].permute(2, 1, 0).reshape(outputs, inputs, 3, 3)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return convolve(x, prepare(weight), weight.new_zeros(len(weight)) if bias is None else bias)

    @staticmethod
    def backward(ctx, g):
        (x, weight), wanted = ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled() or not is_ordinary(g):  # somebody wants second derivatives, or many at once
            sizes = [len(weight)] if ctx.has_bias else None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
            return torch.ops.aten.convolution_backward(g, x, weight, *sizes, list(wanted))
        g = g.contiguous(memory_format=torch.channels_last)
        flipped = weight.transpose(0, 1).flip(2, 3)
        return (
            convolve(g, prepare(flipped), weight.new_zeros(len(flipped))) if wanted[0] else None,
            weight_gradient(x, g) if wanted[1] else None,
            g.sum(dim=(0, 2, 3)) if wanted[2] else None,
        )


@cache
def _both_axes() -> Tensor:
    """`(36, 9)`: a kernel of 3 x 3 at all pairs of points, `G ⊗ G`."""
    along = torch.tensor([*map(_values, POINTS), [0.0, 0.0, 1.0]], dtype=torch.float64)
    return torch.kron(along, along)


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
_weights = Kernel(
    "winograd_weights(Tensor x, Tensor g) -> Tensor",
    eager=lambda x, g: conv2d_weight(x, [g.shape[1], x.shape[1], 3, 3], g, padding=1),
    c=weight_gradient,
    c_function="winograd_weights",
    derivatives="backward",
)
