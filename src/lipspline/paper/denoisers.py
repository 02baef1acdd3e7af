"""Trained denoisers for an experiment: where their weights are, and how they serve at any noise level."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import nn

from lipspline._infra import checks
from lipspline.networks.builders import denoiser
from lipspline.networks.files import checksum, load
from lipspline.networks.inference import plain
from lipspline.networks.rescale import level_for, serving
from lipspline.paper.networks import Activation
from lipspline.priors import zoo
from lipspline.priors.denoisers import available


@dataclass(frozen=True)
class Family:
    """Denoisers of one kind by the noise level, of 255, that they were trained for."""

    trained: Mapping[float, nn.Module]

    def at(self, noise: float) -> nn.Module:
        """The denoiser for any noise level, made of the trained one that serves it best [sec:exp_pnp]."""
        trained = level_for(noise, self.trained)
        return serving(self.trained[trained], trained, noise)

    def checksums(self) -> dict[str, str]:
        """What the weights are, by noise level."""
        return {f"{noise:g}": checksum(dict(model.state_dict())) for noise, model in self.trained.items()}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where denoisers come from: they ship with the package, or are named here.

    Args:
        activation: its name in the paper's tables.
        files: weights of one's own, by the noise level (of 255) they were trained for.
        untrained: small random weights, which are just as 1-Lipschitz: to see that everything runs.
    """

    activation: Activation
    files: dict[str, str] = field(default_factory=dict)
    untrained: bool = False

    def __post_init__(self):
        for noise in self.files:
            if not noise.isdigit() or int(noise) == 0:
                raise ValueError(f"files must be given by noise level, a whole number of 255, but there is {noise!r}.")
        if self.files and self.untrained:
            raise ValueError("weights are either read from files or untrained, but both were asked for.")

    def load(self, levels: Collection[int]) -> Family | None:
        """The denoisers trained for some of the `levels`; None if there are none, because none ship."""
        if self.untrained:
            return Family({max(levels): _untrained(self.activation)})
        trained: dict[float, nn.Module]
        if self.files:
            trained = {int(noise): _read(file) for noise, file in self.files.items() if int(noise) in levels}
        else:
            shipped = [noise for activation, noise in available() if activation == self.activation and noise in levels]
            trained = {noise: _shipped(self.activation, noise) for noise in shipped}
        return Family(trained) if trained else None


@cache
def _read(file: str) -> nn.Module:
    return load(file)


@cache
def _shipped(activation: str, noise: int) -> nn.Module:
    return zoo(activation, noise)


@cache
def _untrained(activation: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return plain(denoiser(checks.one_of("activation", activation, Activation.__args__), channels=4, depth=2))
