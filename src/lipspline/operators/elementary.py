"""Elementary operators: matrices, identity, inpainting and blur."""

from functools import cached_property
from math import log2, sqrt
from typing import final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import LinearOperator, Space


@final
class Matrix(LinearOperator):
    """`x (B, n) -> A x (B, m)` for a dense matrix `A (m, n)`, real or complex; for small problems and for tests.

    Example:
        >>> import torch
        >>> H = Matrix(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        >>> H.forward(torch.tensor([[1.0, 1.0]]))
        tensor([[3., 4.]])
        >>> [round(bound, 6) for bound in H.norm_bounds()]
        [4.0, 4.0]
    """

    def __init__(self, matrix: Tensor):
        matrix = torch.as_tensor(matrix)
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(f"Matrix needs a matrix of shape (m, n), but got shape {tuple(matrix.shape)}.")
        if not (matrix.is_floating_point() or matrix.is_complex()):
            raise ValueError(f"Matrix needs floating-point or complex entries, but got {matrix.dtype}.")
        self.matrix = checks.finite("The matrix", matrix).detach()
        field = "complex" if matrix.is_complex() else "any"
        self.domain, self.codomain = Space((matrix.shape[1],), field), Space((matrix.shape[0],), field)

    def _apply(self, x: Tensor) -> Tensor:
        return _product(x, self.matrix.mT)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return _product(y, self.matrix.conj())

    def norm_bounds(self) -> tuple[float, float]:
        """The largest singular value, with the round-off of the decomposition on either side."""
        largest = float(self._singular_values[0])
        return max(largest - self._slack, 0.0), largest + self._slack

    def smallest_singular_value(self) -> float | None:
        """The smallest singular value less round-off, if the columns are independent [eq:H_invert]."""
        rows, columns = self.matrix.shape
        bound = float(self._singular_values[-1]) - self._slack
        return bound if rows >= columns and bound > 0 else None

    @cached_property
    def _singular_values(self) -> Tensor:
        return torch.linalg.svdvals(self.matrix.to(torch.promote_types(self.matrix.dtype, torch.float64)))

    @property
    def _slack(self) -> float:
        # the computed singular values are those of A + E with |E| <= p(m, n) eps |A|, p a modest polynomial
        return 4 * sum(self.matrix.shape) * torch.finfo(torch.float64).eps * float(self._singular_values[0])


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """`x @ matrix` in the precision of x, complex if either is."""
    if x.is_complex() and not matrix.is_complex():
        return torch.complex(_product(x.real, matrix), _product(x.imag, matrix))
    if matrix.is_complex():
        x = x.to(x.dtype.to_complex())
    return x @ matrix.to(x.dtype)


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


@final
class Selected(LinearOperator):
    """Some of the measurements of another operator, zero where the others were.

    Args:
        operator: H.
        mask: bool, which measurements are kept; it must fit data of H, as a factor.
    """

    def __init__(self, operator: LinearOperator, mask: Tensor):
        if mask.dtype != torch.bool:
            raise ValueError(f"Selected needs a bool mask, but got {mask.dtype}. Convert with mask != 0.")
        self.operator, self.mask = operator, mask
        self.domain, self.codomain = operator.domain, operator.codomain

    @property
    def support(self) -> Tensor | None:
        """That of the operator."""
        return self.operator.support

    def _apply(self, x: Tensor) -> Tensor:
        return self.operator.forward(x) * self.mask

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return self.operator.adjoint(y * self.mask)

    def norm_bounds(self) -> tuple[float, float]:
        """At most that of the operator; from below nothing is computed."""
        return 0.0, self.operator.norm_bounds()[1]

    def smallest_singular_value(self) -> float | None:
        """That of the operator if all is kept [eq:H_invert]."""
        return self.operator.smallest_singular_value() if self.mask.all() else None


def _checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    for size in shape:
        checks.at_least("A size in the shape of Identity", size, 1)
    return tuple(shape)


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
