"""Patches: the paper's count, exact crops, streams that depend on the step alone [sec:exp_pnp]."""

import os

import numpy as np
import pytest
import torch

from lipspline._infra.randomness import shuffled, shuffled_each
from lipspline.formats import bsd, images
from lipspline.formats.images import NamedImage, read_folder
from lipspline.formats.location import locate


def random_images(count: int, height: int = 180, width: int = 180) -> list[NamedImage]:
    pixels = np.random.default_rng(0).integers(0, 256, (count, height, width)).astype(np.uint8)
    return [NamedImage(str(i), p) for i, p in enumerate(pixels)]


def test_an_image_of_180_by_180_gives_596_patches_as_in_the_paper():
    """[sec:exp_pnp] 400 of them give 238,400."""
    patches = bsd.GridPatches(random_images(2))
    assert len(patches) == 2 * (225 + 169 + 121 + 81)
    counts = np.bincount(patches.corners[:, 0])
    assert counts.tolist() == [225, 169, 121, 81] * 2


@pytest.mark.skipif(not os.environ.get("LIPSPLINE_DATA"), reason="LIPSPLINE_DATA names no data folder")
def test_the_paper_s_training_set_has_238400_patches():
    """[sec:exp_pnp]"""
    assert len(bsd.GridPatches(read_folder(locate("train400")))) == 238_400


def test_grid_patches_are_the_crops_at_multiples_of_the_stride():
    image = random_images(1)[0]
    patches = bsd.GridPatches([image])
    assert np.array_equal(patches[0], image.pixels[:40, :40])
    assert np.array_equal(patches[16], image.pixels[10:50, 10:50])
    assert np.array_equal(patches[224], image.pixels[140:180, 140:180])
    assert np.array_equal(patches[225], bsd.pyramid(image.pixels)[1][:40, :40])


def test_an_epoch_of_grid_patches_sees_each_once():
    images = random_images(1)
    patches = bsd.GridPatches(images, size=60, stride=30)
    seen = torch.cat([patches.batch(step, 3) for step in range(20)])[: len(patches)]
    every = bsd.to_unit([patches[i] for i in range(len(patches))])
    assert len(patches) == 59
    assert sorted(seen.sum((1, 2, 3)).tolist()) == sorted(every.sum((1, 2, 3)).tolist())


def test_the_scales_are_cubic_interpolations():
    """A cubic polynomial of degree one is kept away from the border, and the sizes are rounded, not cut."""
    ramp = np.tile(np.arange(180, dtype=np.uint8), (180, 1))
    scaled = bsd.pyramid(ramp)
    assert [image.shape for image in scaled] == [(180, 180), (162, 162), (144, 144), (126, 126)]
    for image, scale in zip(scaled, bsd.SCALES, strict=True):
        centres = (np.arange(image.shape[1]) + 0.5) / scale - 0.5
        assert np.abs(image[90] - centres)[4:-4].max() <= 0.75


def find(patch: np.ndarray, sources: list[np.ndarray]) -> int:
    """Number of places in which a patch occurs, in any of the eight symmetries."""
    windows = [np.lib.stride_tricks.sliding_window_view(source, patch.shape) for source in sources]
    found = 0
    for symmetry in range(8):
        turned = bsd.apply_symmetry(patch, symmetry)
        found += sum(int((w == turned).all(axis=(2, 3)).sum()) for w in windows)
    return found


def test_random_crops_are_crops_of_the_scaled_images():
    crops = bsd.RandomCrops(random_images(2, 30, 24), size=12)
    for patch in (crops.batch(0, 10)[:, 0] * 255).round().byte().numpy():
        assert find(patch, crops.sources) == 1


def test_random_crops_reach_every_image_scale_and_symmetry_in_proportion():
    """Sources of one value each, and marked corners, show what was drawn."""
    images = random_images(2, 20, 30)
    crops = bsd.RandomCrops(images, size=10)
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
    assert len({bsd.apply_symmetry(patch, symmetry).tobytes() for symmetry in range(8)}) == 8


@pytest.mark.parametrize("kind", [bsd.RandomCrops, bsd.GridPatches])
def test_a_batch_depends_on_the_seed_and_the_step_alone(kind):
    images = random_images(2, 64, 64)
    first, second, other = kind(images, seed=1), kind(images, seed=1), kind(images, seed=2)
    second.batch(3, 8)
    assert torch.equal(first.batch(7, 8), second.batch(7, 8))
    assert not torch.equal(first.batch(7, 8), first.batch(8, 8))
    assert not torch.equal(first.batch(7, 8), other.batch(7, 8))


@pytest.mark.parametrize("kind", [bsd.RandomCrops, bsd.GridPatches])
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
        bsd.RandomCrops(random_images(1, 180, 50))


def test_the_noise_of_an_image_depends_on_its_name_and_the_seed_alone():
    images = random_images(3, 32, 32)
    together, alone = bsd.noisy_images(images, 0.1), bsd.noisy_images(images[2:], 0.1)
    assert torch.equal(together[2].noisy, alone[0].noisy)
    noise = torch.stack([(image.noisy - image.clean).flatten() for image in together])
    torch.testing.assert_close(noise @ noise.T / noise.shape[1], 0.01 * torch.eye(3), rtol=0, atol=0.002)
    assert torch.equal((together[0].clean[0, 0] * 255).round().byte(), torch.from_numpy(images[0].pixels))


def test_a_dataset_with_images_missing_is_refused(tmp_path):
    """Scores on a part of BSD68 are not those that are published."""
    folder = tmp_path / "bsd" / "set12"
    folder.mkdir(parents=True)
    for number in range(3):
        images.write(folder / f"{number}.png", np.zeros((8, 8), np.uint8))
    (folder / "._0.png").write_bytes(b"what some systems leave beside every file")
    assert [image.name for image in bsd.read("set12", 2, tmp_path)] == ["0", "1"]
    with pytest.raises(ValueError, match=r"'set12' is incomplete: .* holds 3 of its 12 images; 12 are needed"):
        bsd.read("set12", 68, tmp_path)
