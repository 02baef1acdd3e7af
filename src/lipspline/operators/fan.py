"""Fan-beam computed tomography, flat and curved detectors, with the Joseph projector and its exact transpose."""

from functools import cached_property
from math import asin, pi, sqrt, tan
from typing import Literal, final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.kernels.joseph import LANES, ray_spread, ray_sums
from lipspline.operators.base import LinearOperator, Space
from lipspline.operators.ct import as_angles, collatz_wielandt, finite_number, pad_columns

Detector = Literal["flat", "curved"]
DETECTORS = ("flat", "curved")


@final
class FanBeamCT(LinearOperator):
    """Line integrals of an image along rays from a source that turns around it, `x (B, 1, N, N) -> y (B, 1, A, D)`.

    With X to the right and Y upwards from the centre of the image, the source of angle θ is at
    `source_origin (sin θ, -cos θ)`, and the detector, on the other side, runs along `(cos θ, sin θ)`. A source far away
    gives the rays of `ParallelBeamCT` with the same angles. Joseph's method samples a ray once in each row (where it is
    flatter than 45°, in each column) by linear interpolation.

    Args:
        size: N, the image has N x N pixels.
        angles: how many, spread evenly over [0, 2π); or the angles themselves, in radians.
        detectors: D, the number of rays for each angle.
        spacing: from one detector to the next, on the detector; by default the fan just covers the image.
        source_origin: from the source to the axis of rotation, the centre of the image.
        source_detector: from the source to the middle of the detector.
        detector: "flat", or "curved" along an arc around the source.
        pixel: the side of a pixel; all lengths and the integrals are in its unit.
        offset: how far the middle of the detector lies from the ray through the axis, along the detector.

    Example:
        >>> import torch
        >>> H = FanBeamCT(64, 30, 101, spacing=1.5, source_origin=200.0, source_detector=300.0)
        >>> float(H.forward(torch.ones(1, 1, 64, 64))[0, 0, 0, 50])  # the middle ray
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
        source_origin: float,
        source_detector: float,
        detector: Detector = "flat",
        pixel: float = 1.0,
        offset: float = 0.0,
    ):
        self.size = checks.at_least("size", size, 2)
        self.detectors = checks.at_least("detectors", detectors, 1)
        self.pixel = checks.positive("pixel", pixel)
        self.source_origin = checks.positive("source_origin", source_origin)
        self.source_detector = checks.positive("source_detector", source_detector)
        self.detector = checks.one_of("detector", detector, DETECTORS)
        self.offset = finite_number("offset", offset)
        self._refuse_source_inside()
        self.spacing = checks.positive("spacing", self._covering() if spacing is None else spacing)
        self.angles = as_angles(angles, 2 * pi)
        self._refuse_wide_fan()
        self._start, self._step, self._weight, self.slots = _rays(self)
        self.domain, self.codomain = Space((1, size, size)), Space((1, len(self.angles), detectors))
        if not (self.adjoint(torch.ones(1, 1, len(self.angles), detectors)) > 0).any():
            raise ValueError(f"No ray meets the image: the offset of the detector, {offset:g}, is too large.")

    @property
    def fan_angles(self) -> Tensor:
        """`(D,)`: angle of each ray with the one through the axis of rotation."""
        places = (torch.arange(self.detectors, dtype=torch.float64) - (self.detectors - 1) / 2) * self.spacing
        along = (places + self.offset) / self.source_detector
        return along if self.detector == "curved" else along.atan()

    @property
    def field_of_view(self) -> float:
        """Radius of the circle around the axis that is seen from every angle; negative if the axis is not seen."""
        half = 0.5 * self.spacing / self.source_detector  # half a detector, about
        low, high = float(self.fan_angles[0]) - half, float(self.fan_angles[-1]) + half
        return self.source_origin * float(torch.tensor(min(-low, high)).sin())

    def _apply(self, x: Tensor) -> Tensor:
        sums = ray_sums(pad_columns(to_quarter_turns(x.squeeze(1))), self._start, self._step)
        sums = sums * self._weight.to(x.dtype)
        return sums.flatten(1)[:, self.slots].view(-1, 1, len(self.angles), self.detectors)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        empty = y.new_zeros(y.shape[0], self._start.numel() * LANES)
        lanes = empty.index_add(1, self.slots, y.flatten(1)).unflatten(1, (*self._start.shape, LANES))
        images = ray_spread(lanes * self._weight.to(y.dtype), self._start, self._step, self.size, self.size + 2)
        return from_quarter_turns(images[:, :, 1:-1]).unsqueeze(1)

    def norm_bounds(self) -> tuple[float, float]:
        """Collatz-Wielandt, as for parallel beams."""
        return self._bounds

    def smallest_singular_value(self) -> float | None:
        """None: small singular values of a projector are not worth a bound."""
        return None

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        return collatz_wielandt(self, self._start.device)

    @property
    def _corner(self) -> float:
        return self.size * self.pixel / sqrt(2)

    def _covering(self) -> float:
        """The spacing at which the fan covers the circle around the image."""
        half = asin(self._corner / self.source_origin)
        return 2 * self.source_detector * (half if self.detector == "curved" else tan(half)) / self.detectors

    def _refuse_source_inside(self) -> None:
        if self.source_origin <= self._corner:
            raise ValueError(
                f"The source turns at {self.source_origin:g} around the middle of the image, whose corners are "
                f"{self._corner:g} away: it would enter the image. Use a smaller size or pixel, or check "
                f"source_origin (all lengths in one unit)."
            )

    def _refuse_wide_fan(self) -> None:
        widest = float(self.fan_angles.abs().max())
        if widest >= pi / 2:
            raise ValueError(
                f"The fan opens {widest * 180 / pi:.4g} degrees to one side, but rays of more than 90 degrees do not "
                f"meet the image. Check spacing, offset and source_detector (all lengths in one unit)."
            )


def to_quarter_turns(x: Tensor) -> Tensor:
    """`(B, N, N) -> (B, N, N, 4)`: the image turned clockwise by 0, 1, 2 and 3 quarters."""
    return torch.stack([torch.rot90(x, -turns, (-2, -1)) for turns in range(LANES)], dim=-1)


def from_quarter_turns(lanes: Tensor) -> Tensor:
    """The transpose of `to_quarter_turns`: turn back and add up."""
    turned = [torch.rot90(lane, turns, (-2, -1)) for turns, lane in enumerate(lanes.unbind(-1))]
    return turned[0] + turned[1] + turned[2] + turned[3]


def _rays(geometry: FanBeamCT) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where ray j of group i crosses row k, `start[i, j] + k step[i, j]` in padded pixels, its length, and its slot.

    Angles a quarter turn apart are one group: they see turned images under the same rays. A ray that is flatter than
    45° is steep in the image turned once more.
    """
    quarters = torch.floor(geometry.angles / (pi / 2) + 1e-12)
    keys, group = torch.unique(torch.round((geometry.angles - quarters * (pi / 2)) * 1e12), return_inverse=True)
    theta = keys.unsqueeze(1) / 1e12
    source = geometry.source_origin / geometry.pixel * torch.stack([theta.sin(), -theta.cos()])
    heading = theta - geometry.fan_angles  # the ray of fan angle γ runs along (-sin, cos)(θ - γ)
    direction = torch.stack([-heading.sin(), heading.cos()])
    flat = direction[0].abs() > direction[1].abs()
    (x, y), (dx, dy) = (torch.where(flat, torch.stack([v[1], -v[0]]), v) for v in (source, direction))
    slope, middle = dx / dy, (geometry.size - 1) / 2
    start = 1 + middle + x + (middle - y) * slope
    weight = geometry.pixel * (1 + slope.square()).sqrt()
    lanes = (quarters.long().unsqueeze(1) + flat[group]) % LANES
    slots = (group.unsqueeze(1) * geometry.detectors + torch.arange(geometry.detectors)) * LANES + lanes
    return start, -slope.contiguous(), weight.unsqueeze(-1), slots.flatten()
