r"""PSNR and SSIM of images, under a named profile: the conventions change the numbers, so name them with each.

`paper` takes grey values in [0, 1]: data range 1, the estimate clipped to it. `fastmri` takes a batch element as a
volume: its range is the maximum of the reference over all slices, and nothing is clipped. Complex images are compared
by their magnitudes.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lipspline._infra import checks

Profile = Literal["paper", "fastmri"]
PROFILES = ("paper", "fastmri")
WINDOW = 7  # pixels; uniform weights
K1, K2 = 0.01, 0.03


def psnr(estimate: Tensor, reference: Tensor, profile: Profile = "paper") -> Tensor:
    r"""Peak signal-to-noise ratio in dB of each batch element [sec:exp_pnp].

    .. math:: 10 \log_{10} (\mathrm{range}^2 / \mathrm{MSE})

    Args:
        estimate: `(B, C, H, W)`; for "fastmri" the channels are the slices of a volume.
        reference: the same shape.
        profile: "paper" or "fastmri", see the head of this file.

    Returns:
        `(B,)` in float64; infinite where both are equal.

    Example:
        >>> reference = torch.zeros(1, 1, 8, 8)
        >>> psnr(reference + 0.1, reference)
        tensor([20.0000], dtype=torch.float64)
    """
    x, y, data_range = _prepared(estimate, reference, profile)
    return 10 * torch.log10(data_range.square() / (x - y).square().mean(dim=(1, 2, 3)))


def ssim(estimate: Tensor, reference: Tensor, profile: Profile = "paper") -> Tensor:
    r"""Structural similarity of each batch element, the mean over its channels or slices [sec:exp_pnp].

    Windows of 7 x 7 pixels with uniform weights that lie inside the image, sample covariances: what scikit-image and
    fastMRI compute. Gaussian windows give other numbers.

    Args:
        estimate: `(B, C, H, W)`; for "fastmri" the channels are the slices of a volume.
        reference: the same shape, at least 7 x 7 pixels.
        profile: "paper" or "fastmri", see the head of this file.

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
    return (luminance * structure).mean(dim=(1, 2, 3))


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
