"""A denoiser trained for one noise level as a denoiser for any other."""

from torch import Tensor, nn

from lipspline import _checks
from lipspline.certify import Certificate, certify, register_rule


class Rescaled(nn.Module):
    r"""`c D(x / c)`: a denoiser for noise `s` as one for noise `c s`, with the same Lipschitz constant [sec:exp_pnp].

    `x = x_0 + c s n` with white noise `n` is `x / c = x_0 / c + s n`: the noise D was trained for, on an image with
    grey values in `[0, 1/c]`. Differences are divided and multiplied by the same number, so that the certificate of
    D is also that of the rescaled denoiser.

    Args:
        inner: D.
        factor: c, the noise level wanted over the one that D was trained for.

    Example:
        >>> import torch
        >>> shrink = nn.Softshrink(1.0)
        >>> Rescaled(shrink, 2.0)(torch.tensor([1.0, 3.0]))
        tensor([0., 1.])
    """

    def __init__(self, inner: nn.Module, factor: float):
        super().__init__()
        self.inner = inner
        self.factor = _checks.positive("factor", factor)

    @property
    def certificate(self) -> Certificate:
        """The certificate of D; made if it carries none."""
        return getattr(self.inner, "certificate", None) or certify(self.inner, steps=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.inner(x / self.factor)

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}"


@register_rule(Rescaled)
def _rescaled(layer: Rescaled) -> tuple[float, str]:
    return layer.certificate.upper, f"differences divided and multiplied by {layer.factor:g}"
