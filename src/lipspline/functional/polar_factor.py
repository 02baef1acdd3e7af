r"""The polar factor of a matrix by iteration, with the derivative of its limit [lip_linear_layers].

The derivative is the solution of a Lyapunov equation, which costs less than the unrolled iteration and is exact.
"""

import math

import torch
from torch import Tensor

from lipspline.kernels.opaque import opaque

MOST_STEPS = 100


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
