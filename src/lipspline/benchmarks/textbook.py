"""The paper's formulas as one writes them down first: the yardstick for everything faster.

Gathers with saved indices, 25 Björck steps, sorting GroupSort, convolution kernels multiplied tap by tap. Correct, and
tested to agree with the library; not for use.
"""

from typing import Any

import torch
from torch import Tensor, nn

from lipspline.functional.spline import grid, spline_proj


class _SplineGather(torch.autograd.Function):
    """Evaluate splines by interpolating two gathered coefficients, keeping fractions and indices for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, c: Tensor, step: float) -> Tensor:
        C, K = c.shape
        shape = (1, C) + (1,) * (x.ndim - 2)
        position = x / step + (K - 1) / 2
        left = position.floor().clamp(0, K - 2)
        fraction = position - left
        index = (left + torch.arange(C).view(shape) * K).long()
        ctx.save_for_backward(fraction, index, c)
        ctx.step = step
        flat = c.reshape(-1)
        return flat[index + 1] * fraction + flat[index] * (1 - fraction)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (g,) = grads
        fraction, index, c = ctx.saved_tensors
        flat = c.reshape(-1)
        gx = (flat[index + 1] - flat[index]) / ctx.step * g
        gc = torch.zeros_like(flat)
        gc.scatter_add_(0, index.reshape(-1) + 1, (fraction * g).reshape(-1))
        gc.scatter_add_(0, index.reshape(-1), ((1 - fraction) * g).reshape(-1))
        return gx, gc.view_as(c), None


class TextbookSpline(nn.Module):
    """A 1-Lipschitz linear spline per channel with a scale, evaluated by gathers [sec:deepspline, sec:methods]."""

    def __init__(self, channels: int, regions: int = 50, radius: float = 0.1):
        super().__init__()
        self.step = 2 * radius / regions
        self.coefficients = nn.Parameter(grid(regions, radius, torch.empty(0)).repeat(channels, 1))
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale.view((1, -1) + (1,) * (x.ndim - 2))
        c = spline_proj(self.coefficients, self.step)
        return _SplineGather.apply(x * scale, c, self.step) / scale  # type: ignore[operator]


class TextbookGroupSort(nn.Module):
    """Sort groups of channels with torch.sort."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        groups = x.unflatten(1, (-1, self.size))
        return groups.sort(dim=2).values.flatten(1, 2)


class TextbookHouseholder(nn.Module):
    """The two cases of the Householder activation, by torch.where."""

    def __init__(self, channels: int):
        super().__init__()
        self.v = nn.Parameter(torch.randn(channels // 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        v = self.v / self.v.norm(dim=1, keepdim=True)
        v = v.view(1, *v.shape, *(1,) * (x.ndim - 2))
        pairs = x.unflatten(1, (-1, 2))
        along = (v * pairs).sum(dim=2, keepdim=True)
        return torch.where(along > 0, pairs, pairs - 2 * v * along).flatten(1, 2)


def bjorck(w: Tensor, steps: int = 25) -> Tensor:
    """25 Björck iterations `W <- W (3 I - Wᵀ W) / 2` from a weight scaled into the region of convergence."""
    w = w / (w.abs().sum(dim=-2).amax(dim=-1) * w.abs().sum(dim=-1).amax(dim=-1)).sqrt()[..., None, None]
    for _ in range(steps):
        w = 1.5 * w - 0.5 * w @ w.mT @ w
    return w


def _multiply_taps(first: list[list[Tensor]], second: list[list[Tensor]]) -> list[list[Tensor]]:
    """Product of two matrix-valued 2-D polynomials, tap by tap."""
    rows, columns = len(first) + len(second) - 1, len(first[0]) + len(second[0]) - 1
    out: list[list[Any]] = [[0.0] * columns for _ in range(rows)]
    for i, row in enumerate(first):
        for j, a in enumerate(row):
            for k, other in enumerate(second):
                for m, b in enumerate(other):
                    out[i + k][j + m] = out[i + k][j + m] + a @ b
    return out


def bcop_kernel(raw: Tensor, kernel: int) -> Tensor:
    """A square orthogonal kernel from `2 (kernel - 1) + 1` raw matrices, tap by tap, with 25 Björck steps."""
    channels = raw.shape[-1]
    taps = [[bjorck(raw[0])]]
    half = bjorck(raw[1:, :, : channels // 2])
    identity = torch.eye(channels, dtype=raw.dtype)
    for i in range(kernel - 1):
        p, q = (half[j] @ half[j].mT for j in (2 * i, 2 * i + 1))
        taps = _multiply_taps(taps, [[p], [identity - p]])
        taps = _multiply_taps(taps, [[q, identity - q]])
    return torch.stack([torch.stack(row, dim=-1) for row in taps], dim=-2)


class BCOPConv2d(nn.Module):
    """An orthogonal convolution whose kernel is assembled anew at each call."""

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.kernel = kernel
        self.raw = nn.Parameter(torch.randn(2 * (kernel - 1) + 1, channels, channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, bcop_kernel(self.raw, self.kernel), self.bias, padding=self.kernel // 2)
