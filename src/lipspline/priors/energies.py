"""Energies as priors: learned ridge energies, and formulas such as total variation."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from lipspline._infra import checks
from lipspline.priors.adaptive import FORMAT as ADAPTIVE
from lipspline.priors.adaptive import AdaptiveRidge, load_adaptive
from lipspline.priors.energy import Energy
from lipspline.priors.prior import UNIT_RANGE, Kind, Prior, checked_range
from lipspline.priors.ridge import RidgeEnergy
from lipspline.priors.ridge_files import file_format, load_ridge

WHITE = 255.0


@dataclass(frozen=True, kw_only=True)
class EnergyPrior(Prior):
    """An energy for any noise level, and the strength with which it denoises noise of that level.

    Energies of differences commute with offsets and signs, so that no range of values is a special case.
    """

    make: Callable[[float], Energy]
    """The energy for a noise level, a standard deviation of values in [0, 1]."""
    weight: Callable[[float], float]
    """λ(s): with it, `½‖x - y‖² + λ R_s(x)` denoises noise with standard deviation s."""
    convex: bool
    usual: float = 5.0
    """The noise level that stands for an energy that was not trained for one."""
    words: str = ""

    @property
    def kind(self) -> Kind:
        """An energy."""
        return Kind.ENERGY

    @property
    def summary(self) -> str:
        """What it is and what can be proven with it."""
        return f"{self.words}, {'convex' if self.convex else 'weakly convex'}"

    def at(self, noise: float | None = None, *, range: tuple[float, float] = UNIT_RANGE) -> Energy:
        """The energy for a noise level; the range of values does not matter.

        Example:
            >>> import torch
            >>> resolve_learned("ridge").at(10).gradient(torch.ones(1, 1, 40, 40))[0, 0, 20, 20].abs() < 1e-6
            tensor(True)
        """
        checked_range(range)
        return self.make(self._deviation(noise))

    def strength(self, noise: float, data_noise: float | None = None) -> float:
        """The weight of the energy `at(noise)` for data with another noise level, if that is given.

        The energy for s at strength λ(s) stands for what is known about images, `λ(s) R_s / s²`, up to a constant:
        data with noise n are then weighed right by `λ(s) n² / s²`.
        """
        s = self._deviation(noise)
        return self.weight(s) * (1.0 if data_noise is None else (data_noise / noise) ** 2)

    def _deviation(self, noise: float | None) -> float:
        return checks.positive("noise", self.usual if noise is None else noise, "It is in units of 1/255.") / WHITE


def resolve_learned(name: str) -> EnergyPrior:
    """A learned energy that ships with the package, by its name."""
    with resources.as_file(resources.files("lipspline.weights") / f"{name}.safetensors") as path:
        return resolve_learned_file(path, name)


def resolve_learned_file(path: Path, name: str | None = None) -> EnergyPrior:
    """A learned energy from a file that `save_ridge` or `save_adaptive` has written."""
    energy = load_adaptive(path) if file_format(path) == ADAPTIVE else load_ridge(path)
    levels = tuple(round(WHITE * float(node), 6) for node in energy.nodes)
    adaptive = isinstance(energy, AdaptiveRidge)
    kind = f"learned ridge energy of {_filters(energy.second if adaptive else energy)}"
    if adaptive:
        kind += " with weights from a certified network, in two passes"
    return EnergyPrior(
        name=name or path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        levels=levels,
        make=energy.at,
        weight=energy.strength,
        convex=adaptive or energy.convex,
        words=f"{kind}, trained for noise {levels[0]:g}/255 to {levels[-1]:g}/255",
    )


def resolve_formula(name: str, make: Callable[[], Energy], width: float, words: str) -> EnergyPrior:
    """An energy without weights: `λ(s) = s² / width`, as for independent features with a Laplace distribution.

    Args:
        width: of the distribution of the features, in grey values in [0, 1]; it was fitted to photographs.
    """
    return EnergyPrior(
        name=name,
        sha256="",
        levels=(),
        make=lambda _: make(),
        weight=lambda s: s**2 / width,
        convex=True,
        words=words,
    )


def _filters(energy: RidgeEnergy) -> str:
    size = energy.filters.shape[-1]
    return f"{len(energy.filters)} filters of {size}x{size}"
