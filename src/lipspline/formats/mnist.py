"""MNIST from its four original idx files, plain or gzipped."""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.formats.location import DATASETS, locate

FILES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 8


class Digits(NamedTuple):
    """Images `(M, 1, 28, 28)` with values in [0, 1] and their labels `(M,)`."""

    images: Tensor
    labels: Tensor


def load(part: Literal["train", "test"], data: str | os.PathLike[str] | None = None) -> Digits:
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
