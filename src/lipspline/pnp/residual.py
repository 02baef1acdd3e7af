"""How far an image is from the fixed point: the residual in float64, with its round-off bounded."""

import torch
from torch import Tensor, nn

from lipspline.certification.round_off import EPS, UnknownRoundOff, evaluate_exactly
from lipspline.operators import LinearOperator
from lipspline.pnp.guarantee import Denoiser, Setting, contracts, measure_pairing
from lipspline.pnp.norms import norms

# Round-off of H and Hᵀ in float64, in units of eps times the norms involved: sums of up to thousands of terms.
OPERATOR_TERMS = 1e4
# An operator that computes in less than float64 is known by its adjoint: this many times what was measured is allowed.
PAIRING_MARGIN = 10.0


def operator_round_off(H: LinearOperator, x: Tensor) -> float:
    """The relative round-off of `H.forward` and `H.adjoint` on images like `x` in float64, with a wide margin."""
    return OPERATOR_TERMS * EPS + PAIRING_MARGIN * measure_pairing(H, x).error


@torch.no_grad()
def distance_bound(
    value: Tensor,
    y: Tensor,
    H: LinearOperator,
    denoiser: Denoiser,
    setting: Setting,
    reference: Tensor | None = None,
) -> tuple[float | None, str]:
    """A bound on the distance of the images `value` to their fixed points, or None and why there is none.

    `T(x) - x` is computed again in float64 at the image returned, whatever steps led to it, and what float64 may have
    lost, inside the denoiser too, is added.
    """
    if not contracts(setting.rate):
        return None, "the iteration is not known to be a contraction; contraction=K makes it one"
    if not isinstance(denoiser, nn.Module):
        return None, "the round-off inside a denoiser that is not a module is unknown"
    x, data = wide(value), wide(y)
    unit = operator_round_off(H, x)
    z = x - setting.step * H.adjoint(H.forward(x) - data)
    lost = unit * (norms(x) + setting.step * setting.norm[1] * (setting.norm[1] * norms(x) + norms(data)))
    try:
        parts = [_denoised(denoiser, image, bound) for image, bound in zip(z.split(1), lost.split(1), strict=True)]
    except UnknownRoundOff as error:
        return None, str(error)
    denoised = torch.cat([part for part, _ in parts])
    if H.support is not None:
        denoised = torch.where(H.support, denoised, 0)
    mapped = setting.contraction * (z + setting.beta * (denoised - z))
    if reference is not None:
        mapped = mapped + (1 - setting.contraction) * wide(reference)
    inner = torch.cat([bound for _, bound in parts])
    lost = setting.contraction * (setting.beta * inner + (1 - setting.beta) * lost)
    lost = lost + 10 * EPS * (norms(x) + norms(z) + norms(denoised))
    return setting.distance(float((norms(mapped - x) + lost).max())), ""


@torch.no_grad()
def denoiser_round_off(denoiser: Denoiser, x: Tensor) -> Tensor:
    """A bound `(B,)` on the round-off of the denoiser in the precision of `x`; 0 if it cannot be looked into."""
    nothing = torch.zeros_like(norms(x))
    if not isinstance(denoiser, nn.Module):
        return nothing
    try:
        errors = torch.cat([_denoised(denoiser, image, nothing[:1])[1] for image in wide(x).split(1)])
    except UnknownRoundOff:
        return nothing
    return errors * (torch.finfo(x.dtype).eps / EPS)


def _denoised(denoiser: nn.Module, x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """The denoiser at one image, by real and imaginary part, and its error."""
    if not x.is_complex():
        return evaluate_exactly(denoiser, x, error)
    parts, errors = evaluate_exactly(denoiser, torch.cat([x.real, x.imag]), error.repeat(2))
    return torch.complex(*parts.chunk(2)), errors.square().sum().sqrt().unsqueeze(0)


def wide(x: Tensor) -> Tensor:
    """The same numbers in float64."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)
