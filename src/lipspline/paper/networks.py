"""The networks that a recipe compares: an activation, its options, and the size that suits it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from lipspline._infra import checks
from lipspline.networks.builders import Network, mlp
from lipspline.nn.matrices import Init
from lipspline.paper.config import Amount, nearest

Activation = Literal["relu", "av", "prelu", "gs", "hh", "lls"]
OPTIONS: dict[str, tuple[str, ...]] = {
    "relu": (),
    "av": (),
    "prelu": ("init",),
    "gs": ("size",),
    "hh": (),
    "lls": ("regions", "radius", "init", "constraint", "learn_scale"),
}


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """A fully connected 1-Lipschitz network [eq:architecture].

    Args:
        activation: its name in the paper's tables.
        depth: number of dense layers.
        width: neurons in a hidden layer.
        options: of the activation, such as `init` of prelu, `size` of gs, `radius` of lls.
        tv2_weight: λ of [eq:optim_network].
    """

    activation: Activation
    depth: int
    width: int
    options: dict[str, Any] = field(default_factory=dict)
    tv2_weight: Amount = 0.0

    def __post_init__(self):
        checks.at_least("depth", self.depth, 1)
        checks.at_least("width", self.width, 1)
        check_options(self.activation, self.options)
        if self.tv2_weight and self.activation != "lls":
            raise ValueError(
                f"tv2_weight regularizes splines, but the activation is {self.activation!r}. Leave it out."
            )

    def build(self, n_in: int, *, constraint: Literal["orthonormal", "spectral"], init: Init, seed: int) -> Network:
        """A network from `n_in` inputs to one output, its random weights given by `seed` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return mlp(
                n_in,
                1,
                width=self.width,
                depth=self.depth,
                activation=self.activation,
                constraint=constraint,
                init=init,
                activation_options=self.options,
            )


def check_options(activation: str, options: Mapping[str, Any]) -> None:
    """Check that an activation has the options a recipe gives it."""
    for name in options:
        if name not in OPTIONS[activation]:
            raise ValueError(
                f"the activation {activation!r} has no option {name!r}; {nearest(name, OPTIONS[activation])}"
            )
