"""Folders of images: the published data sets by name, patches for training, noisy images for scoring [sec:exp_pnp]."""

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from lipspline._infra import checks
from lipspline._infra.randomness import generator, shuffled
from lipspline.formats import pictures

VARIABLE = "LIPSPLINE_DATA"


@dataclass(frozen=True)
class Dataset:
    """What a dataset looks like below the data folder, where to get it, and how many images it has."""

    folder: str
    layout: str
    origin: str
    count: int


DATASETS = {
    "train400": Dataset(
        "bsd/train400",
        "400 gray PNG images of 180x180",
        "the 200 train and 200 test images of BSDS500 (Berkeley, 'Contour Detection and Image Segmentation "
        "Resources'), cropped to 180x180 as in the DnCNN training set",
        400,
    ),
    "bsd68": Dataset(
        "bsd/bsd68", "68 gray PNG images of 481x321", "the validation images of BSDS500 known as BSD68", 68
    ),
    "set12": Dataset("bsd/set12", "12 gray PNG images", "the images known as Set12, as in the DnCNN test sets", 12),
    "mnist": Dataset(
        "mnist",
        "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain "
        "or with .gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        70_000,
    ),
}


def data_dir(data: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: `data` if given, else the environment variable LIPSPLINE_DATA."""
    named = data if data is not None else os.environ.get(VARIABLE)
    if not named:
        raise FileNotFoundError(f"No data folder is named. Give data, the folder, or set the variable {VARIABLE}.")
    folder = Path(named).expanduser()
    if not folder.is_dir():
        source = "data" if data is not None else VARIABLE
        raise FileNotFoundError(f"The data folder {folder} ({source}) does not exist or is not a folder.")
    return folder


def locate(name: str, data: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the dataset `name`, or an error that says what is missing, its layout and where to get it."""
    checks.one_of("dataset", name, DATASETS)
    dataset = DATASETS[name]
    folder = data_dir(data) / dataset.folder
    if not folder.is_dir():
        raise FileNotFoundError(
            f"The dataset {name!r} is missing: there is no folder {folder}. Put {dataset.layout} there; they are "
            f"{dataset.origin}."
        )
    return folder


@dataclass(frozen=True)
class NamedImage:
    """A gray 8-bit image and the name of its file without extension."""

    name: str
    pixels: NDArray[np.uint8]


def read_folder(folder: str | Path, most: int | None = None) -> list[NamedImage]:
    """The images of a folder as 8-bit gray, sorted by name; a broken file is an error that names it.

    Args:
        most: read only the first so many. Hidden files do not count.
    """
    return [NamedImage(path.stem, read_gray(path)) for path in image_files(folder)[:most]]


def image_files(folder: str | Path) -> list[Path]:
    """The image files of a folder, sorted by name. Hidden files do not count."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no image folder {folder}.")
    files = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in pictures.IMAGE_ENDINGS and path.name[0] != "."
    )
    if not files:
        raise FileNotFoundError(f"The folder {folder} holds no image. Formats: {', '.join(pictures.IMAGE_ENDINGS)}.")
    return files


def read_gray(path: Path) -> NDArray[np.uint8]:
    """One image as 8-bit gray."""
    image = pictures.read(path)
    if image.dtype == np.uint8 and image.ndim == 2:
        return image.astype(np.uint8, copy=False)
    values = pictures.gray(image)
    if values.min() < 0 or values.max() > 1:
        raise ValueError(
            f"The image file {path} has values in [{values.min():g}, {values.max():g}]; an image of floats must have "
            f"values in [0, 1]. Divide it by its maximum."
        )
    return np.rint(values * 255).astype(np.uint8)


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


FILES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 8


class Digits(NamedTuple):
    """Images `(M, 1, 28, 28)` with values in [0, 1] and their labels `(M,)`."""

    images: Tensor
    labels: Tensor


def read_mnist(part: Literal["train", "test"], data: str | os.PathLike[str] | None = None) -> Digits:
    """The 60,000 training or the 10,000 test digits, from the folder `mnist` below the data folder.

    Args:
        part: "train" or "test".
        data: the data folder; the environment variable LIPSPLINE_DATA if not given.

    Raises:
        FileNotFoundError: a file is missing; the message says which, and where to get it.
        ValueError: a file is damaged; the message names it.
    """
    stem, folder = FILES[checks.one_of("part", part, FILES)], locate("mnist", data)
    images = _find(folder, f"{stem}-images-idx3-ubyte")
    labels = _find(folder, f"{stem}-labels-idx1-ubyte")
    pixels, classes = read_idx(images, rank=3), read_idx(labels, rank=1)
    if pixels.shape[1:] != (28, 28):
        raise ValueError(f"The images in {images} are {pixels.shape[1]}x{pixels.shape[2]}; MNIST's are 28x28.")
    if len(pixels) != len(classes):
        raise ValueError(f"{images} holds {len(pixels)} images but {labels} holds {len(classes)} labels.")
    if classes.max(initial=0) > 9:
        raise ValueError(f"{labels} holds the label {classes.max()}; digits are 0 to 9.")
    return Digits(torch.from_numpy(pixels).unsqueeze(1).float().div_(255), torch.from_numpy(classes).long())


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes with `rank` dimensions, plain or gzipped."""
    content = _content(path)
    start = 4 + 4 * rank
    if len(content) < start:
        raise ValueError(
            f"{path} has {len(content)} bytes, fewer than the head of an idx file. Get it again from "
            f"{DATASETS['mnist'].origin}."
        )
    if content[:4] != bytes([0, 0, UNSIGNED_BYTE, rank]):
        raise ValueError(
            f"{path} is no idx file of unsigned bytes in {rank} dimension(s): it starts with {content[:4].hex(' ')}, "
            f"not with 00 00 08 {rank:02x}. Get it again from {DATASETS['mnist'].origin}."
        )
    shape = tuple(int(n) for n in np.frombuffer(content, dtype=">u4", count=rank, offset=4))
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{path} announces {' x '.join(map(str, shape))} bytes but holds {len(content) - start}. Get it again from "
            f"{DATASETS['mnist'].origin}."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"The MNIST file {name} (or {name}.gz) is missing in {folder}. Get it from {DATASETS['mnist'].origin}{name}.gz."
    )


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged or truncated ({error}). Get it again from {DATASETS['mnist'].origin}."
        ) from error
