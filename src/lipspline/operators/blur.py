"""Blur: circular convolution with a known kernel."""

from functools import cached_property
from math import log2, sqrt
from typing import final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import LinearOperator
from lipspline.operators.space import Space


@final
class Blur(LinearOperator):
    """`H x = k * x`, the circular convolution of each channel of `x (B, C, H, W)` with one kernel.

    Args:
        kernel: real `(h, w)`, no larger than the image; its middle `(h // 2, w // 2)` is the pixel that is written.
        shape: `(C, H, W)`.

    Example:
        >>> import torch
        >>> H = Blur(torch.ones(3, 3) / 9, (1, 32, 32))
        >>> round(H.norm_bounds()[1], 6)
        1.0
    """

    def __init__(self, kernel: Tensor, shape: tuple[int, int, int]):
        if kernel.ndim != 2 or not kernel.is_floating_point():
            raise ValueError(
                f"Blur needs a real kernel (h, w), but got shape {tuple(kernel.shape)} of {kernel.dtype}. "
                f"One kernel serves all channels."
            )
        if len(shape) != 3 or kernel.shape[0] > shape[1] or kernel.shape[1] > shape[2]:
            raise ValueError(
                f"Blur needs an image shape (C, H, W) that holds the kernel {tuple(kernel.shape)}, but got {shape}."
            )
        self.kernel = checks.finite("The blur kernel", kernel).detach()
        self.domain = self.codomain = Space(tuple(shape), "any")
        self._response = torch.fft.fft2(_centred(self.kernel.double(), shape[1:]))

    def _apply(self, x: Tensor) -> Tensor:
        return _filter(x, self._response)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return _filter(y, self._response.conj())

    def norm_bounds(self) -> tuple[float, float]:
        """The largest modulus of the kernel's Fourier transform, with its round-off on either side."""
        largest = float(self._response.abs().max())
        return max(largest - self._slack, 0.0), largest + self._slack

    def smallest_singular_value(self) -> float | None:
        """The smallest modulus of the kernel's Fourier transform, less round-off [eq:H_invert]."""
        bound = float(self._response.abs().min()) - self._slack
        return bound if bound > 0 else None

    @cached_property
    def _slack(self) -> float:
        # an FFT of n entries errs by at most a few eps log2(n) |k|₂ sqrt(n) in the Euclidean norm, so in each entry
        n = self._response.numel()
        size = float(torch.linalg.vector_norm(self.kernel.double()))
        return 8 * torch.finfo(torch.float64).eps * (1 + log2(n)) * sqrt(n) * size


def _filter(x: Tensor, response: Tensor) -> Tensor:
    """Multiply the Fourier transform of x by that of the kernel; a real x stays real."""
    filtered = torch.fft.ifft2(torch.fft.fft2(x) * response.to(x.dtype.to_complex()))
    return filtered if x.is_complex() else filtered.real


def _centred(kernel: Tensor, plane: tuple[int, ...]) -> Tensor:
    """The kernel on the grid of the image, its middle at index 0."""
    height, width = kernel.shape
    padded = kernel.new_zeros(plane)
    padded[:height, :width] = kernel
    return padded.roll((-(height // 2), -(width // 2)), dims=(0, 1))
