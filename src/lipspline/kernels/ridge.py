r"""The gradient of a ridge energy, :math:`W^T \sigma(W x)`, in one pass in C; and what its training needs.

Filters are even or odd under reflection at their middle, so that the first half of their taps and the middle one, h of
k², say all. Even ones come first, and both numbers are multiples of four.
"""

# pyright: reportIncompatibleMethodOverride=false

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline.kernels import affine, native
from lipspline.kernels.dispatch import Kernel

QUAD, TILE, LANES = 4, 24, 8  # channels or taps, pixels of a row, and lanes of a vector in the kernel
ROWS = 16  # rows of an image that one thread takes at a time


class PreparedBank(NamedTuple):
    """Filters in the two orders in which the kernel reads them."""

    gather: Tensor  # (C / 4, h, 4)
    spread: Tensor  # (h / 4, C, 4), filled with zeros
    kernel: int
    even: int


class PreparedTables(NamedTuple):
    """Intercepts and slopes side by side, one set of splines for all images or one for each."""

    pairs: Tensor  # (1 or B, C, R, 2)
    scale: Tensor  # (1 or B, C)
    offset: float


@torch.no_grad()
def has_ridge(x: Tensor) -> bool:
    """Whether the kernels run on tensors like `x`: float32 on a processor with AVX2, with the C library in use."""
    if not _gradient.in_c(x):
        return False
    assert native.library is not None
    return bool(native.library.lipspline_has_ridge())


@torch.no_grad()
def prepare_bank(filters: Tensor, even: int) -> PreparedBank:
    """Filters `(C, 1, k, k)` as the kernels want them; the first `even` are even, the others odd."""
    channels, kernel = len(filters), filters.shape[-1]
    if even % QUAD or channels % QUAD:
        raise ValueError(
            f"The numbers of even and odd filters must be multiples of 4, but are {even} and {channels - even}."
        )
    half = filters.reshape(channels, -1)[:, : (kernel**2 + 1) // 2]
    taps = half.shape[1]
    gather = half.reshape(-1, QUAD, taps).transpose(1, 2).contiguous()
    spread = F.pad(half, (0, -taps % QUAD)).reshape(channels, -1, QUAD).transpose(0, 1).contiguous()
    return PreparedBank(gather, spread, kernel, even)


@torch.no_grad()
def prepare_tables(b: Tensor, s: Tensor, scale: Tensor, offset: float) -> PreparedTables:
    """The arguments of `piecewise_affine`, `(C, R)` or `(B, C, R)`, as the kernels want them."""
    pairs = torch.stack([b, s], dim=-1)
    if b.ndim == 2:
        pairs, scale = pairs[None], scale[None]
    return PreparedTables(pairs.contiguous(), scale.contiguous(), float(offset))


@torch.no_grad()
def ridge_gradient(x: Tensor, bank: PreparedBank, tables: PreparedTables, weights: Tensor | None = None) -> Tensor:
    """`Wᵀσ(W x)` of images `(B, 1, H, W)` of which `has_ridge` is true, with zeros outside, without derivatives.

    Args:
        weights: `(B, C, H, W)`; each response is multiplied by its weight after the spline.
    """
    sizes = _sizes(x, bank, tables)
    y = torch.empty(x.shape, dtype=x.dtype)
    if not x.numel():
        return y
    stride, padded = _padded(x, bank.kernel)
    parts = torch.empty(len(x), -(-x.shape[-2] // ROWS), ROWS + bank.kernel - 1, stride)
    inputs = padded, bank.gather, bank.spread, tables.pairs, tables.scale
    if weights is None:
        native.call("ridge_gradient", (tables.offset,), (*sizes, ROWS), *inputs, parts, y)
    else:
        weights = weights.contiguous()
        native.call("weighted_ridge_gradient", (tables.offset,), (*sizes, ROWS), *inputs, weights, parts, y)
    return y


@torch.no_grad()
def ridge_energy(x: Tensor, bank: PreparedBank, tables: PreparedTables, constants: Tensor) -> Tensor:
    """`Σ_c Σ_p ψ_c((W x)_cp)` of images `(B, 1, H, W)` of which `has_ridge` is true: `(B,)` in float64.

    Args:
        constants: `(C, R)` or `(B, C, R)`: on its region, ψ is constant + b t + s t²/2.
    """
    sizes = _sizes(x, bank, tables)
    if not x.numel():
        return x.new_zeros(len(x), dtype=torch.float64)
    _, padded = _padded(x, bank.kernel)
    energies = torch.empty(len(x), -(-x.shape[-2] // ROWS), dtype=torch.float64)
    inputs = padded, bank.gather, tables.pairs, constants.contiguous(), tables.scale
    native.call("ridge_energy", (tables.offset,), (*sizes, ROWS), *inputs, energies)
    return energies.sum(dim=1)


def ridge_pairing(
    e: Tensor,
    x: Tensor,
    filters: Tensor,
    even: int,
    tables: tuple[Tensor, Tensor, Tensor, float],
    weights: Tensor | None = None,
) -> Tensor:
    """`⟨W e, w σ(W x)⟩` of each image, `(B,)`, with derivatives by filters, tables and weights, but not by e and x.

    Args:
        e, x: images `(B, 1, H, W)` of which `has_ridge` is true.
        filters: `(C, 1, k, k)`, the first `even` even and the others odd.
        even: how many.
        tables: the arguments `b, s, scale, offset` of `piecewise_affine`, with b and s `(B, C, R)`.
        weights: w, `(B, C, H, W)`; ones if not given.
    """
    b, s, scale, offset = tables
    half = filters.reshape(len(filters), -1)[:, : (filters.shape[-1] ** 2 + 1) // 2]
    bank = prepare_bank(filters, even)
    prepared = prepare_tables(b, s, scale, offset)
    return _Pairing.apply(half, b, s, weights, e, x, bank, prepared)  # type: ignore[return-value]


class _Pairing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, half, b, s, weights, e, x, bank, tables):
        sizes = _sizes(x, bank, tables)
        _, padded = _padded(x, bank.kernel)
        _, other = _padded(e, bank.kernel)
        products, sums = torch.empty(len(x), *half.shape, LANES), torch.empty(len(x), *tables.pairs.shape[1:])
        inputs = padded, other, bank.gather, tables.pairs, tables.scale
        by_weights = None
        if weights is None:
            native.call("ridge_pairing", (tables.offset,), sizes, *inputs, products, sums)
        else:
            by_weights = torch.empty(weights.shape)
            outputs = products, sums, by_weights
            native.call("weighted_ridge_pairing", (tables.offset,), sizes, *inputs, weights.contiguous(), *outputs)
        products = products.sum(dim=-1)
        ctx.save_for_backward(products, sums, by_weights)
        return (sums[..., 0] * b + sums[..., 1] * s).sum(dim=(1, 2))

    @staticmethod
    def backward(ctx, g):
        products, sums, by_weights = ctx.saved_tensors
        weighted = g[:, None, None, None] * sums
        filters = torch.einsum("b,bct->ct", g, products)
        by_weights = None if by_weights is None else g[:, None, None, None] * by_weights
        return filters, weighted[..., 0], weighted[..., 1], by_weights, None, None, None, None


def _sizes(x: Tensor, bank: PreparedBank, tables: PreparedTables) -> tuple[int, ...]:
    """Images, groups, height, width, stride, channels, even, regions, k; refused where they do not fit."""
    (images, _, height, width), (groups, channels, regions, _) = x.shape, tables.pairs.shape
    if groups not in (1, images) or channels != bank.spread.shape[1]:
        raise ValueError(
            f"The tables {tuple(tables.pairs.shape)} do not fit {images} images and {bank.spread.shape[1]} filters: "
            f"they must have one row for each filter, and be for one or for all images."
        )
    return (
        images,
        groups,
        height,
        width,
        width + -width % TILE + bank.kernel - 1,
        channels,
        bank.even,
        regions,
        bank.kernel,
    )


def _padded(x: Tensor, kernel: int) -> tuple[int, Tensor]:
    """The stride and images `(B, 1, H + k - 1, stride)` with zeros around."""
    width, before = x.shape[-1], kernel // 2
    stride = width + -width % TILE + kernel - 1
    return stride, F.pad(x, (before, stride - width - before, before, before)).contiguous()


def gradient_formula(
    x: Tensor, filters: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, even: int
) -> Tensor:
    """`Wᵀσ(W x)` in plain torch."""
    half = filters.shape[-1] // 2
    responses = affine.formula(F.conv2d(x, filters, padding=half), b, s, scale, offset, 1)
    return F.conv_transpose2d(responses, filters, padding=half)


def weighted_gradient_formula(
    x: Tensor, filters: Tensor, b: Tensor, s: Tensor, scale: Tensor, weights: Tensor, offset: float, even: int
) -> Tensor:
    """`Wᵀ(w σ(W x))` in plain torch."""
    half = filters.shape[-1] // 2
    responses = affine.formula(F.conv2d(x, filters, padding=half), b, s, scale, offset, 1)
    return F.conv_transpose2d(weights * responses, filters, padding=half)


def energy_formula(
    x: Tensor, filters: Tensor, b: Tensor, s: Tensor, constants: Tensor, scale: Tensor, offset: float, even: int
) -> Tensor:
    """`Σ ψ(W x)` of each image in plain torch, in float64."""
    z = F.conv2d(x, filters, padding=filters.shape[-1] // 2)
    constant = affine.formula(z, constants, torch.zeros_like(s), scale, offset, 1)
    return (constant + z * affine.formula(z, b, s / 2, scale, offset, 1)).double().sum(dim=(1, 2, 3))


def pairing_formula(
    e: Tensor, x: Tensor, filters: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, even: int
) -> Tensor:
    """`⟨W e, σ(W x)⟩` of each image in plain torch."""
    other, responses = (F.conv2d(images, filters, padding=filters.shape[-1] // 2) for images in (e, x))
    return (other * affine.formula(responses, b, s, scale, offset, 1)).sum(dim=(1, 2, 3))


def weighted_pairing_formula(
    e: Tensor,
    x: Tensor,
    filters: Tensor,
    b: Tensor,
    s: Tensor,
    scale: Tensor,
    weights: Tensor,
    offset: float,
    even: int,
) -> Tensor:
    """`⟨W e, w σ(W x)⟩` of each image in plain torch."""
    other, responses = (F.conv2d(images, filters, padding=filters.shape[-1] // 2) for images in (e, x))
    return (other * weights * affine.formula(responses, b, s, scale, offset, 1)).sum(dim=(1, 2, 3))


_gradient = Kernel(
    "ridge_gradient(Tensor x, Tensor filters, Tensor b, Tensor s, Tensor scale, float offset, int even) -> Tensor",
    eager=gradient_formula,
    c=lambda x, filters, b, s, scale, offset, even: ridge_gradient(
        x, prepare_bank(filters, even), prepare_tables(b, s, scale, offset)
    ),
    c_function="ridge_gradient",
    derivatives="none",
)
_energy = Kernel(
    "ridge_energy(Tensor x, Tensor filters, Tensor b, Tensor s, Tensor constants, Tensor scale, float offset, int even)"
    " -> Tensor",
    eager=energy_formula,
    c=lambda x, filters, b, s, constants, scale, offset, even: ridge_energy(
        x, prepare_bank(filters, even), prepare_tables(b, s, scale, offset), constants
    ),
    c_function="ridge_energy",
    derivatives="none",
)
_pairing = Kernel(
    "ridge_pairing(Tensor e, Tensor x, Tensor filters, Tensor b, Tensor s, Tensor scale, float offset, int even)"
    " -> Tensor",
    eager=pairing_formula,
    c=lambda e, x, filters, b, s, scale, offset, even: ridge_pairing(e, x, filters, even, (b, s, scale, offset)),
    c_function="ridge_pairing",
    derivatives="backward",
)
_weighted_gradient = Kernel(
    "weighted_ridge_gradient(Tensor x, Tensor filters, Tensor b, Tensor s, Tensor scale, Tensor weights, float offset,"
    " int even) -> Tensor",
    eager=weighted_gradient_formula,
    c=lambda x, filters, b, s, scale, weights, offset, even: ridge_gradient(
        x, prepare_bank(filters, even), prepare_tables(b, s, scale, offset), weights
    ),
    c_function="weighted_ridge_gradient",
    derivatives="none",
)
_weighted_pairing = Kernel(
    "weighted_ridge_pairing(Tensor e, Tensor x, Tensor filters, Tensor b, Tensor s, Tensor scale, Tensor weights,"
    " float offset, int even) -> Tensor",
    eager=weighted_pairing_formula,
    c=lambda e, x, filters, b, s, scale, weights, offset, even: ridge_pairing(
        e, x, filters, even, (b, s, scale, offset), weights
    ),
    c_function="weighted_ridge_pairing",
    derivatives="backward",
)
