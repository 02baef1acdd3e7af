"""Which priors there are, and the one place where a name or a file becomes one."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from lipspline._infra import checks
from lipspline.priors.adaptive import FORMAT as ADAPTIVE
from lipspline.priors.adaptive import AdaptiveRidge, load_adaptive
from lipspline.priors.denoisers import WHITE, resolve_file, resolve_shipped, resolve_unrolled, shipped
from lipspline.priors.energy import UNIT_RANGE, Energy, Kind, Prior, checked_range
from lipspline.priors.ridge import RidgeEnergy
from lipspline.priors.ridge_files import FORMAT as RIDGE
from lipspline.priors.ridge_files import file_format, load_ridge
from lipspline.priors.sparsity import TotalVariation, WaveletSparsity
from lipspline.priors.unrolled import FORMAT as UNROLLED

AUTO = "auto"
TV_WIDTH, WAVELET_WIDTH = 0.06, 0.03
NAMED: dict[str, Callable[[], Prior]] = {
    "ridge-adaptive": lambda: resolve_learned("ridge-adaptive"),
    "ridge": lambda: resolve_learned("ridge"),
    "ridge-weak": lambda: resolve_learned("ridge-weak"),
    "ridge-unrolled": lambda: resolve_learned("ridge-unrolled", resolve_unrolled),
    "tv": lambda: resolve_formula("tv", TotalVariation, TV_WIDTH, "total variation"),
    "wavelet": lambda: resolve_formula("wavelet", WaveletSparsity, WAVELET_WIDTH, "cycle-spun orthonormal wavelets"),
}
"""Priors by name, the recommended one first, before the networks for single noise levels: a new energy joins here."""
FORMATS: dict[str, Callable[[Path], Prior]] = {
    RIDGE: lambda path: resolve_learned_file(path),
    ADAPTIVE: lambda path: resolve_learned_file(path),
    UNROLLED: resolve_unrolled,
}
"""How files are read, by the format that they name; those of networks name another."""
FIRST = ("lls",)
"""The denoisers that are listed first; the others follow in alphabetical order."""


def names() -> list[str]:
    """The names of all priors, the recommended one first."""
    networks = [name for name in FIRST if name in shipped()]
    return [*NAMED, *networks, *(name for name in shipped() if name not in networks)]


def catalogue() -> dict[str, Prior]:
    """All priors that ship, by name, the recommended one first.

    Example:
        >>> "lls" in catalogue()
        True
    """
    return {name: resolve(name) for name in names()}


def resolve(prior: str | os.PathLike[str] | Prior = AUTO) -> Prior:
    """A prior by its name in the catalogue, or from a .safetensors file; "auto" is the recommended one.

    Example:
        >>> resolve("lls").levels
        (5.0, 10.0, 15.0)
    """
    if isinstance(prior, Prior):
        return prior
    if prior == AUTO:
        prior = next(iter(NAMED))
    if prior in NAMED:
        return NAMED[str(prior)]()
    if prior in shipped():
        return resolve_shipped(str(prior))
    path = Path(prior)
    if path.suffix == ".safetensors":
        return FORMATS.get(file_format(path), resolve_file)(path)
    raise ValueError(f"prior must be one of {', '.join(names())}, or a .safetensors file, but is {os.fspath(prior)!r}.")


# Energies


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


def resolve_learned(name: str, read: Callable[[Path, str], Prior] | None = None) -> Prior:
    """A learned energy, or another prior that `read` reads, that ships with the package, by its name."""
    with resources.as_file(resources.files("lipspline.weights") / f"{name}.safetensors") as path:
        return (read or resolve_learned_file)(path, name)


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
