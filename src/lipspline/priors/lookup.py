"""Which priors there are, and the one place where a name or a file becomes one."""

import os
from collections.abc import Callable
from pathlib import Path

from lipspline.priors.adaptive import FORMAT as ADAPTIVE
from lipspline.priors.denoisers import resolve_file, resolve_shipped, shipped
from lipspline.priors.energies import resolve_formula, resolve_learned, resolve_learned_file
from lipspline.priors.prior import Prior
from lipspline.priors.ridge_files import FORMAT as RIDGE
from lipspline.priors.ridge_files import file_format
from lipspline.priors.tv import TotalVariation
from lipspline.priors.wavelet import WaveletSparsity

AUTO = "auto"
TV_WIDTH, WAVELET_WIDTH = 0.06, 0.03
ENERGIES: dict[str, Callable[[], Prior]] = {
    "ridge-adaptive": lambda: resolve_learned("ridge-adaptive"),
    "ridge": lambda: resolve_learned("ridge"),
    "ridge-weak": lambda: resolve_learned("ridge-weak"),
    "tv": lambda: resolve_formula("tv", TotalVariation, TV_WIDTH, "total variation"),
    "wavelet": lambda: resolve_formula("wavelet", WaveletSparsity, WAVELET_WIDTH, "cycle-spun orthonormal wavelets"),
}
"""Priors that are energies, by name, the recommended one first: a new energy joins here."""
FIRST = ("lls",)
"""The denoisers that are listed first; the others follow in alphabetical order."""


def names() -> list[str]:
    """The names of all priors, the recommended one first."""
    networks = [name for name in FIRST if name in shipped()]
    return [*ENERGIES, *networks, *(name for name in shipped() if name not in networks)]


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
        return resolve(names()[0])
    if prior in ENERGIES:
        return ENERGIES[str(prior)]()
    if prior in shipped():
        return resolve_shipped(str(prior))
    path = Path(prior)
    if path.suffix == ".safetensors":
        return resolve_learned_file(path) if file_format(path) in (RIDGE, ADAPTIVE) else resolve_file(path)
    raise ValueError(f"prior must be one of {', '.join(names())}, or a .safetensors file, but is {os.fspath(prior)!r}.")
