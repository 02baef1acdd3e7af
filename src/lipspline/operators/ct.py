"""Parallel-beam computed tomography with the Joseph projector and its exact transpose [sec:exp_pnp]; weighted rays."""

from functools import cached_property
from math import isfinite, pi, sqrt
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.kernels.joseph import LANES, line_spread, line_sums
from lipspline.operators.base import LinearOperator, Space

MOST_UNSEEN = 0.1  # of the pixels; the corners of a square that detectors as wide as its side never see are fewer
SMALLEST = 1e-30  # of the largest pixel of the positive images in `collatz_wielandt`


class Orbits(NamedTuple):
    """Angles grouped by the symmetries of the square, which turn one of [0, π/4] into up to four others.

    angles: `(O,)` float64 in [0, π/4], one for each group.
    group: `(A,)`, the group of each original angle.
    lane: `(A,)`, which of the four pictures made by `to_lanes` shows it under the angle of its group.
    reversed: `(A,)` bool, whether the detector runs the other way.
    mirrored: `(O,)` bool, whether all angles of a group are reversed; else reversed ones have those that are not.
    """

    angles: Tensor
    group: Tensor
    lane: Tensor
    reversed: Tensor
    mirrored: Tensor


@final
class ParallelBeamCT(LinearOperator):
    """Line integrals of an image along parallel rays, `x (B, 1, N, N) -> y (B, 1, A, D)` [sec:exp_pnp].

    The ray (θ, s) is the line X cos θ + Y sin θ = s, with X to the right and Y upwards from the centre of the image.
    Joseph's method samples it once in each row (where it is flatter than 45°, in each column) by linear interpolation.
    A few pixels, such as corners under a limited angle, may be met by no ray: they are outside the `support`.

    Args:
        size: N, the image has N x N pixels.
        angles: how many, spread evenly over [0, π); or the angles themselves, in radians.
        detectors: D, the number of rays for each angle.
        spacing: from one ray to the next; by default the D detector cells span the diagonal of the image.
        pixel: the side of a pixel; `spacing`, `offset` and the integrals are in this unit of length.
        offset: s of the middle of the detector; zero if the axis of rotation is projected onto the middle.

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
        self,
        size: int,
        angles: int | Tensor,
        detectors: int,
        spacing: float | None = None,
        *,
        pixel: float = 1.0,
        offset: float = 0.0,
    ):
        self.size = checks.at_least("size", size, 2)
        self.detectors = checks.at_least("detectors", detectors, 1)
        self.pixel = checks.positive("pixel", pixel)
        self.spacing = checks.positive("spacing", size * sqrt(2) * pixel / detectors if spacing is None else spacing)
        self.offset = finite_number("offset", offset)
        self.angles = as_angles(angles, pi)
        self.orbits = group_by_symmetry(self.angles, apart=self.offset != 0)
        self._start, self._step, self._weight = _joseph_lines(self)
        self.slots = detector_slots(self.orbits, detectors)
        self.domain, self.codomain = Space((1, size, size)), Space((1, len(self.angles), detectors))
        self._support = self._seen()

    @classmethod
    def paper(cls, size: int = 512, *, angles: int = 200, detectors: int = 400) -> Self:
        """The paper's geometry and unit: the image fills [-128, 128]², whatever its size [sec:exp_pnp].

        Noise of standard deviation 0.5, 1 and 2 on the data is meant in this unit.
        """
        return cls(size, angles, detectors, pixel=256 / size)

    def _apply(self, x: Tensor) -> Tensor:
        sums = line_sums(pad_columns(to_lanes(x.squeeze(1))), self._start, self._step, self.detectors)
        sums = sums * self._weight.to(x.dtype)
        return sums.flatten(1)[:, self.slots].view(-1, 1, len(self.angles), self.detectors)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        lanes = to_orbits(y.flatten(1), self.slots, self.orbits) * self._weight.to(y.dtype)
        images = line_spread(lanes, self._start, self._step, self.size + 2)
        return from_lanes(images[:, :, 1:-1]).unsqueeze(1)

    @property
    def support(self) -> Tensor | None:
        """The pixels that some ray meets; None if that is every pixel."""
        return self._support

    def norm_bounds(self) -> tuple[float, float]:
        """For every x > 0, ‖Hx‖²/‖x‖² <= ‖H‖² <= max_i (HᵀHx)_i/x_i: Collatz-Wielandt, since H >= 0 entrywise."""
        return self._bounds

    def smallest_singular_value(self) -> float | None:
        """None: small singular values of a projector are not worth a bound."""
        return None

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        return collatz_wielandt(self, self._start.device)

    def _seen(self) -> Tensor | None:
        """The `support`; too small a one is refused."""
        span, width = self.detectors * self.spacing, self.size * self.pixel
        if span < (width - self.pixel) * (1 - 1e-9):
            raise ValueError(
                f"{self.detectors} detectors {self.spacing:g} apart span {span:g}, but the image is {width:g} wide: "
                f"from no angle would all of it be seen. Use more detectors or a larger spacing; the default spans the "
                f"diagonal."
            )
        ones = torch.ones(1, 1, len(self.angles), self.detectors, dtype=torch.float64)
        seen = self.adjoint(ones)[0] > 0
        unseen = int((~seen).sum())
        if unseen > MOST_UNSEEN * seen.numel():
            raise ValueError(
                f"{unseen} of the {self.size}x{self.size} pixels are met by no ray of {len(self.angles)} angles and "
                f"{self.detectors} detectors {self.spacing:g} apart. Use more angles or more detectors."
            )
        return seen if unseen else None


@final
class WeightedCT(LinearOperator):
    """A projector with its rays weighted, `x -> √w (H x)`: what weighted least squares measures with.

    Data with noise of variance `n² / w`, multiplied by √w, have noise n everywhere. A ray of weight zero is not used.

    Args:
        geometry: H.
        weights: w >= 0, `(A, D)`.

    Example:
        >>> import torch
        >>> H = ParallelBeamCT(16, 12, 23)
        >>> weights = torch.ones(12, 23)
        >>> weights[:, 5] = 0  # a dead detector
        >>> WeightedCT(H, weights).norm_bounds()[1] <= H.norm_bounds()[1]
        True
    """

    def __init__(self, geometry: LinearOperator, weights: Tensor):
        if weights.shape != geometry.codomain.shape[1:] or not weights.is_floating_point():
            raise ValueError(
                f"The weights of {geometry!r} are real numbers {geometry.codomain.shape[1:]}, but got "
                f"{tuple(weights.shape)} of {weights.dtype}."
            )
        checks.finite("weights", weights)
        if weights.min() < 0 or weights.max() == 0:
            raise ValueError(
                f"Weights of rays are not negative and not all zero, but lie in [{float(weights.min()):g}, "
                f"{float(weights.max()):g}]."
            )
        self.geometry, self.root = geometry, weights.double().sqrt()
        self.domain, self.codomain = geometry.domain, geometry.codomain

    def _apply(self, x: Tensor) -> Tensor:
        return self.geometry.forward(x) * self.root.to(x.dtype)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return self.geometry.adjoint(y * self.root.to(y.dtype))

    @property
    def support(self) -> Tensor | None:
        """That of the projector."""
        return self.geometry.support

    def norm_bounds(self) -> tuple[float, float]:
        """Collatz-Wielandt, as for the projector: √w H has no negative entries either."""
        return self._bounds

    def smallest_singular_value(self) -> float | None:
        """None, as for the projector."""
        return None

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        return collatz_wielandt(self, self.root.device)


def collatz_wielandt(operator: LinearOperator, device: torch.device | None = None) -> tuple[float, float]:
    """Bounds on the norm of an operator without negative entries, close to each other.

    For every x > 0, ‖Hx‖²/‖x‖² <= ‖H‖² <= max_i (HᵀHx)_i/x_i. The iteration x <- HᵀHx brings the two together; it may
    stop anywhere. Pixels that no ray meets belong to columns of zeros, which do not change the norm.
    """
    x = operator.domain.sample(device=device).fill_(1.0)
    seen, lower, upper = None, 0.0, float("inf")
    for step in range(1000):
        image = operator.adjoint(operator.forward(x))
        seen = image > 0 if seen is None else seen
        lower = max(lower, float((x * image).sum() / x.square().sum()))
        upper = min(upper, float((image / x)[seen].max()))
        if upper <= (1 + (1e-4 if step < 30 else 1e-3 if step < 200 else 1e-2)) * lower:
            break
        x = torch.where(seen, (image / image.max()).clamp_min(SMALLEST), SMALLEST)
    # sums of nonnegative terms in float64, fewer than 1e6 of them: the relative round-off stays below 1e-9
    return sqrt(lower) * (1 - 1e-9), sqrt(upper) * (1 + 1e-9)


def group_by_symmetry(angles: Tensor, *, apart: bool = False) -> Orbits:
    """Bring every angle into [0, π/4] by a symmetry of the square and a reversal of the detector.

    Args:
        apart: reversed angles have groups of their own, because the detector is not the same when it is reversed.
    """
    half_turns = torch.floor(angles / pi)
    phi = angles - half_turns * pi
    quarter = torch.round(phi / (pi / 2))
    offset = phi - quarter * (pi / 2)
    lane = torch.where(quarter == 1, torch.where(offset < 0, 2, 3), torch.where(offset < 0, 1, 0))
    turned = (half_turns % 2 == 1) ^ ((quarter == 2) & (offset >= 0))
    labels = 2 * torch.round(offset.abs() * 1e12) + (turned if apart else 0)
    keys, group = torch.unique(labels, return_inverse=True)
    return Orbits(torch.floor(keys / 2) / 1e12, group, lane, turned, keys % 2 == 1)


def to_lanes(x: Tensor) -> Tensor:
    """`(B, N, N) -> (B, N, N, 4)`: the image seen under π - θ, π/2 - θ and π/2 + θ beside the one seen under θ."""
    mirrored = x.flip(-2)
    return torch.stack([x, x.flip(-1), mirrored.flip(-1).mT, mirrored.mT], dim=-1)


def from_lanes(lanes: Tensor) -> Tensor:
    """The transpose of `to_lanes`: undo the four symmetries and add up."""
    same, mirrored, swapped, turned = lanes.unbind(-1)
    return same + mirrored.flip(-1) + (swapped.mT.flip(-1) + turned.mT).flip(-2)


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
    offset = geometry.offset * (1 - 2 * geometry.orbits.mirrored.double()).unsqueeze(1)
    first = offset / geometry.spacing - (geometry.detectors - 1) / 2
    start = 1 + middle + (row - middle) * theta.tan() + first * step
    return start, step.contiguous(), (geometry.pixel / theta.cos()).unsqueeze(-1)


def pad_columns(lanes: Tensor) -> Tensor:
    """One zero column on either side, towards which the interpolation fades out."""
    return torch.nn.functional.pad(lanes, (0, 0, 1, 1))


def as_angles(angles: int | Tensor, arc: float) -> Tensor:
    """Angles in radians as they are given, or so many spread evenly over [0, arc)."""
    if isinstance(angles, Tensor):
        if angles.ndim != 1 or len(angles) == 0 or not angles.is_floating_point():
            raise ValueError(
                f"angles must be a number of angles or a tensor (A,) of angles in radians, "
                f"but got shape {tuple(angles.shape)} of {angles.dtype}."
            )
        return checks.finite("angles", angles).detach().double().cpu()
    count = checks.at_least("angles", angles, 1, "Angles in radians are given as a tensor.")
    return torch.arange(count, dtype=torch.float64) * (arc / count)


def finite_number(name: str, value: float) -> float:
    """Return a number if it is finite."""
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite number, but is {value!r}.")
    return float(value)
