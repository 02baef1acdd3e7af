r"""The formulas of ridge energies: tables of odd splines, their primitives, and the norm of a bank of filters."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline.functional.norm_bounds import OUTWARD, ROUND_OFF
from lipspline.kernels import piecewise_affine  # noqa: F401  (used by the examples)

SAMPLES = 2048  # frequencies an axis at which the power of a bank is sampled
LARGEST_DEGREE = 128  # of a bank: a factor 1 / cos(pi / 16) an axis is missed at most


class Tables(NamedTuple):
    """Arguments of `piecewise_affine`: one odd spline per channel, or per image and channel."""

    b: Tensor  # (C, 2M) or (B, C, 2M)
    s: Tensor  # the same
    scale: Tensor  # (C,) or (B, C)
    offset: float


def odd_tables(slopes: Tensor, radius: float, scale: Tensor) -> Tables:
    r"""Tables of the odd splines :math:`\psi'(a t) / a` with the given slopes on [0, radius].

    Args:
        slopes: (C, M).
        radius: the last knot, before scaling.
        scale: a, (C,) or (B, C), positive.

    Example:
        >>> clip = odd_tables(torch.tensor([[1.0, 0.0]]), radius=2.0, scale=torch.ones(1))
        >>> piecewise_affine(torch.tensor([[-3.0, -0.5, 0.5, 3.0]]), *clip)
        tensor([[-1.0000, -0.5000,  0.5000,  1.0000]])
    """
    regions = slopes.shape[-1]
    step = radius / regions
    left = step * torch.arange(regions, dtype=slopes.dtype, device=slopes.device)
    values = F.pad(slopes.cumsum(dim=-1)[..., :-1] * step, (1, 0))
    b = (values - slopes * left) / scale.unsqueeze(-1)
    s = slopes.expand_as(b)
    return Tables(
        torch.cat([-b.flip(-1), b], dim=-1), torch.cat([s.flip(-1), s], dim=-1), scale.detach() / step, float(regions)
    )


def potential_constants(tables: Tables) -> Tensor:
    r"""The p_i with which :math:`p_i + b_i t + \tfrac12 s_i t^2` is the continuous primitive that vanishes at 0.

    Example:
        >>> huber = odd_tables(torch.tensor([[1.0, 0.0]]), radius=2.0, scale=torch.ones(1))
        >>> potential_constants(huber)  # |t| - 1/2 outside
        tensor([[-0.5000,  0.0000,  0.0000, -0.5000]])
    """
    regions = tables.s.shape[-1] // 2
    b, s = tables.b[..., regions:], tables.s[..., regions:]
    knots = torch.arange(1, regions, dtype=s.dtype, device=s.device) / tables.scale.unsqueeze(-1)
    jumps = -(b.diff(dim=-1) * knots + s.diff(dim=-1) * knots.square() / 2)
    p = F.pad(jumps.cumsum(dim=-1), (1, 0))
    return torch.cat([p.flip(-1), p], dim=-1)


def hats(noise: Tensor, nodes: Tensor) -> Tensor:
    """Weights (..., K) of linear interpolation in log s between nodes of constant ratio, constant beyond them.

    Example:
        >>> hats(torch.tensor([2.0, 100.0]), torch.tensor([1.0, 4.0]))
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
    """
    position = nodes.log()
    s = noise.log().clamp(position[0], position[-1])
    return (1 - (s.unsqueeze(-1) - position).abs() / (position[1] - position[0])).clamp_min(0)


def largest_step(lipschitz: Tensor) -> Tensor:
    r"""The largest τ with which :math:`(1-\tau) x - \tau \nabla R(x)` is Lipschitz with :math:`1 - \tau`: 2 / (2 + L).

    If the gradient of the convex R is L-Lipschitz, the Jacobian is symmetric with eigenvalues between
    :math:`1 - \tau - \tau L` and :math:`1 - \tau`. A millionth less is returned, more than float32 rounds τ and τL by.

    Example:
        >>> tau = largest_step(torch.tensor(2.0))
        >>> 1 - tau, 1 - tau - tau * 2
        (tensor(0.5000), tensor(-0.5000))
    """
    return 2 * (1 - 1e-6) / (2 + lipschitz)


def descent_step(x: Tensor, y: Tensor, gradient: Tensor, tau: Tensor, weight: Tensor) -> Tensor:
    r"""A step :math:`(1-\tau) x + \tau y - w \nabla R(x)`: down :math:`\tfrac12\|x - y\|^2 + \lambda R(x)` if w = τλ.

    Example:
        >>> x, y, gradient = torch.tensor([1.0, 3.0, 1.0])
        >>> descent_step(x, y, gradient, tau=torch.tensor(0.5), weight=torch.tensor(1.0))
        tensor(1.)
    """
    return torch.lerp(x, y, tau) - weight * gradient


def descent_norm_upper(before: float, tau: float, weight: float, slopes: tuple[float, float], bank: float) -> float:
    r"""A bound of :math:`\|J'\|` for a step :math:`J' = ((1-\tau) I - w W^T D W) J + \tau I` with a bound of ‖J‖.

    The first factor is symmetric. With D in `slopes` and :math:`\|W\|^2` at most `bank`, its eigenvalues lie between
    :math:`1 - \tau - w b \max(h, 0)` and :math:`1 - \tau - w b \min(l, 0)`. Rounding is added outward.

    Args:
        before: the bound of ‖J‖.
        tau, weight: τ and w, not negative.
        slopes: the least one l and the largest one h.
        bank: b.

    Example:
        >>> descent_norm_upper(1.0, 0.5, 0.999, (0.0, 1.0), 1.0)
        1.0
        >>> 2 <= descent_norm_upper(1.0, 0.5, 2.0, (0.0, 1.0), 1.0) <= 2 + 1e-12
        True
    """
    low, high = (weight * bank * end for end in (min(slopes[0], 0.0), max(slopes[1], 0.0)))
    if low == 0 and high * OUTWARD <= 2 * (1 - tau) and tau <= 1:
        return max(before, 1.0)  # (1-τ)‖J‖ + τ is a mean of the two
    factor = max(abs(1 - tau - low), abs(1 - tau - high)) + 1e-15 * (1 + abs(low) + high)
    return (factor * before + tau) * OUTWARD


def sampled_bank_upper(filters: Tensor) -> Tensor:
    r"""A bound on :math:`\|W\|^2` for a bank (C, 1, k, k), for every image size, up to rounding, within 4 percent.

    As `bank_norm_upper`, which allows for rounding and is tighter, but with few samples and with derivatives.

    Example:
        >>> difference = torch.tensor([[[[0.0, 0.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 0.0]]]])
        >>> 4 <= float(sampled_bank_upper(difference)) <= 4.16
        True
    """
    degree = max(filters.shape[-1] - 1, 1)
    samples = 16 * degree  # so few that the filters are shorter, and each axis misses a factor 1 / cos(π / 16) at most
    power = torch.fft.rfft2(filters[:, 0], s=(samples, samples)).abs().square().sum(dim=0)
    return power.max() / math.cos(math.pi / 16) ** 2


@torch.no_grad()
def bank_norm_upper(filters: Tensor) -> float:
    r"""A proven upper bound on :math:`\|W\|^2` for a bank (C, 1, k, k), for every image size, within 0.04 percent.

    W is part of the bank on the plane, where :math:`\|W\|^2 = \max_\omega p(\omega)` with
    :math:`p = \sum_c |\hat w_c|^2 = \sum_d r_d \cos(d \cdot \omega)`, r the sum of the autocorrelations. p has degree
    k - 1 along each axis, so that N samples an axis miss at most a factor :math:`1/\cos(\pi (k-1) / N)` an axis (Riesz;
    see `conv_norm_upper`). Errors of rounding are bounded and added.

    Example:
        >>> difference = torch.tensor([[[[0.0, 0.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 0.0]]]])
        >>> 4 <= bank_norm_upper(difference) <= 4.001  # |1 - exp(iω)|² at ω = π
        True
    """
    if filters.is_complex() or filters.ndim != 4 or filters.shape[1] != 1 or filters.shape[-1] != filters.shape[-2]:
        raise ValueError(
            f"The filters of a bank must be real and have shape (C, 1, k, k), but are {filters.dtype} of shape "
            f"{tuple(filters.shape)}."
        )
    w = filters.detach().double().transpose(0, 1)
    degree, energy = w.shape[-1] - 1, float(w.square().sum())
    if degree > LARGEST_DEGREE:
        raise ValueError(
            f"The filters of a bank have at most {LARGEST_DEGREE + 1} pixels along an axis, but these have "
            f"{degree + 1}: the samples of their power would say too little."
        )
    if not math.isfinite(energy):
        raise ValueError("The filters must be finite numbers: a bank with others has no bound.")
    r = F.conv2d(w, w, padding=degree)[0, 0]
    d = torch.arange(-degree, degree + 1)
    angles = (torch.arange(SAMPLES)[:, None] * d).remainder(SAMPLES).double() * (2 * math.pi / SAMPLES)
    cos, sin = angles.cos(), angles.sin()
    half = slice(SAMPLES // 2 + 1)  # p(-ω) = p(ω)
    power = cos @ r @ cos[half].mT - sin @ r @ sin[half].mT
    total = float(r.abs().sum())
    of_sums = r.numel() * (w.numel() + 2) * ROUND_OFF * energy  # each r_d is an inner product, at most `energy`
    of_samples = (8 * len(d) + 200) * ROUND_OFF * total  # cosines within 32 round-offs, two products of length 2k - 1
    missed = math.cos(math.pi * degree / SAMPLES) ** 2
    return (float(power.max()) + 2 * of_sums + 2 * of_samples) / missed * OUTWARD
