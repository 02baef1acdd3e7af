r"""Adaptive ridge energies: a second pass whose weights a certified network reads off the first pass.

The first image :math:`x_0` minimises a convex ridge energy with the data term. A small network G turns it into a weight
in (0, 1) for each filter at each pixel, and the second image minimises

.. math:: R_{x_0}(x) = \sum_c \sum_p G_{c,p}(x_0)\, \psi_c\bigl((w_c * x)_p\bigr)

with the data term. Both problems are convex. With :math:`L_G` a Lipschitz bound of G and m the largest value of the
splines :math:`\sigma_c = \psi_c'`, the gradients of two such energies differ by at most
:math:`\|W\|\, m\, L_G \|x_0 - x_0'\|` everywhere, which bounds how far the second image can move with the first.
"""

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline._infra.devices import remembered
from lipspline._infra.files import write_whole
from lipspline.functional.convolutions import conv_norm_upper
from lipspline.functional.norm_bounds import OUTWARD
from lipspline.functional.ridge import hats
from lipspline.priors.energy import AdaptiveEnergy, Energy
from lipspline.priors.ridge import RidgeAtNoise, RidgeEnergy, proximal_point
from lipspline.priors.ridge_files import json_object, number_field, read_sealed, tensors_checksum, whole_field

FORMAT = "lipspline-adaptive/1"
DILATION = 2
"""Of the last layer of the network, which so sees 13 x 13 pixels."""
RIDGE_PARTS = ("filters", "slopes", "log_scale", "log_strength", "nodes")
NETWORK_PARTS = ("detect", "lift", "combine", "combine_bias", "decide", "decide_bias", "log_gain", "nodes")


class WeightNetwork(nn.Module):
    r"""Weights in (0, 1) for the filters of a ridge energy at each pixel, from an image.

    :math:`G(x) = \operatorname{sigmoid}(A_3\, (A_2\, (|A_1 \kappa x| + b_1)_+ + b_2)_+ + b_3)` with convolutions
    A and a gain :math:`\kappa(s)` for each noise level s. The first filters have mean zero, so that neither an offset
    nor the sign of an image matters away from the border.

    Args:
        detect: `(M, 1, 7, 7)`, A₁.
        lift: `(M,)`, b₁.
        combine, combine_bias: `(M, M, 3, 3)` and `(M,)`, A₂ and b₂.
        decide, decide_bias: `(C, M, 3, 3)` and `(C,)`, A₃ and b₃.
        log_gain: `(K,)`, log(s κ(s)) at the nodes.
        nodes: `(K,)` noise levels of constant ratio.

    Attributes:
        upper: the product of the proven norms of A₁, A₂, A₃ and of the slope 1/4 of the sigmoid: G is Lipschitz with
            `upper κ(s)`, for every image size.
    """

    detect: Tensor
    lift: Tensor
    combine: Tensor
    combine_bias: Tensor
    decide: Tensor
    decide_bias: Tensor
    log_gain: Tensor
    nodes: Tensor

    def __init__(self, **tensors: Tensor):
        super().__init__()
        _check_network(tensors)
        for name in NETWORK_PARTS:
            self.register_buffer(name, tensors[name].detach().clone())

    @property
    def upper(self) -> float:
        """Of the weights as they are now. A dilation does not change the norm of a convolution."""
        return math.prod(map(_layer_norm, (self.detect, self.combine, self.decide))) / 4 * OUTWARD

    def gain(self, noise: float) -> float:
        """κ(s), rounded up."""
        level = self.nodes.double().new_tensor(float(noise))
        weights = hats(level, self.nodes.double())
        return float(torch.exp(weights @ self.log_gain.double())) / noise * (1 + 1e-6)

    def lipschitz(self, noise: float) -> float:
        """A proven Lipschitz bound of `forward` at a noise level."""
        return self.upper * self.gain(noise) * OUTWARD

    def forward(self, x: Tensor, noise: float) -> Tensor:
        """Weights `(B, C, H, W)` of real images `(B, 1, H, W)`."""
        z = F.conv2d(x * self.gain(noise), self.detect, padding=self.detect.shape[-1] // 2)
        z = (z.abs() + self.lift[:, None, None]).relu()
        z = F.conv2d(z, self.combine, self.combine_bias, padding=1).relu()
        return torch.sigmoid(F.conv2d(z, self.decide, self.decide_bias, padding=DILATION, dilation=DILATION))


class AdaptiveRidge(nn.Module):
    """Two convex ridge energies and the network between them, for all noise levels.

    Args:
        first: the energy of the first pass.
        second: that of the second, whose filters get weights.
        network: from the first image to the weights.
        provenance: where it comes from, any JSON values.
    """

    def __init__(
        self,
        first: RidgeEnergy,
        second: RidgeEnergy,
        network: WeightNetwork,
        *,
        provenance: dict[str, Any] | None = None,
    ):
        super().__init__()
        if not (first.convex and second.convex):
            raise ValueError(
                "Both passes of an adaptive ridge energy need convex energies: slopes must not be below 0."
            )
        if len(network.decide) != len(second.filters):
            raise ValueError(f"The network gives {len(network.decide)} weights for {len(second.filters)} filters.")
        if float(second.slopes[:, -1].abs().max()) != 0:
            raise ValueError("The splines of the second pass must be bounded: their last slopes must be 0.")
        self.first, self.second, self.network, self.provenance = first, second, network, provenance or {}

    @property
    def nodes(self) -> Tensor:
        """The noise levels of the second energy."""
        return self.second.nodes

    def strength(self, noise: float) -> float:
        """λ(s) of the second pass."""
        return self.second.strength(noise)

    def denoise(self, y: Tensor, noise: float, *, tol: float = 1e-4, max_steps: int = 1000) -> Tensor:
        """Denoise images with noise of level s: two proximal steps, each within `tol` of its minimiser."""
        at = self.at(noise)
        first = at.first.prox(y, self.first.strength(noise), tol=tol, max_steps=max_steps).value
        energy = at.adapted(first)
        assert isinstance(energy, WeightedRidge)
        strength = self.strength(noise)
        return proximal_point(
            energy.gradient,
            y,
            strength,
            1 / (1 + strength * energy.lipschitz),
            start=first,
            tol=tol,
            max_steps=max_steps,
        ).value

    def at(self, noise: float) -> "AdaptiveAtNoise":
        """The two passes for one noise level."""
        return AdaptiveAtNoise(self, float(noise))


class AdaptiveAtNoise(AdaptiveEnergy):
    """The two passes at one noise level. `AdaptiveRidge.at` makes it."""

    def __init__(self, ridge: AdaptiveRidge, noise: float):
        super().__init__()
        self.first, self.second, self.network = ridge.first.at(noise), ridge.second.at(noise), ridge.network
        self.noise = noise
        self._ratio = ridge.first.strength(noise) / ridge.second.strength(noise)

    def forward(self, x: Tensor) -> Tensor:
        """The energy of the first pass."""
        return self.first(x)

    def gradient(self, x: Tensor) -> Tensor:
        """Of the first pass."""
        return self.first.gradient(x)

    @property
    def lipschitz(self) -> float:
        """Of the gradients of both passes: weights are below 1."""
        return max(self.first.lipschitz, self.second.lipschitz)

    @property
    def first_pass(self) -> Energy:
        """The first energy by itself."""
        return self.first

    @property
    def first_strength(self) -> float:
        """The strength of the first pass over that of the second."""
        return self._ratio

    @property
    def sensitivity(self) -> float:
        """‖W‖ m L_G: how fast the gradient of the second energy changes with the first image, at most."""
        tables = self.second.tables
        b, s, scale = tables.b.double(), tables.s.double(), tables.scale.double()
        places = torch.arange(b.shape[-1] + 1, dtype=torch.float64, device=b.device)
        edges = (places - tables.offset) / scale[:, None]  # knots, both ends too
        values = torch.stack([b + s * edges[:, :-1], b + s * edges[:, 1:]]).abs()
        # slopes are at least 0 and the last ones are 0, so that no value lies beyond those at the knots
        filters = self.second.lipschitz  # ‖W‖² times the largest slope
        norm = math.sqrt(filters / float(s.max())) if float(s.max()) > 0 else 0.0
        return norm * float(values.max()) * (1 + 1e-5) * self.network.lipschitz(self.noise) * OUTWARD

    @torch.no_grad()
    def adapted(self, x: Tensor) -> Energy:
        """The energy of the second pass after the first image x, `(B, 1, H, W)`, real or complex."""
        parts = torch.cat([x.real, x.imag]) if x.is_complex() else x
        exact = copy.deepcopy(self.network).double()
        return WeightedRidge(self.second, exact(parts.double(), self.noise))


class WeightedRidge(Energy):
    """A ridge energy with a weight in [0, 1] for each filter at each pixel.

    Args:
        ridge: the energy without weights, convex.
        weights: `(B, C, H, W)` in float64; of complex images those of the real parts, then those of the imaginary
            parts.
    """

    weights: Tensor

    def __init__(self, ridge: RidgeAtNoise, weights: Tensor):
        super().__init__()
        if ridge.weak_convexity or not bool(((weights >= 0) & (weights <= 1)).all()):
            raise ValueError("A weighted ridge energy needs a convex energy, and weights between 0 and 1.")
        self.ridge = ridge
        self.register_buffer("weights", weights.double())
        self._rounded: dict[torch.dtype, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.ridge.potentials(x).mul_(self._in(x.dtype)).sum(dim=(1, 2, 3))

    def gradient(self, x: Tensor) -> Tensor:
        """Wᵀ(Λ σ(W x))."""
        return self.ridge.gradient(x, self._in(x.dtype))

    def _in(self, dtype: torch.dtype) -> Tensor:
        """The weights in the precision of images, rounded once."""
        if dtype not in self._rounded:
            self._rounded[dtype] = self.weights.to(dtype)
        return self._rounded[dtype]

    @property
    def lipschitz(self) -> float:
        """That without weights, which only shorten responses."""
        return self.ridge.lipschitz

    def select(self, rows: Tensor, parts: int) -> "WeightedRidge":
        """The energy for some images of the batch."""
        count = len(self.weights) // parts
        if len(rows) == count:
            return self
        index = torch.cat([rows + part * count for part in range(parts)])
        return WeightedRidge(self.ridge, self.weights[index])


_layer_norm = remembered(conv_norm_upper)


def _check_network(tensors: dict[str, Tensor]) -> None:
    """Refuse weights that are no such network."""
    if set(tensors) != set(NETWORK_PARTS):
        raise ValueError(f"A weight network needs the tensors {', '.join(NETWORK_PARTS)}, but got {sorted(tensors)}.")
    if any(tensor.dtype != torch.float32 or tensor.ndim == 0 for tensor in tensors.values()):
        raise ValueError("A weight network needs tensors of float32, none of them a single number.")
    middle, channels, knots = len(tensors["detect"]), len(tensors["decide"]), len(tensors["nodes"])
    size = tensors["detect"].shape[-1]
    shapes = ((middle, 1, size, size), (middle,), (middle, middle, 3, 3), (middle,), (channels, middle, 3, 3))
    wanted = dict(zip(NETWORK_PARTS, (*shapes, (channels,), (knots,), (knots,)), strict=True))
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape or not tensors[name].isfinite().all():
            raise ValueError(
                f"A weight network needs finite {name} of shape {shape}, not {tuple(tensors[name].shape)}."
            )
    if size % 2 == 0 or knots < 2 or not bool((tensors["nodes"] > 0).all()):
        raise ValueError("A weight network needs filters of odd size, and at least two positive nodes.")


def save_adaptive(ridge: AdaptiveRidge, path: str | os.PathLike[str]) -> None:
    """Write an adaptive ridge energy as safetensors, with its constants and a checksum of everything as metadata."""
    tensors = {
        f"{part}.{name}": t.float().contiguous() for part in _PARTS for name, t in getattr(ridge, part).named_buffers()
    }
    energies = {part: {"even": getattr(ridge, part).even, "radius": getattr(ridge, part).radius} for part in _PARTS[:2]}
    metadata = {
        "format": FORMAT,
        "config": json.dumps(energies),
        "certificate": json.dumps({part: getattr(ridge, part).upper for part in _PARTS}),
        "provenance": json.dumps(ridge.provenance),
    }
    metadata["sha256"] = tensors_checksum(tensors, metadata)
    write_whole(Path(path), to_bytes(tensors, metadata))


_PARTS = ("first", "second", "network")


def load_adaptive(path: str | os.PathLike[str]) -> AdaptiveRidge:
    """Read what `save_adaptive` wrote: all is checked, and the constants are proven again from the weights."""
    metadata, tensors = read_sealed(path, FORMAT, "adaptive ridge energy")
    try:
        config, promised, provenance = (json_object(metadata, key) for key in ("config", "certificate", "provenance"))
        first, second = (_energy(config, part, tensors) for part in _PARTS[:2])
        network = WeightNetwork(**{name: tensors.pop(f"network.{name}") for name in NETWORK_PARTS})
        ridge = AdaptiveRidge(first, second, network, provenance=provenance)
        said = {part: number_field(promised, part) for part in _PARTS}
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it has no {error}.") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if tensors:
        raise ValueError(f"{path} is no adaptive ridge energy: it has the unknown tensors {sorted(tensors)}.")
    for part in _PARTS:
        if getattr(ridge, part).upper > said[part] * (1 + 1e-9):
            raise ValueError(
                f"{path} promises the constant {said[part]:.9g} of the {part}, but its weights only prove "
                f"{getattr(ridge, part).upper:.9g}."
            )
    return ridge


def _energy(config: dict[str, Any], part: str, tensors: dict[str, Tensor]) -> RidgeEnergy:
    fields = config[part]
    if not isinstance(fields, dict):
        raise ValueError(f"the config of the {part} pass is not an object.")
    parts = (tensors.pop(f"{part}.{name}") for name in RIDGE_PARTS)
    return RidgeEnergy(*parts, even=whole_field(fields, "even"), radius=number_field(fields, "radius"))
