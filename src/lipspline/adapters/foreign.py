"""An operator of another library as one of ours: believed in nothing that can be tried."""

import math
from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.adapters.adjoint import adjoint_error
from lipspline.adapters.dense import dense_norm
from lipspline.operators.base import LinearOperator, rayleigh_lower_bound
from lipspline.operators.space import Space
from lipspline.pnp.guarantee import ADJOINT_TOLERANCE

Map = Callable[[Tensor], Tensor]
Norm = float | Literal["dense"] | None
POWER_STEPS = 20


@final
class Foreign(LinearOperator):
    """`x -> apply(x)` with `adjoint` as its adjoint; made by `wrap`, which tries both first [eq:pnp_fbs].

    Nothing is known of such an operator but what it answers. Every answer bounds its norm from below and none from
    above, so that the upper bound is the one that was given with it, or infinite. It is differentiable, the derivative
    of each map being the other one, and computes in whatever precision the other library does.
    """

    def __init__(self, name: str, apply: Map, adjoint: Map, domain: Space, codomain: Space):
        self.name, self.domain, self.codomain = name, domain, codomain
        self.bounds = (0.0, math.inf)
        self._forward = lambda x: _like(apply(x), x, codomain)
        self._backward = lambda y: _like(adjoint(y), y, domain)

    def _apply(self, x: Tensor) -> Tensor:
        return _Linear.apply(_in(self.domain, x), self._forward, self._backward)  # type: ignore[return-value]

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return _Linear.apply(_in(self.codomain, y), self._backward, self._forward)  # type: ignore[return-value]

    def norm_bounds(self) -> tuple[float, float]:
        """A Rayleigh quotient from below; from above what was given or computed on wrapping, infinite if neither."""
        return self.bounds

    def smallest_singular_value(self) -> float | None:
        """None: no number of answers bounds it from below [eq:H_invert]."""
        return None

    @property
    def _name(self) -> str:
        return self.name


class _Linear(torch.autograd.Function):
    """A linear map that torch cannot look into: its derivative is its adjoint, and so on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Map, adjoint: Map) -> Tensor:
        ctx.maps = apply, adjoint
        return apply(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        apply, adjoint = ctx.maps
        return _Linear.apply(gradients[0], adjoint, apply), None, None


def wrap(name: str, apply: Map, adjoint: Map, *, domain: Space, norm: Norm) -> LinearOperator:
    """Make an operator of two maps, if the second is the adjoint of the first and `norm` is not contradicted.

    Args:
        name: what errors call it.
        apply: `(B, *domain.shape) -> (B, ...)`.
        adjoint: the way back.
        domain: the images; what the data are is found by trying.
        norm: an upper bound on the norm that the user vouches for; "dense" to compute one from the matrix, for small
            operators; None for none, and then `pnp.fbs` refuses its guarantee.
    """
    operator = Foreign(name, apply, adjoint, domain, _find_codomain(name, apply, domain))
    error = adjoint_error(operator)
    if not error <= ADJOINT_TOLERANCE:
        raise ValueError(
            f"{name} is not wrapped: its adjoint is off by {error:.2g} (relative), more than the {ADJOINT_TOLERANCE:g} "
            f"that round-off explains, so Hᵀ(Hx - y) would not be the gradient of the data term."
        )
    operator.bounds = (rayleigh_lower_bound(operator, max_steps=POWER_STEPS), _upper(operator, norm))
    _check_bounds(operator)
    return operator


def _upper(operator: LinearOperator, norm: Norm) -> float:
    if norm is None:
        return math.inf
    if norm == "dense":
        return dense_norm(operator)
    return checks.positive("norm", norm, 'It is an upper bound on ‖H‖, the word "dense", or None.')  # type: ignore[arg-type]


def _check_bounds(operator: Foreign) -> None:
    lower, upper = operator.bounds
    if lower > upper * (1 + ADJOINT_TOLERANCE):
        raise ValueError(
            f"{operator.name} is not wrapped: norm={upper:.6g} was given as an upper bound on its norm, but it "
            f"stretches an image by {lower:.6g}. (An estimate by power iteration is a lower bound.)"
        )


def _find_codomain(name: str, apply: Map, domain: Space) -> Space:
    """The space of the data, by applying the operator once."""
    y = apply(domain.sample())
    if not isinstance(y, Tensor) or y.ndim < 2 or len(y) != 1:
        got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ValueError(f"{name} should map one image (1, ...) to one tensor (1, ...) of data, but returned {got}.")
    return Space(tuple(y.shape[1:]), "complex" if y.is_complex() else "real")


def _in(space: Space, x: Tensor) -> Tensor:
    """Complex numbers where a space has them."""
    return x.to(x.dtype.to_complex()) if space.field == "complex" else x


def _like(result: Tensor, x: Tensor, space: Space) -> Tensor:
    """The result in the precision and on the device of `x`; real numbers are the real part of complex ones."""
    if space.field == "real":
        return (result.real if result.is_complex() else result).to(x.device, x.dtype.to_real())
    return result.to(x.device, x.dtype.to_complex())
