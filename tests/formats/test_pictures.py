"""Pictures: PNG as Pillow, TIFF as tifffile wrote it."""

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import sample_files
from lipspline.formats import pictures
from lipspline.formats.guard import FileError
from lipspline.formats.volume import Volume


def test_a_png_is_read_in_the_unit_interval(tmp_path):
    volume = pictures.read(sample_files.write_png(tmp_path / "p.png"))
    assert volume.slices.shape == (1, sample_files.HEIGHT, sample_files.WIDTH)
    np.testing.assert_allclose(volume.slices[0].numpy(), np.rint(255 * sample_files.images()[0]) / 255, atol=1e-7)


def test_the_pages_of_a_tiff_are_slices(tmp_path):
    path = sample_files.write_tiff(tmp_path / "p.tif", 3 * sample_files.images())
    assert np.array_equal(pictures.read(path).slices.numpy(), 3 * sample_files.images())
    assert np.array_equal(pictures.read(path, slice(1, 2)).slices.numpy(), 3 * sample_files.images()[1:2])


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_integers_of_a_tiff_are_divided_by_their_largest_value(compression, tmp_path):
    values = np.random.default_rng(0).integers(0, 65536, (2, 9, 8)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "p.tif", values, photometric="minisblack", compression=compression)
    np.testing.assert_allclose(pictures.read(tmp_path / "p.tif").slices.numpy(), values / 65535, rtol=1e-6)


def test_a_stack_comes_back_from_tiff_as_it_was_written(tmp_path):
    volume = Volume(torch.randn(3, 5, 4))
    pictures.write(tmp_path / "p.tif", volume)
    assert torch.equal(pictures.read(tmp_path / "p.tif").slices, volume.slices)
    assert np.array_equal(tifffile.imread(tmp_path / "p.tif"), volume.slices.numpy())


def test_a_png_spans_the_values_of_the_slice_in_16_bit(tmp_path):
    pictures.write(tmp_path / "p.png", Volume(torch.tensor([[[-1.0, 0.0, 3.0]]])))
    assert np.asarray(Image.open(tmp_path / "p.png")).tolist() == [[0, 16384, 65535]]


def test_a_png_holds_one_slice(tmp_path):
    with pytest.raises(ValueError, match="holds one slice, but there are 2"):
        pictures.write(tmp_path / "p.png", Volume(torch.zeros(2, 3, 3)))


def test_nan_and_damage_are_refused(tmp_path):
    path = sample_files.write_tiff(tmp_path / "p.tif", np.full((4, 4), np.nan))
    with pytest.raises(FileError, match="NaN"):
        pictures.read(path)
    for name in ("p.tif", "p.png"):
        (tmp_path / name).write_bytes(b"II*\0 this is no picture")
        with pytest.raises(FileError, match=rf"{name} (is damaged|has 0 slice)"):
            pictures.read(tmp_path / name)


def test_a_tiff_that_claims_gigabytes_is_refused(tmp_path):
    path = sample_files.write_tiff(tmp_path / "p.tif", sample_files.images()[0])
    with tifffile.TiffFile(path, mode="r+b") as file:
        tags = file.pages[0].tags
        for name in ("ImageWidth", "ImageLength"):
            tags[name].overwrite(60000)
    with pytest.raises(FileError, match=r"GB|truncated|damaged"):
        pictures.read(path)
