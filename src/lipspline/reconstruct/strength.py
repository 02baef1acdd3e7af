r"""How strongly to denoise: the noise level of the denoiser and β, where the user leaves them to the program.

A denoiser trained for noise `s` moves an image by about `s² ∇ log p`, towards what is likely; β times it moves by
`β s² ∇ log p`. For data with noise `n` the most likely image is a fixed point of [eq:pnp_fbs] if each step `α = 1/‖H‖²`
moves by `α n² ∇ log p`. So the two agree where

.. math:: \beta s^2 = n^2 / \|H\|^2.

`auto` solves this for whichever of `s` and β is not given, with `n²` times the `prior` of the problem. If neither is,
s is that of `USUAL_BETA`, but not below the levels that a shipped denoiser was trained for, and β at most
`GENTLE_BETA`: a low level is a sharp prior, and frequencies that were not measured know no other strength of it. (For
one coil, with `α = 1`, the fixed point does not depend on β there at all: four knees had 35.1 to 35.2 dB at noise 5
and 34.4 to 34.6 dB at noise 8, with β from 0.1 to 0.5.)
It is a rule of thumb: with images like yours and a known truth, `pnp.tune` finds better numbers.
"""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Literal

from lipspline import _checks
from lipspline.certify import certify
from lipspline.models.export import load
from lipspline.models.network import Network
from lipspline.models.zoo import available, zoo
from lipspline.reconstruct.problem import Problem

Auto = Literal["auto"]

USUAL_BETA = 0.4
GENTLE_BETA = 0.1
"""No larger β is chosen together with the level: with β = 0.4 and noise 7.9 a head measured with 4 coils had 25.4 dB,
less than the 25.8 dB of zero-filling, with β = 0.1 it has 28.5 dB."""
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


def choose(model: str, noise: float | Auto, beta: float | Auto, problem: Problem) -> Strength:
    """The denoiser `model`, a shipped one at `noise` of 255 or a file, and β; what is "auto" follows from the data."""
    weight = None if beta == "auto" else _checks.within("beta", beta, 0, 1)
    relative = relative_noise(problem)
    words = "given" if weight and noise != "auto" else f"auto, from noise {relative:.2g} of the brightness in the data"
    shipped = sorted({activation for activation, _ in available()})
    if model in shipped:
        level = automatic_level(model, relative, weight) if noise == "auto" else _checks.positive("noise", noise)
        suited = min(matching_beta(relative, level), GENTLE_BETA if noise == "auto" else BETAS[1])
        return Strength(zoo(model, level), f"{model}-{level:.3g}", weight or suited, words)
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
    return Strength(network, Path(model).name, automatic_beta(network, problem), words)


def automatic_beta(denoiser: Network, problem: Problem) -> float:
    """The β that matches the noise in the data for a denoiser as it was trained."""
    level = float(denoiser.provenance.get("trained", {}).get("noise", UNKNOWN_NOISE))
    return matching_beta(relative_noise(problem), level)


def relative_noise(problem: Problem) -> float:
    """The noise of the data divided by ‖H‖, for images in [0, 1]; less or more, as the problem wants its prior."""
    return problem.noise * sqrt(problem.prior) / problem.H.norm_bounds()[1]


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
