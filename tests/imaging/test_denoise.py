"""Image files without their noise: every kind of pixels, tiles, and one sentence for everything that cannot be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from torch import nn

from lipspline import cli
from lipspline.formats import ct, dicom, nifti, pictures, writers
from lipspline.formats.volume import Volume
from lipspline.imaging.denoise import denoise_file
from lipspline.imaging.verify import verify
from lipspline.models import load, save
from lipspline.networks import denoiser, mlp
from lipspline.networks.rescale import serving
from lipspline.priors.denoisers import available

RNG = np.random.default_rng(0)


def a_denoiser(**options):
    """A small network that is not the identity."""
    torch.manual_seed(0)
    model = denoiser(channels=4, depth=3, **options)
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            layer.bias.data.normal_(std=0.05)
    return model


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "net.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some networks that nobody trained go beyond the values of an image, and are warned of
        save(a_denoiser(), path, {"noise": 15})
    return path


def noisy(dtype, *shape) -> np.ndarray:
    """A ramp with noise 15."""
    ramp = np.linspace(0.2, 0.8, shape[1])[None, :, None] if len(shape) == 3 else np.linspace(0.2, 0.8, shape[1])
    values = np.broadcast_to(ramp, shape) + RNG.normal(0, 15 / 255, shape)
    if np.issubdtype(dtype, np.integer):
        return np.rint(values.clip(0, 1) * np.iinfo(dtype).max).astype(dtype)
    return values.astype(dtype)


def expected(path, plane: np.ndarray, noise: float) -> np.ndarray:
    """The network applied to one plane in [0, 1], untiled, at a noise level."""
    x = torch.from_numpy(plane.astype(np.float32))[None, None]
    with torch.no_grad():
        return serving(load(path), 15, noise)(x)[0, 0].double().numpy()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("channels", [None, 2, 3, 4])
def test_the_result_has_the_pixels_of_the_input_without_noise(tmp_path, weights, suffix, dtype, channels):
    """Channel by channel; transparency is untouched."""
    if suffix == ".png" and np.issubdtype(dtype, np.floating):
        pytest.skip("PNG holds no floats")
    image = noisy(dtype, 24, 30) if channels is None else noisy(dtype, 24, 30, channels)
    source, target = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    pictures.write(source, image)
    denoise_file(source, target, noise=15, model=str(weights))
    result = pictures.read(target)
    assert result.dtype == image.dtype
    assert result.shape == image.shape
    white = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1.0
    colours = {None: 1, 2: 1, 3: 3, 4: 3}[channels]
    planes = [image] if channels is None else [image[..., i] for i in range(colours)]
    results = [result] if channels is None else [result[..., i] for i in range(colours)]
    for plane, ours in zip(planes, results, strict=True):
        wanted = expected(weights, plane / white, 15)
        wanted = np.rint(wanted.clip(0, 1) * white) if white > 1 else wanted
        np.testing.assert_allclose(ours, wanted, atol=1 if white > 1 else 1e-6)
    if channels in (2, 4):
        assert np.array_equal(result[..., -1], image[..., -1])


@pytest.mark.parametrize("noise", [5, 22.5])
def test_other_noise_levels_are_served_too(tmp_path, weights, noise):
    """[sec:exp_pnp]: `c D(x / c)` for c the ratio of the levels, with the same certificate."""
    image = noisy(np.float32, 24, 30)
    pictures.write(tmp_path / "in.npy", image)
    done = denoise_file(tmp_path / "in.npy", tmp_path / "out.npy", noise=noise, model=str(weights))
    np.testing.assert_allclose(pictures.read(tmp_path / "out.npy"), expected(weights, image, noise), atol=2e-6)
    assert done.lipschitz <= 1
    assert done.trained_noise == 15


def test_the_noise_is_estimated_where_it_is_not_given(tmp_path, weights):
    pictures.write(tmp_path / "in.png", noisy(np.uint8, 200, 240, 3))
    done = denoise_file(tmp_path / "in.png", tmp_path / "out.png", model=str(weights))
    assert done.estimated
    assert done.noise == pytest.approx(15, rel=0.05)


def test_white_can_be_another_value(tmp_path, weights):
    """12 bits in 16, or floats up to 255: what is denoised is the same picture."""
    picture = noisy(np.float64, 24, 30).clip(0, 1)
    for name, image, white in (("a", np.rint(picture * 4095).astype(np.uint16), 4095), ("b", picture * 255, 255)):
        pictures.write(tmp_path / f"{name}.npy", image)
        target = tmp_path / f"{name}-out.npy"
        denoise_file(tmp_path / f"{name}.npy", target, noise=15, model=str(weights), white=white)
        wanted = expected(weights, picture, 15) * white
        wanted, tolerance = (wanted.clip(0, white), 1.1) if name == "a" else (wanted, 1e-3)
        np.testing.assert_allclose(pictures.read(target), wanted, atol=tolerance)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_large_images_in_tiles_are_as_if_they_were_whole(tmp_path, monkeypatch, padding_mode):
    save(a_denoiser(padding_mode=padding_mode), tmp_path / "net.safetensors", {"noise": 15})
    image = noisy(np.uint16, 400, 330)
    pictures.write(tmp_path / "in.tif", image)
    seen = []
    monkeypatch.setattr("lipspline.imaging.denoise.TILE", 160)
    options = {"noise": 15.0, "model": str(tmp_path / "net.safetensors")}
    denoise_file(tmp_path / "in.tif", tmp_path / "tiled.tif", **options, watch=lambda *tiles: seen.append(tiles))
    monkeypatch.setattr("lipspline.imaging.denoise.TILE", 1000)
    denoise_file(tmp_path / "in.tif", tmp_path / "whole.tif", **options)
    assert np.array_equal(pictures.read(tmp_path / "tiled.tif"), pictures.read(tmp_path / "whole.tif"))
    assert seen == [(i, 9) for i in range(1, 10)]


@pytest.mark.parametrize(
    ("validation", "said"),
    [
        ({"psnr": 11.6, "noisy_psnr": 25.1}, "makes noisy images worse: its own file says 11.6 dB where"),
        ({"psnr": 30.0, "noisy_psnr": 25.1}, ""),
        ({"psnr": "high"}, ""),
        (None, ""),
    ],
)
def test_a_network_whose_file_says_that_it_makes_images_worse_is_used_with_a_warning(tmp_path, validation, said):
    network = tmp_path / "net.safetensors"
    save(a_denoiser(), network, {"noise": 15, "scores": {"validation": validation}})
    pictures.write(tmp_path / "in.npy", noisy(np.float32, 24, 24))
    done = denoise_file(tmp_path / "in.npy", tmp_path / "out.npy", noise=15, model=str(network))
    assert said in done.warning
    assert ("makes noisy images worse" in done.warning) == bool(said)


MEMORY = """
import resource, sys
from pathlib import Path
from lipspline.formats.volume import Volume
from lipspline.imaging.denoise import denoise_file
from lipspline.imaging.verify import verify
denoise_file(Path(sys.argv[1]), Path(sys.argv[2]), noise=15, model=sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_twelve_megapixels_of_16_bits_need_less_than_two_gigabytes(tmp_path):
    """With a network of the full width; its depth does not matter for memory."""
    save(denoiser(depth=3), tmp_path / "net.safetensors", {"noise": 15})
    pictures.write(tmp_path / "in.tif", RNG.integers(0, 65536, (3000, 4000)).astype(np.uint16))
    paths = [tmp_path / name for name in ("in.tif", "out.tif", "net.safetensors")]
    run = subprocess.run([sys.executable, "-c", MEMORY, *paths], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2000


@pytest.mark.skipif(("lls", 15) not in available(), reason="no weights are in the package yet")
def test_the_shipped_denoiser_removes_noise(tmp_path):
    """6 dB better than the noisy photograph, which has 24.6 dB; the recommended prior is better still."""
    camera = pytest.importorskip("skimage.data").camera()[128:256, 192:320]
    pictures.write(tmp_path / "in.npy", camera / 255 + RNG.normal(0, 15 / 255, camera.shape))
    scores, done = {}, {}
    for model in ("lls", "ridge", "auto"):
        done[model] = denoise_file(tmp_path / "in.npy", tmp_path / f"{model}.npy", noise=15, model=model)
        error = pictures.read(tmp_path / f"{model}.npy").clip(0, 1) - camera / 255
        scores[model] = -10 * np.log10(np.mean(error**2))
        assert verify(tmp_path / f"{model}.npy").holds
    assert scores["lls"] > 30.4
    assert scores["auto"] > max(scores["lls"], scores["ridge"]) + 0.5
    assert done["lls"].lipschitz <= 1
    assert done["ridge"].lipschitz <= 1
    assert 1 < done["auto"].lipschitz < 100
    assert done["auto"].distance < 1


def test_what_a_minimiser_promises_holds_for_changed_data(tmp_path):
    """No change of the input makes a larger one of the result than the certificate says, distances included."""
    image = noisy(np.float32, 40, 48).astype(np.float64)
    change = 0.02 * RNG.normal(size=image.shape)
    for name, values in (("a", image), ("b", image + change)):
        pictures.write(tmp_path / f"{name}.npy", values)
    for model in ("ridge", "ridge-adaptive"):
        results = [
            denoise_file(tmp_path / f"{n}.npy", tmp_path / f"{model}{n}.npy", noise=15, model=model) for n in "ab"
        ]
        a, b = (pictures.read(tmp_path / f"{model}{n}.npy") for n in "ab")
        slack = sum(result.distance for result in results) / 255 * np.sqrt(image.size)
        assert np.linalg.norm(a - b) <= results[0].lipschitz * np.linalg.norm(change) + slack


BSD68 = Path(os.environ.get("LIPSPLINE_DATA", "/nonexistent")) / "bsd" / "bsd68"


@pytest.mark.slow
@pytest.mark.skipif(not BSD68.is_dir(), reason="LIPSPLINE_DATA names no folder with bsd/bsd68")
@pytest.mark.parametrize("level", [5, 15, 25])
def test_the_recommended_prior_is_better_than_others_and_than_scikit_image(level, tmp_path):
    """Every tenth image of BSD68; total variation and non-local means at four strengths."""
    restoration = pytest.importorskip("skimage.restoration")
    s, scores = level / 255, {}

    def note(name, result, clean):
        scores.setdefault(name, []).append(-10 * np.log10(np.mean((result - clean) ** 2)))

    for number, path in enumerate(sorted(BSD68.glob("*.png"))[::10]):
        clean = pictures.gray(pictures.read(path))
        image = clean + np.random.default_rng(number).normal(0, s, clean.shape)
        pictures.write(tmp_path / "in.npy", image)
        for model in ("auto", "ridge", "lls"):
            denoise_file(tmp_path / "in.npy", tmp_path / "out.npy", noise=level, model=model, white=1.0, force=True)
            note(model, pictures.read(tmp_path / "out.npy"), clean)
        note("wavelet (BayesShrink)", restoration.denoise_wavelet(image, sigma=s, rescale_sigma=True), clean)
        for f in (0.3, 0.5, 0.7, 0.9):
            means = restoration.denoise_nl_means(image, patch_size=5, patch_distance=6, h=f * s, sigma=s)
            note(f"non-local means {f}", means, clean)
            note(f"total variation {f}", restoration.denoise_tv_chambolle(image, f * s, max_num_iter=200), clean)
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    print(f"\nnoise {level}, {len(scores['auto'])} images: " + ", ".join(f"{n} {v:.2f}" for n, v in means.items()))
    assert means.pop("auto") > max(means.values()) + 0.3


@pytest.mark.parametrize("name", ["v.nii.gz", "series"])
def test_volumes_keep_their_place_and_their_unit(name, tmp_path):
    affine = torch.diag(torch.tensor([-0.7, -0.7, 3.0, 1.0], dtype=torch.float64))
    clean = np.stack([np.linspace(-800, 400, 40) + 20 * k for k in range(3)])[:, None].repeat(36, 1)
    values = torch.from_numpy(clean + RNG.normal(0, 30, clean.shape)).float()
    volume = Volume(values, affine, "hounsfield", {"PatientID": "7"} if name == "series" else {})
    writers.write(tmp_path / name, writers.Image(volume, "CT", "test"))
    done = denoise_file(tmp_path / name, tmp_path / f"clean-{name}", model="ridge")
    found = ct.read(tmp_path / f"clean-{name}")
    assert torch.allclose(found.affine, affine)
    if name.endswith(".nii.gz"):
        assert nibabel.load(tmp_path / f"clean-{name}").header.get_zooms() == pytest.approx((0.7, 0.7, 3.0))
    assert found.unit == "hounsfield"
    assert found.identity.get("PatientID") == volume.identity.get("PatientID")
    assert done.noise * (done.white - done.black) / 255 == pytest.approx(30, rel=0.1)
    error, before = (np.sqrt(np.mean((v.numpy() - clean) ** 2)) for v in (found.slices, values))
    assert error < 0.6 * before


def test_black_can_be_another_value(tmp_path, weights):
    """An image with an offset, and its black: the same picture."""
    picture = noisy(np.float64, 24, 30).clip(0, 1)
    pictures.write(tmp_path / "a.npy", picture)
    pictures.write(tmp_path / "b.npy", 100 * picture - 50)
    denoise_file(tmp_path / "a.npy", tmp_path / "a2.npy", noise=15, model=str(weights))
    done = denoise_file(tmp_path / "b.npy", tmp_path / "b2.npy", noise=15, model=str(weights), white=50, black=-50)
    np.testing.assert_allclose(
        pictures.read(tmp_path / "b2.npy"), 100 * pictures.read(tmp_path / "a2.npy") - 50, atol=1e-3
    )
    assert (done.black, done.white) == (-50, 50)


def test_hardly_any_noise_is_told(tmp_path, monkeypatch, capsys):
    """A smooth JPEG: its artefacts are no white noise, and the image stays as it is."""
    from PIL import Image

    ramp = np.linspace(20, 235, 96).astype(np.uint8)
    Image.fromarray(np.broadcast_to(ramp, (96, 96)) + RNG.integers(0, 2, (96, 96)).astype(np.uint8)).save(
        tmp_path / "in.jpg", quality=90
    )
    arguments = (tmp_path / "in.jpg", tmp_path / "out.png", "--model", "ridge", "--json")
    code, out, err = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert json.loads(out)["noise"] < 1
    assert "so that the image hardly changes" in err


def test_a_noise_that_was_meant_as_a_part_of_white_is_told(tmp_path, weights):
    pictures.write(tmp_path / "in.png", noisy(np.uint8, 40, 40))
    done = denoise_file(tmp_path / "in.png", tmp_path / "out.png", noise=0.08, model=str(weights))
    assert "in units of 1/255 of white" in done.warning
    assert "give noise=20.4" in done.warning
    assert not denoise_file(tmp_path / "in.png", tmp_path / "b.png", noise=15, model=str(weights)).warning


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_noise_of_hounsfield_units_is_given_and_told_in_them(kind, weights, tmp_path):
    """The range is that of tissue, whatever padding and metal there is; NIfTI is known by its values of air."""
    slices = 1000 * torch.from_numpy(noisy(np.float64, 40, 40))[None].float() - 1000
    slices[0, :3, :3], slices[0, -3:, -3:] = 3071, -2048
    volume = Volume(slices, torch.eye(4, dtype=torch.float64), "hounsfield")
    slices[0, 10:20, 10:20] = -1000
    source, target = (tmp_path / name for name in (("in.dcm", "out.dcm") if kind == "dicom" else ("i.nii", "o.nii")))
    if kind == "dicom":
        dicom.write(source, volume, modality="CT", description="test")
    else:
        nifti.write(source, volume)
    done = denoise_file(source, target, noise_value=20.0, model=str(weights))
    assert (done.black, done.white, done.unit) == (-1000, 1000, "HU")
    assert done.noise == pytest.approx(255 * 20 / 2000)
    assert done.noise_value == pytest.approx(20)
    assert "which is 20 HU (given)" in str(done)
    with pytest.raises(
        ValueError, match=r"noise= is in units of 1/255 of white, noise_value= in the values of the file"
    ):
        denoise_file(source, tmp_path / "b.nii", noise=3, noise_value=20.0, model=str(weights))
    with pytest.raises(ValueError, match="noise_value is 3000, but from black to white the values span only 2000"):
        denoise_file(source, tmp_path / "b.nii", noise_value=3000.0, model=str(weights))


@pytest.mark.parametrize("name", ["out.jpg", "out.JPEG"])
def test_jpeg_is_not_written_and_the_sentence_says_what_is(name, weights, tmp_path):
    pictures.write(tmp_path / "in.png", noisy(np.uint8, 40, 40))
    with pytest.raises(ValueError, match=r"JPEG changes the pixels. Name it .*out\.png"):
        denoise_file(tmp_path / "in.png", tmp_path / name, model=str(weights))
    with pytest.raises(ValueError, match=r"JPEG changes the pixels. Name it .*out\.png"):
        writers.writer(tmp_path / name, 1)


def test_several_files_go_into_a_folder_under_their_names(tmp_path, weights, monkeypatch, capsys):
    from PIL import Image

    pictures.write(tmp_path / "a.png", noisy(np.uint8, 40, 40))
    Image.fromarray(noisy(np.uint8, 40, 40)).save(tmp_path / "b.jpg", quality=95)
    arguments = (tmp_path / "a.png", tmp_path / "b.jpg", tmp_path / "clean", "--model", weights, "--json")
    code, out, _ = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert [Path(entry["output"]).name for entry in json.loads(out)["results"]] == ["a.png", "b.png"]
    assert sorted(os.listdir(tmp_path / "clean")) == ["a.png", "a.png.json", "b.png", "b.png.json"]
    code, _, err = run(*arguments[:2], tmp_path / "o.png", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "2 files go into a folder" in err


# The command


def run(*arguments, monkeypatch, capsys):
    """Run `main` as a shell would; returns exit code, stdout and stderr."""
    monkeypatch.setattr("sys.argv", ["lipspline", "denoise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    streams = capsys.readouterr()
    return stop.value.code or 0, streams.out, " ".join(streams.err.split())


def test_the_command_names_a_folder_that_it_made(tmp_path, weights, monkeypatch, capsys):
    pictures.write(tmp_path / "in.png", noisy(np.uint8, 64, 64))
    arguments = (tmp_path / "in.png", tmp_path / "new" / "out.png", "--noise", 10, "--model", weights)
    for words in ((), ("--force",)):
        code, _, err = run(*arguments, *words, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0
        assert (f"made the folder {tmp_path / 'new'}." in err) == (not words)


def test_the_command_says_what_it_did(tmp_path, weights, monkeypatch, capsys):
    pictures.write(tmp_path / "in.png", noisy(np.uint8, 64, 64))
    arguments = (tmp_path / "in.png", tmp_path / "out.png", "--noise", 10, "--model", weights)
    code, out, _ = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "noise 10.00/255 (given)" in " ".join(out.split())
    code, out, _ = run(*arguments, "--force", "--json", monkeypatch=monkeypatch, capsys=capsys)
    document = json.loads(out)
    assert code == 0
    assert document["noise"] == 10
    assert document["lipschitz"] <= 1
    assert document["shape"] == [64, 64]


def test_a_result_beyond_the_values_of_the_input_is_told(tmp_path, weights, monkeypatch, capsys):
    pictures.write(tmp_path / "in.npy", noisy(np.float32, 64, 64))
    arguments = (tmp_path / "in.npy", tmp_path / "out.npy", "--noise", 255, "--model", weights, "--json")
    code, out, err = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "goes beyond the values of the input" in err
    assert json.loads(out)["warning"] in err


def test_the_result_has_a_certificate_that_can_be_verified(tmp_path, weights):
    pictures.write(tmp_path / "in.png", noisy(np.uint8, 64, 64))
    denoise_file(tmp_path / "in.png", tmp_path / "out.png", noise=15, model=str(weights))
    assert verify(tmp_path / "out.png").holds
    pictures.write(tmp_path / "out.png", noisy(np.uint8, 64, 64))
    assert not verify(tmp_path / "out.png").holds


def truncated(path, suffix) -> None:
    pictures.write(path.with_suffix(suffix), noisy(np.uint8, 40, 40))
    path.with_suffix(suffix).write_bytes(path.with_suffix(suffix).read_bytes()[:300])


def test_an_image_that_cannot_be_denoised_is_one_sentence_and_no_file(tmp_path, weights, monkeypatch, capsys):
    """Exit code 2, nothing on stdout, nothing half-written."""
    source = tmp_path / "in"
    good = noisy(np.float32, 40, 40)
    np.save(f"{source}.npy", good)
    np.save(tmp_path / "nan.npy", np.where(good > 0.5, np.nan, good))
    np.save(tmp_path / "five.npy", np.zeros((8, 8, 5)))
    np.save(tmp_path / "bytes.npy", good * 255)
    np.save(tmp_path / "flat.npy", np.full((64, 64), 0.5))
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    pictures.write(tmp_path / "there.npy", good)
    for suffix in (".png", ".tif", ".npy"):
        truncated(tmp_path / "cut", suffix)
    save(mlp(2, 1, width=4, depth=2), tmp_path / "mlp.safetensors")
    save(a_denoiser(), tmp_path / "silent.safetensors")
    model = ("--model", weights)
    cases = [
        (("nothing.png", "out.png", *model), "There is no image file"),
        (("empty.png", "out.png", *model), "empty.png is empty"),
        (("cut.png", "out.png", *model), "damaged"),
        (("cut.tif", "out.tif", *model), "damaged"),
        (("cut.npy", "out.npy", *model), "truncated"),
        (("nan.npy", "out.npy", *model), "NaN or infinite value(s)"),
        (("five.npy", "out.npy", *model), "shape (8, 8, 5)"),
        (("bytes.npy", "out.npy", *model), "Give white, for instance 255"),
        (("flat.npy", "out.npy", *model), "shows no noise at all"),
        (("in.npy", "out.jpg", *model), "JPEG changes the pixels"),
        (("in.npy", "out.png", *model), "PNG file holds 8 or 16 bits, not float32"),
        (("in.npy", "there.npy", *model), "exists, and lipspline did not write it"),
        (("in.npy", "there.npy", "--force", *model), "exists, and lipspline did not write it"),
        (("in.npy", ".", "--force", *model), "is no name of a new file"),
        (("in.npy", "weights.npy", "--white", "1e40", *model), "white is 1e+40, but the image has values in"),
        (("in.npy", "weights.npy", "--white", "1e-40", *model), "white is 1e-40, but the image has values in"),
        (("in.npy", "out.npy", "--noise", "1000", *model), "noise is 1000, but cannot be more than 255"),
        (("in.npy", "in.npy", "--force", *model), "is the input"),
        (("in.npy", "folder.png", *model), "exists, and lipspline did not write it"),
        (("in.npy", "out.npy", "--noise", "much", *model), "--noise must be a number, 15 for a noise level of 15/255"),
        (("in.npy", "out.npy", "--noise", "-3", *model), "noise must be a positive finite number, but is -3.0"),
        (("in.npy", "out.npy", "--model", "unet"), "prior must be one of ridge"),
        (("in.npy", "out.npy", "--model", "mlp.safetensors"), "is not a denoiser of grey images"),
        (("in.npy", "out.npy", "--model", "silent.safetensors"), "does not say which noise level it was trained for"),
        (("in.npy", "out.npy", "--model", "nothing.safetensors"), "There is no file"),
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir())
    for arguments, sentence in cases:
        code, out, err = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
        assert (code, out) == (2, ""), arguments
        assert sentence in err, arguments
        assert "Traceback" not in err
        assert sorted(os.listdir()) == before, arguments
    np.testing.assert_array_equal(np.load("in.npy"), good)


def test_a_result_beyond_the_range_of_its_numbers_is_not_written(tmp_path):
    """White is the largest number, and this network makes it brighter."""
    model, largest = a_denoiser(), float(np.finfo(np.float16).max)
    [layer for layer in model if isinstance(layer, nn.Conv2d)][-1].bias.data.fill_(0.5)
    save(model, tmp_path / "bright.safetensors", {"noise": 15})
    np.save(tmp_path / "in.npy", np.full((24, 24), largest, dtype=np.float16))
    with pytest.raises(ValueError, match="beyond the range of float16"):
        denoise_file(
            tmp_path / "in.npy",
            tmp_path / "out.npy",
            noise=15,
            model=str(tmp_path / "bright.safetensors"),
            white=largest,
        )
    assert not (tmp_path / "out.npy").exists()
