"""Operators that act on each pixel by itself."""

from typing import final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import LinearOperator
from lipspline.operators.space import Space


@final
class Identity(LinearOperator):
    """`H x = x`: denoising as a reconstruction problem.

    Example:
        >>> Identity((1, 8, 8)).norm_bounds()
        (1.0, 1.0)
    """

    def __init__(self, shape: tuple[int, ...]):
        self.domain = self.codomain = Space(_checked_shape(shape), "any")

    def _apply(self, x: Tensor) -> Tensor:
        return x

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return y

    def norm_bounds(self) -> tuple[float, float]:
        """Exactly 1."""
        return 1.0, 1.0

    def smallest_singular_value(self) -> float | None:
        """Exactly 1 [eq:H_invert]."""
        return 1.0


@final
class Inpainting(LinearOperator):
    """`H x = m x`: the pixels where `mask` is true, zero elsewhere.

    Args:
        mask: bool, the shape of an image without the batch dimension, e.g. `(1, H, W)`.

    Example:
        >>> import torch
        >>> H = Inpainting(torch.tensor([True, False, True]))
        >>> H.forward(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[1., 0., 3.]])
    """

    def __init__(self, mask: Tensor):
        if mask.dtype != torch.bool:
            raise ValueError(f"Inpainting needs a bool mask, but got {mask.dtype}. Convert with mask != 0.")
        if not mask.any():
            raise ValueError(f"The inpainting mask {tuple(mask.shape)} is false everywhere: nothing would be measured.")
        self.mask = mask
        self.domain = self.codomain = Space(tuple(mask.shape), "any")

    def _apply(self, x: Tensor) -> Tensor:
        return x * self.mask

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return y * self.mask

    def norm_bounds(self) -> tuple[float, float]:
        """Exactly 1."""
        return 1.0, 1.0

    def smallest_singular_value(self) -> float | None:
        """1 if every pixel is seen [eq:H_invert]."""
        return 1.0 if self.mask.all() else None


def _checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    for size in shape:
        checks.at_least("A size in the shape of Identity", size, 1)
    return tuple(shape)
