"""How strongly to denoise: which shipped denoiser, and which β, where the user leaves it to the program."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lipspline import _checks
from lipspline.certify import certify
from lipspline.models.export import load
from lipspline.models.network import Network
from lipspline.models.zoo import available, zoo
from lipspline.reconstruct.problem import Modality, Problem

Auto = Literal["auto"]

USUAL: dict[Modality, float] = {"MR": 0.01, "CT": 0.01}
"""Noise of the data, as `relative_noise` has it, at which β is `USUAL_BETA`."""
USUAL_BETA = 0.2
BETAS = (0.05, 0.5)
"""The least β that `auto` chooses, and the largest, up to which [eq:EstForward] holds."""


@dataclass(frozen=True)
class Strength:
    """The denoiser and its weight β."""

    denoiser: Network
    name: str
    """Of the shipped denoiser, such as "lls-15", or of the file."""
    beta: float
    chosen: str
    """Who chose β, in words."""

    @property
    def upper(self) -> float:
        """The certified Lipschitz bound of the denoiser."""
        return self.denoiser.certificate.upper if self.denoiser.certificate else certify(self.denoiser, steps=0).upper


def choose(model: str, noise: float | Auto, beta: float | Auto, problem: Problem, modality: Modality) -> Strength:
    """The denoiser `model` (a shipped one, or a file) for `noise` of 255, and β.

    With `noise` "auto" it is the strongest shipped denoiser: a smaller β weakens it continuously, and so stands for a
    lower noise level. With `beta` "auto" it is `automatic_beta` of the noise in the data.
    """
    if isinstance(beta, (int, float)):
        weight, chosen = _checks.within("beta", beta, 0, 1), "given"
    else:
        relative = relative_noise(problem)
        weight, chosen = automatic_beta(relative, modality), f"auto, from noise {relative:.2g} of the brightness"
    denoiser, name = _denoiser(model, noise)
    return Strength(denoiser, name, weight, chosen)


def relative_noise(problem: Problem) -> float:
    """The noise of the data divided by ‖H‖: the step of length `1/‖H‖²` brings so much of it into an image."""
    return problem.noise / problem.H.norm_bounds()[1]


def automatic_beta(relative: float, modality: Modality) -> float:
    """β in proportion to the noise, within `BETAS`.

    Example:
        >>> automatic_beta(0.0, "MR"), automatic_beta(USUAL["MR"], "MR"), automatic_beta(1.0, "MR")
        (0.05, 0.2, 0.5)
    """
    return min(max(USUAL_BETA * relative / USUAL[modality], BETAS[0]), BETAS[1])


def _denoiser(model: str, noise: float | Auto) -> tuple[Network, str]:
    shipped = sorted({activation for activation, _ in available()})
    if model in shipped:
        level = max(level for activation, level in available() if activation == model) if noise == "auto" else noise
        return zoo(model, level), f"{model}-{level:g}"
    if Path(model).suffix != ".safetensors":
        raise ValueError(
            f"--model must name a shipped denoiser ({', '.join(shipped) or 'none is'}) or a .safetensors file, but is "
            f"{model!r}."
        )
    if noise != "auto":
        raise ValueError(f"--noise is for shipped denoisers, but {model} is a file of its own. Leave --noise out.")
    return _of_images(load(model), model), Path(model).name


def _of_images(network: Network, source: str) -> Network:
    if network.config.get("kind") != "denoiser":
        raise ValueError(f"{source} is no denoiser of images, but a network of kind {network.config.get('kind')!r}.")
    return network
