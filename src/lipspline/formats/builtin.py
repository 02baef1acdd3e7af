"""Images that are there without any download: drawn by formula, or shipped with packages of the extras."""

import gzip
from collections.abc import Callable
from importlib import resources

import numpy as np
import torch
from torch import Tensor

from lipspline._infra import checks

# Value added, half axes, centre and turn (degrees) of the ellipses of the Shepp-Logan phantom with raised contrast, in
# coordinates where the image is [-1, 1]², y upwards.
ELLIPSES = (
    (1.0, 0.69, 0.92, 0.0, 0.0, 0),
    (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0),
    (-0.2, 0.11, 0.31, 0.22, 0.0, -18),
    (-0.2, 0.16, 0.41, -0.22, 0.0, 18),
    (0.1, 0.21, 0.25, 0.0, 0.35, 0),
    (0.1, 0.046, 0.046, 0.0, 0.1, 0),
    (0.1, 0.046, 0.046, 0.0, -0.1, 0),
    (0.1, 0.046, 0.023, -0.08, -0.605, 0),
    (0.1, 0.023, 0.023, 0.0, -0.606, 0),
    (0.1, 0.023, 0.046, 0.06, -0.605, 0),
)
FINER = 4  # samples along each side of a pixel


def shepp_logan(size: int = 256) -> Tensor:
    """The Shepp-Logan phantom of a head, `(size, size)` with values in [0, 1], each pixel the mean over its square.

    Example:
        >>> phantom = shepp_logan(64)
        >>> phantom.shape, float(phantom[0, 0]), round(float(phantom[32, 32]), 4)
        (torch.Size([64, 64]), 0.0, 0.2)
    """
    checks.at_least("size", size, 8)
    n = size * FINER
    middle = (2 * torch.arange(n, dtype=torch.float64) + 1) / n - 1
    x, y = middle, -middle[:, None]
    fine = torch.zeros(n, n, dtype=torch.float64)
    for value, a, b, x0, y0, degrees in ELLIPSES:
        turn = torch.tensor(degrees * torch.pi / 180)
        across = (x - x0) * turn.cos() + (y - y0) * turn.sin()
        along = (y - y0) * turn.cos() - (x - x0) * turn.sin()
        fine += value * ((across / a) ** 2 + (along / b) ** 2 <= 1)
    return fine.view(size, FINER, size, FINER).mean(dim=(1, 3)).clamp(0, 1).float()


def head() -> Tensor:
    """A slice through a human head by MRI, `(256, 256)` with maximum 1; it ships with matplotlib (extra `plot`)."""
    checks.require("matplotlib", "plot", "The slice of a head")
    file = resources.files("matplotlib") / "mpl-data" / "sample_data" / "s1045.ima.gz"
    pixels = np.frombuffer(gzip.decompress(file.read_bytes()), dtype="<u2").reshape(256, 256).astype(np.float32)
    return torch.from_numpy(pixels / pixels.max())


def camera() -> Tensor:
    """A photograph, `(256, 256)` with values in [0, 1]; it ships with scikit-image (extra `images`)."""
    skimage = checks.require("skimage.data", "images", "The photograph")
    pixels = torch.from_numpy(skimage.camera().astype(np.float32) / 255)
    return pixels.view(256, 2, 256, 2).mean(dim=(1, 3))


BUILTIN: dict[str, Callable[[], Tensor]] = {"head": head, "phantom": shepp_logan, "camera": camera}
"""The images by name; each is `(H, W)` with values in [0, 1]."""
