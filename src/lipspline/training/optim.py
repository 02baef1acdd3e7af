"""Adam with the paper's three learning rates, and two of our own: of slopes, and of rotations."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.nn import LinearSpline
from lipspline.training.rotations import Rotating, orthonormal_parameters, orthonormalize_
from lipspline.training.slopes import clip_slopes, slope_parameters

SCALES, COEFFICIENTS = 4, 40
"""What the learning rate of the weights is divided by, in the paper."""
SLOPES = 0.1
"""The learning rate of slopes, where they are learned."""


def param_groups(
    model: nn.Module,
    lr: float,
    *,
    scales: float = SCALES,
    coefficients: float = COEFFICIENTS,
    slopes: float = SLOPES,
    rotations: float | None = None,
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
        slopes: the learning rate of the slopes that `learn_slopes` made parameters, itself: the paper has none.
        rotations: the angle, in radians, by which orthonormal matrices turn in a step; without it they are weights like
            others. For the optimizer `Rotating`; Adam would take the angle for a learning rate.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), LinearSpline(3), nn.Linear(3, 1))
        >>> [(group["lr"], len(group["params"])) for group in param_groups(model, lr=0.4)]
        [(0.4, 4), (0.1, 1), (0.01, 1)]
    """
    checks.positive("lr", lr)
    rates = {
        "weights": lr,
        "scales": lr / checks.positive("scales", scales),
        "coefficients": lr / checks.positive("coefficients", coefficients),
        "slopes": checks.positive("slopes", slopes),
    }
    kinds = _spline_parameters(model)
    if rotations is not None:
        rates["rotations"] = checks.positive("rotations", rotations)
        kinds |= {raw: "rotations" for raw, _ in orthonormal_parameters(model)}
    groups = []
    for kind, rate in rates.items():
        params = [p for p in model.parameters() if p.requires_grad and kinds.get(p, "weights") == kind]
        if params:
            groups.append({"params": params, "lr": rate} | ({"rotates": True} if kind == "rotations" else {}))
    return groups


def _spline_parameters(model: nn.Module) -> dict[Tensor, str]:
    kinds: dict[Tensor, str] = {}
    for module in model.modules():
        if isinstance(module, LinearSpline):
            kinds |= {module.log_scale: "scales", module.coefficients: "coefficients"}
    for _, mean, slopes in slope_parameters(model):
        kinds |= {mean: "coefficients", slopes: "slopes"}
    return kinds


@dataclass(frozen=True)
class Player:
    """A module that is trained, and how: Adam with its default settings unless said otherwise [sec:EvalExp].

    Args:
        coefficients: what `lr` is divided by for the coefficients of splines.
        slopes: the learning rate of slopes that `learn_slopes` made parameters; they are clipped after each step.
        rotations: the angle by which orthonormal matrices turn in a step; without it Adam moves them too.
    """

    module: nn.Module
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    coefficients: float = COEFFICIENTS
    slopes: float = SLOPES
    rotations: float | None = None

    def optimizer(self) -> torch.optim.Adam:
        """Adam over the groups of `param_groups`, with rotations if wanted; each has its own rate as `initial_lr`."""
        groups = [group | {"initial_lr": group["lr"]} for group in self.groups()]
        if self.rotations is not None:
            orthonormalize_(self.module)
        kind = torch.optim.Adam if self.rotations is None else Rotating
        optimizer = kind(groups, lr=self.lr, betas=self.betas, fused=True)
        if any(slope_parameters(self.module)):
            optimizer.register_step_post_hook(lambda *_: clip_slopes(self.module))
        return optimizer

    def groups(self) -> list[dict[str, Any]]:
        """The parameters with their learning rates."""
        rates = {"coefficients": self.coefficients, "slopes": self.slopes, "rotations": self.rotations}
        return param_groups(self.module, self.lr, **rates)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to `factor` times the rate it started with."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["initial_lr"]
