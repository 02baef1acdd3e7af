"""Fully connected 1-Lipschitz networks [eq:architecture]."""

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from lipspline._infra import checks
from lipspline.functional.matrices import Method
from lipspline.networks import network
from lipspline.nn.layers import Init, linear


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
) -> network.Network:
    """A network of `depth` 1-Lipschitz dense layers with 1-Lipschitz activations between them [eq:architecture].

    Args:
        n_in: size of the input.
        n_out: size of the output.
        width: neurons in each hidden layer.
        depth: number of dense layers.
        activation: relu, av, prelu, gs, hh or lls.
        constraint: "orthonormal" or "spectral" [lip_linear_layers].
        method: how weights are made orthonormal; the fastest for the size if not given.
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
            layers.append(network.activation(activation, fan_in, folded=folded, **options))
        if folded:
            layers.append(nn.Linear(fan_in, fan_out))
        else:
            layers.append(linear(fan_in, fan_out, constraint=constraint, method=method, init=init))
    return network.Network(layers, config)
