"""What a sinogram says by itself about its orientation, the turn that its angles cover, and its axis."""

from math import pi

import torch
from torch import Tensor

from lipspline.formats.sinograms import Sinograms
from lipspline.imaging.counts import FEWEST_ANGLES, FEWEST_DETECTORS, Axis, refuse_small, refuse_uneven_sums
from lipspline.operators import FanBeamCT, ParallelBeamCT

COMPLETE = 0.95  # of the arc that is needed: less is a limited angle
FEW = 0.1  # measured numbers for each pixel in view: with less projections are few


def rows_are_angles(found: Sinograms) -> bool:
    """Whether the middle slice is a sinogram by its sums over the columns, and none by those over its rows."""
    return seems_sinogram(found) and not seems_sinogram(found.transposed())


def seems_sinogram(found: Sinograms) -> bool:
    """Whether the middle slice is large enough, and its sums over the detectors are those of one object."""
    number = len(found.data) // 2
    try:
        refuse_small(*found.data.shape[1:])
        refuse_uneven_sums(found.data[number], number)
    except ValueError:
        return False
    return True


MIRRORED = 0.5
"""The second half of the angles mirrors the first if it differs at most by so much of what it differs otherwise."""


def second_half_mirrors_first(y: Tensor) -> bool:
    r"""Whether parallel projections `(A, D)` at evenly spread angles are those of a whole turn, not of half a turn.

    Rays repeat after half a turn, in the other direction: over a whole turn projection k + A/2 is projection k,
    mirrored. Over half a turn it could only be so for an object that looks the same from both sides: odd moments of
    p(θ) are polynomials of cos θ and sin θ, which would change their sign within a quarter of a turn, and so not within
    half a turn, where they do. Then the halves do not differ in the first place, and nothing is decided.

    Example:
        >>> angles, positions = torch.arange(8).view(-1, 1) * torch.pi / 4, torch.linspace(-1, 1, 21)
        >>> turn = (-30 * (positions - angles.cos() / 2).square()).exp()
        >>> second_half_mirrors_first(turn), second_half_mirrors_first(turn[:4])
        (True, False)
    """
    half = len(y) // 2
    if len(y) % 2 or half < FEWEST_ANGLES or y.shape[1] < FEWEST_DETECTORS:
        return False
    first, second = y[:half].double(), y[half:].double()
    inner = slice(1, -1)  # the axis may be half a detector beside the middle
    mirrored = min(float((second - first.flip(1).roll(k, 1))[:, inner].norm()) for k in (-1, 0, 1))
    return mirrored < MIRRORED * float((second - first)[:, inner].norm())


BESIDE, SURELY = 0.25, 5.0
"""The centres of mass speak against the middle from so many detectors on, and so many standard deviations."""


def axis_by_mass(y: Tensor, angles: Tensor) -> Axis | None:
    """Where the centres of mass of parallel projections `(A, D)` put the axis; None if that may be the middle.

    The centre of mass of a projection is that of the object, projected: c + X cos θ + Y sin θ, where c is the axis.

    Example:
        >>> angles, positions = torch.arange(60) * torch.pi / 60, torch.arange(41.0)
        >>> centres = 20.5 + 6 * angles.cos() + 2 * angles.sin()
        >>> print(axis_by_mass((-(positions - centres.view(-1, 1)).square() / 9).exp(), angles))
        axis of rotation at detector 20.50 ± 0.00, by the centres of mass
    """
    masses, middle = y.double().sum(dim=1), (y.shape[1] - 1) / 2
    if len(y) < 8 or not (masses > 0).all():
        return None
    centres = y.double() @ torch.arange(y.shape[1], dtype=torch.float64) / masses
    angles = angles.double()
    A = torch.stack([torch.ones_like(angles), angles.cos(), angles.sin()], dim=1)
    fitted = torch.linalg.pinv(A) @ centres
    variance = float((centres - A @ fitted).square().sum()) / (len(y) - 3)
    sure = (variance * float(torch.linalg.pinv(A.T @ A)[0, 0])) ** 0.5
    column = float(fitted[0])
    if abs(column - middle) <= max(BESIDE, SURELY * sure):
        return None
    return Axis(column, sure, "by the centres of mass")


def axis_note(y: Tensor, angles: Tensor) -> tuple[str, ...]:
    """What to say if parallel projections `(A, D)` put the axis beside the middle, where it was taken to be."""
    found = axis_by_mass(y, angles)
    if found is None:
        return ()
    return (
        f"The centres of mass of the projections put the axis of rotation at detector {found.column:.2f} ± "
        f"{found.uncertainty:.2f}, but it was taken to be in the middle, at {(y.shape[1] - 1) / 2:g}, which doubles or "
        f"blurs edges. Give axis=auto, or convention=scikit-image if its radon made them.",
    )


# The angles that are missing


def covered(angles: Tensor, turn: float = 2 * pi) -> float:
    """How much of a turn the angles cover, in radians, each one the usual step: all but the largest gap.

    Args:
        turn: after which rays repeat: half a turn for parallel beams.

    Example:
        >>> round(covered(torch.arange(91) * pi / 180, pi) * 180 / pi)
        91
    """
    around = torch.sort(angles.double() % turn).values
    gaps = torch.diff(around, append=around[:1] + turn)
    gaps = gaps[gaps > 1e-6 * turn]  # angles may repeat
    return turn - float(gaps.max() - gaps.median()) if len(gaps) > 1 else 0.0


def coverage_notes(geometry: ParallelBeamCT | FanBeamCT) -> tuple[str, ...]:
    """What the angles of a scan leave to the prior, a sentence each; nothing if they cover all that is needed."""
    angles, fan = geometry.angles, isinstance(geometry, FanBeamCT)
    spread = 2 * float(geometry.fan_angles.abs().max()) if isinstance(geometry, FanBeamCT) else 0.0
    needed, found = pi + spread, covered(angles, 2 * pi if fan else pi)
    notes = []
    if found < COMPLETE * needed:
        kind = f"a fan of {spread * 180 / pi:.3g} degrees needs" if fan else "parallel beams need"
        notes.append(
            f"The angles cover {found * 180 / pi:.3g} of the {needed * 180 / pi:.4g} degrees that {kind} "
            f"({100 * found / needed:.0f} %). Edges in the directions that are missing were not measured: what the "
            f"image shows of them comes from the prior, and no certificate says that it is right."
        )
    values, pixels = len(angles) * geometry.detectors, pi / 4 * geometry.size**2
    if values < FEW * pixels:
        notes.append(
            f"{len(angles)} projections are few: {values:,} numbers were measured for {pixels:,.0f} pixels in view. "
            f"What lies between them comes from the prior."
        )
    return tuple(notes)
