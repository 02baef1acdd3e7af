"""Toeplitz matrices, and sums of them that coils see: their largest eigenvalue, bounded from both sides."""

from dataclasses import dataclass
from math import inf, pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from lipspline._infra.devices import remembered

STEPS = 24
"""Dimension of the Krylov space in which the leading eigenvectors are sought."""
AIMS = (1.03, 1.1, 1.2, 1.4)
"""The upper bound over the lower one that is tried to be proven, one after the other; that of the norm is its root."""
SETTLED = 0.02
"""Leading vectors are set apart as far as M leaves their span by no more than this part of its largest eigenvalue."""
ATTEMPTS = (300, 2400)  # rows of the matrix that is factorised, at most
ROOM = 0.97  # what frequencies that are left out may amount to at most, as a part of the bound
MARGIN = 1e-9  # for rounding, relatively: thousands of units in the last place of float64
EMBEDDINGS = 500  # circulants that are tried, at most, for a smaller bound
LEVEL = 1.06  # of the lower bound: eigenvalues of circulants are cut down to it
CLOSE = 1.09  # of the lower bound: an upper bound this near is not improved (the norm is its root)
FACTORS = ((32, 6), (64, 4))
"""The size of circulants over that of images, for images up to a size; 3 for larger ones."""


@dataclass(frozen=True)
class CoilToeplitz:
    """`M = Σ_c S_cᴴ T S_c` for coil maps `(C, H, W)` and the Toeplitz matrix T that is a part of a circulant matrix.

    Args:
        maps: complex128.
        circulant: the eigenvalues of the circulant matrix, float64 `(2H, 2W)`.
    """

    maps: Tensor
    circulant: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """M times an image `(H, W)`."""
        height, width = x.shape
        seen = torch.fft.fft2(self.maps * x, s=self.circulant.shape) * self.circulant
        return (self.maps.conj() * torch.fft.ifft2(seen)[:, :height, :width]).sum(dim=0)


class Leading(NamedTuple):
    """Orthonormal rows V `(j, HW)` near the leading eigenvectors of M, the eigenvalues of VMVᴴ, and MV."""

    vectors: Tensor
    values: Tensor
    images: Tensor

    def residual(self) -> float:
        """|MV - VVᴴMV|."""
        return float(torch.linalg.matrix_norm(self.images - self.values.unsqueeze(1) * self.vectors))

    def settled(self) -> "Leading":
        """The first ones, as many as have a small residual together."""
        squares = (self.images - self.values.unsqueeze(1) * self.vectors).abs().square().sum(dim=1).cumsum(dim=0)
        count = int((squares.sqrt() <= SETTLED * self.values[0]).sum())
        return Leading(self.vectors[:count], self.values[:count], self.images[:count])


def eigenvalue_bounds(kernel: Tensor, maps: Tensor) -> tuple[float, float]:
    r"""Bounds on the largest eigenvalue of `M = Σ_c S_cᴴ T S_c`, T the Toeplitz matrix with a kernel.

    From below it is a Rayleigh quotient ρ. From above: let the columns of V be orthonormal and r = ‖MV - V VᴴMV‖. If
    `xᴴMx <= μ‖x‖²` for all x orthogonal to V, the largest eigenvalue is at most that of [[ρ, r], [r, μ]]. T is a part
    of a circulant matrix with eigenvalues v, so for every θ

    .. math:: M \preceq θ D + B^H B, \quad D = \sum_c |S_c|^2, \quad B = (\sqrt{v_k - θ}\, F_k S_c)_{c,\, k:\, v_k > θ}

    with rows F_k of the Fourier matrix. Where B has few rows, `θD + BᴴB <= μ` on the complement of V is equivalent to a
    small matrix being positive, which its Cholesky factor proves (`_stays_below`). Where sampling is so even that
    nothing stands out, the bound is that of T (`circulant_bound`) times the largest sum of squares of the maps.

    Args:
        kernel: complex128 `(2H - 1, 2W - 1)`.
        maps: complex `(C, H, W)`.

    Example:
        >>> one_point = torch.ones(7, 7, dtype=torch.complex128) / 16  # the largest eigenvalue is 1
        >>> lower, upper = eigenvalue_bounds(one_point, torch.ones(1, 4, 4))
        >>> 0.999 <= lower <= 1 <= upper <= 1.04
        True
    """
    maps = maps.detach().cpu().to(torch.complex128)  # as the kernel is; some devices have no float64
    shape = (maps.shape[-2], maps.shape[-1])
    matrix = CoilToeplitz(maps, torch.fft.fft2(_embedded(kernel, shape, 2)[1]).real)
    squares = maps.abs().square().sum(dim=0)
    leading = _leading(matrix)
    lower, apart = float(leading.values[0]), leading.settled()
    if lower <= 0:
        return 0.0, circulant_bound(kernel) * float(squares.max())
    whole = inf
    for aim in AIMS:
        if aim * lower >= whole:
            break
        if _proven(aim * lower, matrix, apart.vectors):
            middle = (aim + 1) * lower / 2
            upper = middle + sqrt(((aim - 1) * lower / 2) ** 2 + apart.residual() ** 2)
            return lower * (1 - MARGIN), min(upper * (1 + MARGIN), whole)
        if whole == inf:
            whole = circulant_bound(kernel) * float(squares.max()) * (1 + MARGIN)
    return lower * (1 - MARGIN), whole


def _proven(level: float, matrix: CoilToeplitz, apart: Tensor) -> bool:
    """Whether M is proven to stay below a level on the complement of orthonormal rows V, by matrices of few rows."""
    most = float(matrix.maps.abs().square().sum(dim=0).max())
    values = matrix.circulant.flatten().sort(descending=True).values
    for rows in ATTEMPTS:
        cut = max(float(values[min(rows // len(matrix.maps), len(values) - 1)]), 0.0)
        if cut * most <= ROOM * level and _stays_below(level, cut, matrix, apart):
            return True
    return False


def _leading(matrix: CoilToeplitz) -> Leading:
    """Ritz vectors from a Krylov space, orthogonalised twice."""
    height, width = matrix.maps.shape[-2:]
    start = torch.randn(height * width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = (start / torch.linalg.vector_norm(start)).to(torch.complex128).unsqueeze(0)
    images: list[Tensor] = []
    while True:
        images.append(matrix(basis[-1].view(height, width)).flatten())
        rest = images[-1]
        for _ in range(2):
            rest = rest - (basis.conj() @ rest) @ basis
        size = float(torch.linalg.vector_norm(rest))
        if len(images) >= min(STEPS, height * width) or size <= 1e-10 * float(torch.linalg.vector_norm(images[-1])):
            break
        basis = torch.cat([basis, (rest / size).unsqueeze(0)])
    small = basis.conj() @ torch.stack(images).mT
    values, vectors = torch.linalg.eigh((small + small.mH) / 2)
    turned = vectors.flip(1).mT
    return Leading(turned @ basis, values.flip(0), turned @ torch.stack(images))


def _stays_below(level: float, cut: float, matrix: CoilToeplitz, apart: Tensor) -> bool:
    r"""Whether `θD + BᴴB <= μ` is proven on the complement of orthonormal rows V.

    With E = μ - θD > 0 that is `B (E⁻¹ - E⁻¹Vᴴ (V E⁻¹ Vᴴ)⁻¹ V E⁻¹) Bᴴ <= 1`: the form of Woodbury for an infinite
    weight on V.
    """
    maps, (height, width) = matrix.maps, matrix.maps.shape[-2:]
    free = level - cut * maps.abs().square().sum(dim=0)
    if float(free.min()) <= 0:
        return False
    rows, columns = (matrix.circulant > cut).nonzero().unbind(dim=1)
    roots = ((matrix.circulant[rows, columns] - cut) / matrix.circulant.numel()).sqrt()
    weights = (roots.unsqueeze(1) * roots).to(maps.dtype)
    (row_waves, row_place), (column_waves, column_place) = (
        _differences(k, size, length)
        for k, size, length in zip((rows, columns), matrix.circulant.shape, (height, width), strict=True)
    )
    blocks = []
    for seen in maps:
        spectra = row_waves @ (seen * maps.conj() / free) @ column_waves.mT
        blocks.append(spectra[:, row_place, column_place] * weights)  # (C, K, K)
    gram = torch.stack(blocks).transpose(1, 2).flatten(2).flatten(0, 1)
    if len(apart):
        divided = apart.view(-1, height, width) / free
        row_waves, column_waves = (
            _waves(k, size, length)
            for k, size, length in zip((rows, columns), matrix.circulant.shape, (height, width), strict=True)
        )
        # sums over the columns first, then over the rows of each frequency
        partial = torch.einsum("jchw,kw->jckh", maps * divided.unsqueeze(1), column_waves)
        across = (torch.einsum("jckh,kh->jck", partial, row_waves) * roots).flatten(1).mT
        gram = gram - across @ torch.linalg.solve(apart.conj() @ divided.flatten(1).mT, across.mH)
    left = (1 - 10 * MARGIN) * torch.eye(len(gram), dtype=gram.dtype) - (gram + gram.mH) / 2
    return bool(torch.isfinite(left.real).all()) and int(torch.linalg.cholesky_ex(left)[1]) == 0


def _differences(k: Tensor, size: int, length: int) -> tuple[Tensor, Tensor]:
    """The waves `exp(-2πi d p / size)` for all differences d of frequencies, and where each pair finds its own."""
    differences, place = torch.unique((k.unsqueeze(1) - k) % size, return_inverse=True)
    return _waves(differences, size, length), place


def _waves(k: Tensor, size: int, length: int) -> Tensor:
    """`exp(-2πi k p / size)` for frequencies k and positions p < length, complex128 `(len(k), length)`."""
    turns = (k.unsqueeze(1) * torch.arange(length)) % size
    angles = turns.to(torch.float64) * (-2 * pi / size)
    return torch.polar(torch.ones_like(angles), angles)


@remembered
def circulant_bound(kernel: Tensor) -> float:
    """An upper bound on the largest eigenvalue of the Toeplitz matrix with this kernel `(2H - 1, 2W - 1)`.

    The matrix is a part of each larger circulant matrix that has the kernel among its entries, so the largest
    eigenvalue of the circulant, the largest value of the Fourier transform of its entries, is a bound. Its entries
    beyond the kernel are free, and chosen so that the bound is small: in one dimension, on a fine grid, the least one
    is the eigenvalue itself, since a trigonometric polynomial that is not negative is a square (Fejér and Riesz). The
    search is that of Douglas and Rachford for a transform that is nowhere above a level and has the kernel; each
    circulant on the way gives a bound, and the least is returned.

    Example:
        >>> one_point = torch.ones(7, 7, dtype=torch.complex128) / 16  # the largest eigenvalue is 1
        >>> 1 <= circulant_bound(one_point) <= 1.1
        True
    """
    shape = ((kernel.shape[0] + 1) // 2, (kernel.shape[1] + 1) // 2)
    lower = _power_iteration(kernel, shape)
    factor = next((factor for size, factor in FACTORS if max(shape) <= size), 3)
    place, entries = _embedded(kernel, shape, factor)
    values = torch.fft.fft2(entries).real
    best = float(values.max())
    for _ in range(EMBEDDINGS):
        if best <= CLOSE * lower:
            break
        entries = torch.fft.ifft2(values.to(kernel.dtype))
        entries[place] = kernel
        feasible = torch.fft.fft2(entries).real
        best = min(best, float(feasible.max()))
        values = values + (2 * feasible - values).clamp_max(LEVEL * lower) - feasible
    return best * (1 + 1e-12)


def _embedded(kernel: Tensor, shape: tuple[int, int], factor: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Where the kernel lies in a circulant `factor` times as large as the image, and the entries of that."""
    rows, columns = (torch.arange(-n + 1, n) % (factor * n) for n in shape)
    place = (rows.unsqueeze(1), columns)
    entries = kernel.new_zeros(factor * shape[0], factor * shape[1])
    entries[place] = kernel
    return place, entries


def _power_iteration(kernel: Tensor, shape: tuple[int, int], steps: int = 100) -> float:
    """A Rayleigh quotient of the Toeplitz matrix: a lower bound on its largest eigenvalue."""
    spectrum = torch.fft.fft2(_embedded(kernel, shape, 2)[1])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=kernel.dtype)
    best = 0.0
    for _ in range(steps):
        x = x / torch.linalg.vector_norm(x)
        y = torch.fft.ifft2(torch.fft.fft2(x, s=spectrum.shape) * spectrum)[: shape[0], : shape[1]]
        previous, best = best, max(best, float((x.conj() * y).real.sum()))
        if best <= previous * (1 + 1e-4):
            break
        x = y
    return best
