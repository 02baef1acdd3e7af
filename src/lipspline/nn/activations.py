"""The fixed 1-Lipschitz activations as layers [lipschitz_activation_section]; ReLU is `torch.nn.ReLU`."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.functional.activations import group_sort, householder, max_min, prelu

__all__ = ["AbsoluteValue", "GroupSort", "Householder", "LipschitzPReLU", "MaxMin"]
"""The layers of this file that are names of `lipspline.nn`."""
PRELU_INITS: dict[str, Callable[[int], Tensor]] = {
    "abs": lambda channels: -torch.ones(channels),
    "relu": torch.zeros,
    "identity": torch.ones,
    "maxmin": lambda channels: 1.0 - 2.0 * (torch.arange(channels) % 2),
}
PReLUInit = Literal["abs", "relu", "identity", "maxmin"] | float | Tensor


class AbsoluteValue(nn.Module):
    """`|x|`, which preserves the norm of gradients [lipschitz_activation_section].

    Example:
        >>> AbsoluteValue()(torch.tensor([[-1.0, 2.0]]))
        tensor([[1., 2.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


class LipschitzPReLU(nn.Module):
    r"""`max(a x, x)` with a learned slope per channel, clipped to [-1, 1] [lipschitz_activation_section].

    The forward pass uses the clipped slopes, and the gradient at them passes unchanged to the parameter `a`, so that a
    slope that an optimizer has pushed beyond a limit (where "abs" and "identity" start) can come back. An exact
    derivative of the clipping would leave it there for good.

    Args:
        channels: size of the channel dimension.
        init: "abs" (a = -1), "relu" (0), "identity" (1), "maxmin" (1 and -1 in turns, which is MaxMin in the
            coordinates where it acts on each neuron [sec:SameExp]), a number or a tensor `(channels,)` in [-1, 1].
        channel_dim: 1, or -1 for inputs of shape (..., C).

    Example:
        >>> LipschitzPReLU(4, init="maxmin")(-torch.ones(1, 4)).tolist()
        [[-1.0, 1.0, -1.0, 1.0]]
    """

    def __init__(self, channels: int, init: PReLUInit = "abs", *, channel_dim: int = 1):
        super().__init__()
        self.channels = checks.at_least("channels", channels, 1)
        self.channel_dim = channel_dim
        self.a = nn.Parameter(_initial_slopes(init, channels))

    def slopes(self) -> Tensor:
        """The slopes `(C,)` in [-1, 1] that act on negative inputs."""
        return self.a.clamp(-1.0, 1.0).detach() + (self.a - self.a.detach())

    def forward(self, x: Tensor) -> Tensor:
        checks.channels("LipschitzPReLU", x, self.channels, self.channel_dim)
        return prelu(x, self.slopes(), self.channel_dim)

    def extra_repr(self) -> str:
        return f"{self.channels}"


class GroupSort(nn.Module):
    """Sort groups of `size` consecutive channels in ascending order [lipschitz_activation_section].

    It is locally a permutation, so it preserves the norm of gradients. Size 2 is compared, not sorted; a large size
    costs a real sort of every pixel: prefer `MaxMin` there.

    Example:
        >>> GroupSort(3)(torch.tensor([[3.0, 1.0, 2.0]]))
        tensor([[1., 2., 3.]])
    """

    def __init__(self, size: int, *, channel_dim: int = 1):
        super().__init__()
        self.size = checks.at_least("size", size, 2, "Sorting groups of one channel does nothing.")
        self.channel_dim = channel_dim

    def forward(self, x: Tensor) -> Tensor:
        checks.grouped("GroupSort", x, self.size, self.channel_dim)
        return group_sort(x, self.size, self.channel_dim)

    def extra_repr(self) -> str:
        return f"{self.size}"


class MaxMin(nn.Module):
    """Each pair of channels (2j, 2j+1) becomes (larger, smaller) [sec:SameExp]; it preserves the norm of gradients.

    The order is the paper's in the proof of [prop:SameExp]; `GroupSort(2)` gives (smaller, larger).

    Example:
        >>> MaxMin()(torch.tensor([[1.0, 2.0]]))
        tensor([[2., 1.]])
    """

    def __init__(self, *, channel_dim: int = 1):
        super().__init__()
        self.channel_dim = channel_dim

    def forward(self, x: Tensor) -> Tensor:
        checks.grouped("MaxMin", x, 2, self.channel_dim)
        return max_min(x, self.channel_dim)


class Householder(nn.Module):
    r"""Reflect each pair of channels into a learned half plane `vᵀx > 0` [lipschitz_activation_section].

    The unit vectors are `v = (cos θ, sin θ)` with one learned `angle` θ per pair (2j, 2j+1), so that no step of an
    optimizer can change their norm. It starts as MaxMin, `v = (1, -1)/√2`, and preserves the norm of gradients.

    Example:
        >>> Householder(2)(torch.tensor([[1.0, 2.0]])).detach()
        tensor([[2.0000, 1.0000]])
    """

    def __init__(self, channels: int, *, channel_dim: int = 1):
        super().__init__()
        self.channels = checks.at_least("channels", channels, 2)
        if channels % 2:
            raise ValueError(
                f"Householder reflects pairs of channels, so channels must be even, but is {channels}. "
                f"Use {channels + 1} channels, or an activation that acts on each channel alone."
            )
        self.channel_dim = channel_dim
        self.angle = nn.Parameter(torch.full((channels // 2,), -math.pi / 4))

    def v(self) -> Tensor:
        """The unit vectors `(C/2, 2)`, a few roundings shorter than 1: longer ones would expand what they reflect."""
        exact = self.angle.float() if self.angle.dtype in (torch.float16, torch.bfloat16) else self.angle
        v = torch.stack([exact.cos(), exact.sin()], dim=-1)
        return ((1 - 2 * torch.finfo(self.angle.dtype).eps) * v).to(self.angle.dtype)

    def forward(self, x: Tensor) -> Tensor:
        checks.channels("Householder", x, self.channels, self.channel_dim)
        return householder(x, self.v(), self.channel_dim)

    def extra_repr(self) -> str:
        return f"{self.channels}"


def _initial_slopes(init: PReLUInit, channels: int) -> Tensor:
    """Slopes `(C,)` in [-1, 1] that `init` names."""
    if isinstance(init, str):
        return PRELU_INITS[checks.one_of("init", init, PRELU_INITS)](channels)
    slopes = torch.as_tensor(init, dtype=torch.get_default_dtype()).detach().clone()
    if slopes.shape not in ((), (channels,)):
        raise ValueError(
            f"init as a tensor must have one slope per channel, shape ({channels},), but has shape "
            f"{tuple(slopes.shape)}."
        )
    if not bool((slopes.abs() <= 1).all()):
        raise ValueError(
            f"init must lie in [-1, 1], or max(a x, x) is not 1-Lipschitz, but has values in "
            f"[{slopes.min():g}, {slopes.max():g}]. Clip it first, or start with init='abs'."
        )
    return slopes.expand(channels).clone()
