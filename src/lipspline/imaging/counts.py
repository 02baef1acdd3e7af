"""From detector counts to line integrals with weights, and where the axis of rotation is."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, conv1d, pad, unfold

from lipspline.imaging.coil_noise import GAUSSIAN_MEDIAN
from lipspline.operators import FanBeamCT, ParallelBeamCT, fbp

WEAK = 0.05  # of the usual flat field: a detector with less is dead
SPIKE = 10.0  # standard deviations above its neighbours: a zinger
STARVED = 1e-3  # of the flat field: less than this is no count
RING = 5  # detectors on one side over which the mean over the angles is averaged to remove rings
OPAQUE = 30.0  # of a line integral: hardly one photon in 10^13 comes through
VARYING = 0.6
"""The sums over the detectors of one angle are nearly the same for all angles; they may differ by so much."""


@dataclass(frozen=True)
class Integrals:
    """Line integrals of one slice `(A, D)`, and what is known about each."""

    y: Tensor
    """Where nothing was measured, filled in from the neighbours on the detector."""
    weights: Tensor
    """About the inverse variance, 1 on average; 0 where nothing was measured."""
    dead: int = 0
    """Detectors that never measure."""
    spikes: int = 0
    """Values that a stray photon made (zingers)."""
    starved: int = 0
    """Other values without counts."""

    def __str__(self) -> str:
        found = {"dead detectors": self.dead, "zingers": self.spikes, "rays without counts": self.starved}
        seen = [f"{count} {name}" for name, count in found.items() if count]
        return f"{', '.join(seen)} left out" if seen else "no dead detectors and no zingers found"


def line_integrals(counts: Tensor, flat: Tensor, dark: Tensor | None = None) -> Integrals:
    """`-log((I - D) / (F - D))` of counts I, with weights about I - D, the inverse of its variance for photons.

    Args:
        counts: `(A, D)`.
        flat: `(D,)`, without an object.
        dark: `(D,)`, without a beam; 0 if not given.

    Example:
        >>> found = line_integrals(torch.full((2, 4), 50.0), torch.tensor([100.0, 100.0, 1.0, 100.0]))
        >>> found.dead, found.weights[0].tolist(), round(float(found.y[0, 2]), 4)
        (1, [1.0, 1.0, 0.0, 1.0], 0.6931)
    """
    dark = torch.zeros_like(flat) if dark is None else dark
    beam = flat - dark
    usual = float(beam.median())
    if usual <= 0:
        raise ValueError("The flat field is not above the dark field: there is no beam. Check which is which.")
    dead = beam <= WEAK * usual
    if len(counts) > 2:
        dead = dead | (counts == counts[:1]).all(dim=0)
    if dead.all():
        raise ValueError("Every detector is dead: it measures nothing, or the same for every angle.")
    signal = counts - dark
    share = signal / beam.clamp_min(WEAK * usual)
    spikes = _spikes(share, beam.clamp_min(WEAK * usual)) & ~dead
    starved = (share <= STARVED) & ~dead
    good = ~(spikes | starved | dead)
    if not good.any():
        raise ValueError("No ray has counts above the dark field. Check which file holds the dark field.")
    y = -share.clamp_min(STARVED).log()
    weights = torch.where(good, signal, 0.0)
    weights = weights / weights[good].mean()
    return Integrals(fill_in(y, good), weights, int(dead.sum()), int(spikes.sum()), int(starved.sum()))


def _spikes(share: Tensor, beam: Tensor) -> Tensor:
    """Where a value is far above what is around it, by the noise of photons.

    It is compared with the third largest of its eight neighbours: spikes of up to three values are found, and edges,
    where at least three neighbours are as bright, are none.
    """
    rows, columns = share.shape
    if min(rows, columns) < 3:
        return torch.zeros_like(share, dtype=torch.bool)
    around = unfold(pad(share[None, None], (1, 1, 1, 1), mode="replicate"), 3).view(9, rows, columns)
    middle = around.kthvalue(6, dim=0).values
    above = (share - middle) * (beam / middle.clamp_min(STARVED)).sqrt()
    noise = float(above.abs().median()) / GAUSSIAN_MEDIAN
    return above > SPIKE * max(noise, 1e-6 * float(above.abs().max()))


def fill_in(y: Tensor, good: Tensor) -> Tensor:
    """Values `(A, D)` that are not good from the nearest good ones on either side, linearly.

    Example:
        >>> fill_in(torch.tensor([[1.0, 9.0, 9.0, 4.0]]), torch.tensor([[True, False, False, True]]))
        tensor([[1., 2., 3., 4.]])
    """
    if good.all():
        return y
    column = torch.arange(y.shape[1], device=y.device).expand_as(y)
    left = torch.where(good, column, -1).cummax(dim=1).values
    right = torch.where(good, column, y.shape[1]).flip(1).cummin(dim=1).values.flip(1)
    lone = (left < 0) & (right >= y.shape[1])
    left, right = torch.where(left < 0, right, left), torch.where(right >= y.shape[1], left, right)
    left, right = (side.clamp(0, y.shape[1] - 1) for side in (left, right))
    share = (column - left) / (right - left).clamp_min(1)
    filled = torch.lerp(y.gather(1, left), y.gather(1, right), share.to(y))
    return torch.where(good, y, filled.masked_fill(lone, 0.0))


def without_rings(y: Tensor) -> Tensor:
    """Line integrals `(A, D)` whose mean over the angles is smooth along the detector.

    A detector whose gain is off is off by the same at every angle and draws a ring. The mean over the angles is
    averaged over neighbours by weights 1, 2, ..., n, ..., 2, 1, mirrored at the ends: a symmetric matrix with
    eigenvalues in [0, 1]. So the correction is linear and enlarges no difference of data: what is proven for the
    corrected line integrals holds for the measured ones, if rays have no weights. Rings that are really there, around
    the axis, go as well.

    Example:
        >>> rows = without_rings(torch.tensor([0.0, 0, 0, 0, 5, 0, 0, 0, 0]).expand(2, -1))
        >>> [round(float(v), 2) for v in rows[0, 3:6]]
        [0.8, 1.0, 0.8]
    """
    reach = min(RING, y.shape[1])
    weights = reach - torch.arange(1 - reach, reach, dtype=y.dtype, device=y.device).abs()
    mean = y.mean(dim=0)
    mirrored = torch.cat([mean[: reach - 1].flip(0), mean, mean[mean.shape[0] - reach + 1 :].flip(0)])
    smooth = conv1d(mirrored.view(1, 1, -1), (weights / weights.sum()).view(1, 1, -1)).flatten()
    return y - (mean - smooth)


def weighted_noise(y: Tensor, weights: Tensor | None = None) -> float:
    """An estimate of n, where the noise of `y (A, D)` has variance n² / w, from second differences on the detector.

    Smooth data nearly vanish in them.

    Args:
        weights: w; 1 if not given. Those of weight 0 are left out.
    """
    if y.shape[-1] < 3:
        return 0.0
    bends = y[..., 2:] - 2 * y[..., 1:-1] + y[..., :-2]
    if weights is None:
        return float(bends.abs().median()) / GAUSSIAN_MEDIAN / sqrt(6)
    variance = 1 / weights.clamp_min(torch.finfo(weights.dtype).tiny)
    spread = variance[..., 2:] + 4 * variance[..., 1:-1] + variance[..., :-2]
    good = (weights[..., 2:] > 0) & (weights[..., 1:-1] > 0) & (weights[..., :-2] > 0)
    if not good.any():
        return 0.0
    return float((bends[good].abs() / spread[good].sqrt()).median()) / GAUSSIAN_MEDIAN


FEWEST_ANGLES, FEWEST_DETECTORS = 2, 8
NEGATIVE = 0.75
"""The share of negative line integrals, among those that are not zero, from which on they are not noise around zero."""
TURNED = "convention=scikit-image for what its radon returned, or transpose=True for other data (detectors, angles)"
"""What to do with a sinogram that is turned; the conventions differ by half a pixel in where the axis is."""

RADON = "convention=scikit-image if its radon made it, also turned: its axis is elsewhere by half a pixel"


def refuse_small(angles: int, detectors: int) -> None:
    """Refuse a sinogram that is too small to say anything about an image."""
    if angles >= FEWEST_ANGLES and detectors >= FEWEST_DETECTORS:
        return
    turned = f" It may be turned: give {TURNED}." if angles >= FEWEST_DETECTORS else ""
    raise ValueError(
        f"Sinograms need at least {FEWEST_ANGLES} angles and {FEWEST_DETECTORS} detectors, but there are {angles} and "
        f"{detectors}.{turned}"
    )


def negative_note(y: Tensor) -> str:
    """What to say of line integrals that are mostly negative, as no attenuation makes them; empty if they are not."""
    share = int((y < 0).sum()) / max(1, int((y != 0).sum()))
    if share <= NEGATIVE or float(y.double().sum(dim=1).median()) >= 0:
        return ""
    words = f"{100 * share:.0f} % of the line integrals that are not zero are negative"
    return f"{words}: their sign may be turned, or -log was not taken"


def refuse_counts(y: Tensor, slice_number: int) -> None:
    """Refuse whole numbers `(A, D)` that no line integrals are: what a detector counted, without a flat field.

    Example:
        >>> refuse_counts(torch.tensor([[900.0, 512.0], [640.0, 33.0]]), 0)
        Traceback (most recent call last):
        ValueError: Slice 0 holds whole numbers up to 900, which are counts rather than line integrals. Give the counts
        without an object too: flat=FILE.
    """
    if float(y.max()) > OPAQUE and (y == y.round()).all() and y.unique().numel() > 2:
        raise ValueError(
            f"Slice {slice_number} holds whole numbers up to {float(y.max()):g}, which are counts rather than line "
            f"integrals. Give the counts without an object too: flat=FILE."
        )


def refuse_uneven_sums(y: Tensor, slice_number: int) -> None:
    """Refuse data `(A, D)` whose sums over the detectors change from angle to angle as no object makes them change."""
    sums = y.double().sum(dim=1)
    low, high, usual = (float(torch.quantile(sums, q)) for q in (0.02, 0.98, 0.5))
    mean = float(sums.mean())
    if mean <= 0 or len(sums) < 3 or high - low <= VARYING * max(mean, usual):
        return
    raise ValueError(
        f"Slice {slice_number}: the sums over the {y.shape[1]} detectors vary by {100 * (high - low) / mean:.0f} % of "
        f"their mean from angle to angle, but every angle sees the same object. The sinogram may be turned (give "
        f"{TURNED}), may be an image rather than a sinogram (give simulate=True), or counts rather than line integrals "
        f"(give flat=FILE)."
    )


# The axis of rotation


@dataclass(frozen=True)
class Axis:
    """Onto which detector the axis of rotation is projected, counted from 0; the middle one is (D - 1) / 2."""

    column: float
    uncertainty: float | None = None
    """By how much the estimates from either half of the angles differ from it; None if it was not estimated."""
    how: str = "taken to be in the middle"

    def __str__(self) -> str:
        sure = "" if self.uncertainty is None else f" ± {self.uncertainty:.2f}"
        return f"axis of rotation at detector {self.column:.2f}{sure}, {self.how}"


Build = Callable[[Tensor, int, float, float], ParallelBeamCT | FanBeamCT]
"""Makes the geometry of some angles, a number of detectors, how many detectors each stands for, and an axis."""


def find_axis(y: Tensor, angles: Tensor, build: Build) -> Axis | None:
    """Where the axis of rotation is, from the data `(A, D)` alone; None if no place is better than others.

    An axis in the wrong place blurs edges and adds negative values: of the filtered backprojections the one with the
    least sum of moduli has the right axis (Donath et al., J. Opt. Soc. Am. A 23, 2006). Give no more angles than an
    image needs: opposite ones make up for an axis in the wrong place.
    """
    detectors = y.shape[1]
    middle, bins, thin = (detectors - 1) / 2, max(1, detectors // 96), max(1, len(y) // 60)
    places = [middle + k * bins for k in _range(detectors // (4 * bins))]
    coarse = _search(y[::thin], angles[::thin], build, bins, places)
    if coarse is None:
        return None
    fine = max(1, detectors // 256)
    first, second = (_refined(y[k::2], angles[k::2], build, fine, coarse, bins) for k in (0, 1))
    whole = _refined(y, angles, build, fine, coarse, bins)
    return Axis(whole, max(abs(first - second) / 2, 0.02), "estimated from the data")


def _range(reach: int) -> range:
    return range(-reach, reach + 1)


def _search(y: Tensor, angles: Tensor, build: Build, bins: int, places: list[float]) -> float | None:
    """The best of some places; None if it is the first or the last."""
    scores = [_blur(y, angles, build, bins, place) for place in places]
    best = min(range(len(places)), key=scores.__getitem__)
    return places[best] if 0 < best < len(places) - 1 else None


def _refined(y: Tensor, angles: Tensor, build: Build, bins: int, start: float, reach: float) -> float:
    """The best place within `reach` of a start, by golden sections, to a twenty-fifth of a detector."""
    low, high, golden = start - reach, start + reach, (sqrt(5) - 1) / 2
    inner = [high - golden * (high - low), low + golden * (high - low)]
    scores = [_blur(y, angles, build, bins, place) for place in inner]
    while high - low > 0.04:
        if scores[0] < scores[1]:
            high, inner = inner[1], [inner[1] - golden * (inner[1] - low), inner[0]]
            scores = [_blur(y, angles, build, bins, inner[0]), scores[0]]
        else:
            low, inner = inner[0], [inner[1], inner[0] + golden * (high - inner[0])]
            scores = [scores[1], _blur(y, angles, build, bins, inner[1])]
    return (low + high) / 2


def _blur(y: Tensor, angles: Tensor, build: Build, bins: int, place: float) -> float:
    """The sum of moduli of the backprojection with the axis in a place, of data averaged over neighbours."""
    few = avg_pool1d(y, bins)
    geometry = build(angles, few.shape[1], bins, (place - (bins - 1) / 2) / bins)
    image = fbp(few[None, None], geometry)[0, 0]
    position = torch.arange(geometry.size, dtype=image.dtype) - (geometry.size - 1) / 2
    inside = position.view(-1, 1).square() + position.square() <= (0.45 * geometry.size) ** 2
    return float(image[inside].abs().sum())
