r"""Constraints on the weights of plain layers, as parametrizations: read the weight, get a feasible one [lip_linear_layers].

Each obeys torch's contract: `forward` maps free parameters to a feasible weight, `right_inverse` maps a weight back, and
`forward(right_inverse(w)) == w` for feasible `w`. In eval mode a weight that needs no gradient is computed once and kept until its
parameters change. `torch.nn.utils.parametrize.cached()` works too, also in training.
"""

import weakref
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lipspline import _checks
from lipspline.functional.convolutions import (
    bcop_factors,
    bcop_kernel,
    circular_convolution,
    circular_convolution_adjoint,
    conv_norms_upper,
)
from lipspline.functional.matrices import (
    METHODS,
    Method,
    cayley_inverse,
    orthonormalize,
    power_iteration,
    spectral_norms_upper,
)


class Constraint(nn.Module, ABC):
    """A parametrization with target constant `lipschitz` that keeps its weight in eval mode.

    The weight is kept while its raw tensors are the same objects, at the same place, with the same version (which optimizers,
    `load_state_dict` and every in-place operation advance), and is forgotten at each call of `train()` or `eval()`.
    Only writing through `.data` in eval mode goes unnoticed: call `eval()` after it.
    """

    def __init__(self, lipschitz: float):
        super().__init__()
        self.lipschitz = _checks.positive("lipschitz", lipschitz)
        self._kept: tuple[list[weakref.ref[Tensor]], list[object], Tensor] | None = None

    @abstractmethod
    def weight(self, *raw: Tensor) -> Tensor:
        """The feasible weight of raw parameters."""

    @abstractmethod
    def raw(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Raw parameters of a feasible weight."""

    def forward(self, *raw: Tensor) -> Tensor:
        if self.training or _transformed() or (torch.is_grad_enabled() and any(x.requires_grad for x in raw)):
            return self.weight(*raw)
        state = [_fingerprint(x) for x in raw]
        if self._kept and self._kept[1] == state and all(k() is x for k, x in zip(self._kept[0], raw, strict=True)):
            return self._kept[2]
        weight = self.weight(*raw)
        if not any(x.is_inference() for x in raw):
            self._kept = [weakref.ref(x) for x in raw], state, weight
        return weight

    def right_inverse(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        self._kept = None
        return self.raw(weight)

    def train(self, mode: bool = True):
        self._kept = None
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"lipschitz={self.lipschitz:g}"


def _transformed() -> bool:
    """Whether tensors may be stand-ins for others, of which nothing may be kept."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _fingerprint(x: Tensor) -> object:
    version = None if x.is_inference() else x._version
    return x.data_ptr(), x.dtype, version, torch.is_inference_mode_enabled()


class Orthonormal(Constraint):
    r"""Keep a matrix (..., m, n) at `lipschitz` times one with orthonormal columns, or rows if it is wide [lip_linear_layers].

    A weight that is assigned may be any matrix of full rank; it becomes its orthonormalization.

    Args:
        method: see `lipspline.functional.matrices.orthonormalize`. `"cayley"` keeps the signs of rows or columns beside the raw
            matrix (a buffer), without which it could not reach every orthonormal matrix.
        lipschitz: target constant.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", Orthonormal())
        >>> torch.allclose(layer.weight @ layer.weight.mT, torch.eye(2), atol=1e-6)
        True
    """

    signs: Tensor | None

    def __init__(self, method: Method = "qr", lipschitz: float = 1.0):
        super().__init__(lipschitz)
        _checks.one_of("method", method, METHODS)
        self.method: Method = method
        self.register_buffer("signs", torch.ones(()) if method == "cayley" else None)

    def weight(self, raw: Tensor) -> Tensor:
        q = orthonormalize(raw, self.method)
        q = q if self.signs is None else self.signs * q
        return q if self.lipschitz == 1 else self.lipschitz * q

    def raw(self, weight: Tensor) -> Tensor:
        if self.signs is None:
            return weight / self.lipschitz
        raw, signs = cayley_inverse(orthonormalize(weight.double()))
        self.signs = signs.to(weight.dtype)
        return raw.to(weight.dtype)

    def extra_repr(self) -> str:
        return f"method={self.method!r}, {super().extra_repr()}"


class OrthogonalConvolution(Constraint):
    r"""Keep a kernel (c_out, c_in, k[, k]) at `lipschitz` times an orthogonal convolution, made by `bcop_kernel` [lip_linear_layers].

    The raw parameters are `original0`, the matrix (c_out, c_in), and `original1`, the bases of the projections,
    (k-1, axes, n, n // 2) with n = max(c_out, c_in). A weight that is assigned must be a product of such factors: see `bcop_factors`.

    Args:
        method: see `lipspline.functional.matrices.orthonormalize`.
        lipschitz: target constant.
    """

    def __init__(self, method: Method = "qr", lipschitz: float = 1.0):
        super().__init__(lipschitz)
        self.matrix = Orthonormal(method)
        self.bases = Orthonormal(method)

    def weight(self, matrix: Tensor, bases: Tensor) -> Tensor:
        return self.lipschitz * bcop_kernel(self.matrix.weight(matrix), self.bases.weight(bases))

    def raw(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        matrix, bases = bcop_factors(weight / self.lipschitz)
        return self.matrix.raw(matrix), self.bases.raw(bases)


class Spectral(Constraint):
    r"""Divide a weight by the norm of its operator, so that this becomes `lipschitz` [lip_linear_layers].

    While training the norm is estimated by one power iteration a step, from a direction that is kept as a buffer. In eval mode, and
    in whatever is certified or exported, it is a proven upper bound. Its gradient is in both cases that of the estimate.
    """

    direction: Tensor

    def __init__(self, direction: Tensor, lipschitz: float):
        super().__init__(lipschitz)
        self.register_buffer("direction", direction / torch.linalg.vector_norm(direction))

    @abstractmethod
    def operator(self, weight: Tensor, v: Tensor) -> Tensor:
        """Apply the operator of the weight."""

    @abstractmethod
    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """Apply its adjoint."""

    @abstractmethod
    def upper(self, weight: Tensor) -> Tensor:
        """A proven upper bound on its norm."""

    def weight(self, raw: Tensor) -> Tensor:
        if self.training:
            self._turn(raw, steps=1)
        x = _single(raw)
        tiny = torch.finfo(x.dtype).tiny
        norm = torch.linalg.vector_norm(self.operator(x, _single(self.direction).clone())).clamp_min(tiny)
        if not self.training:
            norm = self.upper(raw.detach()).to(x.dtype).clamp_min(tiny) * (norm / norm.detach())
        return (x * (self.lipschitz / norm)).to(raw.dtype)

    def raw(self, weight: Tensor) -> Tensor:
        self._turn(weight, steps=15)
        return weight.clone()

    @torch.no_grad()
    def _turn(self, weight: Tensor, steps: int) -> None:
        x = _single(weight.detach())
        v = power_iteration(
            lambda v: self.operator(x, v), lambda u: self.adjoint(x, u), _single(self.direction), steps=steps
        )
        self.direction.copy_(v)


def _single(x: Tensor) -> Tensor:
    """Half precision is too coarse for norms."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


class SpectralNormalized(Spectral):
    r"""Divide a matrix (m, n) by its largest singular value, times `lipschitz` [lip_linear_layers].

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", SpectralNormalized(3))
        >>> torch.linalg.matrix_norm(layer.eval().weight, ord=2).item()
        1.0...
    """

    def __init__(self, n_in: int, lipschitz: float = 1.0):
        super().__init__(torch.randn(n_in), lipschitz)

    def operator(self, weight: Tensor, v: Tensor) -> Tensor:
        return weight @ v

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        return weight.mT @ u

    def upper(self, weight: Tensor) -> Tensor:
        return spectral_norms_upper(weight)


class SpectralConvolution(Spectral):
    r"""Divide a kernel (c_out, c_in, k[, k]) by the norm of its convolution, not of its matrix form, times `lipschitz` [lip_linear_layers].

    While training the norm is estimated on periodic images of 8k pixels an axis; the bound of eval mode holds for every size.

    Args:
        c_in: input channels.
        kernel: number of taps along each axis.
        axes: 1 or 2.
        lipschitz: target constant.
    """

    def __init__(self, c_in: int, kernel: int, axes: int = 2, lipschitz: float = 1.0):
        super().__init__(torch.randn(c_in, *[8 * kernel] * axes), lipschitz)
        self.axes = axes

    def operator(self, weight: Tensor, v: Tensor) -> Tensor:
        return circular_convolution(v, weight)

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        return circular_convolution_adjoint(u, weight)

    def upper(self, weight: Tensor) -> Tensor:
        return conv_norms_upper(weight, self.axes)
