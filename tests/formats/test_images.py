"""Images: read as stored, and every kind of damage named."""

import numpy as np
import pytest

from lipspline.formats import images

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (6, 5)).astype(np.uint8)
WORDS = RNG.integers(0, 65536, (6, 5)).astype(np.uint16)
COLOUR = RNG.integers(0, 256, (6, 5, 3)).astype(np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".tiff", ".npy"])
@pytest.mark.parametrize("image", [BYTES, WORDS, COLOUR], ids=["8 bit", "16 bit", "colour"])
def test_an_image_is_read_as_it_was_written(tmp_path, suffix, image):
    path = tmp_path / f"image{suffix}"
    images.write(path, image)
    result = images.read(path)
    assert result.dtype == image.dtype
    assert np.array_equal(result, image)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_colour_and_transparency_keep_all_their_bits(tmp_path, suffix, channels, dtype):
    image = RNG.integers(0, np.iinfo(dtype).max, (9, 8, channels), endpoint=True).astype(dtype)
    images.write(tmp_path / f"image{suffix}", image)
    result = images.read(tmp_path / f"image{suffix}")
    assert result.dtype == image.dtype
    assert np.array_equal(result, image)


def test_pillow_agrees_on_what_16_bit_files_hold(tmp_path):
    """Of colour it reads the upper half, of gray everything."""
    from PIL import Image

    image = RNG.integers(0, 65536, (7, 6, 3)).astype(np.uint16)
    images.write(tmp_path / "colour.png", image)
    images.write(tmp_path / "gray.png", WORDS)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "colour.png")), image >> 8)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "gray.png")), WORDS)


@pytest.mark.parametrize("suffix", [".tif", ".npy"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16])
def test_tiff_and_npy_hold_what_png_cannot(tmp_path, suffix, dtype):
    image = (BYTES / 2).astype(dtype)
    images.write(tmp_path / f"image{suffix}", image)
    result = images.read(tmp_path / f"image{suffix}")
    assert result.dtype == image.dtype
    assert np.array_equal(result, image)
    with pytest.raises(ValueError, match=rf"PNG file holds 8 or 16 bits, not {image.dtype}\. Write image.png as \.tif"):
        images.write(tmp_path / "image.png", image)
    assert not (tmp_path / "image.png").exists()


def test_a_tiff_of_separate_colour_planes_is_read(tmp_path):
    import tifffile

    tifffile.imwrite(tmp_path / "planar.tif", np.moveaxis(COLOUR, -1, 0), photometric="rgb", planarconfig="separate")
    assert np.array_equal(images.read(tmp_path / "planar.tif"), COLOUR)


def test_a_tiff_of_many_pages_is_refused(tmp_path):
    import tifffile

    tifffile.imwrite(tmp_path / "pages.tif", np.zeros((5, 8, 9), np.uint8), photometric="minisblack")
    with pytest.raises(ValueError, match=r"pages\.tif .* \(it holds 5 pages with axes QYX, not one image\)"):
        images.read(tmp_path / "pages.tif")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "image.png"
    images.write(path, BYTES)

    def full_disk(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        images.write(path, WORDS)
    assert np.array_equal(images.read(path), BYTES)
    assert [file.name for file in tmp_path.iterdir()] == ["image.png"]


def test_others_may_read_what_is_written(tmp_path):
    """A temporary file is private; the result has the permissions of any new file."""
    images.write(tmp_path / "image.png", BYTES)
    (tmp_path / "plain.txt").touch()
    assert (tmp_path / "image.png").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


def test_only_as_many_images_as_asked_for_are_read(tmp_path):
    for name in ("a", "b", "c"):
        images.write(tmp_path / f"{name}.png", BYTES)
    (tmp_path / "c.png").write_bytes(b"broken")
    assert [image.name for image in images.read_folder(tmp_path, 2)] == ["a", "b"]


def test_a_palette_image_becomes_colour(tmp_path):
    from PIL import Image

    Image.fromarray(COLOUR).quantize(256).save(tmp_path / "palette.png")
    assert np.array_equal(images.read(tmp_path / "palette.png"), COLOUR)


def test_gray_is_the_luma_of_a_colour_image_as_pillow_computes_it():
    from PIL import Image

    expected = np.asarray(Image.fromarray(COLOUR).convert("L"))
    assert np.abs(images.gray(COLOUR) * 255 - expected).max() <= 0.51


def test_gray_divides_integers_by_their_largest_value():
    assert np.array_equal(images.gray(WORDS), WORDS / 65535)


def test_a_folder_is_read_in_the_order_of_names_as_8_bit_gray(tmp_path):
    images.write(tmp_path / "b.png", BYTES)
    images.write(tmp_path / "a.tif", WORDS)
    images.write(tmp_path / "c.npy", BYTES / 255.0)
    (tmp_path / "notes.txt").write_text("not an image")
    result = images.read_folder(tmp_path)
    assert [image.name for image in result] == ["a", "b", "c"]
    assert all(image.pixels.dtype == np.uint8 for image in result)
    assert np.array_equal(result[0].pixels, np.rint(WORDS / 257))
    assert np.array_equal(result[1].pixels, BYTES)
    assert np.array_equal(result[2].pixels, BYTES)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_a_folder_with_a_broken_image_is_one_sentence_that_names_it(tmp_path, suffix, damage):
    images.write(tmp_path / "good.png", BYTES)
    broken = tmp_path / f"broken{suffix}"
    images.write(broken, RNG.integers(0, 256, (40, 50)).astype(np.uint8))
    content = broken.read_bytes()
    broken.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"hello " * 50}[damage])
    with pytest.raises(ValueError, match=rf"image file .*broken\{suffix} is (damaged or truncated|empty)") as error:
        images.read_folder(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((4, 4), np.nan), "16 NaN or infinite value"),
        (np.zeros((4, 4, 5)), r"shape \(4, 4, 5\)"),
        (np.zeros(4), r"shape \(4,\)"),
        (np.zeros((0, 4)), "no pixels"),
        (np.zeros((4, 4), dtype=complex), "complex128 values"),
        (np.array([[{"a": 1}]]), "damaged"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, array, message):
    np.save(tmp_path / "array.npy", array)
    with pytest.raises(ValueError, match=message):
        images.read(tmp_path / "array.npy")


def test_floats_beyond_one_are_refused_in_a_folder(tmp_path):
    np.save(tmp_path / "image.npy", np.full((4, 4), 255.0))
    with pytest.raises(ValueError, match=r"values in \[255, 255\]; .*Divide it by its maximum"):
        images.read_folder(tmp_path)


def test_missing_files_folders_and_formats_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no image file .*nothing\.png"):
        images.read(tmp_path / "nothing.png")
    with pytest.raises(FileNotFoundError, match="no image folder"):
        images.read_folder(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"holds no image\. Formats: \.png"):
        images.read_folder(tmp_path)
    (tmp_path / "image.jpg").touch()
    with pytest.raises(ValueError, match=r"known image format.*\.png, \.tif"):
        images.read(tmp_path / "image.jpg")
