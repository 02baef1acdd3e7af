"""A denoiser trained for one noise level as a denoiser for any other.

For more noise than it was trained for, a denoiser is rescaled: it then sees images with less contrast. For less noise
it is not, as it would see images brighter than any of its training, and fail; instead it is averaged with the identity.
Both keep the Lipschitz constant. How well this works is measured in docs/denoisers.md.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification.inspection import number_of
from lipspline.certification.proof import Bound, ChildBounds, certify, register_rule
from lipspline.certification.round_off import EPS, Evaluate, register_composite
from lipspline.networks.builders import Network
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.combine import Averaged
from lipspline.nn.inference import FoldedSpline
from lipspline.nn.spline import LinearSpline

HOMOGENEOUS = (nn.ReLU, AbsoluteValue, LipschitzPReLU, GroupSort, MaxMin, Householder)


def level_for(noise: float, trained: Collection[float]) -> float:
    """Which of the trained levels serves `noise` best: the nearest, as a ratio.

    Example:
        >>> level_for(7, [5, 10, 15]), level_for(7.1, [5, 10, 15])
        (5, 10)
    """
    return min(trained, key=lambda level: abs(math.log(level / noise)))


def serving(denoiser: nn.Module, trained: float, noise: float) -> nn.Module:
    """A denoiser for `noise` made of one that was trained for the level `trained`; their parameters are shared."""
    if noise == trained:
        return denoiser
    return Rescaled(denoiser, noise / trained) if noise > trained else Averaged(denoiser, noise / trained)


def serve_(network: Network, trained: float, noise: float) -> Network:
    """The same by changing the network, so that more noise costs nothing when it runs; it can be saved."""
    if noise == trained:
        return network
    return rescale_(network, noise / trained) if noise > trained else averaged(network, noise / trained)


def averaged(network: Network, beta: float) -> Network:
    """`β D(x) + (1 - β) x` as a network with a configuration, a certificate and a provenance."""
    result = Network([Averaged(network, beta)], {**network.config, "averaged": beta})
    result.provenance = network.provenance
    if network.certificate is not None:
        result.certificate = certify(result)
    return result


class Rescaled(nn.Module):
    r"""`o + c D((x - o) / c)`: a denoiser for other noise and other grey values, with the same Lipschitz constant.

    `x = x_0 + c s n` with white noise `n` is `x / c = x_0 / c + s n`: the noise D was trained for, on an image with
    grey values in `[0, 1/c]` [sec:exp_pnp]. With an offset o, grey values in `[o, o + c]` become those in `[0, 1]`.
    Differences are divided and multiplied by the same number, so that the certificate of D is also that of the
    rescaled denoiser.

    Args:
        inner: D.
        factor: c, the noise level wanted over the one that D was trained for.
        offset: o, the value that D sees as zero.
        imaginary_shift: what `pnp` adds to imaginary parts before this map and takes off after it, so that values
            around 0 are seen as values around it. A shift by a constant does not change the Lipschitz constant.

    Example:
        >>> shrink = nn.Softshrink(1.0)
        >>> Rescaled(shrink, 2.0)(torch.tensor([1.0, 3.0]))
        tensor([0., 1.])
        >>> Rescaled(shrink, 2.0, offset=-1.0)(torch.tensor([1.0, 3.0]))
        tensor([-1.,  1.])
    """

    grey_values: tuple[float, float] | None = None
    """The values of images that D was trained for, if that is known."""

    def __init__(self, inner: nn.Module, factor: float, offset: float = 0.0, imaginary_shift: float = 0.0):
        super().__init__()
        self.inner = inner
        self.factor = checks.positive("factor", factor)
        self.offset = checks.number("offset", offset)
        self.imaginary_shift = checks.number("imaginary_shift", imaginary_shift)

    def forward(self, x: Tensor) -> Tensor:
        if self.offset == 0:
            return self.factor * self.inner(x / self.factor)
        return self.offset + self.factor * self.inner((x - self.offset) / self.factor)

    def extra_repr(self) -> str:
        shift = f", imaginary_shift={self.imaginary_shift:g}" if self.imaginary_shift else ""
        return f"factor={self.factor:g}, offset={self.offset:g}{shift}"


@register_rule(Rescaled, composite=True)
def _rescaled(layer: Rescaled, bounds: ChildBounds) -> Bound:
    factor = checks.positive("factor", number_of(layer, "factor"))
    return bounds("inner", layer.inner).upper, f"differences divided and multiplied by {factor:g}"


@register_composite(Rescaled)
def _rescaled_round_off(layer: Rescaled, x: Tensor, error: Tensor, run: Evaluate) -> tuple[Tensor, Tensor]:
    def norms(z: Tensor) -> Tensor:
        return torch.linalg.vector_norm(z.flatten(1), dim=1)

    factor, shift = layer.factor, norms(torch.full_like(x, layer.offset))
    lost = error + 2 * EPS * (norms(x) + shift)
    y, inner_error = run(layer.inner, (x - layer.offset) / factor, lost / factor)
    result = layer.offset + factor * y
    return result, factor * inner_error + 2 * EPS * (factor * norms(y) + norms(result) + shift)


@torch.no_grad()
def rescale_(network: Network, factor: float) -> Network:
    """Turn a network D into `c D(x / c)` by its parameters, so that it can be trained further at the new noise.

    Biases are multiplied by c and the scales α of splines divided by it; other activations commute with c.

    Args:
        network: changed in place.
        factor: c, the noise level wanted over the one that D was trained for.
    """
    checks.positive("factor", factor)
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            if layer.bias is not None:
                layer.bias.mul_(factor)
        elif isinstance(layer, LinearSpline):
            layer.log_scale.sub_(math.log(factor))
        elif isinstance(layer, FoldedSpline):
            layer.scale.div_(factor)
            layer.refresh()
        elif isinstance(layer, Averaged) and isinstance(layer.inner, Network):
            rescale_(layer.inner, factor)
        elif not isinstance(layer, HOMOGENEOUS):
            raise ValueError(f"rescale_ does not know how {type(layer).__name__} scales. Wrap the network in Rescaled.")
    return network
