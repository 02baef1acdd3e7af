r"""How strongly to denoise: the noise level of the denoiser and β, where the user leaves them to the program.

A denoiser trained for noise `s` moves an image by about `s² ∇ log p`, towards what is likely; β times it moves by
`β s² ∇ log p`. For data with noise `n` the most likely image is a fixed point of [eq:pnp_fbs] if each step `α = 1/‖H‖²`
moves by `α n² ∇ log p`. So the two agree where

.. math:: \beta s^2 = n^2 / \|H\|^2.

Denoisers remove more than that where little in the data holds against them, and `PRIOR` times the right side is better:
docs/choose.md has a table of it. `auto` solves this for whichever of `s` and β is not given. If neither is, β is
`USUAL_BETA`, or less where `s` would fall below the levels that a shipped denoiser was trained for. It is a rule of
thumb: with images like yours and a known truth, `pnp.tune` finds better numbers.
"""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Literal

from lipspline._infra import checks
from lipspline.certification.proof import certify
from lipspline.imaging.problem import Problem
from lipspline.networks.builders import Network
from lipspline.networks.files import load
from lipspline.priors.zoo import available, zoo

Auto = Literal["auto"]

PRIOR = 0.3
"""The strength of the prior over that which the noise asks for."""
USUAL_BETA = 0.1
BETAS = (0.01, 0.5)
"""The least β that `auto` chooses, and the largest, up to which [eq:EstForward] holds."""
NOISES = (1.0, 25.0)
"""The same for the noise level, of 255."""
UNKNOWN_NOISE = 15.0
"""Taken for the noise level, of 255, of a denoiser whose file does not say what it was trained for."""


@dataclass(frozen=True)
class Strength:
    """The denoiser and its weight β."""

    denoiser: Network
    name: str
    """Of the shipped denoiser, such as "lls-15", or of the file."""
    beta: float
    chosen: str
    """Who chose noise level and β, in words."""

    @property
    def upper(self) -> float:
        """The certified Lipschitz bound of the denoiser."""
        return self.denoiser.certificate.upper if self.denoiser.certificate else certify(self.denoiser, steps=0).upper


def choose(model: str, noise: float | Auto, beta: float | Auto, problem: Problem, prior: float = PRIOR) -> Strength:
    """The denoiser `model`, a shipped one at `noise` of 255 or a file, and β; what is "auto" follows from the data."""
    weight = None if beta == "auto" else checks.within("beta", beta, 0, 1)
    relative = relative_noise(problem, prior)
    seen = f"auto, from noise {relative_noise(problem, 1):.2g} of the brightness in the data"
    words = "given" if weight and noise != "auto" else seen
    shipped = sorted({activation for activation, _ in available()})
    if model in shipped:
        level = automatic_level(model, relative, weight) if noise == "auto" else checks.positive("noise", noise)
        return Strength(zoo(model, level), f"{model}-{level:.3g}", weight or matching_beta(relative, level), words)
    if Path(model).suffix != ".safetensors":
        raise ValueError(
            f"--model must name a shipped denoiser ({', '.join(shipped) or 'none is'}) or a .safetensors file, but is "
            f"{model!r}."
        )
    if noise != "auto":
        raise ValueError(f"--noise is for shipped denoisers, but {model} is a file of its own. Leave --noise out.")
    network = _of_images(load(model), model)
    if weight is not None:
        return Strength(network, Path(model).name, weight, "given")
    return Strength(network, Path(model).name, automatic_beta(network, relative), words)


def automatic_beta(denoiser: Network, relative: float) -> float:
    """The β that matches the noise in the data (`relative_noise`) for a denoiser as it was trained."""
    level = float(denoiser.provenance.get("trained", {}).get("noise", UNKNOWN_NOISE))
    return matching_beta(relative, level)


def relative_noise(problem: Problem, prior: float = PRIOR) -> float:
    """The noise that the denoiser is matched to: that of the data over ‖H‖, for images in [0, 1], times √prior."""
    return problem.noise * sqrt(prior) / problem.H.norm_bounds()[1]


def matching_beta(relative: float, noise: float) -> float:
    """The β at which a denoiser for `noise`, of 255, is as strong as the noise in the data asks for, within `BETAS`.

    Example:
        >>> round(matching_beta(0.01, 8), 3), matching_beta(0.0, 8), matching_beta(1.0, 8)
        (0.102, 0.01, 0.5)
    """
    return min(max((255 * relative / noise) ** 2, BETAS[0]), BETAS[1])


def matching_noise(relative: float, beta: float) -> float:
    """The noise level, of 255, at which a denoiser weighted with β is as strong as the data ask for, within `NOISES`.

    Example:
        >>> round(matching_noise(0.01, 0.1), 2), matching_noise(0.0, 0.1), matching_noise(1.0, 0.1)
        (8.06, 1.0, 25.0)
    """
    return min(max(255 * relative / sqrt(beta), NOISES[0]), NOISES[1])


def automatic_level(model: str, relative: float, weight: float | None = None) -> float:
    """The noise level that goes with β; where β is free too, not below those that the denoiser was trained for."""
    level = matching_noise(relative, weight or USUAL_BETA)
    lowest = min(noise for activation, noise in available() if activation == model)
    return max(level, lowest) if weight is None else level


def _of_images(network: Network, source: str) -> Network:
    if network.config.get("kind") != "denoiser":
        raise ValueError(f"{source} is no denoiser of images, but a network of kind {network.config.get('kind')!r}.")
    return network
