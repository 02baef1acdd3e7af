"""What a measurement operator is: its spaces, and sums, products and multiples of operators."""

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Self, final

import torch
from torch import Tensor

Field = Literal["real", "complex", "any"]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Space:
    """Tensors `(B, *shape)` with the real inner product Re<x, y>, on either side of a `LinearOperator`.

    Args:
        shape: sizes after the batch dimension; None where any size fits.
        field: "real" refuses complex tensors, "complex" takes real ones as complex ones with imaginary part zero,
            "any" stands for an operator that treats real and imaginary part alike and keeps the dtype.
        batch: the batch size, where the operator holds data of its own for each image; None where any fits.
    """

    shape: Shape
    field: Field = "real"
    batch: int | None = None

    def check(self, owner: str, x: Tensor) -> Tensor:
        """Return `x` if it lies in this space, whatever its precision."""
        wanted = self._describe()
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{owner} needs a torch tensor of shape {wanted}, but got a {type(x).__name__}. Convert with "
                f"torch.as_tensor, and put a list of images of one size together with torch.stack."
            )
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(
                f"{owner} needs floating-point or complex numbers, but got {x.dtype}. Convert with .float()."
            )
        if x.ndim == len(self.shape) and _fits(tuple(x.shape), self.shape):
            raise ValueError(
                f"{owner} needs shape {wanted}, but got {tuple(x.shape)}. Add the batch dimension with .unsqueeze(0)."
            )
        if not _fits(tuple(x.shape), (self.batch, *self.shape)):
            raise ValueError(f"{owner} needs shape {wanted}, but got {tuple(x.shape)}.")
        if len(x) == 0:
            raise ValueError(f"{owner} needs at least one image, but the batch is empty (shape {tuple(x.shape)}).")
        if self.field == "real" and x.is_complex():
            raise ValueError(
                f"{owner} needs real numbers, but got {x.dtype}. Take x.real, if the imaginary part is noise."
            )
        return x

    def fits_into(self, other: "Space") -> bool:
        """Whether every tensor of this space is one of `other`."""
        if self.field == "complex" and other.field == "real":
            return False
        return len(self.shape) == len(other.shape) and all(
            b is None or a == b for a, b in zip((self.batch, *self.shape), (other.batch, *other.shape), strict=True)
        )

    def meet(self, other: "Space") -> "Space | None":
        """The tensors that lie in both spaces, or None if the two do not agree."""
        if not _compatible(self, other):
            return None
        shape = tuple(b if a is None else a for a, b in zip(self.shape, other.shape, strict=True))
        field = other.field if self.field == "any" else self.field
        return Space(shape, field, other.batch if self.batch is None else self.batch)

    def sample(self, seed: int = 0, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Tensor:
        """Standard normal numbers in this space; an open size is taken as 1."""
        generator = torch.Generator().manual_seed(seed)
        size = [self.batch or 1, *(n or 1 for n in self.shape)]
        kind = dtype.to_complex() if self.field == "complex" else dtype
        return torch.randn(size, generator=generator, dtype=kind).to(device)

    def _describe(self) -> str:
        batch = "B" if self.batch is None else str(self.batch)
        return f"({', '.join([batch, *('any' if n is None else str(n) for n in self.shape)])})"


def _fits(actual: tuple[int, ...], wanted: Shape) -> bool:
    return len(actual) == len(wanted) and all(w is None or a == w for a, w in zip(actual, wanted, strict=True))


def _compatible(one: Space, other: Space) -> bool:
    sizes = zip((one.batch, *one.shape), (other.batch, *other.shape), strict=False)
    return (
        len(one.shape) == len(other.shape)
        and {one.field, other.field} != {"real", "complex"}
        and all(a is None or b is None or a == b for a, b in sizes)
    )


class LinearOperator(ABC):
    """A linear map `x (B, *input_shape) -> y (B, *output_shape)`, its transpose, and bounds on its norm [eq:pnp_fbs].

    The inner product is the real one, Re<x, y>: for real images and complex data the adjoint ends with the real part.
    `forward` and `adjoint` are differentiable, work in the precision of their input and satisfy <Hx, y> = <x, Hᵀy> to
    round-off. `A + B`, `A @ B` and `c * A` are operators. A subclass is final: it sets `domain` and `codomain` and
    fills in `_apply`, `_apply_adjoint`, `norm_bounds` and `smallest_singular_value`.
    """

    domain: Space
    codomain: Space

    @abstractmethod
    def _apply(self, x: Tensor) -> Tensor:
        """`H x` for an `x` that lies in the domain."""

    @abstractmethod
    def _apply_adjoint(self, y: Tensor) -> Tensor:
        """`Hᵀ y` for a `y` that lies in the codomain."""

    @abstractmethod
    def norm_bounds(self) -> tuple[float, float]:
        """Proven `(lower, upper)` bounds on the norm of H, the largest singular value."""

    @abstractmethod
    def smallest_singular_value(self) -> float | None:
        """A proven positive lower bound on the smallest singular value [eq:H_invert]; None if none is known."""

    @property
    def support(self) -> Tensor | None:
        """Where images may differ from zero, bool `(*input_shape)` or `(B, *input_shape)`; None for everywhere.

        An operator that does not see a pixel, and whose images are known to be zero there, says so here.
        """
        return None

    @final
    def forward(self, x: Tensor) -> Tensor:
        """Measure: `H x`."""
        return self._apply(self.domain.check(f"{self._name}.forward", x))

    @final
    def adjoint(self, y: Tensor) -> Tensor:
        """Transpose: `Hᵀ y`, back in the space of images."""
        return self._apply_adjoint(self.codomain.check(f"{self._name}.adjoint", y))

    @property
    def input_shape(self) -> Shape:
        """Sizes of an image without the batch dimension; None where any size fits."""
        return self.domain.shape

    @property
    def output_shape(self) -> Shape:
        """Sizes of the data without the batch dimension; None where any size fits."""
        return self.codomain.shape

    def to(self, device: torch.device | str) -> Self:
        """This operator with its own tensors on `device`; precision needs no moving, it follows the input."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (Tensor, LinearOperator)):
                setattr(moved, name, value.to(device))
        return moved

    @final
    def __add__(self, other: "LinearOperator") -> "LinearOperator":
        return SumOperator(self, _operator(other, f"{self._name} + ..."))

    @final
    def __matmul__(self, other: "LinearOperator") -> "LinearOperator":
        return ProductOperator(self, _operator(other, f"{self._name} @ ..."))

    @final
    def __mul__(self, factor: float) -> "LinearOperator":
        return ScaledOperator(factor, self)

    __rmul__ = __mul__

    @property
    def _name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{self._name}({_sizes(self.input_shape)} -> {_sizes(self.output_shape)})"


@final
class SumOperator(LinearOperator):
    """`(A + B) x = A x + B x`."""

    def __init__(self, first: LinearOperator, second: LinearOperator):
        domain, codomain = first.domain.meet(second.domain), first.codomain.meet(second.codomain)
        if domain is None or codomain is None:
            raise ValueError(
                f"{first!r} + {second!r}: both must map between the same spaces "
                f"({first.domain} -> {first.codomain} and {second.domain} -> {second.codomain})."
            )
        self.domain, self.codomain, self.first, self.second = domain, codomain, first, second

    @property
    def support(self) -> Tensor | None:
        """Where one of the two images may differ from zero."""
        first, second = self.first.support, self.second.support
        return None if first is None or second is None else first | second

    def _apply(self, x: Tensor) -> Tensor:
        return self.first.forward(x) + self.second.forward(x)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return _into(self.domain, self.first.adjoint(y) + self.second.adjoint(y))

    def norm_bounds(self) -> tuple[float, float]:
        """The triangle inequality from above, a Rayleigh quotient from below."""
        return rayleigh_lower_bound(self), self.first.norm_bounds()[1] + self.second.norm_bounds()[1]

    def smallest_singular_value(self) -> float | None:
        """None: the two may cancel."""
        return None


@final
class ProductOperator(LinearOperator):
    """`(A B) x = A (B x)`; between a complex A and a real B the adjoint takes the real part."""

    def __init__(self, outer: LinearOperator, inner: LinearOperator):
        if not inner.codomain.fits_into(outer.domain):
            raise ValueError(
                f"{outer!r} @ {inner!r}: what the second returns ({inner.codomain}) must be what the first takes "
                f"({outer.domain}). An open size (None) can be fixed by a two-dimensional mask."
            )
        self.outer, self.inner = outer, inner
        self.domain = _specify(inner.domain, outer.domain)
        self.codomain = _specify(outer.codomain, inner.codomain)

    @property
    def support(self) -> Tensor | None:
        """That of the operator which sees the image."""
        return self.inner.support

    def _apply(self, x: Tensor) -> Tensor:
        return self.outer.forward(self.inner.forward(x))

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return self.inner.adjoint(_into(self.inner.codomain, self.outer.adjoint(y)))

    def norm_bounds(self) -> tuple[float, float]:
        """The product of the norms from above, a Rayleigh quotient from below."""
        return rayleigh_lower_bound(self), self.outer.norm_bounds()[1] * self.inner.norm_bounds()[1]

    def smallest_singular_value(self) -> float | None:
        """The product of the two, if both are known [eq:H_invert]."""
        outer, inner = self.outer.smallest_singular_value(), self.inner.smallest_singular_value()
        return None if outer is None or inner is None else outer * inner


@final
class ScaledOperator(LinearOperator):
    """`(c A) x = c (A x)` for a real number c."""

    def __init__(self, factor: float, operator: LinearOperator):
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
            raise ValueError(f"An operator is scaled by a finite real number, but got {factor!r}.")
        self.factor, self.operator = float(factor), operator
        self.domain, self.codomain = operator.domain, operator.codomain

    @property
    def support(self) -> Tensor | None:
        """That of the operator which is scaled."""
        return self.operator.support

    def _apply(self, x: Tensor) -> Tensor:
        return self.factor * self.operator.forward(x)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return self.factor * self.operator.adjoint(y)

    def norm_bounds(self) -> tuple[float, float]:
        """Both bounds times |c|."""
        lower, upper = self.operator.norm_bounds()
        return abs(self.factor) * lower, abs(self.factor) * upper

    def smallest_singular_value(self) -> float | None:
        """The bound times |c|, if it is positive [eq:H_invert]."""
        bound = self.operator.smallest_singular_value()
        return abs(self.factor) * bound if bound is not None and self.factor != 0 else None


def rayleigh_lower_bound(operator: LinearOperator, *, max_steps: int = 20, tol: float = 1e-4, seed: int = 0) -> float:
    """The largest ‖Hx‖/‖x‖ met by power iteration in float64: a lower bound on ‖H‖, whatever the iteration reached.

    Such a number is only shown beside the upper bound, so few steps are enough.

    An open size is taken as 1: images that are constant along it show the same ratio at every size.
    """
    x = operator.domain.sample(seed, device=_device(operator))
    best, previous = 0.0, -1.0
    for _ in range(max_steps):
        if best <= previous * (1 + tol):
            break
        y = operator.forward(x)
        previous, best = best, max(best, float((_norms(y) / _norms(x)).nan_to_num(0).max()))
        x = operator.adjoint(y / _norms(y).max().clamp_min(torch.finfo(torch.float64).tiny))
    return best * (1 - 1e-9)


def _device(operator: LinearOperator) -> torch.device | None:
    """Where the operator, or one of its parts, holds its tensors; None if it holds none."""
    parts = vars(operator).values()
    devices = (
        v.device if isinstance(v, Tensor) else _device(v) for v in parts if isinstance(v, Tensor | LinearOperator)
    )
    return next((device for device in devices if device is not None), None)


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _into(space: Space, x: Tensor) -> Tensor:
    """The real part where a space is real: the adjoint of reading its tensors as complex ones."""
    return x.real if space.field == "real" and x.is_complex() else x


def _operator(other: object, where: str) -> LinearOperator:
    if not isinstance(other, LinearOperator):
        raise TypeError(
            f"{where} combines two operators, but got a {type(other).__name__}. Measure an image with H.forward(x)."
        )
    return other


def _specify(space: Space, other: Space) -> Space:
    field = other.field if space.field == "any" else space.field
    return Space(space.shape, field, other.batch if space.batch is None else space.batch)


def _sizes(shape: Shape) -> str:
    return "x".join("any" if n is None else str(n) for n in shape)
