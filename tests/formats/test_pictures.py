"""Pictures: read as stored, by what their numbers mean, and every kind of damage named."""

import base64
import zlib

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import sample_files
from lipspline.formats import pictures
from lipspline.formats.pictures import from_planes, to_planes, white_level
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (6, 5)).astype(np.uint8)
WORDS = RNG.integers(0, 65536, (6, 5)).astype(np.uint16)
COLOUR = RNG.integers(0, 256, (6, 5, 3)).astype(np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".tiff", ".npy"])
@pytest.mark.parametrize("image", [BYTES, WORDS, COLOUR], ids=["8 bit", "16 bit", "colour"])
def test_an_image_is_read_as_it_was_written(tmp_path, suffix, image):
    path = tmp_path / f"image{suffix}"
    pictures.write(path, image)
    result = pictures.read(path)
    assert result.dtype == image.dtype
    assert np.array_equal(result, image)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_colour_and_transparency_keep_all_their_bits(tmp_path, suffix, channels, dtype):
    image = RNG.integers(0, np.iinfo(dtype).max, (9, 8, channels), endpoint=True).astype(dtype)
    pictures.write(tmp_path / f"image{suffix}", image)
    result = pictures.read(tmp_path / f"image{suffix}")
    assert result.dtype == image.dtype
    assert np.array_equal(result, image)


def test_pillow_agrees_on_what_16_bit_files_hold(tmp_path):
    """Of colour it reads the upper half, of gray everything."""
    from PIL import Image

    image = RNG.integers(0, 65536, (7, 6, 3)).astype(np.uint16)
    pictures.write(tmp_path / "colour.png", image)
    pictures.write(tmp_path / "gray.png", WORDS)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "colour.png")), image >> 8)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "gray.png")), WORDS)


@pytest.mark.parametrize("suffix", [".tif", ".npy"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16])
def test_tiff_and_npy_hold_what_png_cannot(tmp_path, suffix, dtype):
    image = (BYTES / 2).astype(dtype)
    pictures.write(tmp_path / f"image{suffix}", image)
    result = pictures.read(tmp_path / f"image{suffix}")
    assert result.dtype == image.dtype
    assert np.array_equal(result, image)
    with pytest.raises(ValueError, match=rf"PNG file holds 8 or 16 bits, not {image.dtype}\. Write image.png as \.tif"):
        pictures.write(tmp_path / "image.png", image)
    assert not (tmp_path / "image.png").exists()


def test_a_tiff_of_separate_colour_planes_is_read(tmp_path):
    import tifffile

    tifffile.imwrite(tmp_path / "planar.tif", np.moveaxis(COLOUR, -1, 0), photometric="rgb", planarconfig="separate")
    assert np.array_equal(pictures.read(tmp_path / "planar.tif"), COLOUR)


def test_a_tiff_of_many_pages_is_refused(tmp_path):
    import tifffile

    tifffile.imwrite(tmp_path / "pages.tif", np.zeros((5, 8, 9), np.uint8), photometric="minisblack")
    with pytest.raises(ValueError, match=r"pages\.tif holds 5 pages, not one image"):
        pictures.read(tmp_path / "pages.tif")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "image.png"
    pictures.write(path, BYTES)

    def full_disk(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        pictures.write(path, WORDS)
    assert np.array_equal(pictures.read(path), BYTES)
    assert [file.name for file in tmp_path.iterdir()] == ["image.png"]


def test_others_may_read_what_is_written(tmp_path):
    """A temporary file is private; the result has the permissions of any new file."""
    pictures.write(tmp_path / "image.png", BYTES)
    (tmp_path / "plain.txt").touch()
    assert (tmp_path / "image.png").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


def test_a_palette_image_becomes_colour(tmp_path):
    from PIL import Image

    Image.fromarray(COLOUR).quantize(256).save(tmp_path / "palette.png")
    assert np.array_equal(pictures.read(tmp_path / "palette.png"), COLOUR)


def test_gray_is_the_luma_of_a_colour_image_as_pillow_computes_it():
    from PIL import Image

    expected = np.asarray(Image.fromarray(COLOUR).convert("L"))
    assert np.abs(pictures.gray(COLOUR) * 255 - expected).max() <= 0.51


def test_gray_divides_integers_by_their_largest_value():
    assert np.array_equal(pictures.gray(WORDS), WORDS / 65535)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((4, 4), np.nan), "16 NaN or infinite value"),
        (np.zeros((4, 4, 5)), r"shape \(4, 4, 5\)"),
        (np.zeros(4), r"shape \(4,\)"),
        (np.zeros((0, 4)), "it is empty"),
        (np.zeros((4, 4), dtype=complex), "complex128 values"),
        (np.array([[{"a": 1}]]), "object values, not numbers"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, array, message):
    np.save(tmp_path / "array.npy", array)
    with pytest.raises(ValueError, match=message):
        pictures.read(tmp_path / "array.npy")


# What the numbers of a TIFF file mean

PHOTOGRAPH = RNG.integers(0, 256, (6, 5, 3)).astype(np.uint8)


def both_ways(path) -> np.ndarray:
    """The gray values of a file, which are the same read as an image and as a volume."""
    image, volume = pictures.read(path), pictures.read_volume(path)
    np.testing.assert_allclose(pictures.gray(image), volume.slices[0].numpy(), atol=1e-7)
    return image


@pytest.mark.parametrize("image", [BYTES, WORDS], ids=["8 bit", "16 bit"])
def test_where_zero_is_white_the_values_are_turned(image, tmp_path):
    tifffile.imwrite(tmp_path / "w.tif", np.iinfo(image.dtype).max - image, photometric="miniswhite")
    assert np.array_equal(both_ways(tmp_path / "w.tif"), image)


@pytest.mark.parametrize("white", [0, 1])
def test_two_values_are_black_and_white_as_pillow_shows_them(white, tmp_path):
    Image.fromarray(BYTES > 100).save(tmp_path / "b.tif", tiffinfo={262: white})
    with Image.open(tmp_path / "b.tif") as picture:
        expected = np.asarray(picture.convert("L"))
    assert np.array_equal(both_ways(tmp_path / "b.tif"), expected)


def test_numbers_of_a_palette_are_colours(tmp_path):
    Image.fromarray(PHOTOGRAPH).quantize(256).save(tmp_path / "p.tif")
    assert np.array_equal(both_ways(tmp_path / "p.tif"), PHOTOGRAPH)


@pytest.mark.parametrize("order", ["contig", "separate"])
def test_colour_is_three_channels_in_either_order(order, tmp_path):
    stored = PHOTOGRAPH if order == "contig" else np.moveaxis(PHOTOGRAPH, -1, 0)
    tifffile.imwrite(tmp_path / "c.tif", stored, photometric="rgb", planarconfig=order)
    assert np.array_equal(both_ways(tmp_path / "c.tif"), PHOTOGRAPH)
    assert pictures.read_volume(tmp_path / "c.tif").slices.shape == (1, 6, 5)


@pytest.mark.parametrize("mode", ["CMYK", "LAB", "YCbCr"])
def test_other_colours_are_refused_by_name(mode, tmp_path):
    Image.fromarray(PHOTOGRAPH).convert("RGB").save(tmp_path / "rgb.tif")
    source = Image.fromarray(PHOTOGRAPH)
    (source.convert(mode) if mode != "LAB" else Image.merge("LAB", source.split())).save(tmp_path / "c.tif")
    for read in (pictures.read, pictures.read_volume):
        with pytest.raises(FileError, match=r"holds colours as \w+; .* Convert it to RGB"):
            read(tmp_path / "c.tif")


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_turned_picture_stands_upright_as_pillow_turns_it(turn, tmp_path):
    from PIL import ImageOps

    tifffile.imwrite(tmp_path / "t.tif", BYTES, photometric="minisblack", extratags=[(274, "H", 1, turn, True)])
    picture = Image.fromarray(BYTES)
    picture.getexif()[274] = turn
    expected = np.asarray(ImageOps.exif_transpose(picture))
    assert np.array_equal(both_ways(tmp_path / "t.tif"), expected)


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros((4, 5), np.float32), {"photometric": "miniswhite"}, "0 for white in float32 values"),
        (np.zeros((4, 5, 5), np.uint8), {"photometric": "minisblack", "planarconfig": "contig"}, "5 values a pixel"),
        (
            np.zeros((4, 5, 6), np.uint8),
            {"photometric": "minisblack", "volumetric": True, "tile": (1, 16, 16)},
            "4 images|axes",
        ),
        (np.zeros((4, 5, 6), np.uint8), {"photometric": "minisblack", "truncate": True}, "4 images in one page"),
        (np.zeros((4, 5), np.uint8), {"photometric": "minisblack", "extratags": [(274, "H", 1, 9, True)]}, "tation 9"),
    ],
)
def test_pages_that_are_not_understood_are_refused(array, options, message, tmp_path):
    tifffile.imwrite(tmp_path / "p.tif", array, **options)
    for read in (pictures.read, pictures.read_volume):
        with pytest.raises(FileError, match=message):
            read(tmp_path / "p.tif")


def test_pages_of_different_sizes_are_no_volume(tmp_path):
    with tifffile.TiffWriter(tmp_path / "p.tif") as file:
        for height in (4, 5):
            file.write(np.zeros((height, 6), np.uint8), photometric="minisblack", metadata=None)
    with pytest.raises(FileError, match="pages of different sizes"):
        pictures.read_volume(tmp_path / "p.tif")


def test_big_end_first_is_the_same_image(tmp_path):
    np.save(tmp_path / "a.npy", WORDS.astype(">u2"))
    result = pictures.read(tmp_path / "a.npy")
    assert result.dtype == np.uint16
    assert np.array_equal(result, WORDS)


# As volumes


def test_a_png_is_read_in_the_unit_interval(tmp_path):
    volume = pictures.read_volume(sample_files.write_png(tmp_path / "p.png"))
    assert volume.slices.shape == (1, sample_files.HEIGHT, sample_files.WIDTH)
    np.testing.assert_allclose(volume.slices[0].numpy(), np.rint(255 * sample_files.images()[0]) / 255, atol=1e-7)


def test_the_pages_of_a_tiff_are_slices(tmp_path):
    path = sample_files.write_tiff(tmp_path / "p.tif", 3 * sample_files.images())
    assert np.array_equal(pictures.read_volume(path).slices.numpy(), 3 * sample_files.images())
    assert np.array_equal(pictures.read_volume(path, slice(1, 2)).slices.numpy(), 3 * sample_files.images()[1:2])


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_integers_of_a_tiff_are_divided_by_their_largest_value(compression, tmp_path):
    values = np.random.default_rng(0).integers(0, 65536, (2, 9, 8)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "p.tif", values, photometric="minisblack", compression=compression)
    np.testing.assert_allclose(pictures.read_volume(tmp_path / "p.tif").slices.numpy(), values / 65535, rtol=1e-6)


def test_a_stack_comes_back_from_tiff_as_it_was_written(tmp_path):
    volume = Volume(torch.randn(3, 5, 4))
    pictures.write_volume(tmp_path / "p.tif", volume)
    assert torch.equal(pictures.read_volume(tmp_path / "p.tif").slices, volume.slices)
    assert np.array_equal(tifffile.imread(tmp_path / "p.tif"), volume.slices.numpy())


def test_a_png_spans_the_values_of_the_slice_in_16_bit(tmp_path):
    pictures.write_volume(tmp_path / "p.png", Volume(torch.tensor([[[-1.0, 0.0, 3.0]]])))
    assert np.asarray(Image.open(tmp_path / "p.png")).tolist() == [[0, 16384, 65535]]


def test_a_png_holds_one_slice(tmp_path):
    with pytest.raises(ValueError, match="holds one slice, but there are 2"):
        pictures.write_volume(tmp_path / "p.png", Volume(torch.zeros(2, 3, 3)))


def test_nan_and_damage_are_refused(tmp_path):
    path = sample_files.write_tiff(tmp_path / "p.tif", np.full((4, 4), np.nan))
    with pytest.raises(FileError, match="NaN"):
        pictures.read_volume(path)
    for name in ("p.tif", "p.png"):
        (tmp_path / name).write_bytes(b"II*\0 this is no picture")
        with pytest.raises(FileError, match=rf"{name} (is damaged|has 0 slice)"):
            pictures.read_volume(tmp_path / name)


def test_a_tiff_that_claims_gigabytes_is_refused(tmp_path):
    path = sample_files.write_tiff(tmp_path / "p.tif", sample_files.images()[0])
    with tifffile.TiffFile(path, mode="r+b") as file:
        tags = file.pages[0].tags
        for name in ("ImageWidth", "ImageLength"):
            tags[name].overwrite(60000)
    with pytest.raises(FileError, match=r"GB|truncated|damaged"):
        pictures.read_volume(path)


# As planes

KINDS = [np.uint8, np.uint16, np.float16, np.float32, np.float64]


def picture(dtype, shape) -> np.ndarray:
    if np.issubdtype(dtype, np.integer):
        return RNG.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)
    return RNG.uniform(-0.1, 1.1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 2), (5, 7, 3), (5, 7, 4)])
def test_back_and_forth_nothing_changes(dtype, shape):
    image = picture(dtype, shape)
    white = white_level(image)
    result = from_planes(to_planes(image, white), image, white)
    assert result.dtype == image.dtype
    assert result.shape == image.shape
    if dtype == np.float64:
        np.testing.assert_allclose(result, image, atol=1e-7)  # denoisers compute in float32
    else:
        assert np.array_equal(result, image)


@pytest.mark.parametrize(("channels", "planes"), [(2, 1), (3, 3), (4, 3)])
def test_planes_are_the_colours_between_black_and_white(channels, planes):
    image = picture(np.uint8, (4, 6, channels))
    values = to_planes(image, 255)
    assert values.shape == (planes, 1, 4, 6)
    np.testing.assert_allclose(values[:, 0].numpy(), np.moveaxis(image, -1, 0)[:planes] / 255, rtol=1e-6)


@pytest.mark.parametrize("channels", [2, 4])
def test_transparency_is_kept(channels):
    image = picture(np.uint8, (4, 6, channels))
    result = from_planes(torch.zeros(channels - 1, 1, 4, 6), image, 255)
    assert np.array_equal(result[..., -1], image[..., -1])
    assert not result[..., :-1].any()


def test_integers_are_rounded_and_stay_in_the_range():
    image = np.array([[10, 20, 30, 300]], np.uint16)
    planes = torch.tensor([-0.5, 0.1006, 0.91, 1.5])[None, None, None]
    assert from_planes(planes, image, 255).tolist() == [[0, 26, 232, 300]]  # 300 was there, beyond white
    assert from_planes(planes, image, 4095).tolist() == [[0, 412, 3726, 4095]]


def test_signed_values_below_black_are_kept():
    image = np.array([[-1000, 3000]], np.int16)
    assert from_planes(torch.tensor([[[[-0.5, 0.5]]]]), image, 2000).tolist() == [[-1000, 1000]]


@pytest.mark.parametrize(
    ("image", "white", "message"),
    [
        (
            np.full((2, 2), 200.0),
            None,
            r"values in \[200, 200\], but .* 1 for white.*Give white, for instance 255",
        ),
        (np.full((2, 2), -3.0), None, r"values in \[-3, -3\]"),
        (np.full((2, 2), 7), None, r"int64 with values in \[7, 7\] does not say which value is white"),
        (np.zeros((2, 2), np.uint8), 256, "white is 256, but the image holds uint8 values, at most 255"),
        (np.zeros((2, 2)), 0, "white must be a positive finite number, but is 0"),
    ],
)
def test_where_white_is_not_clear_it_must_be_said(image, white, message):
    with pytest.raises(ValueError, match=message):
        white_level(image, white)


def test_given_white_is_taken():
    assert white_level(np.full((2, 2), 200.0), 255) == 255
    assert white_level(np.full((2, 2), 7), 255) == 255
    assert white_level(np.full((2, 2), 1.7)) == 1  # noise may carry values beyond white


ENDLESS = (
    "c-"
    "r&y)MDUZU|`^5U|?inU<9%RfS3`=76D==MrH;UAiWKUnSpGOI7kN@l+6mnf>8AjfLIhN4$>orWR5tLZ3V<qjI3bxJ|LEcvX23=3{"
    ")=&Yap==8JQS(fb==AUXc9|2$P55lFYQUw9K4Ty@E;x2&kBooFGxRfRTNHi@sr+z$Nb!JVjrml^cCsn38oGBKGb$Bk}6jN#6a9ef"
    "3$(;+@h27MHJJWT;&n-"
    "GC!RhKo9+m_5NrIA%XEk`}WU7!fghgOPB|K465z7qKx5iPr=*K8Mb@q%#UjrcaQ3^1|GWDZPW`SOmkys=}FuSH4b`u49({f5m5i%"
    "NYf?_W{fd5}PM(000<jYcT"
)
"""A damaged file of 754 bytes, packed: its second page has two thousand million rows, its third is none."""


def test_a_damaged_chain_of_pages_comes_to_an_end(tmp_path):
    """A library that is asked for all pages as a series goes through them for ever."""
    (tmp_path / "p.tif").write_bytes(zlib.decompress(base64.b85decode(ENDLESS)))
    for read in (pictures.read, pictures.read_volume):
        with pytest.raises(FileError):
            read(tmp_path / "p.tif")
