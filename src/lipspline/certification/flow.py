r"""What is known about a tensor inside a network: how far it moves when the network's input moves.

A tensor is a sum :math:`\sum_a M_a a` of linear maps of *sources* (the input, and outputs of operations that are not
linear), each with a proven Lipschitz constant with respect to the input. Then :math:`\sum_a \|M_a\| L_a` bounds the
tensor. Linear maps that follow one another are multiplied, and maps of one source are added, before their norm is
bounded: neighbouring layers count as one, and `x + f(x)` with a linear f as `(I + f)(x)`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline.certification.certificate import add_up, multiply_up, root_sum_of_squares_up, root_up
from lipspline.functional.convolutions import conv_norm_upper, dilated_kernel
from lipspline.functional.matrices import spectral_norm_upper
from lipspline.functional.norm_bounds import OUTWARD, frobenius_upper, product_error

INEXACT = 1e-14  # more than the factor of a `Multiple` may be off
CHEAP = 2**14  # entries of a kernel whose norm may be bounded twice
MOST_ENTRIES = 2**20  # of a product of kernels; larger ones cost more than they gain


class Multiple:
    """`factor * x`, or any other map if only a bound `factor` on its norm is known (`known` is then False).

    `rounded` counts the products whose rounding is in the factor, outward: it is right to 4e-16 for each.
    """

    def __init__(self, factor: float, *, known: bool = True, rounded: int = 0):
        self.factor, self.known, self.rounded = factor, known and rounded < 16, rounded

    @property
    def upper(self) -> float:
        return abs(self.factor)

    def times(self, factor: float) -> "Multiple":
        exact = abs(factor) == 1.0 or abs(self.factor) in (0.0, 1.0)
        product = self.factor * factor * (1.0 if exact else 1 + 4e-16)
        return Multiple(product, known=self.known, rounded=self.rounded + (not exact))


@dataclass(frozen=True)
class Dense:
    """`x -> factor * x Wᵀ` along the last axis; `error` bounds what rounding did to W, `product` the norm."""

    weight: Tensor
    factor: float = 1.0
    error: float = 0.0
    product: float = math.inf

    @cached_property
    def upper(self) -> float:
        own = add_up(spectral_norm_upper(self.weight), self.error)
        return min(multiply_up(abs(self.factor), own), self.product)

    def times(self, factor: float) -> "Dense":
        return _times(self, factor)

    def as_one(self) -> Tensor:
        return self.weight * self.factor

    def after(self, first: "Dense") -> "Dense":
        """The product of two matrices, this one second."""
        second, before = self.as_one(), first.as_one()
        rounding = multiply_up(
            product_error(second.shape[1], is_complex=False) + 8e-16, frobenius_upper(second), frobenius_upper(before)
        )
        error = add_up(rounding, _inherited_error(self, first))
        return Dense(second @ before, error=error, product=multiply_up(self.upper, first.upper))


@dataclass(frozen=True)
class Convolution:
    """A convolution of the plane, restricted to images: what lies around the image is zero, or (wrapped) the image.

    `anchor` is the tap that a pixel of the output sees at its own place in the input, per axis; `border` says whether
    zeros are put around the image.
    """

    weight: Tensor
    stride: tuple[int, ...]
    anchor: tuple[int, ...]
    groups: int = 1
    border: bool = False
    wrapped: bool = False
    factor: float = 1.0
    error: float = 0.0
    product: float = math.inf

    @cached_property
    def upper(self) -> float:
        # Windows that overlap around the border of a circular image may never do so on the plane, with a stride.
        stride = 1 if self.wrapped else self.stride
        own = add_up(conv_norm_upper(self.weight, stride=stride, groups=self.groups), self.error)
        return min(multiply_up(abs(self.factor), own), self.product)

    def times(self, factor: float) -> "Convolution":
        return _times(self, factor)

    @property
    def is_pointwise(self) -> bool:
        return all(k == 1 for k in self.weight.shape[2:]) and self.moves_nothing and not self.border

    @property
    def moves_nothing(self) -> bool:
        return all(s == 1 for s in self.stride)

    def as_one(self) -> Tensor:
        """The kernel without groups, times the factor."""
        weight = self.weight * self.factor
        if self.groups == 1:
            return weight
        parts = weight.chunk(self.groups)
        whole = weight.new_zeros(weight.shape[0], weight.shape[1] * self.groups, *weight.shape[2:])
        for i, part in enumerate(parts):
            whole[i * len(part) : (i + 1) * len(part), i * part.shape[1] : (i + 1) * part.shape[1]] = part
        return whole

    def after(self, first: "Convolution") -> "Convolution | None":
        """The composition of two convolutions, this one second; None if it is not the restriction of one."""
        unpadded = not self.border and not self.wrapped
        alike = self.wrapped and first.wrapped and self.moves_nothing and first.moves_nothing
        mixed = first.wrapped != self.wrapped and not (first.is_pointwise or self.is_pointwise)
        if mixed or not (unpadded or first.is_pointwise or alike):
            return None  # zeros are put between the two
        taps = math.prod(k + (j - 1) * s for k, j, s in self._spans(first))
        if self.weight.shape[0] * first.weight.shape[1] * first.groups * taps > MOST_ENTRIES:
            return None
        second, before = self.as_one(), first.as_one()
        spread = dilated_kernel(second, first.stride)
        weight, sizes = _product(spread, before), _product(spread.abs(), before.abs())
        terms = spread.shape[1] * min(math.prod(spread.shape[2:]), math.prod(before.shape[2:]))
        root = root_up(math.prod(weight.shape[2:]))
        rounding = multiply_up(product_error(terms, is_complex=False) + 8e-16, root, frobenius_upper(sizes), 1.01)
        return Convolution(
            weight,
            tuple(a * b for a, b in zip(self.stride, first.stride, strict=True)),
            tuple(a + b * s for a, b, s in zip(first.anchor, self.anchor, first.stride, strict=True)),
            wrapped=first.wrapped or self.wrapped,
            border=first.border or self.border,
            error=add_up(rounding, _inherited_error(self, first)),
            product=multiply_up(self.upper, first.upper),
        )

    def _spans(self, first: "Convolution") -> list[tuple[int, int, int]]:
        return list(zip(first.weight.shape[2:], self.weight.shape[2:], first.stride, strict=True))


def _product(second: Tensor, first: Tensor) -> Tensor:
    """The kernel of one convolution after another: taps at `t` meet those at `s` at `t + s`."""
    convolve = (F.conv1d, F.conv2d, F.conv3d)[second.ndim - 3]
    flipped = second.flip(tuple(range(2, second.ndim)))
    padding = [k - 1 for k in second.shape[2:]]
    return convolve(first.transpose(0, 1), flipped, padding=padding).transpose(0, 1)


_WithWeight = TypeVar("_WithWeight", "Dense", "Convolution")


def _times(known: _WithWeight, factor: float) -> _WithWeight:
    size = multiply_up(frobenius_upper(known.weight), root_up(math.prod(known.weight.shape[2:])))
    error = add_up(known.error, multiply_up(2e-14, size))  # of the product of the factors, rounded outward
    product = multiply_up(known.product, abs(factor)) if factor else 0.0
    return replace(known, factor=known.factor * factor * OUTWARD, error=error, product=product)


def _inherited_error(second: "Dense | Convolution", first: "Dense | Convolution") -> float:
    """What errors in the weights of two maps do to their product."""
    one, other = (multiply_up(known.error, abs(known.factor)) for known in (second, first))
    return add_up(multiply_up(add_up(second.upper, one), other), multiply_up(one, first.upper))


Map = Multiple | Dense | Convolution


def scaled_rows(known: Map, gains: Tensor, axis: int, ndim: int) -> Map | None:
    """A map followed by a factor for each channel, or None if that is not a map of its kind."""
    if isinstance(known, Convolution) and axis == 1 and ndim == known.weight.ndim and gains.numel() > 1:
        weight = known.weight * gains.reshape(-1, *[1] * (known.weight.ndim - 1))
    elif isinstance(known, Dense) and axis == ndim - 1 and gains.numel() > 1:
        weight = known.weight * gains[:, None]
    else:
        return None
    largest = float(gains.abs().max())
    rounding = multiply_up(4e-16, frobenius_upper(weight), root_up(math.prod(weight.shape[2:])))
    error = add_up(rounding, multiply_up(largest, known.error))
    # A large kernel is bounded once, with its gains.
    product = multiply_up(largest, known.upper) if weight.numel() <= CHEAP else math.inf
    return replace(known, weight=weight, error=error, product=product)


def add_maps(one: Map, other: Map, sizes: Sequence[int]) -> Map:
    """The sum of two maps of one source with outputs of one shape."""
    total = add_up(one.upper, other.upper)
    pair = (one, other) if not isinstance(one, Multiple) else (other, one)
    if isinstance(one, Multiple) and isinstance(other, Multiple):
        if one.known and other.known:
            return Multiple(add_up(abs(one.factor + other.factor), multiply_up(INEXACT, total)), known=False)
        return Multiple(total, known=False)
    weights = _aligned(pair, sizes)
    if weights is None:
        return Multiple(total, known=False)
    first, second, anchor = weights
    known = pair[0]
    errors = [0.0 if isinstance(m, Multiple) else multiply_up(m.error, abs(m.factor)) for m in pair]
    sum_error = multiply_up(INEXACT, frobenius_upper(first.abs() + second.abs()), root_up(math.prod(first.shape[2:])))
    error = multiply_up(add_up(*errors, sum_error), OUTWARD)
    if isinstance(known, Dense):
        return Dense(first + second, error=error, product=total)
    wrapped = known.wrapped  # type: ignore[union-attr]
    return Convolution(first + second, known.stride, anchor, border=True, wrapped=wrapped, error=error, product=total)  # type: ignore[union-attr]


def _aligned(pair: tuple[Map, Map], sizes: Sequence[int]) -> tuple[Tensor, Tensor, tuple[int, ...]] | None:
    """The weights of two maps on a common set of taps, and the anchor there; None if they have none."""
    one, other = pair
    if isinstance(one, Dense):
        if isinstance(other, Dense):
            return one.as_one(), other.as_one(), ()
        if isinstance(other, Multiple) and other.known and one.weight.shape[0] == one.weight.shape[1]:
            eye = torch.eye(len(one.weight), dtype=one.weight.dtype, device=one.weight.device)
            return one.as_one(), eye * other.factor, ()
        return None
    if not isinstance(one, Convolution) or not one.moves_nothing or one.as_one().numel() > MOST_ENTRIES:
        return None
    first = one.as_one()
    if isinstance(other, Multiple):
        if not other.known or first.shape[0] != first.shape[1]:
            return None
        axes = first.ndim - 2
        eye = torch.eye(first.shape[0], dtype=first.dtype, device=first.device).reshape(*first.shape[:2], *[1] * axes)
        other = Convolution(eye * other.factor, (1,) * axes, (0,) * axes, wrapped=one.wrapped)
    if not isinstance(other, Convolution) or not other.moves_nothing or other.wrapped != one.wrapped:
        return None
    second = other.as_one()
    if first.shape[:2] != second.shape[:2]:
        return None
    anchor = tuple(max(a, b) for a, b in zip(one.anchor, other.anchor, strict=True))
    after = [
        max(k - a, j - b)
        for k, a, j, b in zip(first.shape[2:], one.anchor, second.shape[2:], other.anchor, strict=True)
    ]
    first, second = _embedded(first, one.anchor, anchor, after), _embedded(second, other.anchor, anchor, after)
    return first, second, anchor


def _embedded(weight: Tensor, at: Sequence[int], anchor: Sequence[int], after: Sequence[int]) -> Tensor:
    """A kernel with zero taps around it: `anchor` of them before its own anchor, `after` from there on."""
    pads = [
        (wide - here, right - (k - here))
        for wide, here, right, k in zip(anchor, at, after, weight.shape[2:], strict=True)
    ]
    return F.pad(weight, [pixels for pair in reversed(pads) for pixels in pair])


@dataclass(eq=False)
class Flow:
    """A tensor that depends on the input, as a sum of linear maps of sources.

    Args:
        shape, dtype: of the tensor.
        terms: the map of each source, and the proven Lipschitz constant of the source.
        picks: a tensor of which this one holds entries, and which (flat indices, in the order of this tensor).
        pointwise: a tensor of the same shape of which this one is a function entry by entry, and its largest slope.
        ordered: ("max" or "min", the two tensors) if this is their larger or smaller one, entry by entry.
        padded: the mode, the pixels (last axis first) and the tensor around which they were put.
        function: the name of the function in `pointwise`.
        mean_of: a tensor of which this one holds the means over some axes, which it keeps with one entry.
        shifted: whether constants were added to the entries, or stand between them.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    terms: dict[int, tuple[Map, float]]
    picks: "tuple[Flow, Tensor] | None" = None
    pointwise: "tuple[Flow, float] | None" = None
    ordered: "tuple[str, Flow, Flow] | None" = None
    padded: "tuple[str, list[tuple[int, int]], Flow] | None" = None
    function: str | None = None
    mean_of: "Flow | None" = None
    shifted: bool = False

    @cached_property
    def upper(self) -> float:
        return add_up(*(multiply_up(known.upper, source) for known, source in self.terms.values()))

    @property
    def root(self) -> "tuple[Flow, float]":
        """The tensor of which this is a function entry by entry, and its largest slope."""
        if self.pointwise is None:
            return self, 1.0
        root, slope = self.pointwise[0].root
        return root, multiply_up(slope, self.pointwise[1])


def joint_upper(flows: Sequence[Flow]) -> float:
    """Bound several tensors as one long vector: entries of one tensor count once, sorted pairs as what was sorted."""
    flows = list(flows)
    for i, j in itertools.combinations(range(len(flows)), 2):
        a, b = flows[i].ordered, flows[j].ordered
        if a and b and a[0] != b[0] and _is_same(a[1], b[1]) and _is_same(a[2], b[2]):
            rest = [flow for k, flow in enumerate(flows) if k not in (i, j)]
            return joint_upper([*rest, a[1], a[2]])
    groups: dict[int, tuple[Flow, list[Tensor]]] = {}
    for flow in flows:
        root, indices = flow.picks or (flow, torch.arange(math.prod(flow.shape)))
        groups.setdefault(id(root), (root, []))[1].append(indices)
    direct = root_sum_of_squares_up(
        *(multiply_up(copies_root(torch.cat(i)), root.upper) for root, i in groups.values())
    )
    if any(flow.pointwise for flow in flows):
        sources = [flow.pointwise[0] if flow.pointwise else flow for flow in flows]
        slope = max(flow.pointwise[1] if flow.pointwise else 1.0 for flow in flows)
        return min(direct, multiply_up(slope, joint_upper(sources)))
    return direct


def _is_same(one: Flow, other: Flow) -> bool:
    """Whether two tensors are one, or hold the same entries of one, and no constants beside them."""
    if one is other:
        return True
    if one.shifted or other.shifted or one.picks is None or other.picks is None or one.shape != other.shape:
        return False
    return one.picks[0] is other.picks[0] and torch.equal(one.picks[1], other.picks[1])


def copies_root(indices: Tensor) -> float:
    """The root of how often the most frequent entry occurs; entries below zero are constants, and do not count."""
    indices = indices[indices >= 0]
    return root_up(int(torch.bincount(indices).max())) if len(indices) else 0.0
