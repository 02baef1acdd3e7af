"""Operators that go between this library and others: tried on the way in, with every size known on the way out."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import LinearOperator, Space, rayleigh_lower_bound
from lipspline.operators.elementary import Matrix
from lipspline.pnp.batch import inner, norms
from lipspline.pnp.certificate import ADJOINT_TOLERANCE, measure_pairing

PROBES = 4


def adjoint_error(H: LinearOperator) -> float:
    r"""An estimate of `‖G - Hᵀ‖ / ‖Hᵀ‖` for the map G that an operator offers as its adjoint, in float64.

    For fixed `y` and standard normal `x` the defect `⟨Hx, y⟩ - ⟨x, Gy⟩ = ⟨x, (Hᵀ - G) y⟩` has variance
    `‖(Hᵀ - G) y‖²`, whatever the dimension: its root mean square over a few pairs, against `‖Hx‖` and `‖Gy‖`, is the
    relative error of the adjoint (in the Frobenius norm) and that of the operator, if the adjoint is the one to trust.
    White noise hardly sees an error in few directions, so `‖Hx‖² = ⟨x, GHx⟩` is tried on noise and on a bright flat
    image too. An operator that is not linear has no adjoint and fails as well.

    Example:
        >>> from lipspline.operators import Matrix
        >>> adjoint_error(Matrix(torch.eye(5))) < 1e-12
        True
    """
    defects, sizes = [], []
    for seed in range(PROBES):
        x, y = H.domain.sample(2 * seed), H.codomain.sample(2 * seed + 1)
        hx, gy = H.forward(x), H.adjoint(y)
        defects.append(inner(hx, y) - inner(x, gy))
        sizes.append(torch.minimum(norms(hx), norms(gy)))
    white = _root_mean_square(defects) / _root_mean_square(sizes)
    return max(white, measure_pairing(H, H.domain.sample()).error, _flat_error(H))


def _root_mean_square(values: list[torch.Tensor]) -> float:
    return float(torch.stack(values).square().mean().sqrt())


def _flat_error(H: LinearOperator) -> float:
    """`|‖Hx‖² - ⟨x, GHx⟩| / ‖Hx‖²` for an image of ones; 0 if such an image is not seen at all."""
    x = torch.ones_like(H.domain.sample())
    hx = H.forward(x)
    energy, back = inner(hx, hx), inner(x, H.adjoint(hx))
    if not energy > torch.finfo(torch.float64).eps * inner(x, x):
        return 0.0
    return float((energy - back).abs() / energy)


MOST_ENTRIES = 2**23
AT_ONCE = 64


def dense_norm(H: LinearOperator) -> float:
    """A proven upper bound on ‖H‖, but for the round-off of H itself: the largest singular value of its matrix.

    Example:
        >>> print(round(dense_norm(Matrix(torch.tensor([[3.0, 4.0]]))), 9))
        5.0
    """
    return Matrix(matrix_of(H)).norm_bounds()[1]


def matrix_of(H: LinearOperator) -> Tensor:
    """The matrix of an operator in real coordinates, `(m, n)` in float64: a complex number is a pair.

    Example:
        >>> matrix_of(Matrix(torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
        tensor([[1., 2.],
                [3., 4.]], dtype=torch.float64)
    """
    x = H.domain.sample()
    columns, rows = _as_real(x).shape[1], _as_real(H.forward(x)).shape[1]
    if rows * columns > MOST_ENTRIES:
        raise ValueError(
            f"{H!r} has a matrix of {rows} x {columns} real numbers, too large to be written down "
            f"(at most {MOST_ENTRIES} entries). Give an upper bound on its norm as a number."
        )
    batches = torch.eye(columns, dtype=torch.float64).split(AT_ONCE)
    return torch.cat([_as_real(H.forward(_from_real(units, x))) for units in batches]).mT.contiguous()


def _as_real(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).flatten(1)


def _from_real(rows: Tensor, like: Tensor) -> Tensor:
    shape = (len(rows), *like.shape[1:])
    return torch.view_as_complex(rows.reshape(*shape, 2)) if like.is_complex() else rows.reshape(shape)


@dataclass(frozen=True)
class Side:
    """Images or data of an operator: their shape without batch, and whether they are complex."""

    shape: tuple[int, ...]
    complex: bool


def sides(H: LinearOperator, input_shape: tuple[int, ...] | None, *, complex: bool = False) -> tuple[Side, Side]:
    """Images and data of an operator.

    Args:
        H: ours.
        input_shape: sizes of an image, needed where H leaves one open.
        complex: what images are, where H takes both real and complex ones.

    Example:
        >>> from lipspline.operators import MRI, cartesian_mask
        >>> sides(MRI(cartesian_mask(8)), (1, 6, 8))
        (Side(shape=(1, 6, 8), complex=False), Side(shape=(1, 6, 8), complex=True))
    """
    if H.domain.batch not in (None, 1):
        raise ValueError(f"{H!r} holds data for {H.domain.batch} images, but only one image at a time can be taken.")
    shape = _closed(H, input_shape)
    kind = torch.complex64 if _is_complex(H, complex) else torch.float32
    y = H.forward(torch.zeros(1, *shape, dtype=kind))
    return Side(shape, kind.is_complex), Side(tuple(y.shape[1:]), y.is_complex())


def _closed(H: LinearOperator, given: tuple[int, ...] | None) -> tuple[int, ...]:
    shape = H.input_shape if given is None else tuple(given)
    known = tuple(size for size in shape if size is not None)
    if len(known) < len(shape):
        raise ValueError(f"{H!r} takes images of several sizes. Say which with input_shape=(...), without batch.")
    return known


def _is_complex(H: LinearOperator, wanted: bool) -> bool:
    if wanted and H.domain.field == "real":
        raise ValueError(f"{H!r} takes real images only, so it cannot have a complex dtype.")
    return wanted or H.domain.field == "complex"


Map = Callable[[Tensor], Tensor]
Norm = float | Literal["dense"] | None
FAR = 2.0
"""An upper bound that is more than so many times the largest stretch seen makes steps four times too short."""


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
    operator.bounds = (rayleigh_lower_bound(operator), _upper(operator, norm))
    _check_bounds(operator)
    lower, upper = operator.bounds
    if FAR * lower < upper < math.inf:
        shorter = (upper / lower) ** 2 if lower else math.inf
        warnings.warn(
            f"{name}: the upper bound on its norm is {upper:.3g}, but of the images tried none is stretched by more "
            f"than {lower:.3g}. A step of 1/‖H‖² may be {shorter:.2g} times too short, and an iteration that hardly "
            f"moves looks converged. Pass a better bound as norm=..., or norm='dense'.",
            stacklevel=3,
        )
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
