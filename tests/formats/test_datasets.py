"""Data sets: named folders, MNIST's files, patches that depend on the step alone [sec:exp_pnp]."""

import gzip
import os
import struct

import numpy as np
import pytest
import torch

from lipspline._infra.randomness import shuffled, shuffled_each
from lipspline.formats import datasets, pictures
from lipspline.formats.datasets import DATASETS, NamedImage, data_dir, locate, read_folder

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (6, 5)).astype(np.uint8)
WORDS = RNG.integers(0, 65536, (6, 5)).astype(np.uint16)


def random_images(count: int, height: int = 180, width: int = 180) -> list[NamedImage]:
    pixels = np.random.default_rng(0).integers(0, 256, (count, height, width)).astype(np.uint8)
    return [NamedImage(str(i), p) for i, p in enumerate(pixels)]


def test_an_image_of_180_by_180_gives_596_patches_as_in_the_paper():
    """[sec:exp_pnp] 400 of them give 238,400."""
    patches = datasets.GridPatches(random_images(2))
    assert len(patches) == 2 * (225 + 169 + 121 + 81)
    counts = np.bincount(patches.corners[:, 0])
    assert counts.tolist() == [225, 169, 121, 81] * 2


@pytest.mark.skipif(not os.environ.get("LIPSPLINE_DATA"), reason="LIPSPLINE_DATA names no data folder")
def test_the_paper_s_training_set_has_238400_patches():
    """[sec:exp_pnp]"""
    assert len(datasets.GridPatches(read_folder(locate("train400")))) == 238_400


def test_grid_patches_are_the_crops_at_multiples_of_the_stride():
    image = random_images(1)[0]
    patches = datasets.GridPatches([image])
    assert np.array_equal(patches[0], image.pixels[:40, :40])
    assert np.array_equal(patches[16], image.pixels[10:50, 10:50])
    assert np.array_equal(patches[224], image.pixels[140:180, 140:180])
    assert np.array_equal(patches[225], datasets.pyramid(image.pixels)[1][:40, :40])


def test_an_epoch_of_grid_patches_sees_each_once():
    images = random_images(1)
    patches = datasets.GridPatches(images, size=60, stride=30)
    seen = torch.cat([patches.batch(step, 3) for step in range(20)])[: len(patches)]
    every = datasets.to_unit([patches[i] for i in range(len(patches))])
    assert len(patches) == 59
    assert sorted(seen.sum((1, 2, 3)).tolist()) == sorted(every.sum((1, 2, 3)).tolist())


def test_the_scales_are_cubic_interpolations():
    """A cubic polynomial of degree one is kept away from the border, and the sizes are rounded, not cut."""
    ramp = np.tile(np.arange(180, dtype=np.uint8), (180, 1))
    scaled = datasets.pyramid(ramp)
    assert [image.shape for image in scaled] == [(180, 180), (162, 162), (144, 144), (126, 126)]
    for image, scale in zip(scaled, datasets.SCALES, strict=True):
        centres = (np.arange(image.shape[1]) + 0.5) / scale - 0.5
        assert np.abs(image[90] - centres)[4:-4].max() <= 0.75


def find(patch: np.ndarray, sources: list[np.ndarray]) -> int:
    """Number of places in which a patch occurs, in any of the eight symmetries."""
    windows = [np.lib.stride_tricks.sliding_window_view(source, patch.shape) for source in sources]
    found = 0
    for symmetry in range(8):
        turned = datasets.apply_symmetry(patch, symmetry)
        found += sum(int((w == turned).all(axis=(2, 3)).sum()) for w in windows)
    return found


def test_random_crops_are_crops_of_the_scaled_images():
    crops = datasets.RandomCrops(random_images(2, 30, 24), size=12)
    for patch in (crops.batch(0, 10)[:, 0] * 255).round().byte().numpy():
        assert find(patch, crops.sources) == 1


def test_random_crops_reach_every_image_scale_and_symmetry_in_proportion():
    """Sources of one value each, and marked corners, show what was drawn."""
    images = random_images(2, 20, 30)
    crops = datasets.RandomCrops(images, size=10)
    crops.sources = [np.full(s.shape, 20 * i, np.uint8) for i, s in enumerate(crops.sources)]
    values = (crops.batch(0, 20_000)[:, 0, 0, 0] * 255).round().long() // 20
    positions = torch.tensor([(s.shape[0] - 9) * (s.shape[1] - 9) for s in crops.sources]).float()
    shares = torch.bincount(values, minlength=8) / 20_000
    torch.testing.assert_close(shares, positions / positions.sum(), rtol=0, atol=0.02)
    crops.sources = [np.arange(s.size, dtype=np.uint8).reshape(s.shape) for s in crops.sources]
    patches = crops.batch(0, 400)[:, 0]
    steps = torch.stack([patches[:, 0, 1] - patches[:, 0, 0], patches[:, 1, 0] - patches[:, 0, 0]], dim=1)
    assert len({(*np.sign(pair), abs(pair[0]) > abs(pair[1])) for pair in steps.tolist()}) == 8


def test_the_eight_symmetries_are_different():
    patch = np.arange(9, dtype=np.uint8).reshape(3, 3)
    assert len({datasets.apply_symmetry(patch, symmetry).tobytes() for symmetry in range(8)}) == 8


@pytest.mark.parametrize("kind", [datasets.RandomCrops, datasets.GridPatches])
def test_a_batch_depends_on_the_seed_and_the_step_alone(kind):
    images = random_images(2, 64, 64)
    first, second, other = kind(images, seed=1), kind(images, seed=1), kind(images, seed=2)
    second.batch(3, 8)
    assert torch.equal(first.batch(7, 8), second.batch(7, 8))
    assert not torch.equal(first.batch(7, 8), first.batch(8, 8))
    assert not torch.equal(first.batch(7, 8), other.batch(7, 8))


@pytest.mark.parametrize("kind", [datasets.RandomCrops, datasets.GridPatches])
def test_rows_are_the_rows_of_the_whole_batch(kind):
    patches = kind(random_images(2, 64, 64))
    assert torch.equal(patches.batch(5, 8, slice(2, 5)), patches.batch(5, 8)[2:5])


def test_shuffled_epochs_join_where_they_do_not_divide():
    """Batches of 4 from epochs of 6: each index three times in three epochs, each epoch a permutation."""
    sequence = torch.cat([shuffled(6, step, 4, seed=1) for step in range(9)])
    epochs = sequence.reshape(6, 6)
    assert all(sorted(epoch.tolist()) == list(range(6)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 6
    assert torch.equal(shuffled_each(6, 4, 4, (1, 2))[1], shuffled(6, 4, 4, seed=2))


def test_a_batch_larger_than_an_epoch_takes_several():
    batch = shuffled(3, 0, 7, seed=0)
    assert sorted(batch[:3].tolist()) == sorted(batch[3:6].tolist()) == [0, 1, 2]
    assert len(batch) == 7


def test_images_too_small_for_a_patch_are_named():
    with pytest.raises(ValueError, match=r"image '0' is 180x50, at scale 0\.7 too small for patches of 40x40"):
        datasets.RandomCrops(random_images(1, 180, 50))


def test_the_noise_of_an_image_depends_on_its_name_and_the_seed_alone():
    images = random_images(3, 32, 32)
    together, alone = datasets.noisy_images(images, 0.1), datasets.noisy_images(images[2:], 0.1)
    assert torch.equal(together[2].noisy, alone[0].noisy)
    noise = torch.stack([(image.noisy - image.clean).flatten() for image in together])
    torch.testing.assert_close(noise @ noise.T / noise.shape[1], 0.01 * torch.eye(3), rtol=0, atol=0.002)
    assert torch.equal((together[0].clean[0, 0] * 255).round().byte(), torch.from_numpy(images[0].pixels))


def test_a_dataset_with_images_missing_is_refused(tmp_path):
    """Scores on a part of BSD68 are not those that are published."""
    folder = tmp_path / "bsd" / "set12"
    folder.mkdir(parents=True)
    for number in range(3):
        pictures.write(folder / f"{number}.png", np.zeros((8, 8), np.uint8))
    (folder / "._0.png").write_bytes(b"what some systems leave beside every file")
    assert [image.name for image in datasets.read("set12", 2, tmp_path)] == ["0", "1"]
    with pytest.raises(ValueError, match=r"'set12' is incomplete: .* holds 3 of its 12 images; 12 are needed"):
        datasets.read("set12", 68, tmp_path)


# Folders of images


def test_only_as_many_images_as_asked_for_are_read(tmp_path):
    for name in ("a", "b", "c"):
        pictures.write(tmp_path / f"{name}.png", BYTES)
    (tmp_path / "c.png").write_bytes(b"broken")
    assert [image.name for image in datasets.read_folder(tmp_path, 2)] == ["a", "b"]


def test_a_folder_is_read_in_the_order_of_names_as_8_bit_gray(tmp_path):
    pictures.write(tmp_path / "b.png", BYTES)
    pictures.write(tmp_path / "a.tif", WORDS)
    pictures.write(tmp_path / "c.npy", BYTES / 255.0)
    (tmp_path / "notes.txt").write_text("not an image")
    result = datasets.read_folder(tmp_path)
    assert [image.name for image in result] == ["a", "b", "c"]
    assert all(image.pixels.dtype == np.uint8 for image in result)
    assert np.array_equal(result[0].pixels, np.rint(WORDS / 257))
    assert np.array_equal(result[1].pixels, BYTES)
    assert np.array_equal(result[2].pixels, BYTES)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_a_folder_with_a_broken_image_is_one_sentence_that_names_it(tmp_path, suffix, damage):
    pictures.write(tmp_path / "good.png", BYTES)
    broken = tmp_path / f"broken{suffix}"
    pictures.write(broken, RNG.integers(0, 256, (40, 50)).astype(np.uint8))
    content = broken.read_bytes()
    broken.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"hello " * 50}[damage])
    with pytest.raises(ValueError, match=rf"broken\{suffix} is (damaged|truncated|empty)") as error:
        datasets.read_folder(tmp_path)
    assert "\n" not in str(error.value)


def test_floats_beyond_one_are_refused_in_a_folder(tmp_path):
    np.save(tmp_path / "image.npy", np.full((4, 4), 255.0))
    with pytest.raises(ValueError, match=r"values in \[255, 255\]; .*Divide it by its maximum"):
        datasets.read_folder(tmp_path)


def test_missing_files_folders_and_formats_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no image file .*nothing\.png"):
        pictures.read(tmp_path / "nothing.png")
    with pytest.raises(FileNotFoundError, match="no image folder"):
        datasets.read_folder(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"holds no image\. Formats: \.png"):
        datasets.read_folder(tmp_path)
    (tmp_path / "image.gif").touch()
    with pytest.raises(ValueError, match=r"known image format.*\.png, \.tif"):
        pictures.read(tmp_path / "image.gif")


# MNIST

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
    images, labels = datasets.read_mnist("test", folder)
    assert images.shape == (7, 1, 28, 28)
    assert torch.equal((images[:, 0] * 255).round().long(), torch.from_numpy(digits[0]))
    assert labels.tolist() == digits[1].tolist()


def test_a_missing_file_is_named_with_its_origin(folder):
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte .* is missing .*ossci-datasets"):
        datasets.read_mnist("train", folder)


def test_a_missing_folder_says_what_belongs_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'mnist' is missing: there is no folder .*t10k-labels-idx1-ubyte"):
        datasets.read_mnist("test", tmp_path)


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
        datasets.read_mnist("test", folder)
    assert IMAGES in str(error.value)


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"not gzip" * 3])
def test_a_damaged_gzip_file_is_one_sentence(folder, damage):
    path = folder / "mnist" / f"{LABELS}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"{LABELS}\.gz is damaged or truncated"):
        datasets.read_mnist("test", folder)


def test_labels_are_digits(folder):
    (folder / "mnist" / LABELS).write_bytes(idx(np.full(7, 11)))
    with pytest.raises(ValueError, match="label 11; digits are 0 to 9"):
        datasets.read_mnist("test", folder)


@pytest.mark.skipif(not os.environ.get("LIPSPLINE_DATA"), reason="LIPSPLINE_DATA names no data folder")
def test_the_real_files_have_their_known_counts():
    for part, count, first in (("train", 60_000, 5), ("test", 10_000, 7)):
        images, labels = datasets.read_mnist(part)
        assert (len(images), len(labels), int(labels[0])) == (count, count, first)


# The data folder


def test_the_option_wins_over_the_environment(tmp_path, monkeypatch):
    for name in ("option", "variable"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("LIPSPLINE_DATA", str(tmp_path / "variable"))
    assert data_dir() == tmp_path / "variable"
    assert data_dir(tmp_path / "option") == tmp_path / "option"


def test_without_a_folder_the_error_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv("LIPSPLINE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="Give data, the folder, or set the variable LIPSPLINE_DATA"):
        data_dir()


def test_a_folder_that_does_not_exist_is_named_with_its_source(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nowhere \(data\) does not exist"):
        data_dir(tmp_path / "nowhere")
    monkeypatch.setenv("LIPSPLINE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"nowhere \(LIPSPLINE_DATA\) does not exist"):
        data_dir()


@pytest.mark.parametrize("name", DATASETS)
def test_a_missing_dataset_says_its_layout_and_origin(tmp_path, name):
    with pytest.raises(FileNotFoundError) as error:
        locate(name, tmp_path)
    assert DATASETS[name].layout in str(error.value)
    assert DATASETS[name].origin in str(error.value)
    assert str(tmp_path / DATASETS[name].folder) in str(error.value)


def test_a_dataset_that_is_there_is_found(tmp_path):
    (tmp_path / "bsd" / "set12").mkdir(parents=True)
    assert locate("set12", tmp_path) == tmp_path / "bsd" / "set12"


def test_an_unknown_dataset_prints_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="dataset must be one of 'train400', 'bsd68'"):
        locate("imagenet", tmp_path)
