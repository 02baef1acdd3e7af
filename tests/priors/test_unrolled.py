"""Unrolled denoisers as priors: the certificate, what does not matter to them, and files that are proven again."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import lipspline as ls
from lipspline.imaging.denoise import denoise_file
from lipspline.imaging.verify import verify
from lipspline.priors.ridge import RidgeEnergy, normalised
from lipspline.priors.ridge_files import tensors_checksum
from lipspline.priors.unrolled import FORMAT, UnrolledDenoiser, load_unrolled, save_unrolled


def energy(seed: int, strength: float = 4.0, low: float = 0.0) -> RidgeEnergy:
    """Filters with mean zero, half of them even."""
    g = torch.Generator().manual_seed(seed)
    raw = torch.randn(8, 1, 5, 5, generator=g)
    even = raw[:4] + raw[:4].flip(2, 3)
    filters = torch.cat([even - even.mean(dim=(2, 3), keepdim=True), raw[4:] - raw[4:].flip(2, 3)])
    even_exactly = (filters[:4] + filters[:4].flip(2, 3)) / 2
    slopes = low + (1 - low) * torch.rand(8, 6, generator=g)
    nodes = torch.logspace(-2, 0, 3)
    log_scale, log_strength = torch.randn(8, 3, generator=g) / 4, torch.full((3,), strength).log()
    return normalised(
        RidgeEnergy(torch.cat([even_exactly, filters[4:]]), slopes, log_scale, log_strength, nodes, even=4, radius=2.0)
    )


@pytest.fixture
def denoiser() -> UnrolledDenoiser:
    return UnrolledDenoiser([energy(0), energy(1, 9.0)], [2, 1], provenance={"note": "test"})


@pytest.mark.parametrize("noise", [1e-3, 0.05, 0.3, 5.0])
def test_it_is_certified_at_every_noise_level(denoiser, noise):
    served = denoiser.at(noise)
    assert ls.certify(served).upper == 1
    x = torch.randn(1, 1, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian = torch.func.jacrev(served.double())(noise * x).reshape(25, 25)
    assert float(torch.linalg.matrix_norm(jacobian, ord=2)) <= 1 + 1e-12


def test_the_steps_are_those_of_the_energies(denoiser):
    noise, y = 0.1, torch.rand(2, 1, 12, 15)
    x = y
    for one in (denoiser.energies[0], denoiser.energies[0], denoiser.energies[1]):
        strength = one.strength(noise)
        tau = 2 / (2 + strength)
        x = (1 - tau) * x + tau * y - tau * strength * one.gradient(x, noise)
    torch.testing.assert_close(denoiser.at(noise)(y), x, atol=2e-5, rtol=0)


def test_signs_do_not_matter_and_offsets_only_near_the_border(denoiser):
    served, y = denoiser.at(0.1), torch.rand(1, 1, 40, 40)
    torch.testing.assert_close(served(-y), -served(y), atol=1e-6, rtol=0)
    moved = served(y + 1) - 1 - served(y)
    assert float(moved[..., 14:-14, 14:-14].abs().max()) < 1e-5
    assert float(moved.abs().max()) > 1e-3


def test_beyond_the_nodes_it_is_the_same_denoiser_in_other_units(denoiser):
    y = torch.rand(1, 1, 12, 12)
    torch.testing.assert_close(denoiser.at(3.0)(3 * y), 3 * denoiser.at(1.0)(y), atol=1e-5, rtol=0)


def test_a_file_gives_back_the_same_denoiser(denoiser, tmp_path):
    save_unrolled(denoiser, tmp_path / "d.safetensors")
    prior = ls.priors.resolve(tmp_path / "d.safetensors")
    y = torch.rand(1, 1, 12, 12)
    assert prior.kind is ls.priors.Kind.DENOISER
    assert prior.levels == (2.55, 25.5, 255.0)
    assert "3 steps" in prior.summary
    assert torch.equal(prior.at(25.5)(y), denoiser.at(0.1)(y))
    assert load_unrolled(tmp_path / "d.safetensors").provenance == {"note": "test"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t, m: t["1.filters"].mul_(1.01), "constant of at most 1"),
        (lambda t, m: t["0.slopes"].sub_(2.0), "weak convexity"),
        (lambda t, m: t.pop("1.slopes"), "has no '1.slopes'"),
        (lambda t, m: t.update(extra=torch.zeros(1)), "unknown tensors"),
        (lambda t, m: m.update(config=json.dumps({"energies": 3})), "no list of energies"),
        (lambda t, m: m.update(config=m["config"].replace('"steps": 2', '"steps": 0')), "at least one step"),
        (lambda t, m: m.update(config=m["config"].replace('"steps": 2', '"steps": 99999')), "at most 1000"),
        (lambda t, m: m.update(certificate=json.dumps({"upper": 0.5})), "only proven to have 1"),
    ],
)
def test_a_file_made_to_look_right_is_refused(change, sentence, denoiser, tmp_path):
    path = tmp_path / "d.safetensors"
    save_unrolled(denoiser, path)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del metadata["sha256"]
    change(tensors, metadata)
    save_file(tensors, path, metadata | {"sha256": tensors_checksum(tensors, metadata)})
    with pytest.raises(ValueError, match=sentence):
        load_unrolled(path)


def test_a_changed_file_is_refused(denoiser, tmp_path):
    path = tmp_path / "d.safetensors"
    save_unrolled(denoiser, path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="checksum does not match"):
        load_unrolled(path)


def test_energies_that_prove_nothing_are_refused():
    with pytest.raises(ValueError, match=r"number 0 has .* weak convexity"):
        UnrolledDenoiser([energy(0, low=-0.5)], [1])
    with pytest.raises(ValueError, match="for each of 1 energies"):
        UnrolledDenoiser([energy(0)], [1, 2])


def test_it_reconstructs_with_the_certificate_of_a_nonexpansive_denoiser(denoiser):
    H = ls.operators.MRI(ls.operators.cartesian_mask(16, acceleration=2, center=0.25, seed=0), convention="paper")
    solution = ls.pnp.fbs(H.forward(torch.rand(1, 1, 16, 16)), H, denoiser.at(0.1), beta=0.5, tol=1e-4)
    assert solution.converged
    assert solution.certificate.setting.denoiser == 1  # type: ignore[union-attr]
    assert not solution.certificate.violations


def test_files_are_denoised_and_verified(denoiser, tmp_path):
    save_unrolled(denoiser, tmp_path / "d.safetensors")
    image = (np.random.default_rng(0).random((40, 50)) * 255).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "in.png")
    done = denoise_file(tmp_path / "in.png", tmp_path / "out.png", noise=10.0, model=str(tmp_path / "d.safetensors"))
    assert done.lipschitz == 1
    assert done.trained_noise is None
    expected = denoiser.at(10 / 255)(torch.from_numpy(image).float()[None, None] / 255).mul(255).round().clamp(0, 255)
    found = torch.from_numpy(np.array(Image.open(tmp_path / "out.png"))).float()
    assert float((found - expected[0, 0]).abs().max()) <= 1
    assert verify(tmp_path / "out.png").holds


def test_the_format_is_named():
    assert FORMAT == "lipspline-unrolled/1"
