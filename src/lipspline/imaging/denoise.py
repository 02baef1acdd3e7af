"""A noisy image or volume to a clean one: any kind of pixels, any size, any noise level; what is proven about it."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks, devices
from lipspline._infra.files import fingerprint
from lipspline.certification import certify
from lipspline.certification.certificate import printed_up
from lipspline.formats import ct, dicom, nifti, pictures
from lipspline.formats.output import Output, versions
from lipspline.formats.pictures import from_planes, to_planes, white_level
from lipspline.formats.volume import Volume
from lipspline.formats.writers import Image, writer
from lipspline.functional.noise import estimate_noise
from lipspline.imaging.strength import describe_prior, known, proven_upper
from lipspline.networks.tiling import apply_tiled
from lipspline.operators import Identity
from lipspline.pnp import minimize
from lipspline.priors import UNIT_RANGE, DenoiserPrior, EnergyPrior, Kind, Prior, resolve

Watch = Callable[[int, int], None]
RECOMMENDED = "ridge-adaptive"
"""The best images of all priors whose map has a proven Lipschitz constant."""
TILE = 512
"""Side of a tile: large enough that its margin costs little, small enough that memory hardly grows with the image."""
TOL = 1e-4
"""How far energies are minimised: the relative change of the image."""

LOUDEST = 255.0
"""The largest noise level, as a multiple of 1/255 of white."""
FAINT = 1.0
"""A smaller noise level than this leaves 8-bit images nearly as they are."""
HOUNSFIELD = (-1000.0, 1000.0)
"""Black and white of Hounsfield units: single values far beyond, of metal and padding, would make all noise faint."""
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
    black: float
    """The value that was taken for black."""
    noise: float
    """The noise level that was removed, in units of 1/255 of the range from black to white."""
    noise_value: float
    """The same in the values of the file."""
    unit: str
    """Of the values of the file: "HU" where they are Hounsfield units."""
    estimated: bool
    model: str
    trained_noise: float | None
    """The noise that a network was trained for; it was rescaled if that is another. None for priors of all levels."""
    lipschitz: float | None
    """The proven bound on how much more the result can change than the input; None if there is none."""
    distance: float | None
    """How far the result of an energy is from the exact minimiser, at most: a root mean square in units of 1/255."""
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
        exact = self.trained_noise in (None, self.noise)
        rescaled = "" if exact else f", rescaled from noise {self.trained_noise:g}"
        factor = "" if self.lipschitz is None else f"at most {printed_up(self.lipschitz)} times as much as the input"
        within = "" if self.distance is None else f", within {self.distance:.2g}/255 of the exact minimiser"
        black = f"black {self.black:g}, " if self.black else ""
        return (
            f"{self.output}: {'x'.join(map(str, self.shape))} {self.dtype}, {black}white {self.white:g}\n"
            f"noise {self.noise:.2f}/255{self._in_values} ({source}), prior {self.model}{rescaled}, "
            f"the result changes {factor or 'by an unknown factor'}{within}, {self.seconds:.1f} s"
        )

    @property
    def _in_values(self) -> str:
        """The noise in the unit of the file, where that is another."""
        if self.white - self.black == 255:
            return ""
        return f" of the range, which is {self.noise_value:.3g} {self.unit or 'in the values of the file'}"


class _Noisy(NamedTuple):
    """An image or a volume as planes `(C, 1, H, W)`, 0 for black and 1 for white."""

    planes: Tensor
    shape: tuple[int, ...]
    dtype: str
    white: float
    black: float
    write: Callable[[Path, Tensor], None]
    """Writes such planes as the input was: same kind of pixels, same place in space."""
    unit: str = ""


class _Clean(NamedTuple):
    """What became of the planes; see `Denoised`."""

    planes: Tensor
    lipschitz: float | None
    distance: float | None


def denoise_file(
    source: Path,
    target: Path,
    *,
    noise: float | Literal["auto"] = "auto",
    noise_value: float | None = None,
    model: str = "auto",
    white: float | None = None,
    black: float | None = None,
    force: bool = False,
    watch: Watch | None = None,
) -> Denoised:
    """Remove white noise from an image or volume, plane by plane; dtype, range and transparency stay as they are.

    Args:
        source: PNG, TIFF, JPEG or npy; a NIfTI file, a DICOM file, or a folder with a DICOM series.
        target: appears whole or not at all, with a certificate beside it, `target`.json.
        noise: the noise level, in units of 1/255 of white; estimated if "auto".
        noise_value: or the noise level in the values of the file, such as Hounsfield units.
        model: a prior by its name in `priors.catalogue()`, or a file; "auto" for the recommended one.
        white, black: the values that stand for white and black; see `white_level`. Those of NIfTI and DICOM are the
            largest and the least value if not given, of Hounsfield units 1000 and -1000.
        force: replace a `target` that an earlier call has written.
        watch: called with the pieces done and their number.
    """
    begin = time.perf_counter()
    output, asked = Output(target), RECOMMENDED if model == "auto" else model
    read = (source, *([Path(model)] if Path(model).is_file() else []))
    with output.open(read, force=force):
        found = _read(source, target, white, black)
        level, estimated = _level(found, noise, noise_value)
        prior = resolve(asked)
        clean = _by_network if prior.kind is Kind.DENOISER else _by_energy
        result = clean(prior, level, found.planes, watch or (lambda done, total: None))
        served = prior.at(level)
        beyond = _warning(found.planes, result.planes, level, estimated=estimated, given=noise)
        done = Denoised(
            input=str(source),
            output=str(target),
            shape=found.shape,
            dtype=found.dtype,
            white=found.white,
            black=found.black,
            noise=level,
            noise_value=level / 255 * (found.white - found.black),
            unit=found.unit,
            estimated=estimated,
            model=asked,
            trained_noise=prior.level_for(level) if isinstance(prior, DenoiserPrior) else None,
            lipschitz=result.lipschitz,
            distance=result.distance,
            prior=describe_prior(asked, prior, served, level, UNIT_RANGE, proven_upper(served)),
            warning=" ".join(filter(None, [prior.caution, beyond])),
            seconds=time.perf_counter() - begin,
        )
        inputs = {str(file): fingerprint(file) for file in read}
        output.commit({**done.document(), "inputs": inputs}, {"": lambda draft: found.write(draft, result.planes)})
    return done


def _read(source: Path, target: Path, white: float | None, black: float | None) -> _Noisy:
    name = source.name.lower()
    if source.is_dir() or name.endswith((*nifti.ENDINGS, *dicom.ENDINGS)):
        return _read_volume(source, target, white, black)
    image, dark = pictures.read(source), 0.0 if black is None else black
    pictures.encoder(target, image.dtype)
    bright = white_level(image, white, dark)

    def write(draft: Path, planes: Tensor) -> None:
        pictures.write(draft, _finite(from_planes(planes, image, bright, dark)))

    return _Noisy(to_planes(image, bright, dark), image.shape, str(image.dtype), bright, dark, write)


def _read_volume(source: Path, target: Path, white: float | None, black: float | None) -> _Noisy:
    volume = (
        ct.read(source) if source.is_dir() or not source.name.lower().endswith(nifti.ENDINGS) else nifti.read(source)
    )
    write_as = writer(target, len(volume.slices), volume.affine)
    least, most = (float(end) for end in torch.aminmax(volume.slices))
    unit = "hounsfield" if volume.unit == "hounsfield" or ct.seems_hounsfield(volume.slices) else "arbitrary"
    if unit == "hounsfield" and white is None and black is None:
        black, white = HOUNSFIELD
    dark, bright = least if black is None else black, most if white is None else white
    if not dark < bright:
        raise ValueError(
            f"white, {bright:g}, must be more than black, {dark:g}; the values lie in [{least:g}, {most:g}]."
        )

    def write(draft: Path, planes: Tensor) -> None:
        slices = torch.lerp(torch.tensor(dark), torch.tensor(bright), planes[:, 0])
        _finite(slices.numpy())
        clean = Volume(slices, volume.affine, unit, volume.identity)
        modality = "CT" if unit == "hounsfield" else "MR"
        write_as(draft, Image(clean, modality, "lipspline: denoised"))

    planes = ((volume.slices - dark) / (bright - dark))[:, None]
    shown = "HU" if unit == "hounsfield" else ""
    return _Noisy(planes, tuple(volume.slices.shape), "float32", bright, dark, write, shown)


def _by_energy(prior: Prior, level: float, planes: Tensor, watch: Watch) -> _Clean:
    """The minimisers of ½‖x - y‖² + λR(x)."""
    assert isinstance(prior, EnergyPrior)
    energy, weight, result = prior.at(level).to(devices.current()), prior.strength(level), torch.empty_like(planes)
    identity, lipschitz, distance = Identity((1, *planes.shape[-2:])), 0.0, 0.0
    for index, plane in enumerate(planes.split(1)):
        solution = minimize(plane.to(devices.current()), identity, energy, weight, tol=TOL)
        certificate, result[index] = solution.certificate, solution.value[0]
        stability = certificate.image_stability
        constant = None if stability is None else stability.constant
        lipschitz = max(lipschitz, float("inf") if constant is None else constant)
        distance = max(distance, float("inf") if certificate.distance is None else certificate.distance)
        watch(index + 1, len(planes))
    return _Clean(result, known(lipschitz), known(255 * distance / math.sqrt(planes[0].numel())))


@torch.no_grad()
def _by_network(prior: Prior, level: float, planes: Tensor, watch: Watch) -> _Clean:
    """The denoised planes, one by one and tile by tile."""
    network, result = prior.at(level).to(devices.current()), torch.empty_like(planes)
    for index, plane in enumerate(planes.split(1)):
        result[index] = apply_tiled(
            network,
            plane.to(devices.current()),
            TILE,
            lambda done, total, before=index: watch(before * total + done, len(planes) * total),
        )[0]
    return _Clean(result, certify(network).upper, None)


def _level(found: _Noisy, noise: float | Literal["auto"], value: float | None) -> tuple[float, bool]:
    """The noise level, and whether it was estimated."""
    if value is None:
        return (255 * _estimated(found.planes), True) if noise == "auto" else (_checked_level(noise), False)
    if noise != "auto":
        raise ValueError("noise= is in units of 1/255 of white, noise_value= in the values of the file. Give one.")
    level, span = 255 * checks.positive("noise_value", value) / (found.white - found.black), found.white - found.black
    if level > LOUDEST:
        raise ValueError(f"noise_value is {value:g}, but from black to white the values span only {span:g}.")
    return level, False


def _checked_level(noise: float) -> float:
    if checks.positive("noise", noise) > LOUDEST:
        raise ValueError(f"noise is {noise:g}, but cannot be more than {LOUDEST:g}: 255 is the value of white.")
    return noise


def _finite(image: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(image).all():
        raise ValueError(f"The result has values beyond the range of {image.dtype}. Check white.")
    return image


def _warning(
    before: Tensor, after: Tensor, level: float, *, estimated: bool, given: float | Literal["auto"] = "auto"
) -> str:
    """Hardly any noise to remove; or a denoiser far from the noise it was trained for, which may shift grey values."""
    if estimated and level < FAINT:
        return (
            f"The noise is estimated at {level:.2g}/255, so that the image hardly changes. What is seen in it is no "
            f"white noise (compression, interpolation and blur leave none): say how much to remove with noise=."
        )
    if given != "auto" and level < FAINT:
        return (
            f"noise {given:g} is in units of 1/255 of white, so that the image hardly changes. If it was meant as a "
            f"part of white, give noise={255 * given:.4g}; in the values of the file, noise_value={given:g}."
        )
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
