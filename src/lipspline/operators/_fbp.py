"""Filtered backprojection, the direct inverse of tomography with parallel beams [sec:exp_pnp] and with fans."""

from collections.abc import Callable
from math import pi
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.kernels.joseph import line_sums
from lipspline.operators.ct import ParallelBeamCT, from_lanes, to_orbits
from lipspline.operators.fan import FanBeamCT

Filter = Literal["ramp", "shepp-logan", "cosine", "hamming", "hann"]
WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {  # of the frequency as a fraction of the highest one
    "ramp": torch.ones_like,
    "shepp-logan": lambda nu: torch.sinc(nu / 2),
    "cosine": lambda nu: torch.cos(pi / 2 * nu),
    "hamming": lambda nu: 0.54 + 0.46 * torch.cos(pi * nu),
    "hann": lambda nu: 0.5 + 0.5 * torch.cos(pi * nu),
}


FEATHER = pi / 18
"""Towards the ends of an arc of fans a ray counts less than the same ray from the other side, over this angle."""
GAP = pi / 12
"""Angles of fans that leave out more than this at a stretch, and much more than usual, do not go all around."""


def fbp(y: Tensor, geometry: ParallelBeamCT | FanBeamCT, *, filter: Filter = "ramp") -> Tensor:
    r"""Reconstruct `y (B, 1, A, D)` by filtered backprojection [table:reconstruction_performance_ct].

    .. math:: x(X, Y) = \sum_k w_k \, (h * y_k)(X \cos θ_k + Y \sin θ_k)

    with the ramp filter h, linear interpolation between detectors, and w_k half the distance between the two
    neighbours of angle k on the half-circle: π/A for even angles.

    Fans are weighted by the cosine of their angle and filtered; a pixel at distance L from the source takes 1/L² of
    them (Kak and Slaney, Principles of Computerized Tomographic Imaging, 3.4). A line that is measured from both sides
    counts once: the two share it, less going to the one near an end of the arc of angles (Noo et al., Phys. Med. Biol.
    47, 2002), so that full, short and limited scans are served.

    Args:
        filter: the window on the ramp; "ramp" (none) is sharpest, "hann" suppresses most noise.

    Example:
        >>> import torch
        >>> H = ParallelBeamCT(64, angles=90, detectors=91, spacing=1.0)
        >>> x = torch.zeros(1, 1, 64, 64)
        >>> x[..., 16:48, 16:48] = 1
        >>> bool((fbp(H.forward(x), H)[..., 24:40, 24:40].mean() - 1).abs() < 0.01)
        True
    """
    if not isinstance(geometry, (ParallelBeamCT, FanBeamCT)):
        raise ValueError(
            f"fbp needs the ParallelBeamCT or FanBeamCT that measured y, but got a {type(geometry).__name__}."
        )
    geometry.codomain.check("fbp", y)
    window = WINDOWS[checks.one_of("filter", filter, WINDOWS)]
    if isinstance(geometry, FanBeamCT):
        return _fans_back(_filtered_fans(y, geometry, window), geometry)
    weights = angle_weights(geometry.angles).to(y).view(-1, 1)
    filtered = weights * filter_rows(y, geometry.spacing, window)
    slots = geometry.slots.to(y.device)
    start, step = (t.to(y.device) for t in _pixel_lines(geometry))
    lanes = torch.nn.functional.pad(to_orbits(filtered.flatten(1), slots, geometry.orbits), (0, 0, 1, 1))
    return from_lanes(line_sums(lanes, start, step, geometry.size)).unsqueeze(1)


def filter_rows(y: Tensor, spacing: float, window: Callable[[Tensor], Tensor]) -> Tensor:
    """Convolve the last dimension with the windowed ramp filter."""
    return _convolve(y, ramp_response(y.shape[-1], spacing), window)


def _convolve(y: Tensor, response: Tensor, window: Callable[[Tensor], Tensor]) -> Tensor:
    response = response * window(torch.linspace(0, 1, len(response), dtype=torch.float64))
    length = 2 * (len(response) - 1)
    return torch.fft.irfft(torch.fft.rfft(y, n=length) * response.to(y), n=length)[..., : y.shape[-1]]


def ramp_response(detectors: int, spacing: float) -> Tensor:
    """Frequency response of the band-limited ramp filter, made from its samples h(0) = 1/4, h(odd n) = -1/(πn)².

    Sampling |ω| in the frequency domain instead would set its mean to zero and darken the image.
    """
    return torch.fft.rfft(_ramp_samples(detectors)[1]).real / spacing


def _ramp_samples(detectors: int) -> tuple[Tensor, Tensor]:
    """Places n, those below zero at the end, and samples h(n) of the ramp filter."""
    length = 1 << (2 * detectors - 1).bit_length()
    n = torch.fft.fftfreq(length, d=1 / length, dtype=torch.float64)
    samples = torch.where(n % 2 == 1, -1 / (pi * n).square().clamp_min(1), 0.0)
    samples[0] = 0.25
    return n, samples


def angle_weights(angles: Tensor) -> Tensor:
    """Half the gap between the two neighbours of each angle on the half-circle; they add up to π.

    A gap more than four times the mean one (a missing wedge) is not filled by the two angles at its edges.
    """
    around, order = torch.sort(angles % pi)
    gaps = torch.diff(around, append=around[:1] + pi).clamp_max(4 * pi / len(angles))
    weights = torch.empty_like(angles)
    weights[order] = (gaps + gaps.roll(1)) / 2
    return weights


def _pixel_lines(geometry: ParallelBeamCT) -> tuple[Tensor, Tensor]:
    """Where pixel (r, c) falls on the detector of group o, `start[r, o] + c step[r, o]` in padded detectors."""
    theta = geometry.orbits.angles
    middle = (geometry.size - 1) / 2
    row = torch.arange(geometry.size, dtype=torch.float64).unsqueeze(1)
    ratio = geometry.pixel / geometry.spacing
    step = (ratio * theta.cos()).expand(geometry.size, -1)
    offset = geometry.offset * (1 - 2 * geometry.orbits.mirrored.double())
    centre = 1 + (geometry.detectors - 1) / 2 - offset / geometry.spacing
    start = centre + ratio * (middle - row) * theta.sin() - middle * step
    return start, step.contiguous()


# Fans


def _filtered_fans(y: Tensor, geometry: FanBeamCT, window: Callable[[Tensor], Tensor]) -> Tensor:
    """Data times cosine, share and angle, filtered along the detector `(B, A, D)`."""
    cosine = geometry.fan_angles.cos()
    weights = fan_weights(geometry) * cosine
    if geometry.detector == "flat":
        at_axis = geometry.spacing * geometry.source_origin / geometry.source_detector
        return filter_rows(y.squeeze(1) * weights.to(y), at_axis, window)
    between = geometry.spacing / geometry.source_detector
    n, samples = _ramp_samples(geometry.detectors)
    used = (n * between).where(n.abs() < geometry.detectors, torch.ones_like(n))
    bent = samples * (used / used.sin()).square().where(n != 0, torch.ones_like(n))
    response = torch.fft.rfft(bent).real / between
    return _convolve(y.squeeze(1) * (geometry.source_origin * weights).to(y), response, window)


def _fans_back(filtered: Tensor, geometry: FanBeamCT) -> Tensor:
    """Add up what each pixel finds on the detector of every angle."""
    middle, last = (geometry.detectors - 1) / 2, geometry.detectors
    place = (torch.arange(geometry.size, dtype=torch.float64) - (geometry.size - 1) / 2) * geometry.pixel
    X, Y = place.view(1, -1), -place.view(-1, 1)
    filtered = torch.nn.functional.pad(filtered, (1, 1))
    image = filtered.new_zeros(len(filtered), geometry.size * geometry.size)
    for k, theta in enumerate(geometry.angles):
        across = X * theta.cos() + Y * theta.sin()
        ahead = geometry.source_origin - X * theta.sin() + Y * theta.cos()
        if geometry.detector == "flat":
            on_detector = geometry.source_detector * across / ahead
            share = (geometry.source_origin / ahead).square()
        else:
            on_detector = geometry.source_detector * torch.atan2(across, ahead)
            share = 1 / (across.square() + ahead.square())
        position = ((on_detector - geometry.offset) / geometry.spacing + middle + 1).clamp(0, last + 1).flatten()
        below = position.floor().clamp_max(last).long()
        right = (position - below).to(filtered)
        row, near = filtered[:, k], below.to(filtered.device)
        image += share.flatten().to(filtered) * torch.lerp(row[:, near], row[:, near + 1], right)
    return image.view(-1, 1, geometry.size, geometry.size)


def fan_weights(geometry: FanBeamCT) -> Tensor:
    """What each ray counts `(A, D)`: the angle it stands for, times its share in a line that two sides measure."""
    around, order = torch.sort(geometry.angles % (2 * pi))
    gaps = torch.diff(around, append=around[:1] + 2 * pi)
    usual, widest = float(gaps.median()), int(gaps.argmax())
    whole = float(gaps[widest]) <= max(GAP, 4 * usual)
    if not whole:
        gaps[widest] = usual
    steps = torch.empty_like(gaps)
    steps[order] = (gaps + gaps.roll(1)) / 2
    if whole:
        return (steps / 2).unsqueeze(1).expand(-1, geometry.detectors)
    first = float(around[(widest + 1) % len(around)]) - usual / 2
    arc = float(gaps.sum())

    def trust(angle: Tensor) -> Tensor:
        """1 inside the arc, falling to 0 at its ends and outside."""
        inside = (angle - first) % (2 * pi)
        nearest_end = torch.minimum(inside, arc - inside).clamp_min(0)
        return (pi / 2 * nearest_end / min(FEATHER, arc / 2)).clamp_max(pi / 2).sin().square()

    own = trust(geometry.angles).unsqueeze(1)
    other = trust(geometry.angles.unsqueeze(1) + pi - 2 * geometry.fan_angles)
    return steps.unsqueeze(1) * own / (own + other)
