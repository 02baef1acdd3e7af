r"""Proven upper bounds on spectral norms, with the rounding of their own computation added outward [lip_linear_layers].

Everything here computes in float64 with unit round-off u, and writes :math:`\gamma_k = k u / (1 - k u)`. A real
matrix product with inner dimension k, summed in any order, fused or not, has an error of Frobenius norm at most
:math:`\gamma_k \|X\|_F \|Y\|_F`. A complex one is made of real inner products of length 2k; a factor 4 also covers
schemes with three real products. Scales are powers of two, so that dividing by them is exact. The few scalar
operations at the end of a bound are covered by the factor `OUTWARD`.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from lipspline._infra import checks

ROUND_OFF = torch.finfo(torch.float64).eps / 2
OUTWARD = 1 + 1e-14
MOST_SQUARINGS = 40


def product_error(inner: int, *, is_complex: bool) -> float:
    """Bound the Frobenius norm of the rounding error in a product of matrices with Frobenius norms at most 1."""
    terms = 4 * (2 * inner + 2) if is_complex else inner + 2
    return terms * ROUND_OFF / (1 - terms * ROUND_OFF)


def as_real(w: Tensor) -> Tensor:
    r"""A weight (m, n, *k) in float64; a complex one as the real map (2m, 2n, *k) of real and imaginary parts.

    :math:`x \mapsto (A + iB) x` is :math:`\begin{pmatrix} A & -B \\ B & A \end{pmatrix}` on the pairs of real and
    imaginary parts, and has the same norm.
    """
    if not w.is_complex():
        return w.detach().double()
    re, im = w.detach().real.double(), w.detach().imag.double()
    return torch.cat([torch.cat([re, -im], dim=1), torch.cat([im, re], dim=1)])


def power_of_two_above(x: Tensor) -> float:
    """A power of two above the Frobenius norm of a finite `x`, but not one lost in underflow."""
    if 2.0**-400 < (size := frobenius_upper(x)) < 2.0**400:  # no square in it was lost, and every entry is finite
        return 2.0 ** math.frexp(size)[1]
    checks.finite("The weight to bound", x, "A layer with such a weight has no Lipschitz bound.")
    largest = float(x.abs().max()) if x.numel() else 0.0
    if largest < 2.0**-900:
        return 2.0**-900
    scale = 2.0 ** math.frexp(largest)[1]
    return scale * 2.0 ** math.frexp(frobenius_upper(x / scale))[1]


def frobenius_upper(x: Tensor) -> float:
    """Bound the Frobenius norm of `x`, and with it the spectral norm, by the computed one."""
    return float(torch.linalg.vector_norm(x)) * (1 + 2 * x.numel() * ROUND_OFF) * OUTWARD


def norm_upper(family: Tensor, rtol: float) -> float:
    r"""Bound the largest spectral norm in a family of matrices from above, within `rtol` [lip_linear_layers].

    :math:`\|X\|_2^2 = \|X^H X\|_2 \le \|X^H X\|_F`, and again for :math:`X^H X`: after j squarings the excess of the
    Frobenius norm has shrunk to its :math:`2^j`-th root. With :math:`Y = X / s` of Frobenius norm at most 1 and G the
    computed :math:`Y^H Y`, :math:`\|X\|_2 \le s (\|G\|_2 + \gamma)^{1/2}`. Members that can no longer be the largest
    are dropped.

    Args:
        family: (F, m, n) in float64 or complex128.
        rtol: squaring ends when the bound is within this of the largest norm, or when only rounding is left.

    Example:
        >>> family = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
        >>> 3 <= norm_upper(family, rtol=1e-6) <= 3 + 1e-5
        True
    """
    history: list[tuple[Tensor, float]] = []
    x, dropped, upper = family, 0.0, torch.zeros(1)
    for _ in range(MOST_SQUARINGS):
        frobenius = _frobenius(x) * (1 + 2 * x[0].numel() * ROUND_OFF) * OUTWARD
        scale = torch.ldexp(torch.ones_like(frobenius), torch.frexp(frobenius).exponent)
        y = x / scale[:, None, None]
        x = y.mH @ y
        upper = frobenius
        lower = scale * _frobenius(x) / _frobenius(y).clamp_min(ROUND_OFF)
        for previous, error in reversed(history):
            upper = previous * (upper + error).sqrt() * OUTWARD
            lower = previous * lower.sqrt()
        keep = upper >= lower.max()
        dropped = max(dropped, float(torch.where(keep, 0.0, upper).max()))
        if upper.max() <= (1 + rtol) * lower.max():
            break
        x = x[keep]
        history = [
            (s[keep], error) for s, error in (*history, (scale, product_error(y.shape[-2], is_complex=y.is_complex())))
        ]
    return max(dropped, float(upper.max()))


def _frobenius(x: Tensor) -> Tensor:
    """Frobenius norms of a batch of matrices; that of torch is much slower for complex ones."""
    return torch.linalg.vector_norm((torch.view_as_real(x) if x.is_complex() else x).flatten(1), dim=1)


def eigenvalue_upper(
    grams: Callable[[], Iterable[Tensor]], *, mean: float, error: float, rtol: float, spread: float = 1.0
) -> float:
    r"""Bound the largest eigenvalue in a family of Hermitian nonnegative matrices from above [lip_linear_layers].

    For any shift c it is at most :math:`c + \max \|G - c I\|_2`, with equality if c is at most the mean of the extreme
    eigenvalues. The shift taken is a guess at the least one, or 0: of a nearly orthonormal layer only its defect is
    then left to bound.

    Args:
        grams: gives the family in batches (F, n, n), anew at each call, so that it need not fit into memory at once.
        mean: about the mean of all eigenvalues; the bound holds for any number, but is good for this one.
        error: bounds the spectral norm of the error in each matrix.
        rtol: relative accuracy aimed at.
        spread: the factor by which :math:`\|G - c I\|` may exceed its largest value in the family, if that samples a
            function.
    """
    deviation = _shifted_norm_upper(grams, mean, rtol=1.0)
    shift = max(mean - deviation, 0.0)
    excess = _shifted_norm_upper(
        grams, shift, rtol if shift == 0 else min(1.0, rtol * mean / max(deviation, rtol * mean))
    )
    return (shift + spread * (excess + error)) * OUTWARD


def _shifted_norm_upper(grams: Callable[[], Iterable[Tensor]], shift: float, rtol: float) -> float:
    """Bound all norms of G - shift I. The subtraction rounds the diagonal, by less than the factor OUTWARD covers."""
    shifted = (gram - shift * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device) for gram in grams())
    return max(norm_upper(x, rtol) for x in shifted) * OUTWARD


def response_norm_upper(family: Tensor, rtol: float) -> float:
    r"""Bound the largest spectral norm in a family of large complex matrices from above, in single precision.

    Power iteration guesses the norm. The guess t, slightly enlarged, is proved by a Cholesky factorization: if that of
    :math:`B = t^2 I - A^H A` runs to its end with a triangular L, then :math:`L L^H = B + E` with
    :math:`\|E\| \le \gamma \|L\|_F^2 \le \gamma\, \mathrm{tr}(B) / (1 - \gamma)` (Rump, Verification of positive
    definiteness, 2006), so that no eigenvalue of B is below that bound's negative. What rounding may have done to the
    product is added. This takes a twentieth of the time of `norm_upper`, and loses a percent or two.

    Args:
        family: (F, m, n) in complex128, best with n <= m.
        rtol: by how much the guess is enlarged at a time until it is proved.

    Example:
        >>> family = torch.diag(torch.tensor([3.0, 1.0])).to(torch.complex128)[None]
        >>> 3 <= response_norm_upper(family, rtol=1e-3) < 3.01
        True
    """
    scale = power_of_two_above(torch.view_as_real(family))
    if scale == 2.0**-900:
        return scale
    x = (family / scale).to(torch.complex64)  # a Frobenius norm of the whole family below 1
    unit = torch.finfo(torch.float32).eps / 2
    m, n = x.shape[-2:]
    cast = 2 * unit + 1e-40
    product, factor = 4 * (2 * m + 2) * unit, 4 * (2 * n + 6) * unit
    if max(product, factor) > 0.1:
        return norm_upper(family, rtol)
    frobenius = _frobenius(x).double() * (1 + 4 * x[0].numel() * unit) + 1e-36
    gram = x.mH @ x
    gram_error = product / (1 - product) * frobenius.square() + 1e-36
    guess = _ritz_values(gram).double()
    unproved, upper = torch.arange(len(x)), torch.zeros(len(x), dtype=torch.float64)
    height = float(guess.max())
    for trial in range(MOST_SQUARINGS):
        height *= (1 + rtol) ** (trial + 2)
        shifted = (-gram[unproved]).diagonal_scatter(height - gram[unproved].diagonal(dim1=-2, dim2=-1), 0, -2, -1)
        trace = shifted.diagonal(dim1=-2, dim2=-1).real.double().sum(-1).abs() * (1 + n * unit)
        failed = torch.linalg.cholesky_ex(shifted)[1] != 0
        slack = factor / (1 - factor) * trace + 2 * unit * (height + gram_error[unproved] + frobenius[unproved] ** 2)
        upper[unproved] = (height + slack + gram_error[unproved]).sqrt() * OUTWARD
        unproved = unproved[failed]
        if len(unproved) == 0:
            return (float(upper.max()) + cast) * scale * OUTWARD
    return norm_upper(family, rtol)


def _ritz_values(gram: Tensor, vectors: int = 16, steps: int = 8) -> Tensor:
    """Guesses at the largest eigenvalues of Hermitian matrices (F, n, n); nothing is proved here."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(gram), gram.shape[-1], min(vectors, gram.shape[-1]))
    v = torch.randn(shape, dtype=gram.dtype, generator=generator).to(gram.device)
    for _ in range(steps):
        v = gram @ torch.linalg.qr(v).Q
    v = torch.linalg.qr(v).Q
    return torch.linalg.eigvalsh(v.mH @ gram @ v)[:, -1]
