"""Denoisers as priors: shipped ones and files, served at any noise level and for any range of values.

A network knows only the grey values that it was trained on. For a range [a, b] it is served as

    a + w D((x - a) / w),    w = b - a,

which has the Lipschitz constant of D: differences are divided and multiplied by the same number. Noise of level s in x
is noise of level s / w for D. Imaginary parts lie around 0, and are shifted by (a + b) / 2 to be seen in the middle of
the range: in [a, b] itself they would be black, and the network would cut off what is below.
"""

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipspline._infra import checks
from lipspline.networks.builders import Network
from lipspline.networks.files import load
from lipspline.networks.rescale import Rescaled, level_for, serve_
from lipspline.nn import UnrolledRidge
from lipspline.priors.energy import UNIT_RANGE, Kind, Prior, checked_range
from lipspline.priors.unrolled import UnrolledDenoiser, load_unrolled

WHITE = 255.0


@dataclass(frozen=True, kw_only=True)
class DenoiserPrior(Prior):
    """Certified denoisers of one kind, by the noise level that they were trained for."""

    files: Mapping[float, Path]
    """Weights by noise level; NaN stands for a level that the file does not tell."""

    @property
    def kind(self) -> Kind:
        """A denoiser."""
        return Kind.DENOISER

    @property
    def summary(self) -> str:
        """Which noise levels it was trained for."""
        levels = ", ".join(f"{level:g}/255" for level in self.levels)
        return f"1-Lipschitz denoiser, trained for noise {levels}" if levels else "1-Lipschitz denoiser"

    @property
    def bound(self) -> float:
        """The largest certified Lipschitz bound of its networks."""
        return max(certified_upper(_load(path)) for path in self.files.values())

    @property
    def caution(self) -> str:
        """That it makes images worse, if its file says so: a training that was too short leaves such a network."""
        for path in self.files.values():
            clean, noisy = _validation(_load(path).provenance)
            if clean <= noisy:
                return (
                    f"{self.name} makes noisy images worse: its own file says {clean:.1f} dB where the noisy ones had "
                    f"{noisy:.1f}. Train it longer."
                )
        return ""

    def level_for(self, noise: float) -> float:
        """The trained noise level that serves another one."""
        return level_for(noise, self._known_levels())

    def at(self, noise: float | None = None, *, range: tuple[float, float] = UNIT_RANGE) -> nn.Module:
        """The denoiser for a noise level and a range of values; certified like the trained one that it is made of.

        A level that none was trained for is served by the nearest one: rescaled if that was trained for less, averaged
        with the identity if it was trained for more [sec:exp_pnp]. Without a level it is the one that was trained
        for the least noise.

        Example:
            >>> from lipspline.certification import certify
            >>> served = resolve_shipped("lls").at(10, range=(-1, 1))
            >>> served(torch.zeros(1, 1, 8, 8)).shape, certify(served).upper <= 1
            (torch.Size([1, 1, 8, 8]), True)
        """
        factor = self._wider(range)
        network = self._trained(noise, factor)
        served: Network | Rescaled = network
        if range != self.range:
            offset, middle = range[0] - factor * self.range[0], (range[0] + range[1]) / 2
            served = Rescaled(network, factor, offset, imaginary_shift=middle)
        served.grey_values = checked_range(range)
        return served

    def levels_for(self, range: tuple[float, float]) -> tuple[float, ...]:
        """The levels that it was trained for, times how much wider a range is than that of the training."""
        factor = self._wider(range)
        return tuple(level * factor for level in self.levels)

    def _wider(self, range: tuple[float, float]) -> float:
        low, high = checked_range(range)
        return (high - low) / (self.range[1] - self.range[0])

    def _trained(self, noise: float | None, factor: float) -> Network:
        """The network for noise `noise / factor`, in the range that it was trained on."""
        if noise is None:
            return _load(self.files[min(self.files)])
        level = checks.positive("noise", noise, "It is the noise level, in units of 1/255.") / factor
        trained = self.level_for(level)
        return serve_(_load(self.files[trained]), trained, level)

    def _known_levels(self) -> tuple[float, ...]:
        if not self.levels:
            raise ValueError(
                f"{self.name} does not say which noise level it was trained for. Write it with that in its provenance: "
                f'models.save(network, path, {{"noise": 15}}).'
            )
        return self.levels


@dataclass(frozen=True, kw_only=True)
class UnrolledPrior(Prior):
    """An unrolled denoiser for any noise level."""

    denoiser: UnrolledDenoiser

    @property
    def kind(self) -> Kind:
        """A denoiser."""
        return Kind.DENOISER

    @property
    def summary(self) -> str:
        """How many steps it takes, and what it was trained for."""
        return (
            f"1-Lipschitz denoiser of {sum(self.denoiser.repeats)} steps down learned ridge energies, trained for "
            f"noise {self.levels[0]:g}/255 to {self.levels[-1]:g}/255"
        )

    def at(self, noise: float | None = None, *, range: tuple[float, float] = UNIT_RANGE) -> UnrolledRidge:
        """The denoiser for a noise level; the range of values does not matter. Without a level it is the least one."""
        checked_range(range)
        level = checks.positive("noise", self.levels[0] if noise is None else noise, "It is in units of 1/255.")
        return self.denoiser.at(level / WHITE)


@functools.cache
def available() -> dict[tuple[str, int], Path]:
    """The weights of denoisers in the package, by name and noise level."""
    found = {}
    for file in resources.files("lipspline.weights").iterdir():
        stem, _, ending = file.name.partition(".")
        name, _, noise = stem.rpartition("-")
        if ending == "safetensors" and noise.isdigit():
            found[name, int(noise)] = Path(str(file))
    return dict(sorted(found.items()))


def shipped() -> list[str]:
    """The names of the denoisers in the package."""
    return list(dict.fromkeys(name for name, _ in available()))


def resolve_shipped(name: str) -> DenoiserPrior:
    """A shipped denoiser by its name, such as "lls"."""
    files = {float(level): path for (known, level), path in available().items() if known == name}
    if not files:
        raise ValueError(
            f"No denoiser {name!r} ships with lipspline; there are: {', '.join(shipped()) or 'none'}. "
            "A denoiser of your own is given as its .safetensors file."
        )
    return DenoiserPrior(name=name, sha256=_sha256(*files.values()), levels=tuple(files), files=files)


def resolve_file(path: Path) -> DenoiserPrior:
    """A denoiser that `models.save` has written."""
    network = _load(path)
    level = trained_level(network.provenance)
    return DenoiserPrior(
        name=path.name,
        sha256=_sha256(path),
        levels=() if level is None else (level,),
        range=_trained_range(network.provenance),
        files={math.nan if level is None else level: path},
    )


def resolve_unrolled(path: Path, name: str | None = None) -> UnrolledPrior:
    """An unrolled denoiser from a file that `save_unrolled` has written."""
    denoiser = load_unrolled(path)
    return UnrolledPrior(
        name=name or path.name,
        sha256=_sha256(path),
        levels=tuple(round(WHITE * float(node), 6) for node in denoiser.nodes),
        denoiser=denoiser,
    )


def zoo(activation: str = "lls", noise: float = 15) -> Network:
    """Load a shipped denoiser: certified <= 1 (computed again on loading), no network, a few milliseconds.

    Args:
        activation: "lls", or a rival for comparison.
        noise: the noise level to remove, in units of 1/255; any, see `DenoiserPrior.at`.
    """
    checks.positive("noise", noise, "It is the noise level, in units of 1/255.")
    network = resolve_shipped(activation).at(noise)
    assert isinstance(network, Network)
    return network


def trained_level(provenance: Mapping[str, Any]) -> float | None:
    """The noise level that the provenance of a network names, in either of the places where files have it."""
    trained = provenance.get("trained")
    nested = trained.get("noise") if isinstance(trained, Mapping) else None
    for value in (provenance.get("noise"), nested):
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
    return None


def certified_upper(network: Network) -> float:
    """The certified bound of a network that was loaded from a file."""
    assert network.certificate is not None
    return network.certificate.upper


def _validation(provenance: Mapping[str, Any]) -> tuple[float, float]:
    """PSNR of denoised and of noisy images as a file tells them; NaN if it does not."""
    scores = provenance.get("scores")
    told = scores.get("validation") if isinstance(scores, Mapping) else None
    values = [told.get(name) for name in ("psnr", "noisy_psnr")] if isinstance(told, Mapping) else []
    clean, noisy = (
        value if isinstance(value, (int, float)) else math.nan for value in (*values, math.nan, math.nan)[:2]
    )
    return clean, noisy


def _trained_range(provenance: Mapping[str, Any]) -> tuple[float, float]:
    value = provenance.get("range", UNIT_RANGE)
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"The range of grey values in a weights file must be a pair, but is {value!r}.")
    return checked_range((value[0], value[1]))


def _load(path: Path) -> Network:
    """A network from a file, if it is a certified denoiser of grey images."""
    network = load(path)
    if network.config.get("kind") != "denoiser" or network.config.get("colors", 1) != 1:
        raise ValueError(
            f"{path} is not a denoiser of grey images, but a network of kind {network.config.get('kind')!r} with "
            f"{network.config.get('colors', 1)} colours."
        )
    if any(tensor.is_floating_point() and tensor.dtype != torch.float32 for tensor in network.state_dict().values()):
        raise ValueError(f"{path} does not hold float32 weights. Convert the network with .float() and save it again.")
    if certified_upper(network) > 1:
        raise ValueError(f"{path} should be 1-Lipschitz, but its layers only prove {certified_upper(network):.9g}.")
    return network


def _sha256(*paths: Path) -> str:
    """Of the content of some files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
