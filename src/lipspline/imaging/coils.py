"""Coils of measured MRI, on any trajectory: how they are mixed, their maps, and the phase that is folded into these."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.volume import Stack
from lipspline.imaging.coil_noise import Mixing, noise_covariance, virtual_coils, whitening
from lipspline.operators import LinearOperator, MultiCoilMRI, NonCartesianMRI, SoftSenseMRI, espirit, espirit_sets
from lipspline.operators._espirit import UNCROPPED, region_images
from lipspline.operators.mri import Convention, calibration_region

Coils = Literal["auto", "espirit"]
COILS = ("auto", "espirit")
Phase = Literal["auto", "fold", "none"]
PHASES = ("auto", "fold", "none")
Whiten = Literal["auto", "none"]
WHITENS = ("auto", "none")
Unknown = Literal["complex", "real"]
UNKNOWNS = ("complex", "real")
MAP_SETS = (1, 2)
LOW_RESOLUTION = 24
"""Columns and rows, at most, of the middle of k-space that the phase of an image is taken from."""
FAINT = 1e-3  # of the largest modulus: below it the phase of an image of low resolution is taken for 0
SHORTEST = 6  # columns and rows of it, at least
BLIND = 1e-3  # of the largest root sum of squares: below it a pixel is seen by no coil
FROM_SILENCE = "an estimate from where no signal is"
DETERMINED = 0.95  # of 1: the eigenvalue of ESPIRiT that well determined maps reach somewhere
SOFT = (0.8, 0.95)
"""The second set of maps has weight 0 where its eigenvalue is below the first of these, and 1 above the second."""


def check_coil_options(
    coils: Coils | Tensor, shape: tuple[int, ...], phase: str, unknown: str, whiten: str, virtual: int | None
) -> None:
    """Refuse what does not fit images and coils of this shape, `(S, C, H, W)`."""
    if isinstance(coils, Tensor):
        if tuple(coils.shape[1:]) != shape[1:] or coils.shape[0] not in (1, shape[0]):
            raise ValueError(f"The coil maps have shape {tuple(coils.shape)}, but k-space has {shape}.")
    else:
        checks.one_of("coils", coils, COILS)
    checks.one_of("phase", phase, PHASES)
    checks.one_of("unknown", unknown, UNKNOWNS)
    checks.one_of("whiten", whiten, WHITENS)
    if virtual is not None and checks.at_least("virtual_coils", virtual, 1) > shape[1]:
        raise ValueError(f"virtual_coils is {virtual}, but there are {shape[1]} coils.")


def check_map_sets(map_sets: int, estimable: bool) -> None:
    """Refuse other numbers of sets of maps than 1 and 2, and 2 where they cannot be estimated."""
    if map_sets not in MAP_SETS:
        raise ValueError(f"map_sets must be 1 or 2, but is {map_sets!r}.")
    if map_sets == 2 and not estimable:
        raise ValueError(
            "map_sets=2 estimates maps of at least three coils from Cartesian k-space of complex images. Leave it out, "
            "and take coils=espirit if the file holds maps."
        )


def coil_notes(
    count: int, noise: Tensor | None, whiten: Whiten, virtual: int | None, coils: Coils | Tensor, stored: object
) -> Iterator[str]:
    """What is done with so many coils, in a few words each.

    Args:
        coils, stored: where the maps come from, and those of the file.
    """
    if count == 1:
        return
    if whiten == "auto":
        yield f"coils whitened with {'a measurement of noise' if noise is not None else FROM_SILENCE}"
    if virtual is not None:
        yield f"{virtual} virtual coils"
    given, of_file = isinstance(coils, Tensor), isinstance(coils, str) and coils == "auto" and stored is not None
    yield "coil maps as given" if given else "coil maps of the file" if of_file else "coil maps by ESPIRiT"


def coil_mixing(
    data: Tensor, noise: Tensor | None, samples: Callable[[], Tensor], whiten: Whiten, virtual: int | None
) -> Mixing | None:
    """How the coils of data `(1, C, ., .)` become others: whitened, and fewer; None if they stay as they are.

    Args:
        noise: covariance of the coils, if it was measured.
        samples: values `(1, C, n)` that hold hardly anything but noise.
    """
    if data.shape[1] == 1:
        return None
    found = None
    if whiten == "auto":
        covariance = noise_covariance(samples()) if noise is None else noise
        found = None if covariance is None else whitening(covariance)
    if virtual is None:
        return found
    fewer = virtual_coils((data if found is None else found.data(data))[0], virtual)
    return fewer if found is None else found.then(fewer)


def given_maps(coils: Coils | Tensor, stored: Tensor | Stack | None, i: int) -> Tensor | None:
    """The maps `(C, H, W)` of slice i that a user or a file gives; None if they are to be estimated."""
    if isinstance(coils, Tensor):
        return coils[i if len(coils) > 1 else 0]
    return stored[i] if coils == "auto" and stored is not None else None


def coil_maps(
    kspace: Tensor,
    given: Tensor | None,
    mixing: Mixing | None,
    silent: Tensor,
    number: int,
    convention: Convention = "centred",
    calibration: int = 24,
) -> Tensor:
    """The maps of the coils of k-space, in the unit in which those of the measured coils have norm 1.

    Args:
        kspace: `(C, H, W)` with its middle measured, of mixed coils.
        given: maps of the measured coils; ESPIRiT's if None.
        silent: which of the measured coils are switched off: they see nothing, whatever their maps say.
        number: of the slice, for errors.
        calibration: the largest height and width of the middle of k-space that maps are estimated from.
    """
    maps = given
    if maps is None:
        with _explained(number):
            maps = espirit(kspace, crop=UNCROPPED, required=DETERMINED, convention=convention, calibration=calibration)
        if mixing is not None:
            maps = mixing.restored(maps)
    maps = normalized_maps(maps.masked_fill(silent[:, None, None], 0))
    return maps if mixing is None else mixing.data(maps)


def soft_maps(kspace: Tensor, mixing: Mixing | None, silent: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Two sets of maps `(2, C, H, W)`, as `coil_maps` makes one, times their weights; and the weights `(2, H, W)`.

    The first set has weight 1. The second fades out where one set is enough, so that it takes up no noise there.
    """
    with _explained(number):
        sets, values = espirit_sets(kspace, 2, required=DETERMINED)
    restored = sets if mixing is None else torch.stack([mixing.restored(maps) for maps in sets])
    unit = torch.stack([normalized_maps(maps.masked_fill(silent[:, None, None], 0)) for maps in restored])
    maps = unit if mixing is None else mixing.data(unit)
    ramp = ((values[1] - SOFT[0]) / (SOFT[1] - SOFT[0])).clamp(0, 1)
    weights = torch.stack([torch.ones_like(ramp), ramp.square() * (3 - 2 * ramp)])
    return maps * weights[:, None], weights


@contextmanager
def _explained(number: int) -> Iterator[None]:
    """Say of which slice the coil maps are not known, and what helps."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"ESPIRiT finds no coil maps for slice {number}: too few low frequencies are measured, or there is only "
            f"noise ({_first_sentence(error)}). Give the maps with coils=FILE, or data with more of the middle of "
            f"k-space, where frequency zero must lie."
        ) from error


def _first_sentence(error: ValueError) -> str:
    """What is wrong, without the advice that follows, which is for callers of an operator."""
    return str(error).split(". ")[0].rstrip(".")


def folded_phase(kspace: Tensor, maps: Tensor | None, phase: Phase, number: int) -> Tensor | None:
    """The phase `(H, W)` of low resolution of k-space `(C, H, W)`; None if nothing is folded."""
    if phase == "none":
        return None
    try:
        return low_resolution_phase(kspace, maps)
    except ValueError as error:
        if phase == "auto":
            return None
        raise ValueError(
            f"The phase of slice {number} is not known: too few low frequencies are measured "
            f"({_first_sentence(error)}). Give phase=none."
        ) from error


def normalized_maps(maps: Tensor) -> Tensor:
    """Coil maps `(C, H, W)` with Σ|S_c|² = 1, or 0 where no coil sees anything.

    Images are then as bright as the root sum of squares of the coil images, whatever the unit of the maps.
    """
    sums = torch.linalg.vector_norm(maps, dim=0)
    return torch.where(sums > BLIND * sums.max(), maps / sums, 0)


def divided(image: Tensor, H: LinearOperator) -> Tensor:
    """What the adjoint gives, `(1, 1, H, W)`, over Σ|S_c|² of the coil maps of H."""
    if isinstance(H, SoftSenseMRI):  # the second set is as bright as the first, where it has its full weight
        sums = H.maps[0].abs().square().sum(dim=0)
        return H.stack(torch.where(sums > BLIND**2 * sums.max(), H.split(image) / sums, 0))
    assert isinstance(H, MultiCoilMRI | NonCartesianMRI)
    sums = H.maps.abs().square().sum(dim=0)
    return torch.where(sums > BLIND**2 * sums.max(), image / sums, 0)


def low_resolution_phase(kspace: Tensor, maps: Tensor | None = None) -> Tensor:
    """The phase of an image of low resolution, complex `(H, W)` of modulus 1, from the middle of centred k-space.

    Args:
        kspace: `(C, H, W)`; the middle must be fully measured.
        maps: of its coils, `(C, H, W)`; the phase is that of Σ conj(S_c) x_c. None for one coil.

    Example:
        >>> from lipspline.operators.mri import centred_fft
        >>> phase = torch.linspace(0, 3, 32) + torch.linspace(0, 0.5, 32)[:, None]
        >>> image = torch.polar(torch.ones(32, 32), phase)
        >>> found = low_resolution_phase(centred_fft(image)[None])
        >>> bool((found - image).abs()[4:-4, 4:-4].max() < 0.1)
        True
    """
    region = calibration_region(kspace, LOW_RESOLUTION, SHORTEST)
    images = region_images(region, tuple(kspace.shape[-2:]))
    image = images.sum(dim=0) if maps is None else (maps.conj() * images).sum(dim=0)
    moduli = image.abs()
    return torch.where(moduli > FAINT * moduli.max(), torch.sgn(image), 1)
