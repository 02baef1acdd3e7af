"""Learning the slopes of splines instead of their coefficients.

A slope is a difference of coefficients, so a gradient that asks all slopes of a spline to change alike cancels at every
knot but the outer two, and an optimizer that moves coefficients takes very long to follow it. A slope that leaves its
interval moreover loses its gradient for good. Neither happens to slopes that are parameters themselves and are clipped
after each step, which is SplineProj of the spline they stand for [prop:splineproj].

In slopes TV² is a total variation [sec:tv2]. Its subgradient brings slopes near each other; its proximal step, which is
computed exactly (`prox_tv2`), makes them equal, so that regions really merge while a network is trained.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import parametrize

from lipspline.kernels.total_variation import prox_total_variation
from lipspline.nn import LinearSpline


class FromSlopes(nn.Module):
    """Coefficients `(C, K)` from their means `(C, 1)` and the slopes `(C, K - 1)` between them."""

    def __init__(self, step: float):
        super().__init__()
        self.step = step

    def forward(self, mean: Tensor, slopes: Tensor) -> Tensor:
        rise = pad(self.step * slopes.cumsum(dim=-1), (1, 0))
        return mean + rise - rise.mean(dim=-1, keepdim=True)

    def right_inverse(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        return coefficients.mean(dim=-1, keepdim=True), coefficients.diff(dim=-1) / self.step


def learn_slopes(model: nn.Module) -> None:
    """Make means and slopes the parameters of all splines of a model whose slopes are clipped.

    The splines stay as they are, up to rounding. `learn_coefficients` is the way back.

    Example:
        >>> spline = LinearSpline(4, regions=10)
        >>> learn_slopes(spline)
        >>> [tuple(p.shape) for p in spline.parameters()]
        [(4,), (4, 1), (4, 10)]
    """
    for module in model.modules():
        if isinstance(module, LinearSpline) and module.constraint == "clip" and not _learns_slopes(module):
            parametrize.register_parametrization(module, "coefficients", FromSlopes(module.step))


def learn_coefficients(model: nn.Module) -> None:
    """Make the coefficients of all splines of a model its parameters again, with the values they have."""
    for spline, _, _ in slope_parameters(model):
        parametrize.remove_parametrizations(spline, "coefficients")


def slope_parameters(model: nn.Module) -> Iterator[tuple[LinearSpline, nn.Parameter, nn.Parameter]]:
    """Every spline that learns slopes, with its means and its slopes."""
    for module in model.modules():
        if isinstance(module, LinearSpline) and _learns_slopes(module):
            mean, slopes = module.get_submodule("parametrizations.coefficients").parameters()
            yield module, mean, slopes


@torch.no_grad()
def clip_slopes(model: nn.Module) -> None:
    """Bring slopes that left their interval back to its border."""
    for spline, _, slopes in slope_parameters(model):
        slopes.clamp_(*spline.slope)


@torch.no_grad()
def prox_tv2(model: nn.Module, adam: torch.optim.Adam, weight: float) -> None:
    r"""The proximal step of `weight` times TV² [eq:optim_network] that belongs to the step Adam has just made.

    Adam moves a slope by :math:`η m_i / d_i` with :math:`d_i = \sqrt{v_i} + ε`, a gradient step in the metric
    :math:`d / η`. In this metric the new slopes become

    .. math:: \arg\min_u \sum_i \frac{d_i}{2η} (u_i - s_i)^2 + λ \sum_i |u_{i+1} - u_i|

    so that where the iteration rests, :math:`0 \in \nabla f + λ\, \partial\mathrm{TV}`. A slope that no input has
    reached has no weight of its own, and joins its neighbours. Clipping afterwards gives the proximal map of TV² and
    the interval together.
    """
    slopes = {parameter for _, _, parameter in slope_parameters(model)}
    for group in adam.param_groups:
        for parameter in slopes.intersection(group["params"]):
            state = adam.state[parameter]
            if "exp_avg_sq" in state:
                mean_square = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
                metric = (mean_square.sqrt() + group["eps"]).expand_as(parameter)
                parameter.copy_(prox_total_variation(parameter, group["lr"] * weight, metric))


def _learns_slopes(spline: LinearSpline) -> bool:
    return parametrize.is_parametrized(spline, "coefficients")
