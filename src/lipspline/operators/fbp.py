"""Filtered backprojection, the direct inverse of parallel-beam tomography [sec:exp_pnp]."""

from collections.abc import Callable
from math import pi
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.kernels.joseph import line_sums
from lipspline.operators.ct import ParallelBeamCT, from_lanes, to_orbits

Filter = Literal["ramp", "shepp-logan", "cosine", "hamming", "hann"]
WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {  # of the frequency as a fraction of the highest one
    "ramp": torch.ones_like,
    "shepp-logan": lambda nu: torch.sinc(nu / 2),
    "cosine": lambda nu: torch.cos(pi / 2 * nu),
    "hamming": lambda nu: 0.54 + 0.46 * torch.cos(pi * nu),
    "hann": lambda nu: 0.5 + 0.5 * torch.cos(pi * nu),
}


def fbp(y: Tensor, geometry: ParallelBeamCT, *, filter: Filter = "ramp") -> Tensor:
    r"""Reconstruct `y (B, 1, A, D)` by filtered backprojection [table:reconstruction_performance_ct].

    .. math:: x(X, Y) = \sum_k w_k \, (h * y_k)(X \cos θ_k + Y \sin θ_k)

    with the ramp filter h, linear interpolation between detectors, and w_k half the distance between the two
    neighbours of angle k on the half-circle: π/A for even angles.

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
    if not isinstance(geometry, ParallelBeamCT):
        raise ValueError(f"fbp needs the ParallelBeamCT that measured y, but got a {type(geometry).__name__}.")
    geometry.codomain.check("fbp", y)
    window = WINDOWS[checks.one_of("filter", filter, WINDOWS)]
    weights = angle_weights(geometry.angles).to(y).view(-1, 1)
    filtered = weights * filter_rows(y, geometry.spacing, window)
    slots = geometry.slots.to(y.device)
    start, step = (t.to(y.device) for t in _pixel_lines(geometry))
    lanes = torch.nn.functional.pad(to_orbits(filtered.flatten(1), slots, geometry.orbits), (0, 0, 1, 1))
    return from_lanes(line_sums(lanes, start, step, geometry.size)).unsqueeze(1)


def filter_rows(y: Tensor, spacing: float, window: Callable[[Tensor], Tensor]) -> Tensor:
    """Convolve the last dimension with the windowed ramp filter."""
    response = ramp_response(y.shape[-1], spacing)
    response = response * window(torch.linspace(0, 1, len(response), dtype=torch.float64))
    length = 2 * (len(response) - 1)
    return torch.fft.irfft(torch.fft.rfft(y, n=length) * response.to(y), n=length)[..., : y.shape[-1]]


def ramp_response(detectors: int, spacing: float) -> Tensor:
    """Frequency response of the band-limited ramp filter, made from its samples h(0) = 1/4, h(odd n) = -1/(πn)².

    Sampling |ω| in the frequency domain instead would set its mean to zero and darken the image.
    """
    length = 1 << (2 * detectors - 1).bit_length()
    n = torch.fft.fftfreq(length, d=1 / length, dtype=torch.float64)
    samples = torch.where(n % 2 == 1, -1 / (pi * n).square().clamp_min(1), 0.0)
    samples[0] = 0.25
    return torch.fft.rfft(samples).real / spacing


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
    start = 1 + (geometry.detectors - 1) / 2 + ratio * (middle - row) * theta.sin() - middle * step
    return start, step.contiguous()
