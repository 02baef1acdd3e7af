"""A noisy image file to a clean one: any kind of pixels, any size, any noise level, by a certified denoiser."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification import certify
from lipspline.formats import pictures
from lipspline.formats.output import Output, versions
from lipspline.formats.pictures import from_planes, to_planes, white_level
from lipspline.functional.noise import estimate_noise
from lipspline.imaging.verify import describe_prior
from lipspline.networks.tiling import apply_tiled
from lipspline.priors import UNIT_RANGE, DenoiserPrior, resolve

Watch = Callable[[int, int], None]
TILE = 512
"""Side of a tile: large enough that its margin costs little, small enough that memory hardly grows with the image."""

LOUDEST = 255.0
"""The largest noise level, as a multiple of 1/255 of white."""
BEYOND = 0.1
"""How far, in parts of white, a result may leave the range of the input before a warning says so."""


@dataclass(frozen=True)
class Denoised:
    """What was done to a file."""

    input: str
    output: str
    shape: tuple[int, ...]
    dtype: str
    white: float
    """The value that was taken for white."""
    noise: float
    """The noise that was removed, of 255 for white."""
    estimated: bool
    model: str
    trained_noise: float
    """The noise that the denoiser was trained for; it was rescaled if that is another."""
    lipschitz: float
    """The proved bound on its Lipschitz constant."""
    prior: dict[str, Any]
    """What is needed to have it again."""
    warning: str
    """What to mind about the result; empty if nothing."""
    seconds: float

    def document(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "versions": versions()}

    def __str__(self) -> str:
        source = "estimated" if self.estimated else "given"
        rescaled = "" if self.noise == self.trained_noise else f", rescaled from noise {self.trained_noise:g}"
        return (
            f"{self.output}: {'x'.join(map(str, self.shape))} {self.dtype}, white {self.white:g}\n"
            f"noise {self.noise:.2f} of 255 ({source}), denoiser {self.model}{rescaled}, "
            f"Lipschitz constant <= {self.lipschitz:.9f}, {self.seconds:.1f} s"
        )


def denoise_file(
    source: Path,
    target: Path,
    *,
    noise: float | Literal["auto"] = "auto",
    model: str = "lls",
    white: float | None = None,
    force: bool = False,
    watch: Watch | None = None,
) -> Denoised:
    """Remove white noise from an image file, channel by channel; dtype, range and transparency stay as they are.

    Args:
        source: PNG, TIFF or npy.
        target: appears whole or not at all, with a certificate beside it, `target`.json.
        noise: standard deviation of the noise, of 255 for white; estimated if "auto".
        model: the activation of a shipped denoiser, or a file that `models.save` has written.
        white: the value that stands for white; see `white_level`.
        force: replace a `target` that an earlier call has written.
        watch: called with the tiles done and their number.
    """
    begin = time.perf_counter()
    output = Output(target)
    with output.open((source, *([Path(model)] if Path(model).exists() else [])), force=force):
        image = pictures.read(source)
        pictures.encoder(target, image.dtype)
        white = white_level(image, white)
        planes = to_planes(image, white)
        level = 255 * _estimated(planes) if noise == "auto" else _checked_level(noise)
        prior = denoiser_prior(model)
        network, trained = prior.at(level), prior.level_for(level)
        result = _applied(network, planes, watch or (lambda done, total: None))
        stored = _finite(from_planes(result, image, white))
        upper = certify(network).upper
        done = Denoised(
            input=str(source),
            output=str(target),
            shape=image.shape,
            dtype=str(image.dtype),
            white=white,
            noise=level,
            estimated=noise == "auto",
            model=model,
            trained_noise=trained,
            lipschitz=upper,
            prior=describe_prior(model, prior, network, level, UNIT_RANGE, upper),
            warning=_warning(planes, result, level),
            seconds=time.perf_counter() - begin,
        )
        output.commit(done.document(), {"": lambda draft: pictures.write(draft, stored)})
    return done


def denoiser_prior(name: str) -> DenoiserPrior:
    """The denoiser of this name or file; other priors do not denoise images by themselves."""
    prior = resolve(name)
    if not isinstance(prior, DenoiserPrior):
        raise ValueError(f"model must be a denoiser, but {name} is an {prior.kind}.")
    return prior


def _checked_level(noise: float) -> float:
    if checks.positive("noise", noise) > LOUDEST:
        raise ValueError(f"noise is {noise:g}, but cannot be more than {LOUDEST:g}: 255 is the value of white.")
    return noise


def _finite(image: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(image).all():
        raise ValueError(f"The result has values beyond the range of {image.dtype}. Check white.")
    return image


def _warning(before: Tensor, after: Tensor, level: float) -> str:
    """A denoiser far from the noise it was trained for may shift grey values."""
    beyond = max(float(after.max() - before.max()), float(before.min() - after.min()))
    if beyond <= BEYOND:
        return ""
    return (
        f"The result goes beyond the values of the input by {beyond:.2g} of white: noise {level:.3g} is far from what "
        f"the denoiser was trained for."
    )


def _estimated(planes: Tensor) -> float:
    noise = estimate_noise(planes)
    if noise == 0:
        raise ValueError("The image shows no noise at all. Say how much to remove with noise=.")
    return noise


@torch.no_grad()
def _applied(network: nn.Module, planes: Tensor, watch: Watch) -> Tensor:
    """The denoised planes `(C, 1, H, W)`, one by one and tile by tile."""
    result = torch.empty_like(planes)
    for index, plane in enumerate(planes.split(1)):
        result[index] = apply_tiled(
            network,
            plane,
            TILE,
            lambda done, total, before=index: watch(before * total + done, len(planes) * total),
        )[0]
    return result
