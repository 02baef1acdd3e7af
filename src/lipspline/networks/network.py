"""A network that knows how it was built, so that it can be written to a file and built again."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from lipspline._infra import checks
from lipspline.certification.proof import Certificate
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.linear_spline import LinearSpline


class Network(nn.Sequential):
    """Layers in a row, with the `config` (JSON values only) that builds the same row again.

    A network read from a file also carries its `certificate` and its `provenance`.
    """

    def __init__(self, layers: Iterable[nn.Module], config: dict[str, Any]):
        super().__init__(*layers)
        self.config = config
        self.certificate: Certificate | None = None
        self.provenance: dict[str, Any] = {}


def _spline(channels: int, *, folded: bool, **options: Any) -> nn.Module:
    if folded:
        kept = {key: options[key] for key in ("shared", "channel_dim") if key in options}
        return FoldedSpline(channels, regions=options.get("regions", 50), radius=options.get("radius", 0.1), **kept)
    return LinearSpline(channels, **options)


ACTIVATIONS = {
    "relu": lambda channels, **options: nn.ReLU(**options),
    "av": lambda channels, **options: AbsoluteValue(**options),
    "prelu": lambda channels, **options: LipschitzPReLU(channels, **options),
    "gs": lambda channels, size=2, **options: GroupSort(size, **options),
    "hh": lambda channels, **options: Householder(channels, **options),
    "lls": _spline,
}


def activation(name: str, channels: int, *, folded: bool = False, **options: Any) -> nn.Module:
    """Build an activation by the name it has in the paper's tables: relu, av, prelu, gs, hh or lls.

    Args:
        name: one of the six words.
        channels: size of the channel dimension.
        folded: build what holds a folded spline instead of a learnable one; the others are the same either way.
        options: arguments of the activation's class.
    """
    checks.one_of("activation", name, ACTIVATIONS)
    if name == "lls":
        options["folded"] = folded
    return ACTIVATIONS[name](channels, **options)
