"""What was not measured, in a sentence: of the angles of CT, and of the frequencies of MRI."""

from math import pi

import torch
from torch import Tensor

from lipspline.operators import FanBeamCT, ParallelBeamCT

COMPLETE = 0.95  # of the arc that is needed: less is a limited angle
FEW = 0.1  # measured numbers for each pixel in view: with less projections are few
FEW_FREQUENCIES = 0.2
"""With this part of k-space or less artefacts are expected.

With a sixth of the columns the error within the object was 16 to 18 % of the image, with one coil (three knees) and
with four (a measured head); with a quarter it was 8 to 13 %, with a twelfth 21 to 35 % (prior `ridge`).
"""


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


def kspace_notes(mask: Tensor) -> tuple[str, ...]:
    """What an undersampled k-space leaves to coil maps and prior, a sentence; nothing if enough was measured.

    Args:
        mask: what was measured, `(W,)`, `(H, W)` or `(S, H, W)`.

    Example:
        >>> mask = torch.zeros(64)
        >>> mask[28:36] = 1
        >>> kspace_notes(mask)[0][:60]
        'Only 8 of 64 columns of k-space are used, 12 %. The other 88'
    """
    share = float(mask.double().mean())
    if share > FEW_FREQUENCIES:
        return ()
    used = mask.reshape(-1, mask.shape[-1]) != 0
    columns = used.any(dim=0)
    by_columns = bool((used.all(dim=0) == columns).all())
    what = f"{int(columns.sum())} of {len(columns)} columns" if by_columns else f"{100 * share:.2g} % of the points"
    part = f", {100 * share:.2g} %" if by_columns else ""
    across = "from left to right" if by_columns else "in both directions"
    return (
        f"Only {what} of k-space are used{part}. The other {100 * (1 - share):.2g} % of the frequencies were not "
        f"measured: they come from the coil maps, where there are several coils, and from the prior. Expect ghosts and "
        f"blur {across}; fine detail may be missing or made up, and no certificate says that it is right.",
    )


def trajectory_notes(points: Tensor, shape: tuple[int, int]) -> tuple[str, ...]:
    """What few samples on a trajectory leave to coil maps and prior, a sentence; nothing if enough was measured.

    Args:
        points: `(L, M, 2)` in cycles per field of view.
        shape: of the images. Its frequencies are those of the grid within the ellipse that reaches the edges of it.

    Example:
        >>> line = torch.arange(-32.0, 32.0)
        >>> cross = torch.stack([torch.stack([line, 0 * line], -1), torch.stack([0 * line, line], -1)])
        >>> trajectory_notes(cross, (64, 64))[0][:67]
        'The 2 readouts pass near 4 % of the frequencies of the image. The o'
    """
    rows, columns = (torch.arange(n) - n // 2 for n in shape)
    inside = (2 * rows / shape[0]).square().view(-1, 1) + (2 * columns / shape[1]).square() <= 1
    near = points.reshape(-1, 2).round().long() + torch.tensor([n // 2 for n in shape])
    near = near[(near >= 0).all(dim=1) & (near < torch.tensor(shape)).all(dim=1)]
    met = torch.zeros(shape, dtype=torch.bool)
    met[near[:, 0], near[:, 1]] = True
    share = int((met & inside).sum()) / int(inside.sum())
    if share > FEW_FREQUENCIES:
        return ()
    lines = f"{points.shape[0]} readouts pass" if points.shape[0] > 1 else "readout passes"
    return (
        f"The {lines} near {100 * share:.2g} % of the frequencies of the image. The other {100 * (1 - share):.2g} % "
        f"were not measured: they come from the coil maps, where there are several coils, and from the prior. Expect "
        f"streaks and blur; fine detail may be missing or made up, and no certificate says that it is right.",
    )
