"""Before the first step: where an iteration begins, and what somebody promises of operator, denoiser or energy, tried.

A trial proves nothing: it finds promises that are wrong. What this library proves itself is not tried.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators import LinearOperator
from lipspline.pnp.batch import inner, norms
from lipspline.priors.energy import AdaptiveEnergy, Energy

ROUNDING = 1e-4
"""Promises may be off by this share, which is the rounding of float32 in whatever was promised."""


def singular_value_violations(H: LinearOperator, like: Tensor, smallest: float | None) -> list[str]:
    """What random images say against a lower bound on the singular values.

    Args:
        like: images, of which shape and type count.
    """
    if smallest is None:
        return []
    x = _random(like)
    x = x if H.support is None else torch.where(H.support, x, 0)
    least = float((norms(H.forward(x)) / norms(x)).min())
    if smallest <= least * (1 + ROUNDING):
        return []
    return [
        f"The operator stretches an image by {least:.6g} only, less than the lower bound {smallest:.6g} that its "
        f"smallest_singular_value() gives. Correct it, or return None."
    ]


def denoiser_violations(denoiser: Callable[[Tensor], Tensor], x: Tensor, bound: float, reason: str) -> list[str]:
    """What two images say against a bound that somebody vouches for.

    Args:
        x: images; the others are near them.
        reason: why the bound is believed.
    """
    size = norms(x).clamp(min=1e-3).to(x.real.dtype) / math.sqrt(max(1, x[0].numel()))
    other = x + 0.1 * size.view(-1, *[1] * (x.ndim - 1)) * _random(x)
    ratio = float((norms(denoiser(other) - denoiser(x)) / norms(other - x)).max())
    if not bound * (1 + ROUNDING) < ratio < math.inf:  # what is not finite ends the run, with an image
        return []
    return [
        f"The denoiser makes a difference of images {ratio:.6g} times as large, but {bound:.6g} was vouched for "
        f"({reason}). Correct the bound, or the denoiser."
    ]


def _random(like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def check_energy(energy: Energy, images: Tensor) -> None:
    """Try the gradient, the convexity and the constant of an energy that somebody else wrote.

    For all images a, b with `d = b - a` it must hold that `R(b) - R(a) - ⟨∇R(a), d⟩` lies between `-(ρ/2) ‖d‖²` and
    `(L/2) ‖d‖²`. Tried are a step along the gradient, forth and back, and another image.

    Args:
        images: real ones, of the shape and number that the energy will be asked about; their values do not matter.
    """
    lipschitz, weakness = promised_constants(energy)
    if type(energy).__module__.startswith("lipspline.") or isinstance(energy, AdaptiveEnergy):
        return
    wide, generator = energy.wide(), torch.Generator().manual_seed(0)
    a, other = torch.rand(2, *images.shape, generator=generator, dtype=torch.float64).to(images.device)
    slope = wide.gradient(a)
    if not isinstance(slope, Tensor) or slope.shape != a.shape:
        raise ValueError(
            f"gradient() of {_name(energy)} must return a tensor of the shape that it got, {tuple(a.shape)}."
        )
    start = _value(wide, a, energy)
    along = 0.01 * slope * (norms(a) / norms(slope).clamp(min=1e-30)).view(-1, *[1] * (a.ndim - 1))
    for b in (a + along, a - along, other):
        end, d = _value(wide, b, energy), b - a
        linear, square = inner(slope, d), norms(d) ** 2
        beyond = end - start - linear
        unsure = ROUNDING * (start.abs() + end.abs()) * 1e-3 + ROUNDING * linear.abs() + 1e-12 * square
        if bool((beyond < -weakness / 2 * square - unsure).any()):
            raise ValueError(
                f"{_name(energy)} falls below its tangent by more than weak_convexity = {weakness:g} allows: it is "
                f"less convex than that, or gradient() is not the gradient of forward(). Correct what is wrong."
            )
        if math.isfinite(lipschitz) and bool((beyond > lipschitz / 2 * square + unsure).any()):
            raise ValueError(
                f"{_name(energy)} rises above its tangent by more than lipschitz = {lipschitz:g} allows: the "
                f"constant is too small, or gradient() is not the gradient of forward(). Correct what is wrong."
            )


def promised_constants(energy: Energy) -> tuple[float, float]:
    """The constants L and ρ of an energy, if they are numbers that mean something."""
    lipschitz = checks.number(f"lipschitz of {_name(energy)}", energy.lipschitz)
    weakness = checks.number(f"weak_convexity of {_name(energy)}", energy.weak_convexity)
    if not lipschitz >= 0:
        raise ValueError(f"lipschitz of {_name(energy)} must be at least 0, but is {lipschitz:g}.")
    if not 0 <= weakness < math.inf:
        raise ValueError(f"weak_convexity of {_name(energy)} must be finite and at least 0, but is {weakness:g}.")
    return lipschitz, weakness


def _value(wide: Energy, x: Tensor, energy: Energy) -> Tensor:
    value = wide(x)
    if not isinstance(value, Tensor) or value.shape != (len(x),):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"forward() of {_name(energy)} must return the energy of each image, shape ({len(x)},), but returned "
            f"{got}. Sum over all dimensions but the first."
        )
    return value


def _name(energy: Energy) -> str:
    return type(energy).__name__


def supported(x: Tensor, H: LinearOperator, rows: Tensor | None = None) -> Tensor:
    """The orthogonal projection onto the images that are zero outside `H.support`.

    Args:
        rows: which images of the batch of `H` these are.
    """
    support = H.support
    if support is None:
        return x
    if rows is not None and support.ndim == x.ndim:
        support = support[rows]
    return torch.where(support, x, 0)


def smallest_bound(H: LinearOperator) -> float | None:
    """The lower bound on the singular values that an operator gives, if it is a positive number."""
    bound = H.smallest_singular_value()
    return None if bound is None else checks.positive(f"smallest_singular_value() of {H!r}", bound)


def first_iterate(y: Tensor, H: LinearOperator, step: float, start: Tensor | None) -> Tensor:
    """The image from which an iteration starts: `α Hᵀ y`, or the one that is given, checked."""
    back = checks.finite(
        "The first image α Hᵀ y", step * H.adjoint(y), f"The data or the step are too large for {y.dtype}."
    )
    if start is None:
        return back
    H.domain.check("pnp.fbs(start=...)", start)
    if start.is_complex() and not back.is_complex():
        raise ValueError(f"start is complex ({start.dtype}), but these data belong to real images ({back.dtype}).")
    if start.shape != back.shape:
        raise ValueError(f"start has shape {tuple(start.shape)}, but the data belong to images {tuple(back.shape)}.")
    return supported(checks.finite("start", start.to(back)), H)
