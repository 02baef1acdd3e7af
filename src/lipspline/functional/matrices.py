r"""Matrices with orthonormal columns or rows, and bounds on the largest singular value [lip_linear_layers].

Four maps take any matrix of full rank to one with orthonormal columns (or rows, if it is wide): `qr_orthonormal`,
`cayley`, `polar` and `bjorck`. All of them accept leading batch dimensions, run under `torch.func.vmap`,
`torch.func.grad` and `torch.compile(fullgraph=True)`, and can be differentiated twice.

`qr` is the default of every size. Measured forward and backward on two cores, from 300 matrices of 10x10 to one of
2048x2048, it takes a third to a seventh of the time of `polar`. `cayley` takes 0.7 to 1.0 of the time of `qr` if the
matrix is square, but its defect grows with the norm of the raw matrix (7e-6 at 1024x1024 where `qr` has 8e-7), and
its gradient vanishes with it.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.functional.norm_bounds import OUTWARD, as_real, eigenvalue_upper, power_of_two_above, product_error
from lipspline.kernels.dispatch import opaque

Method = Literal["qr", "cayley", "polar", "bjorck"]
LinearMap = Callable[[Tensor], Tensor]
MOST_STEPS = 100


def _tall(orthonormal_columns: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Extend a map of tall matrices in float32 or float64 to wide ones and to half precision."""

    @functools.wraps(orthonormal_columns)
    def either_shape(w: Tensor) -> Tensor:
        if w.numel() == 0:
            return w
        x = w.float() if w.dtype in (torch.float16, torch.bfloat16) else w
        wide = w.shape[-2] < w.shape[-1]
        q = orthonormal_columns(x.mT).mT if wide else orthonormal_columns(x)
        return q.to(w.dtype)

    return either_shape


@_tall
def qr_orthonormal(w: Tensor) -> Tensor:
    r"""Orthonormalize by QR with a positive diagonal of R, which makes it unique and smooth [lip_linear_layers].

    An orthonormal matrix is its own image. The gradient blows up as the matrix loses rank, not before.

    Args:
        w: (..., m, n), of full rank.

    Returns:
        (..., m, n) with orthonormal columns (m >= n) or rows (m < n).

    Example:
        >>> qr_orthonormal(torch.tensor([[3.0, 0.0], [4.0, 5.0]]))
        tensor([[ 0.6000, -0.8000],
                [ 0.8000,  0.6000]])
    """
    q, r = torch.linalg.qr(w)
    return q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype).unsqueeze(-2)


@_tall
def cayley(w: Tensor) -> Tensor:
    r"""Orthonormalize by the Cayley transform of the skew part, which needs one matrix inverse [lip_linear_layers].

    With `w = [U; V]`, `U` square, and `A = U - Uᵀ + VᵀV`, the image is `[(I + A)⁻¹(I - A); -2 V (I + A)⁻¹]`. The
    inverse always exists because the symmetric part of `I + A` is at least `I`, so no `w` is excluded; but matrices
    whose upper square block has the eigenvalue -1 are reached only in the limit, and `cayley(q) != q`: see
    `cayley_inverse`.

    Args:
        w: (..., m, n), any matrix.

    Returns:
        (..., m, n) with orthonormal columns (m >= n) or rows (m < n).

    Example:
        >>> cayley(torch.tensor([[0.0, -1.0], [0.0, 0.0]])).round()
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    n = w.shape[-1]
    upper, lower = w[..., :n, :], w[..., n:, :]
    eye = torch.eye(n, dtype=w.dtype, device=w.device)
    inverse = torch.linalg.inv(eye + upper - upper.mT + lower.mT @ lower)
    return torch.cat([2 * inverse - eye, -2 * lower @ inverse], dim=-2)


def cayley_inverse(q: Tensor) -> tuple[Tensor, Tensor]:
    r"""Find `w` and signs with `signs * cayley(w) == q`, for any orthonormal `q` [lip_linear_layers].

    The Cayley transform misses the matrices with eigenvalue -1, but flipping the signs of suitable rows (columns, if
    `q` is wide) always removes that eigenvalue: in the elimination of `S + Q`, S diagonal, each sign is chosen like
    the entry it is added to, so that every pivot is at least 1 in modulus.

    Args:
        q: (..., m, n) with orthonormal columns or rows.

    Returns:
        `w` (..., m, n) and `signs`, (..., m, 1) or, if `q` is wide, (..., 1, n).

    Example:
        >>> w, signs = cayley_inverse(-torch.eye(2))
        >>> torch.equal(signs * cayley(w), -torch.eye(2))
        True
    """
    if q.shape[-2] < q.shape[-1]:
        w, signs = cayley_inverse(q.mT)
        return w.mT, signs.mT
    n = q.shape[-1]
    signs = torch.ones_like(q[..., :1])
    rest = q[..., :n, :].clone()
    for i in range(n):
        signs[..., i, 0] = torch.where(rest[..., i, i] >= 0, 1.0, -1.0)
        column = rest[..., i + 1 :, i] / (rest[..., i, i] + signs[..., i, 0]).unsqueeze(-1)
        rest[..., i + 1 :, i + 1 :] -= column.unsqueeze(-1) * rest[..., i, i + 1 :].unsqueeze(-2)
    eye = torch.eye(n, dtype=q.dtype, device=q.device)
    inverse = torch.linalg.inv(eye + (signs * q)[..., :n, :])
    a = 2 * inverse - eye
    return torch.cat([(a - a.mT) / 4, -q[..., n:, :] @ inverse], dim=-2), signs


def polar_factor(w: Tensor, *, scaled: bool) -> Tensor:
    r"""The matrix Q with orthonormal columns in :math:`W = Q H`, H symmetric positive [lip_linear_layers].

    Newton-Schulz steps :math:`X \leftarrow X (3 I - X^T X) / 2` until the defect :math:`\|I - X^T X\|` is at round-off.

    Args:
        w: (..., m, n) with m >= n, in float32 or float64, of full rank.
        scaled: take at each step the cubic that is best for singular values in the interval known to hold them;
            small ones then grow 2.6-fold a step instead of 1.5-fold.

    Raises:
        ValueError: the matrix does not have full rank, or is not finite.

    Example:
        >>> polar_factor(torch.tensor([[0.0, 2.0], [5.0, 0.0]]), scaled=True)
        tensor([[0., 1.],
                [1., 0.]])
    """
    return _PolarFactor.apply(w, scaled)


@opaque("newton_schulz(Tensor w, bool scaled) -> Tensor", fake=lambda w, scaled: w.new_empty(w.shape))
def _newton_schulz(w: Tensor, scaled: bool) -> Tensor:
    x, low = _start(w)
    eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    for _ in range(MOST_STEPS):
        gram = x.mT @ x
        defect = torch.linalg.matrix_norm(eye - gram)[..., None, None]
        # The cubic scaled by rho is the best one on [low, 1]. Below a defect of 1, rho = 1 squares the defect.
        low = torch.where(defect < 1, 1.0, low) if scaled else torch.ones_like(low)
        rho = (3 / (1 + low + low * low)).sqrt()
        x = rho * (1.5 * x - 0.5 * rho * rho * (x @ gram))
        low = rho * low * (3 - rho * rho * low * low) / 2
        if (defect <= math.sqrt(torch.finfo(w.dtype).eps)).all():
            return x.contiguous()
    raise ValueError(
        f"A matrix of shape {tuple(w.shape)} could not be orthonormalized in {MOST_STEPS} steps: it does not have full "
        f"rank, or holds NaN or infinity. Initialize it as an orthogonal matrix, or use method='qr'."
    )


def _start(w: Tensor) -> tuple[Tensor, Tensor]:
    """Scale to singular values at most 1, or to mean square 1 if that is near enough; and guess the least of them."""
    n = w.shape[-1]
    tiny = torch.finfo(w.dtype).tiny
    x = w * (math.sqrt(n) / torch.linalg.matrix_norm(w).clamp_min(tiny))[..., None, None]
    eye = torch.eye(n, dtype=w.dtype, device=w.device)
    near = torch.linalg.matrix_norm(eye - x.mT @ x) < 1
    bound = (torch.linalg.matrix_norm(x, 1) * torch.linalg.matrix_norm(x, math.inf)).sqrt().clamp_min(tiny)
    scale = torch.where(near, 1.0, bound)[..., None, None]
    return x / scale, torch.full_like(scale, 1e-3)


class _PolarFactor(torch.autograd.Function):
    r"""With W = Q H: dQ = Q Ω + (I - QQᵀ) dW H⁻¹ where H Ω + Ω H = Qᵀ dW - dWᵀ Q; the backward is its transpose."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, scaled: bool) -> Tensor:
        return _newton_schulz(w, scaled)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (grad,), (w, q) = grads, ctx.saved_tensors
        h = q.mT @ w
        h = (h + h.mT) / 2
        s = q.mT @ grad
        tangent = q @ _Lyapunov.apply(h, s - s.mT)
        if w.shape[-2] == w.shape[-1]:
            return tangent, None
        return tangent + torch.linalg.solve(h, grad - q @ s, left=False), None


@opaque("lyapunov(Tensor h, Tensor b) -> Tensor", fake=lambda h, b: b.new_empty(b.shape))
def _solve_lyapunov(h: Tensor, b: Tensor) -> Tensor:
    eigenvalues, v = torch.linalg.eigh(h)
    y = (v.mT @ b @ v) / (eigenvalues.unsqueeze(-1) + eigenvalues.unsqueeze(-2))
    return (v @ y @ v.mT).contiguous()


class _Lyapunov(torch.autograd.Function):
    """Solve H Y + Y H = B for symmetric positive H. Its derivative is one more of these: no gaps to divide by."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, b: Tensor) -> Tensor:
        return _solve_lyapunov(h, b)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (grad,), (h, y) = grads, ctx.saved_tensors
        z = _Lyapunov.apply(h, grad)
        return -(z @ y.mT + y.mT @ z), z


@_tall
def polar(w: Tensor) -> Tensor:
    r"""Orthonormalize by the polar factor :math:`W (W^T W)^{-1/2}`, the nearest such matrix [lip_linear_layers].

    Scaled Newton-Schulz steps (the cubic that is best on the interval known to hold the singular values), until the
    defect :math:`\|I - X^T X\|` is at round-off. The derivative is the solution of a Lyapunov equation, not the
    unrolled iteration.

    Args:
        w: (..., m, n), of full rank; without it the iteration cannot end and raises `ValueError`.

    Returns:
        (..., m, n) with orthonormal columns (m >= n) or rows (m < n).

    Example:
        >>> polar(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    return polar_factor(w, scaled=True)


@_tall
def bjorck(w: Tensor) -> Tensor:
    r"""Orthonormalize by Björck's iteration, to round-off [lip_linear_layers].

    .. math:: X \leftarrow X (I + \tfrac12 (I - X^T X))

    It has the same limit and derivative as `polar`, which needs fewer steps: for comparison with published results.

    Args:
        w: (..., m, n), of full rank; without it the iteration cannot end and raises `ValueError`.

    Returns:
        (..., m, n) with orthonormal columns (m >= n) or rows (m < n).
    """
    return polar_factor(w, scaled=False)


METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "qr": qr_orthonormal,
    "cayley": cayley,
    "polar": polar,
    "bjorck": bjorck,
}


def orthonormalize(w: Tensor, method: Method = "qr") -> Tensor:
    """Map matrices to ones with orthonormal columns, or rows if they are wide [lip_linear_layers].

    Args:
        w: (..., m, n).
        method: `"qr"` (default, the fastest), `"cayley"`, `"polar"` or `"bjorck"`.

    Example:
        >>> q = orthonormalize(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]))
        >>> bool((q.mT @ q - torch.eye(2)).abs().max() < 1e-6)
        True
    """
    return METHODS[checks.one_of("method", method, METHODS)](w)


def power_iteration(forward: LinearMap, adjoint: LinearMap, v: Tensor, steps: int = 1) -> Tensor:
    r"""Turn a unit vector towards the largest singular value of a linear map [lip_linear_layers].

    `forward(v).norm()` then estimates the norm of the map, from below. Keep `v` between calls and one step a call is
    enough.

    Args:
        forward: the map, of tensors shaped like `v`.
        adjoint: its adjoint.
        v: a tensor of norm 1.

    Returns:
        :math:`(A^T A)^{steps} v`, normalized.

    Example:
        >>> a = torch.diag(torch.tensor([2.0, 1.0]))
        >>> v = power_iteration(lambda v: a @ v, lambda u: a.mT @ u, torch.tensor([0.6, 0.8]), steps=9)
        >>> (a @ v).norm()
        tensor(2.)
    """
    tiny = torch.finfo(v.dtype).tiny
    for _ in range(steps):
        v = adjoint(forward(v))
        v = v / torch.linalg.vector_norm(v).clamp_min(tiny)
    return v


def spectral_norm_upper(w: Tensor) -> float:
    r"""A proven upper bound on the largest singular value, its own rounding included [lip_linear_layers].

    It exceeds the true value by less than :math:`10^{-9}` of it, up to some two thousand rows and columns.

    Args:
        w: (m, n), real or complex, finite. The bound is that of exactly these numbers, whatever their dtype.

    Example:
        >>> upper = spectral_norm_upper(torch.tensor([[3.0, 0.0], [4.0, 5.0]]))
        >>> 0 <= upper / 45**0.5 - 1 < 1e-9
        True
    """
    x = as_real(w)
    x = x if x.shape[0] >= x.shape[1] else x.mT
    scale = power_of_two_above(x)
    x = x / scale
    mean, error = float(x.square().sum()) / max(x.shape[1], 1), product_error(len(x), is_complex=False)
    square = eigenvalue_upper(lambda: [(x.mT @ x).unsqueeze(0)], mean=mean, error=error, rtol=1e-10)
    return math.sqrt(square) * scale * OUTWARD


@opaque("spectral_norms_upper(Tensor w) -> Tensor", fake=lambda w: w.new_empty(w.shape[:-2], dtype=torch.float64))
def spectral_norms_upper(w: Tensor) -> Tensor:
    """`spectral_norm_upper` of a batch (..., m, n) as a float64 tensor (...), under vmap and compile."""
    bounds = [spectral_norm_upper(x) for x in w.reshape(-1, *w.shape[-2:])]
    return torch.tensor(bounds, dtype=torch.float64, device=w.device).reshape(w.shape[:-2])
