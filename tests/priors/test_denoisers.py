"""The shipped denoisers: found by name, certified again, served at any noise level."""

import re
import shutil
import subprocess
import sys
import time
import zipfile
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from lipspline import pnp
from lipspline._infra.files import checksum
from lipspline.certification import certify
from lipspline.models import load, save
from lipspline.networks import denoiser
from lipspline.networks.rescale import Rescaled, serving
from lipspline.nn.combine import Averaged
from lipspline.operators import MRI
from lipspline.pnp._fbs import denoise
from lipspline.priors import FOLDED_RANGE, UNIT_RANGE, zoo
from lipspline.priors.denoisers import available, resolve_shipped

SHIPPED = sorted(available())


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A package with two small denoisers."""
    for name in ("lls-15", "lls-5"):
        model = denoiser(channels=4, depth=3)
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                layer.bias.data.normal_(std=0.1)
        save(model, tmp_path / f"{name}.safetensors")
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    available.cache_clear()
    yield tmp_path
    available.cache_clear()


def test_what_lies_in_the_package_is_available(weights):
    assert available() == {("lls", n): weights / f"lls-{n}.safetensors" for n in (5, 15)}


def test_a_shipped_denoiser_is_the_one_of_its_file(weights):
    x = torch.rand(1, 1, 12, 10)
    model = zoo("lls", noise=15)
    torch.testing.assert_close(model(x), load(weights / "lls-15.safetensors")(x), rtol=0, atol=0)
    assert model.certificate is not None
    assert model.certificate.upper <= 1


@pytest.mark.parametrize(("noise", "trained"), [(15, 15), (40, 15), (8, 5), (8.8, 15), (5, 5), (1, 5)])
def test_other_noise_levels_are_served_by_the_nearest_one(weights, noise, trained):
    """Nearest as a ratio; rescaled up, or averaged [sec:exp_pnp]; the certificate is proved of what is returned."""
    assert resolve_shipped("lls").level_for(noise) == trained
    model, x = zoo("lls", noise), torch.rand(1, 1, 12, 10)
    inner = load(weights / f"lls-{trained}.safetensors")
    wanted = serving(inner, trained, noise)
    assert type(wanted) is (Rescaled if noise > trained else Averaged if noise < trained else type(inner))
    torch.testing.assert_close(model(x), wanted(x), rtol=1e-5, atol=1e-6)
    assert certify(model).upper <= 1
    assert model.certificate is not None
    assert model.certificate.upper <= 1


@pytest.mark.parametrize("noise", [1, 8])
def test_what_serves_another_noise_level_can_be_saved_and_exported(weights, tmp_path, noise):
    model, x = zoo("lls", noise), torch.rand(1, 1, 12, 10)
    save(model, tmp_path / "other.safetensors")
    again = load(tmp_path / "other.safetensors")
    assert again.config == model.config
    torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(("lls", 5) not in SHIPPED, reason="the denoiser does not ship")
@pytest.mark.parametrize("noise", [1, 2, 4, 7])
def test_little_noise_is_removed_and_not_made(noise):
    """Rescaled down, a denoiser does worse than nothing (docs/denoisers.md)."""
    rows = torch.linspace(0, 1, 64)
    clean = (0.5 + 0.4 * torch.sin(9 * rows[:, None]) * torch.cos(7 * rows[None]) + 0.1 * (rows > 0.5)).view(
        1, 1, 64, 64
    )
    noisy = clean + noise / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        error = (zoo("lls", noise)(noisy) - clean).norm()
    assert error < 0.9 * (noisy - clean).norm()


def test_weights_that_are_steeper_than_they_should_be_are_refused(weights):
    """Also if the file is honest about it."""
    path = weights / "lls-15.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118
    tensors["0.weight"] *= 1.5
    metadata |= {"format": "lipspline/1", "sha256": checksum(tensors), "certificate": '{"upper": 2.0}'}
    save_file(tensors, path, metadata)
    assert load(path).certificate.upper == pytest.approx(1.5, rel=1e-3)
    with pytest.raises(ValueError, match=r"should be 1-Lipschitz, but its layers only prove 1\.[45]"):
        zoo("lls", 15)


def test_a_denoiser_that_does_not_ship_is_refused(weights):
    """The error lists those that do."""
    wanted = "No denoiser 'gs' ships with lipspline; there are: lls. A denoiser"
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}"):
        zoo("gs", noise=15)


@pytest.mark.parametrize("noise", [0, -1, float("nan")])
def test_a_noise_level_must_be_positive(weights, noise):
    with pytest.raises(ValueError, match="noise must be a positive finite number"):
        zoo("lls", noise)


@pytest.mark.parametrize(("activation", "noise"), SHIPPED)
def test_every_shipped_denoiser_is_proved_to_be_1_lipschitz_and_says_where_it_comes_from(activation, noise):
    model = zoo(activation, noise)
    assert certify(model).upper <= 1
    provenance = model.provenance
    assert provenance["noise"] == noise
    assert provenance["scores"]["bsd68"]["psnr"] > 29
    assert {"run", "trained", "seed", "data", "licence", "validation"} <= provenance.keys()


@pytest.mark.skipif(not SHIPPED, reason="no weights are in the package yet")
def test_loading_takes_milliseconds():
    """Of the processor, best of five, on a machine that does other things too."""
    times = []
    for _ in range(5):
        start = time.process_time()
        zoo(*SHIPPED[0])
        times.append(time.process_time() - start)
    assert min(times) < 0.4


@pytest.mark.slow
def test_the_wheel_holds_the_weights_and_the_recipes(tmp_path):
    """They are package data: without them the command works only from a checkout."""
    pytest.importorskip("setuptools")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    shutil.copytree(root / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, tmp_path)
    (tmp_path / "src/lipspline/weights/test-1.safetensors").touch()
    subprocess.run([*command, tmp_path], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    source = tmp_path / "src"
    for pattern in ("weights/*.safetensors", "recipes/*.toml", "kernels/*.c"):
        assert {str(path.relative_to(source)) for path in (source / "lipspline").glob(pattern)} <= held


def served_to(denoiser, x):
    """What plug-and-play makes of complex images with a denoiser."""
    with torch.no_grad():
        return denoise(denoiser, x)


def test_imaginary_parts_are_seen_in_the_middle_of_the_range_and_not_as_black():
    denoiser = resolve_shipped("lls").at(7, range=FOLDED_RANGE).eval()
    flat = torch.complex(torch.full((1, 1, 24, 24), 0.5), torch.full((1, 1, 24, 24), -0.4))
    error = served_to(denoiser, flat) - flat
    assert error.imag.abs().max() < 0.05  # seen in [-0.15, 1.25] itself it would become -0.15 and more
    low, high = FOLDED_RANGE
    width = high - low
    network = resolve_shipped("lls").at(7 / width)
    seen = network((flat.imag + (low + high) / 2 - low) / width)
    torch.testing.assert_close(served_to(denoiser, flat).imag, width * seen + low - (low + high) / 2)


def test_a_denoiser_for_nearly_real_images_is_still_certified_and_1_lipschitz_on_complex_ones():
    denoiser = resolve_shipped("lls").at(7, range=FOLDED_RANGE).double().eval()
    assert certify(denoiser).upper <= 1
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, 16, 16, generator=generator, dtype=torch.complex128)
    for size in (1e-3, 0.1, 1.0):
        other = x + size * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        change = (served_to(denoiser, other) - served_to(denoiser, x)).flatten(1).norm(dim=1)
        assert (change <= (other - x).flatten(1).norm(dim=1)).all()


def test_the_bound_on_the_distance_covers_shifted_imaginary_parts():
    generator = torch.Generator().manual_seed(1)
    x = 0.3 * torch.randn(1, 1, 16, 16, generator=generator, dtype=torch.complex64)
    mask = torch.rand(16, 16, generator=generator) < 0.6
    H = MRI(mask, images="complex", convention="centred")
    denoiser = resolve_shipped("lls").at(7, range=FOLDED_RANGE)
    far = pnp.fbs(H.forward(x), H, denoiser, 0.3, contraction=0.9, tol=1e-6)
    y = H.forward(x).to(torch.complex128)
    near = pnp.fbs(y, H, denoiser.double(), 0.3, contraction=0.9, tol=1e-12, max_steps=5000)
    distance = float((far.value - near.value).norm())
    assert far.certificate.distance is not None
    assert distance <= far.certificate.distance < 2 * distance


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda x: x, 0.0),
        (lambda x: 3 * x, 0.2),  # brighter than in the training
        (lambda x: x - 1, 0.2),
        (lambda x: torch.complex(x, x - 0.5), 0.0),
        (lambda x: torch.complex(x, 3 * x), 0.2),
    ],
)
def test_values_that_the_denoiser_was_not_trained_on_are_counted(make, most):
    x = make(torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(2)))
    served = resolve_shipped("lls").at(7, range=FOLDED_RANGE if x.is_complex() else UNIT_RANGE)
    mask = torch.ones(16, 16, dtype=torch.bool)
    H = MRI(mask, images="complex" if x.is_complex() else "real")
    share = pnp.fbs(H.forward(x), H, served, 0.1).certificate.unfamiliar
    assert share == 0 if most == 0 else share > most


def test_a_denoiser_that_says_no_range_says_nothing_of_new_values(weights):
    H = MRI(torch.ones(16, 16, dtype=torch.bool))
    solution = pnp.fbs(H.forward(torch.rand(1, 1, 16, 16)), H, nn.Softshrink(0.1), 0.1)
    assert solution.certificate.unfamiliar is None
