r"""How good an image is: PSNR and SSIM beside a reference, and its misfit beside the measurements.

The conventions of PSNR and SSIM change the numbers, so that their profile is named with each. `paper` takes grey
values in [0, 1]: data range 1, the estimate clipped to it. `fastmri` takes a batch element as a volume: its range is
the maximum of the reference over all slices, and nothing is clipped. Complex images are compared by magnitude.

A reference that was measured holds noise, and most of its pixels may be air: there an image without noise counts as
wrong. `within` restricts both scores to some pixels, such as those of `object_mask`.

Whether noise explains a misfit is decided by a rule that was measured in docs/guarantee.md.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lipspline._infra import checks

Profile = Literal["paper", "fastmri"]
PROFILES = ("paper", "fastmri")
WINDOW = 7  # pixels; uniform weights
K1, K2 = 0.01, 0.03
BRIGHTEST, OBJECT = 1000, 0.1
"""The object is where an image has, on average over a window, this part of the value that one pixel in so many
exceeds."""
# What is left with the right geometry and the default strength, beyond 1.1 times the noise: 0.1 % in simulations
# and MRI, up to 0.9 % in measured CT, by rings, beam hardening, and pixels wider than detectors.
NOISE_FACTOR = 1.1
USUAL_ERROR = 0.005
"""Beyond noise, what a right model of a scanner is usually off by; more is doubtful."""
MODEL_ERROR = 0.01
"""Beyond noise, what a right model of a scanner may be off by; more is not explained."""
MOST_COMMON = 0.5
"""Of noise neighbours have nothing in common: where more than half of the misfit is common, it is doubtful, ..."""
FAINT_ERROR = 0.003
"""... unless it is smaller than this."""
IMPLAUSIBLE = 0.25
"""Noise that is estimated to be more than this part of the data is not believed: signal was taken for noise."""


def psnr(estimate: Tensor, reference: Tensor, profile: Profile = "paper", *, within: Tensor | None = None) -> Tensor:
    r"""Peak signal-to-noise ratio in dB of each batch element [sec:exp_pnp].

    .. math:: 10 \log_{10} (\mathrm{range}^2 / \mathrm{MSE})

    Args:
        estimate: `(B, C, H, W)`; for "fastmri" the channels are the slices of a volume.
        reference: the same shape.
        profile: "paper" or "fastmri", see the head of this file.
        within: bool `(H, W)`, the pixels that count; all if not given.

    Returns:
        `(B,)` in float64; infinite where both are equal.

    Example:
        >>> reference = torch.zeros(1, 1, 8, 8)
        >>> psnr(reference + 0.1, reference)
        tensor([20.0000], dtype=torch.float64)
    """
    x, y, data_range = _prepared(estimate, reference, profile)
    return 10 * torch.log10(data_range.square() / _mean((x - y).square(), within))


def ssim(estimate: Tensor, reference: Tensor, profile: Profile = "paper", *, within: Tensor | None = None) -> Tensor:
    r"""Structural similarity of each batch element, the mean over its channels or slices [sec:exp_pnp].

    Windows of 7 x 7 pixels with uniform weights that lie inside the image, sample covariances: what scikit-image and
    fastMRI compute. Gaussian windows give other numbers.

    Args:
        estimate: `(B, C, H, W)`; for "fastmri" the channels are the slices of a volume.
        reference: the same shape, at least 7 x 7 pixels.
        profile: "paper" or "fastmri", see the head of this file.
        within: bool `(H, W)`, the middles of the windows that count; all if not given.

    Returns:
        `(B,)` in float64.

    Example:
        >>> image = torch.rand(2, 1, 16, 16)
        >>> ssim(image, image)
        tensor([1., 1.], dtype=torch.float64)
    """
    x, y, data_range = _prepared(estimate, reference, profile)
    if min(x.shape[-2:]) < WINDOW:
        raise ValueError(
            f"ssim looks through windows of {WINDOW} x {WINDOW} pixels, but the images have {x.shape[-2]} x "
            f"{x.shape[-1]}. Use larger images, or psnr."
        )
    c1, c2 = ((k * data_range).square().view(-1, 1, 1, 1) for k in (K1, K2))
    mean_x, mean_y = _window_mean(x), _window_mean(y)
    samples = WINDOW**2 / (WINDOW**2 - 1)
    var_x = samples * (_window_mean(x * x) - mean_x * mean_x)
    var_y = samples * (_window_mean(y * y) - mean_y * mean_y)
    cov = samples * (_window_mean(x * y) - mean_x * mean_y)
    luminance = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    structure = (2 * cov + c2) / (var_x + var_y + c2)
    edge = WINDOW // 2
    return _mean(luminance * structure, None if within is None else within[edge:-edge, edge:-edge])


def object_mask(reference: Tensor) -> Tensor:
    """Where the object is in an image `(H, W)`, not negative: bool, without holes.

    Pixels around which 7 x 7 of them have, on average, a tenth of the brightness, and all that have such pixels on
    their four sides. Brightness is the value that one pixel in a thousand exceeds.

    Example:
        >>> ring = torch.zeros(32, 32)
        >>> ring[8:24, 8:24] = 1.0
        >>> ring[12:20, 12:20] = 0.0
        >>> mask = object_mask(ring)
        >>> bool(mask[8:24, 8:24].all()), bool(mask[:4].any())
        (True, False)
    """
    reference = reference.double()
    bright = reference.flatten().topk(max(1, reference.numel() // BRIGHTEST)).values[-1]
    around = F.avg_pool2d(reference[None], WINDOW, 1, WINDOW // 2, count_include_pad=False)[0]
    inside = (around > OBJECT * bright).int()
    before = [inside.cummax(dim).values for dim in (0, 1)]
    after = [inside.flip(dim).cummax(dim).values.flip(dim) for dim in (0, 1)]
    return torch.stack([*before, *after]).all(dim=0)


def scores(
    estimate: Tensor, reference: Tensor, profile: Profile = "paper", *, within: Tensor | None = None
) -> dict[str, float]:
    """PSNR and SSIM of one image `(H, W)`, with the maximum of the reference as 1; empty if too small for SSIM."""
    if min(reference.shape) < WINDOW or (within is not None and not within.any()):
        return {}
    peak = reference.max().clamp_min(torch.finfo(reference.dtype).tiny)
    magnitude = estimate.abs() if estimate.is_complex() else estimate
    pair = (magnitude[None, None] / peak, reference[None, None] / peak)
    with torch.no_grad():
        return {score.__name__: float(score(*pair, profile, within=within)) for score in (psnr, ssim)}


def _mean(values: Tensor, within: Tensor | None) -> Tensor:
    return values.mean(dim=(1, 2, 3)) if within is None else values[:, :, within].mean(dim=(1, 2))


def _prepared(estimate: Tensor, reference: Tensor, profile: str) -> tuple[Tensor, Tensor, Tensor]:
    """Both images in float64, the estimate clipped if the profile says so, and the data range `(B,)`."""
    checks.one_of("profile", profile, PROFILES)
    if estimate.shape != reference.shape or estimate.ndim != 4:
        raise ValueError(
            f"Image quality compares two batches of equal shape (B, C, H, W), but the estimate has shape "
            f"{tuple(estimate.shape)} and the reference {tuple(reference.shape)}."
        )
    x, y = ((image.abs() if image.is_complex() else image).double() for image in (estimate, reference))
    if profile == "paper":
        return x.clamp(0, 1), y, y.new_ones(len(y))
    return x, y, y.amax(dim=(1, 2, 3))


def _window_mean(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, WINDOW, stride=1)


# Beside the measurements


class Agreement(StrEnum):
    """Whether noise explains how far an image is from its measurements."""

    EXPLAINED = "explained"
    DOUBTFUL = "doubtful"
    UNEXPLAINED = "not explained"


@dataclass(frozen=True)
class DataMisfit:
    """How far the data that an image predicts are from those that were measured, `‖Hx - y‖ / ‖y‖`.

    Args:
        value: the misfit.
        noise: what it would be if x were the truth: the norm of the noise over that of the data.
        estimated: whether the noise was estimated from the data themselves: then at most `IMPLAUSIBLE` is believed.
        common: of sinograms, the correlation of `Hx - y` at detectors and angles that are neighbours, the smaller one:
            the part of the squared misfit that is no noise. 0 for k-space, where it tells nothing.

    Example:
        >>> [str(DataMisfit(value, 0.0056).fit) for value in (0.009, 0.013, 0.02)]
        ['explained', 'doubtful', 'not explained']
        >>> str(DataMisfit(0.009, 0.0056, common=0.8).fit)
        'doubtful'
        >>> DataMisfit(0.35, 0.38).explained, DataMisfit(0.35, 0.38, estimated=True).explained
        (True, False)
    """

    value: float
    noise: float
    estimated: bool = False
    common: float = 0.0

    @property
    def implausible(self) -> bool:
        """Whether the noise is larger than an estimate can be believed."""
        return self.estimated and self.noise > IMPLAUSIBLE

    @property
    def fit(self) -> Agreement:
        """Whether noise, and small errors of the model of the scanner, account for it."""
        noise = NOISE_FACTOR * (IMPLAUSIBLE if self.implausible else self.noise)
        if self.value > noise + MODEL_ERROR:
            return Agreement.UNEXPLAINED
        if self.value > noise + USUAL_ERROR or self.structured:
            return Agreement.DOUBTFUL
        return Agreement.EXPLAINED

    @property
    def structured(self) -> bool:
        """Whether more than half of the misfit is no noise."""
        return self.common > MOST_COMMON and self.value > FAINT_ERROR

    @property
    def explained(self) -> bool:
        """Whether it may be explained, doubtful or not."""
        return self.fit is not Agreement.UNEXPLAINED
