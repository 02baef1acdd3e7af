"""The 1-Lipschitz convolutional denoiser of [sec:PnPReconstruction]: a plain DnCNN without the residual."""

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from lipspline._infra import checks
from lipspline.functional.matrices import Method
from lipspline.networks import network
from lipspline.nn.layers import Init, conv2d


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
) -> network.Network:
    """A denoiser of `depth` 1-Lipschitz convolutions with 1-Lipschitz activations between them.

    With the defaults it is the paper's LLS denoiser: 8 orthogonal 3x3 convolutions, 64 channels, splines with 50
    regions on [-0.1, 0.1] that start as the identity.

    Args:
        activation: relu, av, prelu, gs, hh or lls.
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
            layers.append(network.activation(activation, c_in, folded=folded, **options))
        if folded:
            layers.append(nn.Conv2d(c_in, c_out, kernel, padding="same", padding_mode=padding_mode))
        else:
            layers.append(
                conv2d(c_in, c_out, kernel, constraint=constraint, padding_mode=padding_mode, method=method, init=init)
            )
    return network.Network(layers, config)
