r"""Constraints on the weights of plain layers, as parametrizations [lip_linear_layers].

Each obeys torch's contract: `forward` maps free parameters to a feasible weight, `right_inverse` maps a weight back,
and `forward(right_inverse(w)) == w` for feasible `w`. In eval mode a weight that needs no gradient is computed once
and kept until its parameters change; `torch.nn.utils.parametrize.cached()` works too, also in training.
"""

import weakref
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lipspline._infra import checks
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

TINY = torch.finfo(torch.float32).tiny  # keeps quotients of a zero weight finite


class Constraint(nn.Module, ABC):
    """A parametrization with target constant `lipschitz` that keeps its weight in eval mode.

    The weight is kept while its raw parameters are the same tensors, at the same place, with the same version (which
    optimizers, `load_state_dict` and every in-place operation advance), and is forgotten at each call of `train()` or
    `eval()`. Only writing through `.data` in eval mode goes unnoticed: call `eval()` after it.
    """

    def __init__(self, lipschitz: float):
        super().__init__()
        self.lipschitz = checks.positive("lipschitz", lipschitz)
        self._kept: _Kept | None = None

    @abstractmethod
    def weight(self, *raw: Tensor) -> Tensor:
        """The feasible weight of raw parameters."""

    @abstractmethod
    def raw(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Raw parameters of a feasible weight."""

    def forward(self, *raw: Tensor) -> Tensor:
        if self.training or _Kept.forbidden(raw):
            return self.weight(*raw)
        if self._kept is None or not self._kept.belongs_to(raw):
            self._kept = _Kept(raw, self.weight(*raw))
        return self._kept.weight

    def _scaled(self, weight: Tensor) -> Tensor:
        return weight if self.lipschitz == 1 else self.lipschitz * weight

    def right_inverse(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        self._kept = None
        return self.raw(weight)

    def train(self, mode: bool = True):
        self._kept = None
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"lipschitz={self.lipschitz:g}"


class _Kept:
    """A weight and the state of the raw parameters it was computed from."""

    def __init__(self, raw: tuple[Tensor, ...], weight: Tensor):
        self.weight = weight
        self.raw = [weakref.ref(x) for x in raw]
        self.state = self._state(raw)

    def belongs_to(self, raw: tuple[Tensor, ...]) -> bool:
        same = all(kept() is x for kept, x in zip(self.raw, raw, strict=True))
        return same and self.state == self._state(raw)

    @staticmethod
    def _state(raw: tuple[Tensor, ...]) -> list[tuple]:
        return [(x.data_ptr(), x.dtype, x._version, torch.is_inference_mode_enabled()) for x in raw]

    @staticmethod
    def forbidden(raw: tuple[Tensor, ...]) -> bool:
        """Where gradients are wanted, tensors stand for others (vmap, compile), or changes cannot be noticed."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return True
        return any(x.is_inference() or (x.requires_grad and torch.is_grad_enabled()) for x in raw)


class Orthonormal(Constraint):
    r"""Keep matrices (..., m, n) at `lipschitz` times orthonormal columns, or rows if wide [lip_linear_layers].

    A weight that is assigned may be any matrix of full rank; it becomes its orthonormalization.

    Args:
        method: see `lipspline.functional.matrices.orthonormalize`. `"cayley"` keeps the signs of rows or columns
            beside the raw matrix (a buffer), without which it could not reach every orthonormal matrix.
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
        checks.one_of("method", method, METHODS)
        self.method: Method = method
        self.register_buffer("signs", torch.ones(()) if method == "cayley" else None)

    def weight(self, *raw: Tensor) -> Tensor:
        q = orthonormalize(*raw, method=self.method)
        return self._scaled(q if self.signs is None else self.signs * q)

    def raw(self, weight: Tensor) -> Tensor:
        if self.signs is None:
            return weight / self.lipschitz
        raw, signs = cayley_inverse(orthonormalize(weight.double()))
        self.signs = signs.to(weight.dtype)
        return raw.to(weight.dtype)

    def extra_repr(self) -> str:
        return f"method={self.method!r}, {super().extra_repr()}"


class OrthogonalConvolution(Constraint):
    r"""Keep a kernel (c_out, c_in, k[, k]) at `lipschitz` times an orthogonal convolution (BCOP) [lip_linear_layers].

    The raw parameters are `original0`, the matrix (c_out, c_in), and `original1`, the bases of the projections,
    (k-1, axes, n, n // 2) with n = max(c_out, c_in), where there are any; see
    `lipspline.functional.convolutions.bcop_kernel`. A weight that is assigned must be a product of such factors; see
    `bcop_factors` there.

    Args:
        method: see `lipspline.functional.matrices.orthonormalize`.
        lipschitz: target constant.
    """

    def __init__(self, method: Method = "qr", lipschitz: float = 1.0):
        super().__init__(lipschitz)
        self.matrix = Orthonormal(method)
        self.bases = Orthonormal(method)
        self._shape_of_bases = torch.Size()

    def weight(self, *raw: Tensor) -> Tensor:
        matrix, *bases = raw
        v = self.bases.weight(*bases) if bases else matrix.new_empty(self._shape_of_bases)
        return bcop_kernel(self._scaled(self.matrix.weight(matrix)), v)

    def raw(self, weight: Tensor) -> tuple[Tensor, ...]:
        return self.raw_factors(*bcop_factors(weight / self.lipschitz))

    def raw_factors(self, matrix: Tensor, bases: Tensor) -> tuple[Tensor, ...]:
        """Raw parameters of the factors of a kernel; bases without entries (one tap, one channel) are none."""
        self._shape_of_bases = bases.shape
        return (self.matrix.raw(matrix), self.bases.raw(bases)) if bases.numel() else (self.matrix.raw(matrix),)


class Spectral(Constraint):
    r"""Divide a weight by the norm of its operator, so that this becomes `lipschitz` [lip_linear_layers].

    While training the norm is estimated by one power iteration a step, from a direction that is kept as a buffer. In
    eval mode, and in whatever is certified or exported, it is a proven upper bound. The gradient is in both cases
    that of the estimate.
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

    def weight(self, *raw: Tensor) -> Tensor:
        x = _at_least_single(*raw)
        if self.training:
            self._turn(x, steps=1)
        # A copy, because the next step turns the direction that this step's backward needs.
        norm = torch.linalg.vector_norm(self.operator(x, self.direction.to(x.dtype, copy=True))).clamp_min(TINY)
        if not self.training:
            norm = self.upper(x.detach()).to(x.dtype).clamp_min(TINY) * (norm / norm.detach())
        return (x * (self.lipschitz / norm)).to(raw[0].dtype)

    def raw(self, weight: Tensor) -> Tensor:
        self._turn(_at_least_single(weight), steps=15)
        return weight

    @torch.no_grad()
    def _turn(self, weight: Tensor, steps: int) -> None:
        w, v = weight.detach(), self.direction.to(weight.dtype)
        v = power_iteration(lambda v: self.operator(w, v), lambda u: self.adjoint(w, u), v, steps)
        self.direction.copy_(v)


def _at_least_single(x: Tensor) -> Tensor:
    """Half precision is too coarse for norms."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


class SpectralNormalized(Spectral):
    r"""Divide a matrix (m, n_in) by its largest singular value, times `lipschitz` [lip_linear_layers].

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", SpectralNormalized(3))
        >>> torch.linalg.matrix_norm(layer.eval().weight, ord=2).isclose(torch.tensor(1.0))
        tensor(True)
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
    r"""Divide a kernel (c_out, c_in, k[, k]) by the norm of its convolution, times `lipschitz` [lip_linear_layers].

    That is not the norm of the kernel as a matrix. While training it is estimated on periodic images of 8k pixels an
    axis; the bound of eval mode holds for every size.

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

    def extra_repr(self) -> str:
        return f"axes={self.axes}, {super().extra_repr()}"
