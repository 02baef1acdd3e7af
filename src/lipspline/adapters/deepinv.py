"""Operators to and from `deepinv.physics.LinearPhysics`, and our denoisers as `deepinv.models.Denoiser`."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.adapters.foreign import Norm, wrap
from lipspline.certification import certify
from lipspline.operators.base import Field, LinearOperator, Space
from lipspline.pnp._fbs import denoise

PURPOSE = "Exchanging operators and denoisers with deepinv"
WHITE = 255.0


def to_deepinv(H: LinearOperator, **options: Any) -> Any:
    """One of our operators as a `deepinv.physics.LinearPhysics`, with its exact adjoint as `A_adjoint`.

    Complex data stay complex tensors. `deepinv` chooses steps from its own estimate of the norm; the proven one is
    `H.norm_bounds()[1]`, to be used as `stepsize = 1 / H.norm_bounds()[1] ** 2`.

    Args:
        H: ours.
        options: of `LinearPhysics`, such as `noise_model`.
    """
    physics = checks.require("deepinv.physics", "deepinv", PURPOSE)
    return physics.LinearPhysics(
        A=lambda x, **_: H.forward(x), A_adjoint=lambda y, **_: H.adjoint(y), img_size=H.input_shape, **options
    )


def from_deepinv(
    physics: Any,
    input_shape: tuple[int, ...],
    *,
    field: Field = "real",
    norm: Norm = None,
    dtype: torch.dtype = torch.float32,
) -> LinearOperator:
    """A linear physics of deepinv as an operator on `(B, *input_shape)`, without its noise; its adjoint is tried.

    Its `compute_norm` is an estimate from below (and of the squared norm, by default), so it proves nothing here: give
    `norm` if you know better, else the operator comes without an upper bound and `pnp.fbs` refuses its guarantee.

    Args:
        physics: has the maps `A` and `A_adjoint`, on batches of tensors.
        input_shape: sizes of an image without batch.
        field: "real" or "complex" images.
        norm: an upper bound on the norm of A that you vouch for, or "dense" (see `adapters.foreign.wrap`).
        dtype: the precision of the physics, in which it computes whatever our side has.
    """
    if not (hasattr(physics, "A") and hasattr(physics, "A_adjoint")):
        raise ValueError(
            f"from_deepinv needs a linear physics with A and A_adjoint, but got a {type(physics).__name__}."
        )
    return wrap(
        f"The physics {type(physics).__name__}",
        lambda x: physics.A(_for(physics, x, dtype)),
        lambda y: physics.A_adjoint(_for(physics, y, dtype)),
        domain=Space(tuple(input_shape), field),
        norm=norm,
    )


def to_deepinv_denoiser(denoiser: nn.Module, noise: float, *, colors: int = 1) -> Any:
    """A certified denoiser as a `deepinv.models.Denoiser`, for every noise level: see `AnyNoise`.

    Args:
        denoiser: of this library, or any that `certify` proves to be 1-Lipschitz.
        noise: the noise level that it was trained for, in units of 1/255.
        colors: channels it takes at once.
    """
    models = checks.require("deepinv.models", "deepinv", PURPOSE)
    kind = type("LipsplineDenoiser", (AnyNoise, models.Denoiser), {"__doc__": AnyNoise.__doc__})
    return kind(denoiser, noise, colors=colors)


class AnyNoise(nn.Module):
    r"""A denoiser for every noise level, 1-Lipschitz in x for every sigma > 0 [sec:exp_pnp].

    With `c = 255 sigma / noise` it is `c D(x / c)` for `c >= 1`, and below `c D(x) + (1 - c) x`: see `models.rescale`.

    As deepinv has it, white is 1, sigma is a number or one for each image of the batch, and more channels than the
    denoiser takes are denoised separately. Complex images are denoised by real and imaginary part. Differentiable in x
    and, but for `c = 1`, in sigma.

    Args:
        denoiser: must be certified <= 1; `certificate` holds the proof.
        noise: the noise level that it was trained for, in units of 1/255.
        colors: channels it takes at once.

    Example:
        >>> D = AnyNoise(nn.ReLU(), noise=15)
        >>> D(torch.tensor([[[[-1.0, 0.5]]]]), 0.1)
        tensor([[[[0.0000, 0.5000]]]])
    """

    def __init__(self, denoiser: nn.Module, noise: float, *, colors: int = 1):
        super().__init__()
        self.certificate = certify(denoiser)
        if self.certificate.upper > 1:
            raise ValueError(
                f"The denoiser is certified to be Lipschitz with constant {self.certificate.upper:.9g}, above 1. "
                f"If this is round-off, fold the network with lipspline.plain, which divides by the bound."
            )
        self.denoiser = copy.deepcopy(denoiser).eval()  # the caller's stays as it is
        self.noise = checks.positive("noise", noise, "It is a noise level, in units of 1/255.")
        self.colors = checks.at_least("colors", colors, 1)

    def forward(self, x: Tensor, sigma: Any, **_: Any) -> Tensor:
        ratio = _levels(sigma, x) * (WHITE / self.noise)
        up, down = ratio.clamp(min=1), ratio.clamp(max=1)
        return torch.lerp(x, up * denoise(self._by_colors, x / up), down.to(x.dtype))

    def _by_colors(self, x: Tensor) -> Tensor:
        checks.grouped("The denoiser", x, self.colors, 1)
        return self.denoiser(x.reshape(-1, self.colors, *x.shape[2:])).reshape(x.shape)


def _levels(sigma: Any, x: Tensor) -> Tensor:
    """Noise levels as `(1, 1, ...)` or `(B, 1, ...)`, to be multiplied with a batch."""
    levels = torch.as_tensor(sigma, dtype=x.real.dtype, device=x.device).reshape(-1)
    if len(levels) not in (1, len(x)):
        raise ValueError(f"sigma has {len(levels)} noise levels for {len(x)} images. Pass one, or one for each.")
    if not ((levels > 0) & levels.isfinite()).all():
        raise ValueError(f"sigma must be positive and finite, but is {sigma!r}.")
    return levels.reshape(-1, *[1] * (x.ndim - 1))


def _for(physics: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in the precision and on the device of a physics."""
    held = [*physics.parameters(), *physics.buffers()] if isinstance(physics, nn.Module) else []
    return x.detach().to(held[0].device if held else x.device, dtype.to_complex() if x.is_complex() else dtype)
