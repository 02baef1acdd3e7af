"""Adam with the paper's three learning rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipspline import _checks
from lipspline.nn import LinearSpline

WEIGHTS, SCALES, COEFFICIENTS = 1, 4, 40
"""What the learning rate is divided by."""


def param_groups(model: nn.Module, lr: float) -> list[dict[str, Any]]:
    """Parameter groups with the paper's learning rates: η for weights, η/4 for spline scales α, η/40 for splines
    [sec:EvalExp].

    Every parameter that is learned belongs to one group, in the order of registration. Groups without parameters
    are left out.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), LinearSpline(3), nn.Linear(3, 1))
        >>> [(group["lr"], len(group["params"])) for group in param_groups(model, lr=0.4)]
        [(0.4, 4), (0.1, 1), (0.01, 1)]
    """
    _checks.positive("lr", lr)
    divisors = _divisors(model)
    groups = []
    for divisor in (WEIGHTS, SCALES, COEFFICIENTS):
        params = [p for p in model.parameters() if p.requires_grad and divisors.get(p, WEIGHTS) == divisor]
        if params:
            groups.append({"params": params, "lr": lr / divisor})
    return groups


def _divisors(model: nn.Module) -> Mapping[Tensor, int]:
    splines = [module for module in model.modules() if isinstance(module, LinearSpline)]
    scales: dict[Tensor, int] = {spline.log_scale: SCALES for spline in splines}
    return scales | {spline.coefficients: COEFFICIENTS for spline in splines}


@dataclass(frozen=True)
class Player:
    """A module that is trained, and how: Adam with its default settings unless said otherwise [sec:EvalExp]."""

    module: nn.Module
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)

    def optimizer(self) -> torch.optim.Adam:
        """Adam over the groups of `param_groups`; each remembers its own rate as `initial_lr`."""
        groups = [group | {"initial_lr": group["lr"]} for group in param_groups(self.module, self.lr)]
        return torch.optim.Adam(groups, lr=self.lr, betas=self.betas, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to `factor` times the rate it started with."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["initial_lr"]
