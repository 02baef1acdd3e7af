"""Parallel-beam computed tomography with the Joseph projector and its exact transpose [sec:exp_pnp]."""

from functools import cached_property
from math import pi, sqrt
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.kernels.joseph import LANES, line_spread, line_sums
from lipspline.operators.base import LinearOperator
from lipspline.operators.space import Space


class Orbits(NamedTuple):
    """Angles grouped by the symmetries of the square, which turn one of [0, π/4] into up to four others.

    angles: `(O,)` float64 in [0, π/4], one for each group.
    group: `(A,)`, the group of each original angle.
    lane: `(A,)`, which of the four pictures made by `to_lanes` shows it under the angle of its group.
    reversed: `(A,)` bool, whether the detector runs the other way.
    """

    angles: Tensor
    group: Tensor
    lane: Tensor
    reversed: Tensor


@final
class ParallelBeamCT(LinearOperator):
    """Line integrals of an image along parallel rays, `x (B, 1, N, N) -> y (B, 1, A, D)` [sec:exp_pnp].

    The ray (θ, s) is the line X cos θ + Y sin θ = s, with X to the right and Y upwards from the centre of the image.
    Joseph's method samples it once in each row (where it is flatter than 45°, in each column) by linear interpolation.

    Args:
        size: N, the image has N x N pixels.
        angles: how many, spread evenly over [0, π); or the angles themselves, in radians.
        detectors: D, the number of rays for each angle, their middle on the centre of the image.
        spacing: from one ray to the next; by default the D detector cells span the diagonal of the image.
        pixel: the side of a pixel; `spacing` and the integrals are in this unit of length.

    Example:
        >>> import torch
        >>> H = ParallelBeamCT(64, angles=30, detectors=91, spacing=1.0)
        >>> float(H.forward(torch.ones(1, 1, 64, 64))[0, 0, 0, 45])
        64.0
        >>> lower, upper = H.norm_bounds()
        >>> upper / lower < 1.001
        True
    """

    def __init__(
        self, size: int, angles: int | Tensor, detectors: int, spacing: float | None = None, *, pixel: float = 1.0
    ):
        self.size = checks.at_least("size", size, 2)
        self.detectors = checks.at_least("detectors", detectors, 1)
        self.pixel = checks.positive("pixel", pixel)
        self.spacing = checks.positive("spacing", size * sqrt(2) * pixel / detectors if spacing is None else spacing)
        self.angles = _as_angles(angles)
        self.orbits = group_by_symmetry(self.angles)
        self._start, self._step, self._weight = _joseph_lines(self)
        self.slots = detector_slots(self.orbits, detectors)
        self.domain, self.codomain = Space((1, size, size)), Space((1, len(self.angles), detectors))
        self._refuse_blind_geometry()

    @classmethod
    def paper(cls, size: int = 512, *, angles: int = 200, detectors: int = 400) -> Self:
        """The paper's geometry and unit: the image fills [-128, 128]², whatever its size [sec:exp_pnp].

        Noise of standard deviation 0.5, 1 and 2 on the data is meant in this unit.
        """
        return cls(size, angles, detectors, pixel=256 / size)

    def _apply(self, x: Tensor) -> Tensor:
        sums = line_sums(_pad(to_lanes(x.squeeze(1))), self._start, self._step, self.detectors)
        sums = sums * self._weight.to(x.dtype)
        return sums.flatten(1)[:, self.slots].view(-1, 1, len(self.angles), self.detectors)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        lanes = to_orbits(y.flatten(1), self.slots, self.orbits) * self._weight.to(y.dtype)
        images = line_spread(lanes, self._start, self._step, self.size + 2)
        return from_lanes(images[:, :, 1:-1]).unsqueeze(1)

    def norm_bounds(self) -> tuple[float, float]:
        """For every x > 0, ‖Hx‖²/‖x‖² <= ‖H‖² <= max_i (HᵀHx)_i/x_i: Collatz-Wielandt, since H >= 0 entrywise."""
        return self._collatz_wielandt

    def smallest_singular_value(self) -> float | None:
        """None: small singular values of a projector are not worth a bound."""
        return None

    @cached_property
    def _collatz_wielandt(self) -> tuple[float, float]:
        x = torch.ones(1, 1, self.size, self.size, dtype=torch.float64, device=self._start.device)
        lower, upper = 0.0, float("inf")
        for _ in range(100):
            image = self.adjoint(self.forward(x))
            lower = max(lower, float((x * image).sum() / x.square().sum()))
            upper = min(upper, float((image / x).max()))
            if upper <= (1 + 1e-4) * lower:
                break
            x = image / image.max()
        # sums of at most N + D nonnegative terms in float64: the relative round-off stays far below 1e-9
        return sqrt(lower) * (1 - 1e-9), sqrt(upper) * (1 + 1e-9)

    def _refuse_blind_geometry(self) -> None:
        span, width = self.detectors * self.spacing, self.size * self.pixel
        if span < width * (1 - 1e-9):
            raise ValueError(
                f"{self.detectors} detectors {self.spacing:g} apart span {span:g}, but the image is {width:g} wide: "
                f"from no angle would all of it be seen. Use more detectors or a larger spacing; the default spans the "
                f"diagonal."
            )
        ones = torch.ones(1, 1, len(self.angles), self.detectors, dtype=torch.float64)
        unseen = int((self.adjoint(ones) <= 0).sum())
        if unseen:
            raise ValueError(
                f"{unseen} of the {self.size}x{self.size} pixels are met by no ray of {len(self.angles)} angles and "
                f"{self.detectors} detectors {self.spacing:g} apart. Use more angles or more detectors."
            )


def group_by_symmetry(angles: Tensor) -> Orbits:
    """Bring every angle into [0, π/4] by a symmetry of the square and a reversal of the detector."""
    half_turns = torch.floor(angles / pi)
    phi = angles - half_turns * pi
    quarter = torch.round(phi / (pi / 2))
    offset = phi - quarter * (pi / 2)
    lane = torch.where(quarter == 1, torch.where(offset < 0, 2, 3), torch.where(offset < 0, 1, 0))
    keys, group = torch.unique(torch.round(offset.abs() * 1e12), return_inverse=True)
    return Orbits(keys / 1e12, group, lane, (half_turns % 2 == 1) ^ (quarter == 2))


def to_lanes(x: Tensor) -> Tensor:
    """`(B, N, N) -> (B, N, N, 4)`: the image seen under -θ, π/2 - θ and π/2 + θ beside the one seen under θ."""
    mirrored = x.flip(-2)
    return torch.stack([x, mirrored, mirrored.flip(-1).mT, mirrored.mT], dim=-1)


def from_lanes(lanes: Tensor) -> Tensor:
    """The transpose of `to_lanes`: undo the four symmetries and add up."""
    same, mirrored, swapped, turned = lanes.unbind(-1)
    return same + (mirrored + swapped.mT.flip(-1) + turned.mT).flip(-2)


def detector_slots(orbits: Orbits, detectors: int) -> Tensor:
    """Where each ray `(A·D,)` lies among the sums `(O, D, 4)`, flattened."""
    d = torch.arange(detectors)
    d = torch.where(orbits.reversed.unsqueeze(1), detectors - 1 - d, d)
    return ((orbits.group.unsqueeze(1) * detectors + d) * LANES + orbits.lane.unsqueeze(1)).flatten()


def to_orbits(y: Tensor, slots: Tensor, orbits: Orbits) -> Tensor:
    """Data `(B, A·D)` sorted into their slots `(B, O, D, 4)`; an angle given twice adds up."""
    groups, detectors = len(orbits.angles), y.shape[1] // len(orbits.group)
    empty = y.new_zeros(y.shape[0], groups * detectors * LANES)
    return empty.index_add(1, slots, y).unflatten(1, (groups, detectors, LANES))


def _joseph_lines(geometry: ParallelBeamCT) -> tuple[Tensor, Tensor, Tensor]:
    """Where ray d of group o crosses row r, `start[o, r] + d step[o, r]` in padded pixels, and its length in a row."""
    theta = geometry.orbits.angles.unsqueeze(1)
    middle = (geometry.size - 1) / 2
    row = torch.arange(geometry.size, dtype=torch.float64)
    step = (geometry.spacing / geometry.pixel / theta.cos()).expand(-1, geometry.size)
    start = 1 + middle + (row - middle) * theta.tan() - (geometry.detectors - 1) / 2 * step
    return start, step.contiguous(), (geometry.pixel / theta.cos()).unsqueeze(-1)


def _pad(lanes: Tensor) -> Tensor:
    """One zero column on either side, towards which the interpolation fades out."""
    return torch.nn.functional.pad(lanes, (0, 0, 1, 1))


def _as_angles(angles: int | Tensor) -> Tensor:
    if isinstance(angles, Tensor):
        if angles.ndim != 1 or len(angles) == 0 or not angles.is_floating_point():
            raise ValueError(
                f"angles must be a number of angles or a tensor (A,) of angles in radians, "
                f"but got shape {tuple(angles.shape)} of {angles.dtype}."
            )
        return checks.finite("angles", angles).detach().double().cpu()
    count = checks.at_least("angles", angles, 1, "Angles in radians are given as a tensor.")
    return torch.arange(count, dtype=torch.float64) * (pi / count)
