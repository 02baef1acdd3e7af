r"""Dense layers with a given Lipschitz constant, and constraints on weights as parametrizations [lip_linear_layers].

Each obeys torch's contract: `forward` maps free parameters to a feasible weight, `right_inverse` maps a weight back,
and `forward(right_inverse(w)) == w` for feasible `w`. In eval mode a weight that needs no gradient is computed once
and kept until its parameters change; `torch.nn.utils.parametrize.cached()` works too, also in training.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline._infra import checks
from lipspline.functional.convolutions import absolute_gram
from lipspline.functional.matrices import (
    METHODS,
    Method,
    cayley_inverse,
    orthonormalize,
    power_iteration,
    qr_orthonormal,
    spectral_norms_upper,
)
from lipspline.kernels.dispatch import functorch_is_active, is_ordinary, is_transformed

TINY = torch.finfo(torch.float32).tiny  # keeps quotients of a zero weight finite


Init = Literal["orthogonal", "kaiming", "identity"]
INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "orthogonal": nn.init.orthogonal_,
    "kaiming": lambda w: nn.init.kaiming_normal_(w, nonlinearity="linear"),
    "identity": nn.init.eye_,
}


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
        if torch.compiler.is_compiling() or functorch_is_active():
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
        q = _trained(*raw) if self.training and self.method == "qr" else None
        q = orthonormalize(*raw, method=self.method) if q is None else q
        return self._scaled(q if self.signs is None else self.signs * q)

    def raw(self, weight: Tensor) -> Tensor:
        if self.signs is None:
            return weight / self.lipschitz
        raw, signs = cayley_inverse(orthonormalize(weight.double()))
        self.signs = signs.to(weight.dtype)
        return raw.to(weight.dtype)

    def extra_repr(self) -> str:
        return f"method={self.method!r}, {super().extra_repr()}"


def _trained(raw: Tensor) -> Tensor | None:
    """`qr_orthonormal` of a float32 matrix that is orthonormal up to round-off, as `Rotating` leaves it, or None.

    Such a matrix is its own Q, and its R, the identity, makes the gradient two products instead of a decomposition.
    """
    if not (raw.dtype == torch.float32 and torch.is_grad_enabled() and raw.requires_grad and raw.numel()):
        return None
    if not is_ordinary(raw) or is_transformed():
        return None
    x = raw.detach() if raw.shape[-2] >= raw.shape[-1] else raw.detach().mT
    if not (x.square().sum(-2) - 1).abs().amax() < 100 * ROUND_OFF:  # a look that costs nothing, as most others fail it
        return None
    defect = (x.mT @ x).sub_(torch.eye(x.shape[-1])).norm(dim=(-2, -1)).amax()
    return _OwnQ.apply(raw) if defect <= ROUND_OFF * x.shape[-1] else None


ROUND_OFF = 3e-7
"""Root mean square of the entries of the defect of a matrix that counts as orthonormal in float32."""


class _OwnQ(torch.autograd.Function):
    """The Q of a matrix that is its own Q. With R = I: dQ = dX - Q dR, where dR is upper triangular and
    Qᵀ dX - dR is skew."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        (g,), (x,) = grads, ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative of this needs that of R as well
            return torch.autograd.grad(qr_orthonormal(x), x, g, create_graph=True)[0]
        if x.shape[-2] < x.shape[-1]:
            return _OwnQ._tall(x.mT, g.mT).mT
        return _OwnQ._tall(x, g)

    @staticmethod
    def _tall(q: Tensor, g: Tensor) -> Tensor:
        s = q.mT @ g
        return g - q @ (s.triu() + s.triu(1).mT)


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


class AlmostOrthogonal(Constraint):
    r"""Divide the columns of a matrix or kernel by :math:`\sqrt{d_j}`, :math:`d_j = \sum_i |W^T W|_{ij}`.

    The diagonal of the d dominates :math:`W^T W` (Gershgorin), so the norm is at most 1, here times `lipschitz`,
    whatever W is (AOL, Prach and Lampert, 2022): without iteration and decomposition, but nearly orthonormal only
    where training makes it so. If W has fewer rows than columns, rows are divided, which takes less away.

    A weight M that is assigned becomes :math:`M / \sqrt\rho`, where ρ is the largest eigenvalue of the absolute Gram
    matrix; it is 1 for the weights that this constraint can give. Its eigenvector says how long the columns of W are.

    Example:
        >>> layer = nn.Linear(3, 2, bias=False)
        >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", AlmostOrthogonal())
        >>> bool(torch.linalg.matrix_norm(layer.weight, ord=2) <= 1 + 1e-6)
        True
    """

    def __init__(self, lipschitz: float = 1.0):
        super().__init__(lipschitz)

    def weight(self, *raw: Tensor) -> Tensor:
        x = _at_least_single(*raw)
        sums = _short_gram(x).sum(0).clamp_min(TINY)
        return self._scaled(x * _along_short_side(sums.rsqrt(), x)).to(raw[0].dtype)

    def raw(self, weight: Tensor) -> Tensor:
        gram = _short_gram(weight.double())
        s = torch.ones_like(gram[0])
        for _ in range(1000):
            longer = (gram @ s).clamp_min(TINY)
            ratios = longer / s
            if ratios.max() <= (1 + 1e-7) * ratios.min():
                break
            s = (longer / longer.max()).clamp_min(1e-6)
        return weight * _along_short_side(s, weight).to(weight.dtype)


def _short_gram(weight: Tensor) -> Tensor:
    return absolute_gram(weight if weight.shape[0] >= weight.shape[1] else weight.transpose(0, 1))


def _along_short_side(values: Tensor, weight: Tensor) -> Tensor:
    columns = values.reshape(1, -1, *[1] * (weight.ndim - 2))
    return columns if weight.shape[0] >= weight.shape[1] else columns.transpose(0, 1)


def linear(
    n_in: int,
    n_out: int,
    *,
    bias: bool = True,
    constraint: Literal["orthonormal", "spectral", "aol"] = "orthonormal",
    method: Method | None = None,
    init: Init = "orthogonal",
    lipschitz: float = 1.0,
) -> nn.Linear:
    """A dense layer with Lipschitz constant `lipschitz`: an `nn.Linear`, parametrized [lip_linear_layers].

    Args:
        n_in: inputs.
        n_out: outputs.
        bias: whether to add a learned bias, which starts at 0.
        constraint: `"orthonormal"`, all singular values are `lipschitz`; `"spectral"`, only the largest is; or `"aol"`,
            none is larger, at the price of a matrix product (`AlmostOrthogonal`).
        method: how to orthonormalize, see `lipspline.functional.matrices.orthonormalize`.
        init: start from an orthogonal matrix, from Kaiming's normal law, or from the identity; then constrained.
        lipschitz: target constant.

    Example:
        >>> layer = linear(5, 3)
        >>> torch.allclose(layer.weight @ layer.weight.mT, torch.eye(3), atol=1e-6)
        True
    """
    checks.at_least("n_in", n_in, 1)
    checks.at_least("n_out", n_out, 1)
    checks.one_of("constraint", constraint, ("orthonormal", "spectral", "aol"))
    initialize = INITS[checks.one_of("init", init, INITS)]
    check_method(constraint, method)
    layer = nn.Linear(n_in, n_out, bias=bias)
    with torch.no_grad():
        initialize(layer.weight)
        if bias:
            layer.bias.zero_()
    if constraint == "spectral":
        parametrization = SpectralNormalized(n_in, lipschitz)
    elif constraint == "aol":
        parametrization = AlmostOrthogonal(lipschitz)
    else:
        parametrization = Orthonormal(method or "qr", lipschitz)
    parametrize.register_parametrization(layer, "weight", parametrization)
    return layer


def check_method(constraint: str, method: str | None) -> None:
    if constraint in ("spectral", "aol") and method is not None:
        raise ValueError(
            f"method={method!r} says how to orthonormalize, but constraint={constraint!r} does not. Leave method out."
        )
