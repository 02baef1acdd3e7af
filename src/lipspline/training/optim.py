"""Adam with the paper's three learning rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipspline import _checks
from lipspline.nn import LinearSpline

SCALES, COEFFICIENTS = 4, 40
"""What the learning rate of the weights is divided by, in the paper."""


def param_groups(
    model: nn.Module, lr: float, *, scales: float = SCALES, coefficients: float = COEFFICIENTS
) -> list[dict[str, Any]]:
    """Parameter groups with the paper's learning rates: η for weights, η/4 for spline scales α, η/40 for splines
    [sec:EvalExp].

    Every parameter that is learned belongs to one group, in the order of registration. Groups without parameters
    are left out.

    Args:
        model: the network.
        lr: η.
        scales: what η is divided by for scales.
        coefficients: what it is divided by for coefficients. The paper's 40 goes with its small η: a step of Adam moves
            a slope by up to 2η/40T, where T is the distance of the knots, which should stay far below 1.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), LinearSpline(3), nn.Linear(3, 1))
        >>> [(group["lr"], len(group["params"])) for group in param_groups(model, lr=0.4)]
        [(0.4, 4), (0.1, 1), (0.01, 1)]
    """
    _checks.positive("lr", lr)
    of_splines = _spline_parameters(model)
    groups = []
    for kind, divisor in (("weights", 1.0), ("scales", scales), ("coefficients", coefficients)):
        params = [p for p in model.parameters() if p.requires_grad and of_splines.get(p, "weights") == kind]
        if params:
            groups.append({"params": params, "lr": lr / _checks.positive(kind, divisor)})
    return groups


def _spline_parameters(model: nn.Module) -> Mapping[Tensor, str]:
    splines = [module for module in model.modules() if isinstance(module, LinearSpline)]
    scales: dict[Tensor, str] = {spline.log_scale: "scales" for spline in splines}
    return scales | {spline.coefficients: "coefficients" for spline in splines}


@dataclass(frozen=True)
class Player:
    """A module that is trained, and how: Adam with its default settings unless said otherwise [sec:EvalExp].

    Args:
        coefficients: what `lr` is divided by for the coefficients of splines.
    """

    module: nn.Module
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    coefficients: float = COEFFICIENTS

    def optimizer(self) -> torch.optim.Adam:
        """Adam over the groups of `param_groups`; each remembers its own rate as `initial_lr`."""
        groups = [group | {"initial_lr": group["lr"]} for group in self.groups()]
        return torch.optim.Adam(groups, lr=self.lr, betas=self.betas, fused=True)

    def groups(self) -> list[dict[str, Any]]:
        """The parameters with their learning rates."""
        return param_groups(self.module, self.lr, coefficients=self.coefficients)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to `factor` times the rate it started with."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["initial_lr"]
