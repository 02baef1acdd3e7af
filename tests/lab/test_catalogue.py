"""Uploads: images of every size become images of the lab; everything else is one sentence without a path."""

import io

import numpy as np
import pytest
import torch

from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume
from lipspline.lab.catalogue import KEPT, LARGEST, Denoisers, ImageCatalogue, prepare, read_upload


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_an_uploaded_array_is_the_image():
    image = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    torch.testing.assert_close(read_upload("a.npy", npy(image)), torch.from_numpy(image / image.max()))


def test_a_png_is_read(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    pixels = np.arange(400, dtype=np.uint8).reshape(20, 20)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    torch.testing.assert_close(read_upload("Scan.PNG", file.getvalue()), torch.from_numpy(pixels / 255.0).float())


def test_of_several_slices_the_middle_one_is_taken():
    volume = torch.stack([torch.full((16, 16), value) for value in (1.0, 2.0, 3.0)])
    volume[1, 0, 0] = 4
    assert prepare(Volume(volume))[0, 1] == 0.5


def test_large_images_are_reduced_by_averaging():
    """Means over squares: an image twice too large in both directions."""
    image = torch.rand(1, LARGEST, 2 * LARGEST)
    reduced = prepare(Volume(image))
    means = image[0].view(LARGEST // 2, 2, LARGEST, 2).mean(dim=(1, 3))
    torch.testing.assert_close(reduced, means / means.max())


def test_hounsfield_units_become_attenuation():
    assert (
        prepare(Volume(torch.full((1, 16, 16), -1000.0).index_fill(2, torch.tensor([3]), 0.0), unit="hounsfield"))[
            0
        ].tolist()
        == [0.0] * 3 + [1.0] + [0.0] * 12
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scan.exe", b"x", r"^The name of an image must end in one of \.png, "),
        ("", b"x", "must end in one of"),
        ("a.png", b"not an image", "damaged"),
        ("a.npy", b"", "empty"),
        ("a.npy", npy(np.zeros((20, 20))), "black"),
        ("a.npy", npy(np.ones((4, 400))), r"4 x 400 pixels; the lab needs 16 a side"),
        ("a.npy", npy(np.ones((20, 20), complex)), "k-space"),
        ("a.npy", npy(np.full((20, 20), np.nan)), "NaN"),
        ("a.npy", npy(np.array([object()], dtype=object)), "."),
    ],
)
def test_bad_files_are_one_sentence_without_a_path(name, content, message):
    with pytest.raises(FileError if "NaN" not in message else ValueError, match=message) as caught:
        read_upload(name, content)
    assert "/tmp" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../etc/evil.npy", "/etc/evil.npy", "..\\evil.npy", "a/b/../evil.npy"])
def test_a_name_is_never_a_path(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    label = ImageCatalogue().add(name, npy(np.eye(20)))
    assert label == "1: evil.npy"
    assert list(tmp_path.iterdir()) == []


def test_only_the_latest_uploads_are_kept():
    images = ImageCatalogue()
    for i in range(KEPT + 2):
        images.add(f"{i}.npy", npy(np.eye(20)))
    assert images.names()[3:] == [f"{i + 1}: {i}.npy" for i in range(2, KEPT + 2)]
    with pytest.raises(ValueError, match="image must be one of"):
        images.get("1: 0.npy")


def test_without_any_denoiser_the_lab_says_what_to_do(monkeypatch):
    monkeypatch.setattr("lipspline.priors.denoisers.available", dict)
    with pytest.raises(ValueError, match="Name one of your own with --weights"):
        Denoisers()


def test_a_file_that_is_no_denoiser_is_refused(tmp_path):
    from lipspline import models

    models.save(models.mlp(2, 1, width=4, depth=2), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"net\.safetensors is not a denoiser of grey images"):
        Denoisers([tmp_path / "net.safetensors"])
