"""`piecewise_affine` on the CPU, in C. The tensors are dense, not empty and of one dtype, float32 or float64."""

import torch
from torch import Tensor

from lipspline.kernels import native
from lipspline.kernels.layout import Sizes


def forward(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, sizes: Sizes, y: Tensor) -> None:
    """Write b + s x into `y`."""
    native.run(
        "lipspline_piecewise_affine",
        8 * x.itemsize, x.data_ptr(), b.data_ptr(), s.data_ptr(), scale.data_ptr(), offset,
        *sizes, s.shape[-1], y.data_ptr(), native.threads(),
    )  # fmt: skip


def backward(
    g: Tensor, x: Tensor, s: Tensor, scale: Tensor, offset: float, sizes: Sizes, gx: Tensor
) -> tuple[Tensor, Tensor]:
    """Write s g into `gx` and return the sums of g and of g x, shaped like `s`."""
    gb, gs = torch.empty_like(s), torch.empty_like(s)
    native.run(
        "lipspline_piecewise_affine_backward",
        8 * x.itemsize, g.data_ptr(), x.data_ptr(), s.data_ptr(), scale.data_ptr(), offset,
        *sizes, s.shape[-1], gx.data_ptr(), gb.data_ptr(), gs.data_ptr(), native.threads(),
    )  # fmt: skip
    return gb, gs
