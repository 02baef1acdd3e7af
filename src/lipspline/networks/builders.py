"""Builders of 1-Lipschitz networks: fully connected ones and denoisers, and activations by name [eq:architecture]."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

from lipspline._infra import checks
from lipspline.certification import Certificate
from lipspline.functional.matrices import Method
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.convolutions import conv2d
from lipspline.nn.inference import FoldedSpline, InferenceSequential
from lipspline.nn.matrices import Init, linear
from lipspline.nn.spline import LinearSpline


class Network(InferenceSequential):
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
    "maxmin": lambda channels, **options: MaxMin(**options),
    "hh": lambda channels, **options: Householder(channels, **options),
    "lls": _spline,
}


def activation(name: str, channels: int, *, folded: bool = False, **options: Any) -> nn.Module:
    """Build an activation by the name it has in the paper's tables: relu, av, prelu, gs, hh or lls; or maxmin.

    Args:
        name: one of the seven words.
        channels: size of the channel dimension.
        folded: build what holds a folded spline instead of a learnable one; the others are the same either way.
        options: arguments of the activation's class.
    """
    checks.one_of("activation", name, ACTIVATIONS)
    if name == "lls":
        options["folded"] = folded
    return ACTIVATIONS[name](channels, **options)


_activation = activation  # the builders have an argument of this name


def mlp(
    n_in: int,
    n_out: int,
    *,
    width: int = 64,
    depth: int = 4,
    activation: str = "lls",
    constraint: Literal["orthonormal", "spectral"] = "orthonormal",
    method: Method | None = None,
    init: Init = "orthogonal",
    activation_options: Mapping[str, Any] | None = None,
    folded: bool = False,
) -> Network:
    """A network of `depth` 1-Lipschitz dense layers with 1-Lipschitz activations between them [eq:architecture].

    Args:
        n_in: size of the input.
        n_out: size of the output.
        width: neurons in each hidden layer.
        depth: number of dense layers.
        activation: relu, av, prelu, gs, maxmin, hh or lls.
        constraint: "orthonormal" or "spectral" [lip_linear_layers].
        method: how weights are made orthonormal; by QR if not given.
        init: start of the weights, "orthogonal" or "kaiming".
        activation_options: arguments of the activation, e.g. `{"radius": 0.5, "init": "relu"}` for lls.
        folded: ordinary layers without constraints, to be filled from a file.

    Example:
        >>> import torch
        >>> network = mlp(1, 1, width=10, activation_options={"radius": 0.5, "regions": 100, "init": "relu"})
        >>> network(torch.zeros(7, 1)).shape
        torch.Size([7, 1])
    """
    checks.at_least("depth", depth, 1)
    options = dict(activation_options or {})
    config = {
        "kind": "mlp",
        "n_in": n_in,
        "n_out": n_out,
        "width": width,
        "depth": depth,
        "activation": activation,
        "constraint": constraint,
        "method": method,
        "init": init,
        "activation_options": options,
    }
    widths = [n_in, *[width] * (depth - 1), n_out]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        if layers:
            layers.append(_activation(activation, fan_in, folded=folded, **options))
        if folded:
            layers.append(nn.Linear(fan_in, fan_out))
        else:
            layers.append(linear(fan_in, fan_out, constraint=constraint, method=method, init=init))
    return Network(layers, config)


def denoiser(
    activation: str = "lls",
    channels: int = 64,
    depth: int = 8,
    *,
    kernel: int = 3,
    colors: int = 1,
    padding_mode: Literal["zeros", "circular"] = "zeros",
    constraint: Literal["orthogonal", "spectral"] = "orthogonal",
    method: Method | None = None,
    init: Init = "orthogonal",
    activation_options: Mapping[str, Any] | None = None,
    folded: bool = False,
) -> Network:
    """A denoiser of `depth` 1-Lipschitz convolutions with 1-Lipschitz activations between them.

    With the defaults it is the paper's LLS denoiser: 8 orthogonal 3x3 convolutions, 64 channels, splines with 50
    regions on [-0.1, 0.1] that start as the identity.

    Args:
        activation: relu, av, prelu, gs, maxmin, hh or lls.
        channels: feature maps in each hidden layer.
        depth: number of convolutions.
        kernel: side of the kernels.
        colors: channels of the image.
        padding_mode: "zeros" (bound 1, faster) or "circular" (exactly orthogonal, the paper's).
        constraint: "orthogonal" or "spectral" [lip_linear_layers].
        method: how the factors of the kernels are made orthonormal.
        init: start of the kernels.
        activation_options: arguments of the activation, e.g. `{"radius": 0.5, "init": "relu"}` for lls.
        folded: ordinary layers without constraints, to be filled from a file.

    Example:
        >>> import torch
        >>> denoiser(channels=4, depth=3)(torch.rand(1, 1, 16, 16)).shape
        torch.Size([1, 1, 16, 16])
    """
    checks.at_least("depth", depth, 1)
    options = dict(activation_options or {})
    config = {
        "kind": "denoiser",
        "activation": activation,
        "channels": channels,
        "depth": depth,
        "kernel": kernel,
        "colors": colors,
        "padding_mode": padding_mode,
        "constraint": constraint,
        "method": method,
        "init": init,
        "activation_options": options,
    }
    widths = [colors, *[channels] * (depth - 1), colors]
    layers: list[nn.Module] = []
    for c_in, c_out in itertools.pairwise(widths):
        if layers:
            layers.append(_activation(activation, c_in, folded=folded, **options))
        if folded:
            layers.append(nn.Conv2d(c_in, c_out, kernel, padding="same", padding_mode=padding_mode))
        else:
            layers.append(
                conv2d(c_in, c_out, kernel, constraint=constraint, padding_mode=padding_mode, method=method, init=init)
            )
    return Network(layers, config)
