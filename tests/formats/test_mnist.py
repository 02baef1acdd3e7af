"""MNIST's idx files: read exactly, and every kind of damage named."""

import gzip
import os
import struct

import numpy as np
import pytest
import torch

from lipspline.formats import mnist

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def digits():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (7, 28, 28)), rng.integers(0, 10, 7)


@pytest.fixture
def folder(tmp_path, digits):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IMAGES).write_bytes(idx(digits[0]))
    (tmp_path / "mnist" / f"{LABELS}.gz").write_bytes(gzip.compress(idx(digits[1])))
    return tmp_path


def test_plain_and_gzipped_files_are_read_exactly(folder, digits):
    images, labels = mnist.load("test", folder)
    assert images.shape == (7, 1, 28, 28)
    assert torch.equal((images[:, 0] * 255).round().long(), torch.from_numpy(digits[0]))
    assert labels.tolist() == digits[1].tolist()


def test_a_missing_file_is_named_with_its_origin(folder):
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte .* is missing .*ossci-datasets"):
        mnist.load("train", folder)


def test_a_missing_folder_says_what_belongs_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'mnist' is missing: there is no folder .*t10k-labels-idx1-ubyte"):
        mnist.load("test", tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-5], "announces 7 x 28 x 28 bytes but holds 5483"),
        (lambda content: content + b"?", "announces 7 x 28 x 28 bytes but holds 5489"),
        (lambda content: b"\x89PNG" + content[4:], "starts with 89 50 4e 47, not with 00 00 08 03"),
        (lambda content: b"", "has 0 bytes, fewer than the head of an idx file"),
        (lambda content: content[:10], "has 10 bytes, fewer than the head"),
        (lambda content: idx(np.zeros((7, 14, 14))), "14x14; MNIST's are 28x28"),
        (lambda content: idx(np.zeros((6, 28, 28))), "6 images but .* 7 labels"),
    ],
)
def test_a_damaged_file_is_one_sentence(folder, damage, message):
    path = folder / "mnist" / IMAGES
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        mnist.load("test", folder)
    assert IMAGES in str(error.value)


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"not gzip" * 3])
def test_a_damaged_gzip_file_is_one_sentence(folder, damage):
    path = folder / "mnist" / f"{LABELS}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"{LABELS}\.gz is damaged or truncated"):
        mnist.load("test", folder)


def test_labels_are_digits(folder):
    (folder / "mnist" / LABELS).write_bytes(idx(np.full(7, 11)))
    with pytest.raises(ValueError, match="label 11; digits are 0 to 9"):
        mnist.load("test", folder)


@pytest.mark.skipif(not os.environ.get("LIPSPLINE_DATA"), reason="LIPSPLINE_DATA names no data folder")
def test_the_real_files_have_their_known_counts():
    for part, count, first in (("train", 60_000, 5), ("test", 10_000, 7)):
        images, labels = mnist.load(part)
        assert (len(images), len(labels), int(labels[0])) == (count, count, first)
