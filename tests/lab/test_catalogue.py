"""Uploads: images and measurements of every size; everything else is one sentence without a path."""

import io
from dataclasses import replace
from importlib import resources
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch

from lipspline import priors
from lipspline.formats.kspace import Kspace
from lipspline.formats.sinograms import Sinograms
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume
from lipspline.lab import catalogue as module
from lipspline.lab.catalogue import KEPT, LARGEST, Catalogue, Content, Models, prepare
from lipspline.lab.request import Measurement
from lipspline.lab.result import LabResult
from lipspline.lab.session import simulated
from lipspline.priors import lookup


@pytest.fixture
def catalogue():
    found = Catalogue()
    yield found
    found.close()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def add(catalogue, name, content, **options):
    draft = catalogue.draft()
    draft.write_bytes(content)
    return catalogue.add(name, draft, **options)


def files(catalogue):
    return sorted(path.name for path in catalogue.draft().parent.iterdir() if path.suffix)


def test_an_uploaded_array_is_the_image(catalogue):
    image = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    source = add(catalogue, "a.npy", npy(image))
    assert (source.content, source.modality, source.slices) == (Content.IMAGES, "mri", 1)
    torch.testing.assert_close(catalogue.read(source, 0).slices, torch.from_numpy(image)[None])


def test_a_png_is_read(catalogue):
    Image = pytest.importorskip("PIL.Image")
    pixels = np.arange(400, dtype=np.uint8).reshape(20, 20)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    image = catalogue.read(add(catalogue, "Scan.PNG", file.getvalue()), 0).slices[0]
    torch.testing.assert_close(image / image.max(), torch.from_numpy(pixels / 255.0).float())


def test_every_slice_can_be_chosen(catalogue):
    volume = np.stack([np.full((16, 16), value) for value in (1.0, 2.0, 3.0)])
    source = add(catalogue, "volume.npy", npy(volume))
    assert source.slices == 3
    assert [float(catalogue.read(source, k).slices.max()) for k in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match=r"^slice must be below 3 for 1: volume\.npy, but is 3\.$"):
        catalogue.read(source, 3)


def test_k_space_is_a_measurement(catalogue):
    source = add(catalogue, "k.npy", npy(np.ones((2, 20, 20), complex)))
    assert (source.content, source.modality, source.slices) == (Content.KSPACE, "mri", 2)
    found = catalogue.read(source, 1)
    assert isinstance(found, Kspace)
    assert found.data.shape == (1, 1, 20, 20)


def test_a_sinogram_is_one_if_the_user_says_so(catalogue):
    source = add(catalogue, "s.npy", npy(np.ones((3, 30, 20))), sinogram=True)
    assert (source.content, source.modality, source.slices) == (Content.SINOGRAMS, "ct", 3)
    found = catalogue.read(source, 2)
    assert isinstance(found, Sinograms)
    assert found.data.shape == (1, 30, 20)


def test_dicom_of_a_ct_is_opened_as_ct(catalogue, tmp_path):
    dicom = pytest.importorskip("lipspline.formats.dicom")
    pytest.importorskip("pydicom")
    image = torch.linspace(-1000, 800, 400).view(1, 20, 20)
    dicom.write(tmp_path / "ct.dcm", Volume(image, unit="hounsfield"), modality="CT", description="test")
    source = add(catalogue, "ct.dcm", (tmp_path / "ct.dcm").read_bytes())
    assert source.modality == "ct"
    found = catalogue.read(source, 0)
    assert found.unit == "hounsfield"
    assert float(found.slices.max()) == pytest.approx(800, abs=1)


def test_large_images_are_reduced_by_averaging():
    """Means over squares: an image twice too large in both directions."""
    image = torch.rand(1, LARGEST, 2 * LARGEST)
    means = image.view(LARGEST // 2, 2, LARGEST, 2).mean(dim=(1, 3))
    torch.testing.assert_close(prepare(Volume(image)).slices[0], means)


@pytest.mark.parametrize(("rows", "columns"), [(24, 40), (2 * LARGEST, LARGEST)])
def test_an_image_that_is_downloaded_has_the_voxels_of_the_one_that_was_opened(rows, columns, catalogue, tmp_path):
    """Of a smaller image they are larger, and it covers the same part of the patient."""
    affine = np.array([[-0.5, 0, 0, 80], [0, -0.75, 0, 90], [0, 0, 4, -10], [0, 0, 0, 1]])
    values = np.random.default_rng(0).random((columns, rows, 2), dtype=np.float32)
    nibabel.save(nibabel.Nifti1Image(values, affine), tmp_path / "v.nii")
    source = add(catalogue, "v.nii", (tmp_path / "v.nii").read_bytes())
    scan = simulated(catalogue.read(source, 1), Measurement(source.name, 1, "ct", 1.0, 3, 0.1, 0))
    problem = scan.problem(0)
    solved = SimpleNamespace(solution=SimpleNamespace(value=problem.direct))
    kept = LabResult(None, scan, problem, (solved,), None, "", {}, "", b"")
    (tmp_path / "r.nii.gz").write_bytes(kept.file(".nii.gz"))
    result = nibabel.load(tmp_path / "r.nii.gz")
    shrunk = rows / result.shape[1]
    np.testing.assert_allclose(result.header.get_zooms(), (0.5 * shrunk, 0.75 * shrunk, 4), rtol=1e-6)
    corner = np.array([-0.5, -0.5, 0, 1])
    np.testing.assert_allclose(result.affine @ corner, affine @ [-0.5, -0.5, 1, 1], atol=1e-5)
    far = result.affine @ [result.shape[0] - 0.5, result.shape[1] - 0.5, 0, 1]
    np.testing.assert_allclose(far, affine @ [columns - 0.5, rows - 0.5, 1, 1], atol=1e-4)


def test_nothing_is_below_zero_or_below_air():
    image = torch.linspace(-3024, 100, 400).view(1, 20, 20)
    assert prepare(Volume(image, unit="hounsfield")).slices.min() == -1000
    shifted = prepare(Volume(image)).slices
    assert (shifted.min(), shifted.max()) == (0, 3124)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scan.exe", b"x", r"^The name of a file must end in one of \.png, "),
        ("", b"x", "must end in one of"),
        ("a.png", b"not an image", "damaged"),
        ("a.npy", b"", "empty"),
        ("a.npy", npy(np.zeros((20, 20))), "black"),
        ("a.npy", npy(np.ones((4, 400))), r"4 x 400 pixels; the lab needs 16 a side"),
        ("a.npy", npy(np.full((20, 20), np.nan)), "NaN"),
        ("a.npy", npy(np.array([object()], dtype=object)), "."),
    ],
)
def test_bad_files_are_one_sentence_without_a_path_and_leave_nothing_behind(catalogue, name, content, message):
    with pytest.raises(FileError if "NaN" not in message else ValueError, match=message) as caught:
        add(catalogue, name, content)
    assert "/tmp" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(catalogue) == []


@pytest.mark.parametrize("name", ["../../etc/evil.npy", "/etc/evil.npy", "..\\evil.npy", "a/b/../evil.npy"])
def test_a_name_is_never_a_path(catalogue, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert add(catalogue, name, npy(np.eye(20))).name == "1: evil.npy"
    assert list(tmp_path.iterdir()) == []


def uploads(catalogue):
    return [source.name for source in catalogue.sources() if source.path is not None]


def test_only_the_latest_uploads_are_kept(catalogue):
    for i in range(KEPT + 2):
        add(catalogue, f"{i}.npy", npy(np.eye(20)))
    assert uploads(catalogue) == [f"{i + 1}: {i}.npy" for i in range(2, KEPT + 2)]
    assert len(files(catalogue)) == KEPT
    with pytest.raises(ValueError, match="image must be one of"):
        catalogue.get("1: 0.npy")


def test_uploads_fill_no_more_of_the_disk_than_they_may(catalogue, monkeypatch):
    size = len(npy(np.eye(20)))
    monkeypatch.setattr(module, "KEPT_BYTES", 3 * size)
    for i in range(5):
        add(catalogue, f"{i}.npy", npy(np.eye(20)))
    assert uploads(catalogue) == ["3: 2.npy", "4: 3.npy", "5: 4.npy"]
    add(catalogue, "big.npy", npy(np.eye(60)))
    assert uploads(catalogue) == ["6: big.npy"]


def test_uploads_go_when_the_session_ends(catalogue):
    path = add(catalogue, "a.npy", npy(np.eye(20))).path
    catalogue.close()
    assert not path.exists()


def test_the_models_are_the_catalogue_the_recommended_first():
    assert Models().names() == list(priors.catalogue())
    assert Models().names()[0] == priors.resolve().name


def test_a_new_energy_is_there_without_a_change(monkeypatch):
    made = replace(priors.resolve("tv"), name="squares", words="squared differences")
    monkeypatch.setitem(lookup.NAMED, "squares", lambda: made)
    assert {"name": "squares", "kind": "energy", "summary": "squared differences, convex", "levels": False} in (
        Models().document()
    )


def test_files_come_first_whatever_kind_of_prior_they_hold(tmp_path):
    from lipspline import models

    models.save(models.denoiser(channels=4, depth=2), tmp_path / "mine.safetensors")
    energy = tmp_path / "energy.safetensors"
    with resources.as_file(resources.files("lipspline.weights") / "ridge.safetensors") as shipped:
        energy.write_bytes(shipped.read_bytes())
    found = Models([tmp_path / "mine.safetensors", energy])
    assert found.names()[:2] == ["mine", "energy"]
    assert [found.get(name).kind for name in found.names()[:2]] == ["denoiser", "energy"]


def test_a_file_that_is_no_prior_is_refused(tmp_path):
    from lipspline import models

    models.save(models.mlp(2, 1, width=4, depth=2), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"net\.safetensors is not a denoiser of grey images"):
        Models([tmp_path / "net.safetensors"])


def test_a_jpeg_is_read(catalogue):
    Image = pytest.importorskip("PIL.Image")
    pixels = np.full((24, 20), 100, dtype=np.uint8)
    pixels[8:16] = 200
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    image = catalogue.read(add(catalogue, "photo.JPG", file.getvalue()), 0).slices[0]
    torch.testing.assert_close(image, torch.from_numpy(pixels / 255.0).float(), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["a.h5", "a.npy", "a.png", "a.nii.gz"])
def test_an_empty_file_is_said_to_be_empty(catalogue, name):
    with pytest.raises(FileError, match=r"^The file is empty\.$"):
        add(catalogue, name, b"")


def test_what_is_made_of_a_file_has_its_name(catalogue):
    image = np.ones((20, 20), dtype=np.float32)
    image[5] = 2
    names = {"knee 7.v2.npy": "knee_7.v2", '../"; x.npy': "x", "Ä.npy": "image"}
    assert {name: add(catalogue, name, npy(image)).stem for name in names} == names
    assert catalogue.get("head").stem == "head"
