"""Unrolled descent of ridge energies: steps with filters and splines of their own, whose whole is 1-Lipschitz."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from lipspline._infra import checks
from lipspline.functional.ridge import descent_step, largest_step, sampled_bank_upper
from lipspline.kernels import ridge as kernel
from lipspline.kernels.dispatch import wants_only_values
from lipspline.nn.inference import FoldedSpline
from lipspline.nn.spline import LinearSpline


class _Prepared(NamedTuple):
    """Filters and splines as the kernel in C wants them, and the numbers that they were made of."""

    numbers: tuple[Tensor, ...]
    bank: kernel.PreparedBank
    tables: kernel.PreparedTables


class UnitBank(nn.Module):
    r"""Parametrization of a bank of filters `(C, 1, k, k)`: divided by a bound of its norm where that is above 1."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight / sampled_bank_upper(weight).sqrt().clamp_min(1.0)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight


class RidgeStep(nn.Module):
    r"""One step :math:`(1-\tau) x + \tau y - \tau \lambda W^T \sigma(W x)` of an `UnrolledRidge`.

    It descends :math:`\tfrac12\|x - y\|^2 + \lambda R(x)` with :math:`\nabla R = W^T \sigma(W \cdot)`, and
    :math:`\tau = 2 / (2 + \lambda)`.

    Args:
        filters: C, the rows of W.
        kernel: k, their size in pixels, odd.
        strength: λ to begin with; it is learned.
        activation: σ for C channels: a `LinearSpline` or `FoldedSpline` with slopes in [0, 1]; a spline that starts as
            a clip if not given.
    """

    def __init__(self, filters: int, kernel: int = 5, *, strength: float = 2.0, activation: nn.Module | None = None):
        super().__init__()
        checks.at_least("filters", filters, 1)
        if checks.at_least("kernel", kernel, 1) % 2 == 0:
            raise ValueError(f"kernel must be odd, so that the images keep their size, but is {kernel}.")
        self.weight = nn.Parameter(torch.randn(filters, 1, kernel, kernel) / kernel)
        parametrize.register_parametrization(self, "weight", UnitBank())
        self.activation = activation or LinearSpline(filters, slope=(0.0, 1.0), radius=1.0, init=_clip)
        self.log_strength = nn.Parameter(torch.tensor(float(checks.positive("strength", strength))).log())
        self._prepared: _Prepared | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, weight: Tensor, activation: nn.Module, log_strength: Tensor) -> "RidgeStep":
        """A finished step with these numbers."""
        step = cls(len(weight), weight.shape[-1], activation=activation)
        parametrize.remove_parametrizations(step, "weight")
        step.weight, step.log_strength = nn.Parameter(weight.clone()), nn.Parameter(log_strength.clone())
        return step.eval().requires_grad_(False)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """τ, with which the step pulls towards y, and the weight τλ of the gradient."""
        strength = self.log_strength.exp()
        tau = largest_step(strength)
        return tau, tau * strength

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return descent_step(x, y, self.gradient(x), *self.coefficients())

    def gradient(self, x: Tensor) -> Tensor:
        """Wᵀσ(W x), with zeros around the image; in one pass in C where that is possible."""
        if (prepared := self._for_c(x)) is not None:
            return kernel.ridge_gradient(x, prepared.bank, prepared.tables)
        weight = self.weight
        responses = self.activation(F.conv2d(x, weight, padding=weight.shape[-1] // 2))
        return F.conv_transpose2d(responses, weight, padding=weight.shape[-1] // 2)

    def _for_c(self, x: Tensor) -> _Prepared | None:
        """Filters and splines for C, if it can be used; no change of them escapes, since all numbers are compared."""
        spline = self.activation
        if type(spline) is not FoldedSpline or spline.shared or parametrize.is_parametrized(self):
            return None
        numbers = self.weight, spline.b, spline.slopes, spline.scale
        if not (wants_only_values(x, *numbers) and all(kernel.has_ridge(t) for t in (x, *numbers))):
            return None
        kept = self._prepared
        if kept is None or not all(
            a.shape == b.shape and a.equal(b) for a, b in zip(kept.numbers, numbers, strict=True)
        ):
            kept = self._prepared = _prepare(spline, numbers)
        return kept

    def extra_repr(self) -> str:
        filters, _, size, _ = self.weight.shape
        return f"{filters}, kernel={size}, strength={float(self.log_strength.detach().exp()):.3g}"


class UnrolledRidge(nn.Module):
    r"""Steps :math:`x_{k+1} = (1-\tau_k) x_k + \tau_k y - \tau_k \lambda_k W_k^T \sigma_k(W_k x_k)` from
    :math:`x_0 = y`: a 1-Lipschitz map of images.

    Let :math:`\|W_k\|^2 \le 1` and the slopes of :math:`\sigma_k` be in [0, 1]. By x_k, the step has the Jacobian
    :math:`(1-\tau) I - \tau \lambda W^T D W`, which is symmetric with eigenvalues between
    :math:`1 - \tau - \tau\lambda` and :math:`1 - \tau`: its norm is at most :math:`1 - \tau` just if
    :math:`\tau \le 2 / (2 + \lambda)`. The Jacobian :math:`J_k` of x_k by y then obeys
    :math:`\|J_{k+1}\| \le (1 - \tau) \|J_k\| + \tau \le 1`. Up to :math:`2 / (1 + \lambda)`, where gradient descent
    still converges, would not do: the steps are different, and the constant can reach 2.

    Args:
        steps: in the order in which they are taken; one may occur several times.

    Example:
        >>> from lipspline import certify
        >>> denoiser = UnrolledRidge(RidgeStep(8), RidgeStep(8, strength=4.0))
        >>> denoiser(torch.zeros(1, 1, 9, 9)).shape, certify(denoiser).upper
        (torch.Size([1, 1, 9, 9]), 1.0)
    """

    def __init__(self, *steps: RidgeStep):
        super().__init__()
        checks.at_least("The number of steps", len(steps), 1)
        self.steps = nn.ModuleList(steps)

    def forward(self, y: Tensor) -> Tensor:
        if y.ndim != 4 or y.shape[1] != 1 or not y.is_floating_point():
            raise ValueError(
                f"UnrolledRidge takes real images of shape (B, 1, H, W), but got shape {tuple(y.shape)} of {y.dtype}."
            )
        x = y
        for step in self.steps:
            x = step(x, y)
        return x


def _clip(t: Tensor) -> Tensor:
    return t.clamp(-0.1, 0.1)


def _prepare(spline: FoldedSpline, numbers: tuple[Tensor, ...]) -> _Prepared | None:
    """None if the filters are not, as the kernel wants them, even ones and then odd ones, in fours."""
    weight, b, slopes, scale = numbers
    mirrored = weight.flip(2, 3)
    even = int((weight == mirrored).flatten(1).all(dim=1).cumprod(dim=0).sum())
    if even % kernel.QUAD or len(weight) % kernel.QUAD or not weight[even:].equal(-mirrored[even:]):
        return None
    tables = kernel.prepare_tables(b, slopes, scale * (spline.regions / (2 * spline.radius)), spline.regions / 2)
    return _Prepared(tuple(t.detach().clone() for t in numbers), kernel.prepare_bank(weight, even), tables)
