"""The level of white noise in an image, from what is left of it where the image is smooth."""

import math

from torch import Tensor
from torch.nn import functional as F

from lipspline._infra import checks

SIDE = 16  # of a block; smaller ones scatter more, larger ones are rarely free of texture
QUIET = 0.1  # the fraction of the blocks that is taken to hold noise alone
QUIET_GAIN = 0.869  # what the quietest tenth of the blocks shows of noise of deviation 1, measured on noise alone
CLIPPED = 0.02  # the fraction of pixels at the ends of the range from which a block is left out
FEW = 20  # so few blocks have no quietest tenth
SMALLEST = 20  # side of the smallest image: it has one block


def estimate_noise(image: Tensor) -> float:
    r"""Estimate the standard deviation of white Gaussian noise in an image.

    Third differences along both axes, :math:`(1, -3, 3, -1) / \sqrt{20}`, remove what is locally a polynomial of
    degree two, and leave noise of unit gain. Their root mean square is taken block by block, and the quietest tenth
    of the blocks says how strong the noise is. Blocks with pixels at the ends of the range are left out, as noise is
    clipped there. (An image of less than about 85 by 85 pixels has too few blocks for this: there all of them count.)

    Texture looks like noise, so that it errs upwards: on BSD68, on average, by 12 percent at noise 5/255, 6 at 10/255,
    4 at 15 and 2 at 25. Noise below 2 is not told from fine texture.

    Args:
        image: (..., H, W), at least 20 by 20; leading dimensions are more blocks of the same noise.

    Example:
        >>> import torch
        >>> noise = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
        >>> ramp = torch.linspace(0, 1, 256)
        >>> round(estimate_noise(ramp + 0.05 * noise), 3)
        0.05
    """
    checks.floating("estimate_noise", image)
    height, width = image.shape[-2:]
    if min(height, width) < SMALLEST:
        raise ValueError(
            f"The noise of an image of {height}x{width} pixels cannot be estimated; it needs {SMALLEST}x{SMALLEST}. "
            f"Say how strong it is."
        )
    planes = image.reshape(-1, 1, height, width)
    energies = F.avg_pool2d(third_differences(planes).square(), SIDE)
    free = energies[_clipped(planes)[..., : energies.shape[-2], : energies.shape[-1]] <= CLIPPED]
    if len(free) < FEW:
        return math.sqrt(float(energies.mean()))
    return math.sqrt(float(free.kthvalue(round(QUIET * len(free))).values)) / QUIET_GAIN


def _clipped(planes: Tensor) -> Tensor:
    """The fraction of pixels in each block that are as dark or as bright as any in the image; one of each is."""
    ends = (planes == planes.amin(dim=(-2, -1), keepdim=True)) | (planes == planes.amax(dim=(-2, -1), keepdim=True))
    return F.avg_pool2d(ends.to(planes.dtype), SIDE)


def third_differences(image: Tensor) -> Tensor:
    """Third differences along both axes of `(B, 1, H, W)`, with a gain of 1 for white noise."""
    taps = image.new_tensor([1.0, -3.0, 3.0, -1.0]) / math.sqrt(20)
    return F.conv2d(F.conv2d(image, taps.reshape(1, 1, 4, 1)), taps.reshape(1, 1, 1, 4))
