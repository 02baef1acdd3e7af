"""A denoiser trained for one noise level as a denoiser for any other."""

import math

import torch
from torch import Tensor, nn

from lipspline import _checks
from lipspline.certify import certify, register_rule
from lipspline.models.network import Network
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.linear_spline import LinearSpline

HOMOGENEOUS = (nn.ReLU, AbsoluteValue, LipschitzPReLU, GroupSort, MaxMin, Householder)


class Rescaled(nn.Module):
    r"""`c D(x / c)`: a denoiser for noise `s` as one for noise `c s`, with the same Lipschitz constant [sec:exp_pnp].

    `x = x_0 + c s n` with white noise `n` is `x / c = x_0 / c + s n`: the noise D was trained for, on an image with
    grey values in `[0, 1/c]`. Differences are divided and multiplied by the same number, so that the certificate of
    D is also that of the rescaled denoiser.

    Args:
        inner: D.
        factor: c, the noise level wanted over the one that D was trained for.

    Example:
        >>> shrink = nn.Softshrink(1.0)
        >>> Rescaled(shrink, 2.0)(torch.tensor([1.0, 3.0]))
        tensor([0., 1.])
    """

    def __init__(self, inner: nn.Module, factor: float):
        super().__init__()
        self.inner = inner
        self.factor = _checks.positive("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.inner(x / self.factor)

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}"


@register_rule(Rescaled)
def _rescaled(layer: Rescaled) -> tuple[float, str]:
    return certify(layer.inner, steps=0).upper, f"differences divided and multiplied by {layer.factor:g}"


@torch.no_grad()
def rescale_(network: Network, factor: float) -> Network:
    """Turn a network D into `c D(x / c)` by its parameters, so that it can be trained further at the new noise.

    Biases are multiplied by c and the scales α of splines divided by it; other activations commute with c.

    Args:
        network: changed in place.
        factor: c, the noise level wanted over the one that D was trained for.
    """
    _checks.positive("factor", factor)
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            if layer.bias is not None:
                layer.bias.mul_(factor)
        elif isinstance(layer, LinearSpline):
            layer.log_scale.sub_(math.log(factor))
        elif isinstance(layer, FoldedSpline):
            layer.scale.div_(factor)
            layer.refresh()
        elif not isinstance(layer, HOMOGENEOUS):
            raise ValueError(f"rescale_ does not know how {type(layer).__name__} scales. Wrap the network in Rescaled.")
    return network
