"""Any folder of images as patches for training a denoiser, and as noisy images for scoring one [sec:exp_pnp]."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from lipspline._infra import checks
from lipspline._infra.randomness import generator, shuffled
from lipspline.formats.images import NamedImage, read_folder
from lipspline.formats.location import DATASETS, locate

SCALES = (1.0, 0.9, 0.8, 0.7)
Pixels = NDArray[np.uint8]


def read(name: str, most: int, data: str | os.PathLike[str] | None = None) -> list[NamedImage]:
    """The first `most` images of the dataset "train400", "bsd68" or "set12", or all it has if these are fewer.

    Raises:
        ValueError: images of the dataset are missing: what is found with a part is not what was published.
    """
    folder, wanted = locate(name, data), min(most, DATASETS[name].count)
    found = read_folder(folder, most)
    if len(found) < wanted:
        raise ValueError(
            f"The dataset {name!r} is incomplete: {folder} holds {len(found)} of its {DATASETS[name].count} images; "
            f"{wanted} are needed. They are {DATASETS[name].origin}."
        )
    return found


def pyramid(image: Pixels, scales: Sequence[float] = SCALES) -> list[Pixels]:
    """The image at each scale, by cubic interpolation without prefilter, rounded to 8 bit."""
    return [image if scale == 1 else _resize(image, scale) for scale in scales]


def _resize(image: Pixels, scale: float) -> Pixels:
    size = tuple(round(scale * n) for n in image.shape)
    values = torch.from_numpy(image.astype(np.float32))[None, None]
    return (
        interpolate(values, size=size, mode="bicubic", align_corners=False)[0, 0].round().clamp(0, 255).byte().numpy()
    )


def to_unit(patches: Sequence[Pixels]) -> Tensor:
    """8-bit patches of one shape as a batch `(B, 1, P, P)` with values in [0, 1]."""
    return torch.from_numpy(np.stack(patches)).unsqueeze(1).float().div_(255)


class RandomCrops:
    """An endless stream of patches: random crops of every image at four scales, flipped and rotated at random.

    Every position of every image and scale is equally likely. `batch(step, ...)` depends on the seed and the step
    only, so a run that continues at step 1000 sees what it would have seen.

    Args:
        images: 8-bit gray images, held in memory at all scales (not as patches).
        size: side P of a patch.
        seed: the stream.
    """

    def __init__(self, images: Sequence[NamedImage], *, size: int = 40, seed: int = 0):
        self.size, self.seed = checks.at_least("size", size, 1), seed
        self.sources = _sources(images, size)
        positions = [(h - size + 1) * (w - size + 1) for h, w in (source.shape for source in self.sources)]
        self._starts = torch.tensor([0, *positions]).cumsum(0)

    def batch(self, step: int, batch: int, rows: slice = slice(None)) -> Tensor:
        """Rows `rows` of batch number `step`, `(B, 1, P, P)` in [0, 1]."""
        stream = generator(self.seed, "crops", step)
        position = torch.randint(int(self._starts[-1]), (batch,), generator=stream)
        symmetry = torch.randint(8, (batch,), generator=stream)
        source = torch.bucketize(position, self._starts, right=True) - 1
        drawn = torch.stack([source, position - self._starts[source], symmetry], dim=1)
        return to_unit([self._patch(*numbers) for numbers in drawn[rows].tolist()])

    def _patch(self, source: int, offset: int, symmetry: int) -> Pixels:
        pixels = self.sources[source]
        y, x = divmod(offset, pixels.shape[1] - self.size + 1)
        return apply_symmetry(pixels[y : y + self.size, x : x + self.size], symmetry)


def apply_symmetry(patch: Pixels, symmetry: int) -> Pixels:
    """One of the eight symmetries of the square: `symmetry % 4` quarter turns, then a flip if it is 4 or more."""
    turned = np.rot90(patch, symmetry % 4)
    return turned[:, ::-1] if symmetry >= 4 else turned


class GridPatches:
    """The patches on a grid of every image at four scales: the paper's training set [sec:exp_pnp].

    400 images of 180x180 give (225 + 169 + 121 + 81) * 400 = 238,400 patches of 40x40 with stride 10. They are cut
    when they are asked for. An epoch goes through all of them once, in an order that depends on the seed and the
    epoch; the last batch of an epoch is completed from the next.
    """

    def __init__(self, images: Sequence[NamedImage], *, size: int = 40, stride: int = 10, seed: int = 0):
        self.size, self.seed = checks.at_least("size", size, 1), seed
        self.sources = _sources(images, size)
        corners = [_corners(i, source.shape, size, stride) for i, source in enumerate(self.sources)]
        self.corners = np.concatenate(corners).astype(np.int32)

    def __len__(self) -> int:
        return len(self.corners)

    def __getitem__(self, index: int) -> Pixels:
        source, y, x = self.corners[index]
        return self.sources[source][y : y + self.size, x : x + self.size]

    def batch(self, step: int, batch: int, rows: slice = slice(None)) -> Tensor:
        """Rows `rows` of batch number `step`, `(B, 1, P, P)` in [0, 1]."""
        return to_unit([self[i] for i in shuffled(len(self), step, batch, self.seed)[rows].tolist()])


def _corners(index: int, shape: tuple[int, ...], size: int, stride: int) -> NDArray[np.int64]:
    y, x = np.meshgrid(*(np.arange(0, n - size + 1, stride) for n in shape), indexing="ij")
    return np.stack([np.full(y.size, index), y.ravel(), x.ravel()], axis=1)


def _sources(images: Sequence[NamedImage], size: int) -> list[Pixels]:
    for image in images:
        height, width = image.pixels.shape
        if round(min(height, width) * min(SCALES)) < size:
            raise ValueError(
                f"The image {image.name!r} is {height}x{width}, at scale {min(SCALES):g} too small for patches of "
                f"{size}x{size}. Leave it out or choose smaller patches."
            )
    return [scaled for image in images for scaled in pyramid(image.pixels)]


@dataclass(frozen=True)
class NoisyImage:
    """A clean image and its noisy version, both `(1, 1, H, W)`; values of the clean one lie in [0, 1]."""

    name: str
    clean: Tensor
    noisy: Tensor


def noisy_images(images: Sequence[NamedImage], noise: float, seed: int = 0) -> list[NoisyImage]:
    """Images for validation or test; the noise of each depends on its name and the seed alone.

    Args:
        noise: standard deviation for values in [0, 1], such as 15 / 255.
    """
    return [_noisy(image, noise, seed) for image in images]


def _noisy(image: NamedImage, noise: float, seed: int) -> NoisyImage:
    clean = to_unit([image.pixels])
    return NoisyImage(image.name, clean, add_noise(clean, noise, generator(seed, "image", image.name)))


def add_noise(clean: Tensor, noise: float, stream: torch.Generator) -> Tensor:
    """Add white Gaussian noise of standard deviation `noise`, drawn from `stream` on the CPU."""
    return clean + noise * torch.randn(clean.shape, generator=stream, dtype=clean.dtype).to(clean.device)
