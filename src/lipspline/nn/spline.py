"""Learned 1-Lipschitz linear splines as activations [sec:deepspline, sec:methods]."""

from collections.abc import Callable
from math import inf
from typing import Literal

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.functional.spline import clipped_slopes, difference, grid, slope_normalize
from lipspline.kernels import scaled_spline, scaled_tables

SplineConstraint = Literal["clip", "normalize", "none"]
CONSTRAINTS = ("clip", "normalize", "none")


def _maxmin(t: Tensor) -> Tensor:
    """Identity and absolute value in turns: MaxMin in the coordinates where it acts on each neuron [sec:SameExp]."""
    return torch.where(torch.arange(len(t), device=t.device)[:, None] % 2 == 0, t, t.abs())


INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda t: t,
    "relu": torch.relu,
    "leaky_relu": lambda t: torch.maximum(0.01 * t, t),
    "abs": torch.abs,
    "maxmin": _maxmin,
    "zero": torch.zeros_like,
}
SplineInit = (
    Literal["identity", "relu", "leaky_relu", "abs", "maxmin", "zero"] | float | Tensor | Callable[[Tensor], Tensor]
)


class LinearSpline(nn.Module):
    r"""One learned linear spline per channel, kept 1-Lipschitz by SplineProj [prop:splineproj], with a learned scale.

    .. math:: \tilde\sigma(x) = \tfrac{1}{\alpha}\, \sigma(\alpha x), \qquad
              c_\sigma = \mathrm{SplineProj}(c), \quad \alpha = e^{\mathtt{log\_scale}} > 0

    The spline is linear on each of `regions` intervals of equal length in [-radius, radius]/α and goes on with its
    outer slopes beyond. Parameters: `coefficients` (C, K) with K = regions + 1, and `log_scale` (C,). Training is
    unconstrained: whatever the coefficients are, the slopes lie in `slope`.

    Do not use it where the spline would be shared by inputs of very different size: `radius` should be a few
    standard deviations of what comes in (the learned scale then adapts it neuron by neuron).

    Args:
        channels: size C of the channel dimension; one neuron is one channel in a dense network.
        regions: number of linear regions, at least 2.
        radius: the outer knots are at ±radius.
        init: a word, a callable of the knots `(C, K)`, or PReLU slopes (a number or a tensor `(C,)`).
        slope: the interval in which all slopes stay.
        constraint: "clip" is SplineProj, "normalize" divides by the largest slope (LLS Old), "none" is unconstrained.
        learn_scale: whether α is learned; it stays 1 otherwise.
        shared: one spline for all channels.
        channel_dim: 1, or -1 for inputs of shape (..., C).

    Example:
        >>> activation = LinearSpline(8, regions=50, radius=0.1, init="relu")
        >>> activation(torch.tensor([[-1.0, 2.0] * 4])).shape
        torch.Size([1, 8])
        >>> activation.slopes().abs().max() <= 1
        tensor(True)
    """

    def __init__(
        self,
        channels: int,
        *,
        regions: int = 50,
        radius: float = 0.1,
        init: SplineInit = "identity",
        slope: tuple[float, float] = (-1.0, 1.0),
        constraint: SplineConstraint = "clip",
        learn_scale: bool = True,
        shared: bool = False,
        channel_dim: int = 1,
    ):
        super().__init__()
        self.channels = checks.at_least("channels", channels, 1)
        self.regions = checks.at_least("regions", regions, 2, "A spline with one region is an affine map.")
        self.radius = checks.positive("radius", radius)
        self.slope = checks.interval("slope", slope)
        self.constraint = checks.one_of("constraint", constraint, CONSTRAINTS)
        if constraint == "normalize" and slope[0] != -slope[1]:
            raise ValueError(
                f"constraint='normalize' divides by the largest slope, so slope must be symmetric, but is {slope!r}. "
                f"Use constraint='clip' for other intervals."
            )
        if channel_dim not in (1, -1) or not isinstance(channel_dim, int):
            raise ValueError(f"channel_dim must be 1, or -1 for inputs of shape (..., C), but is {channel_dim!r}.")
        if shared and not isinstance(init, Tensor) and init == "maxmin":
            raise ValueError(
                "init='maxmin' gives neighbouring channels different splines, but shared=True has one spline for all. "
                "Use shared=False, or init='abs'."
            )
        self.shared = shared
        self.channel_dim = channel_dim
        knots = grid(regions, self.radius, torch.empty(0)).repeat(1 if shared else channels, 1)
        self.coefficients = nn.Parameter(_initial_values(init, knots))
        self.log_scale = nn.Parameter(torch.zeros(len(knots)), requires_grad=learn_scale)

    @property
    def step(self) -> float:
        """Distance T of the knots, before scaling."""
        return 2 * self.radius / self.regions

    def constrained(self) -> tuple[Tensor, Tensor]:
        """Slopes `(C, R)` inside the constraint and mean knot value `(C,)`: what defines σ."""
        c = self._before_clipping()
        return self._slopes(c), c.mean(dim=-1)

    def _slopes(self, c: Tensor) -> Tensor:
        return difference(c) / self.step if self.constraint == "none" else clipped_slopes(c, self.step, self.slope)

    def _before_clipping(self) -> Tensor:
        """Coefficients `(C, K)`, normalised if that is the constraint, in a precision fit for sums."""
        c = self.coefficients
        if c.dtype in (torch.float16, torch.bfloat16):
            c = c.float()
        return slope_normalize(c, self.step, self.slope[1]) if self.constraint == "normalize" else c

    def slopes(self) -> Tensor:
        """Slopes `(C, R)` of the regions, inside the constraint."""
        return self._slopes(self._before_clipping())

    def tables(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """Arguments `b, s, scale, offset` of `piecewise_affine` for this activation."""
        return scaled_tables(*self._spline())

    def _spline(self) -> tuple[Tensor, Tensor, float, tuple[float, float]]:
        """Coefficients, log α, radius and slopes, as the kernels take them."""
        c = self._before_clipping()
        return c, self.log_scale.to(c.dtype), self.radius, (-inf, inf) if self.constraint == "none" else self.slope

    def forward(self, x: Tensor) -> Tensor:
        checks.floating("LinearSpline", x)
        checks.channels("LinearSpline", x, self.channels, self.channel_dim)
        return scaled_spline(x, *self._spline(), self.channel_dim)

    def extra_repr(self) -> str:
        shared = ", shared=True" if self.shared else ""
        return (
            f"{self.channels}, regions={self.regions}, radius={self.radius:g}, slope={self.slope}, "
            f"constraint={self.constraint!r}{shared}"
        )


def _initial_values(init: SplineInit, knots: Tensor) -> Tensor:
    """Values `(C, K)` at the knots of the function that `init` names."""
    if isinstance(init, str):
        values = INITS[checks.one_of("init", init, INITS)](knots)
    elif isinstance(init, (int, float)):
        values = torch.maximum(float(init) * knots, knots)
    elif isinstance(init, Tensor):
        if init.shape not in ((), (len(knots),)):
            raise ValueError(
                f"init as a tensor holds PReLU slopes and must have shape ({len(knots)},), but has shape "
                f"{tuple(init.shape)}. For other functions give a callable of the knots."
            )
        values = torch.maximum(init.to(knots).reshape(-1, 1) * knots, knots)
    else:
        values = torch.as_tensor(init(knots), dtype=knots.dtype)
        if values.shape != knots.shape:
            raise ValueError(
                f"init as a callable gets the knots, shape {tuple(knots.shape)}, and must return as many values, "
                f"but returned shape {tuple(values.shape)}."
            )
    return checks.finite("The initial spline", values.clone())
