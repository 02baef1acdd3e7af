"""Adaptive ridge energies: the network keeps its bound, the second energy its promises, and files are proven again."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lipspline.priors import resolve
from lipspline.priors.adaptive import (
    NETWORK_PARTS,
    AdaptiveRidge,
    WeightedRidge,
    WeightNetwork,
    load_adaptive,
    save_adaptive,
)
from lipspline.priors.ridge import RidgeEnergy
from lipspline.priors.ridge_files import tensors_checksum

NODES = torch.tensor([2.0, 8.0, 32.0]) / 255


def ridge(channels=8, kernel=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    filters = torch.randn(channels, 1, kernel, kernel, generator=g)
    mirrored, even = filters.flip(2, 3), channels // 2
    filters = torch.cat([filters[:even] + mirrored[:even], filters[even:] - mirrored[even:]]) / (
        4 * kernel * channels**0.5
    )
    slopes = torch.rand(channels, 6, generator=g)
    slopes[:, -1] = 0
    scale = torch.rand(channels, 3, generator=g)
    return RidgeEnergy(filters, slopes, scale, torch.rand(3, generator=g) + 1, NODES, even=even, radius=3.0)


def network(channels=8, middle=6, seed=1, gain=1.0):
    g = torch.Generator().manual_seed(seed)
    shapes = {
        "detect": (middle, 1, 7, 7),
        "lift": (middle,),
        "combine": (middle, middle, 3, 3),
        "combine_bias": (middle,),
        "decide": (channels, middle, 3, 3),
        "decide_bias": (channels,),
        "log_gain": (3,),
    }
    return WeightNetwork(nodes=NODES, **{name: gain * torch.randn(s, generator=g) / 4 for name, s in shapes.items()})


def adaptive():
    return AdaptiveRidge(ridge(seed=0), ridge(seed=2), network())


def test_the_weights_are_the_formula():
    """Against the network written out with its own gain, at two noise levels, one between nodes."""
    g = network()
    x = torch.rand(2, 1, 12, 14)
    for noise, gain in (
        (NODES[1].item(), g.log_gain[1].exp()),
        (4 / 255, (g.log_gain[0] + g.log_gain[1]).div(2).exp()),
    ):
        z = torch.nn.functional.conv2d(x * gain / noise, g.detect, padding=3).abs() + g.lift[:, None, None]
        z = torch.nn.functional.conv2d(z.clamp_min(0), g.combine, g.combine_bias, padding=1).clamp_min(0)
        z = torch.nn.functional.conv2d(z, g.decide, g.decide_bias, padding=2, dilation=2)
        torch.testing.assert_close(g(x, noise), 1 / (1 + (-z).exp()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_the_network_keeps_its_bound_and_comes_near_it(seed):
    """The norm of its Jacobian is found by power iteration at random images, where it is never above the bound."""
    g, noise = network(seed=seed, gain=0.5), 8 / 255
    x = torch.rand(1, 1, 10, 10, dtype=torch.float64)
    g = g.double()
    jacobian = torch.func.jacrev(lambda image: g(image, noise))(x).reshape(-1, 100)
    size = float(torch.linalg.matrix_norm(jacobian, 2))
    assert 1e-3 * g.lipschitz(noise) < size <= g.lipschitz(noise)


def test_the_bound_of_the_network_is_attained_by_a_linear_one():
    """One pixel wide layers, weights near 1/2, nothing cut off: G(x) = sigmoid(κ x), whose slope at 0 is κ/4."""
    one = {"detect": torch.zeros(1, 1, 7, 7), "combine": torch.zeros(1, 1, 3, 3), "decide": torch.zeros(1, 1, 3, 3)}
    for kernel in one.values():
        kernel[0, 0, kernel.shape[-1] // 2, kernel.shape[-1] // 2] = 1
    biases = {name: torch.zeros(1) for name in ("lift", "combine_bias", "decide_bias")}
    g = WeightNetwork(**one, **biases, log_gain=torch.zeros(3), nodes=NODES).double()
    noise, t = NODES[1].item(), 1e-6
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    moved = g(x + t, noise) - g(x, noise)
    assert float(moved.norm()) / (4 * t) == pytest.approx(g.lipschitz(noise), rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_gradients_of_the_second_energy_move_by_at_most_the_sensitivity(seed):
    at = adaptive().at(8 / 255)
    gen = torch.Generator().manual_seed(seed)
    a, z = torch.rand(1, 1, 16, 16, generator=gen).double(), 4 * torch.rand(1, 1, 16, 16, generator=gen).double()
    b = a + 10.0**-(seed) * torch.randn(a.shape, generator=gen)
    moved = at.adapted(a).wide().gradient(z) - at.adapted(b).wide().gradient(z)
    assert 0 < float(moved.norm()) <= at.sensitivity * float((a - b).norm())


def test_the_sensitivity_is_that_of_its_parts():
    ridges = adaptive()
    at = ridges.at(8 / 255)
    t = torch.linspace(-50, 50, 200001, dtype=torch.float64)
    from lipspline.kernels import piecewise_affine

    b, s, scale, offset = at.second.tables
    values = piecewise_affine(t.expand(8, -1)[None], b.double(), s.double(), scale.double(), offset)
    norm = torch.fft.fft2(ridges.second.filters.double(), s=(64, 64)).abs().square().sum(dim=0).max().sqrt()
    expected = float(norm * values.abs().max()) * ridges.network.lipschitz(8 / 255)
    assert expected <= at.sensitivity <= expected * 1.01


def test_a_weighted_energy_has_the_gradient_of_its_value():
    energy = ridge().at(8 / 255)
    weights = torch.rand(2, 8, 9, 11)
    weighted = WeightedRidge(energy, weights).wide()
    x = torch.rand(2, 1, 9, 11, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(weighted(x).sum(), x)
    torch.testing.assert_close(weighted.gradient(x.detach()), expected)


def test_a_weighted_gradient_in_c_is_the_formula():
    energy, weights = ridge().at(8 / 255), torch.rand(2, 8, 30, 41)
    x = torch.rand(2, 1, 30, 41)
    expected = WeightedRidge(energy, weights).wide().gradient(x.double())
    torch.testing.assert_close(WeightedRidge(energy, weights).gradient(x).double(), expected, rtol=1e-4, atol=1e-5)


def test_some_images_of_a_batch_keep_their_own_weights():
    weighted = WeightedRidge(ridge().at(8 / 255), torch.rand(6, 8, 9, 11))
    x = torch.rand(3, 1, 9, 11)
    both = torch.cat([x, 2 * x])
    whole = weighted.gradient(both)
    rows = torch.tensor([0, 2])
    some = weighted.select(rows, 2).gradient(both[[0, 2, 3, 5]])
    torch.testing.assert_close(some, whole[[0, 2, 3, 5]])


@pytest.mark.parametrize("weights", [torch.full((1, 8, 4, 4), 1.5), torch.full((1, 8, 4, 4), -0.1)])
def test_weights_outside_the_unit_interval_are_refused(weights):
    with pytest.raises(ValueError, match="between 0 and 1"):
        WeightedRidge(ridge().at(8 / 255), weights)


def test_energies_that_are_not_convex_or_not_bounded_are_refused():
    good = ridge()
    slopes = good.slopes.clone()
    slopes[0, -1] = 0.5
    parts = (good.log_scale, good.log_strength, good.nodes)
    with pytest.raises(ValueError, match="last slopes"):
        AdaptiveRidge(good, RidgeEnergy(good.filters, slopes, *parts, even=4, radius=3.0), network())
    weak = RidgeEnergy(good.filters, good.slopes - 0.01, *parts, even=4, radius=3.0)
    with pytest.raises(ValueError, match="convex"):
        AdaptiveRidge(good, weak, network())
    with pytest.raises(ValueError, match="6 weights for 8 filters"):
        AdaptiveRidge(good, good, network(channels=6))


def test_a_file_is_read_as_it_was_written(tmp_path):
    before = adaptive()
    save_adaptive(before, tmp_path / "a.safetensors")
    after = load_adaptive(tmp_path / "a.safetensors")
    y = torch.rand(1, 1, 20, 20)
    assert torch.equal(before.denoise(y, 0.05), after.denoise(y, 0.05))
    assert resolve(tmp_path / "a.safetensors").name == "a.safetensors"


def test_a_file_with_changed_weights_or_promises_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    save_adaptive(adaptive(), path)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    louder = tensors | {"network.detect": 3 * tensors["network.detect"]}
    save_file(louder, path, metadata)
    with pytest.raises(ValueError, match="checksum"):
        load_adaptive(path)
    save_file(
        louder,
        path,
        metadata | {"sha256": tensors_checksum(louder, {k: v for k, v in metadata.items() if k != "sha256"})},
    )
    with pytest.raises(ValueError, match="only prove"):
        load_adaptive(path)
    fewer = {name: tensor for name, tensor in tensors.items() if name != "network.lift"}
    rest = {k: v for k, v in metadata.items() if k != "sha256"}
    save_file(fewer, path, rest | {"sha256": tensors_checksum(fewer, rest)})
    with pytest.raises(ValueError, match="damaged"):
        load_adaptive(path)
    assert json.loads(metadata["config"])["first"]["even"] == 4
    assert len(NETWORK_PARTS) == 8


def test_the_shipped_one_denoises_better_than_its_first_pass():
    prior, first = resolve("ridge-adaptive"), resolve("ridge")
    g = torch.Generator().manual_seed(0)
    clean = torch.zeros(1, 1, 64, 64)
    clean[..., 16:48, 20:44] = 0.6
    y = clean + 15 / 255 * torch.randn(clean.shape, generator=g)
    from lipspline.operators import Identity
    from lipspline.pnp import minimize

    errors = [
        float((minimize(y, Identity((1, 64, 64)), p.at(15), p.strength(15), tol=1e-4).value - clean).norm())
        for p in (first, prior)
    ]
    assert errors[1] < 0.95 * errors[0]


def test_the_bound_is_that_of_the_weights_as_they_are_now():
    g = network()
    before = g.lipschitz(8 / 255)
    g.combine.mul_(3)
    assert g.lipschitz(8 / 255) == pytest.approx(3 * before, rel=1e-6)


@pytest.mark.parametrize("key", ["config", "certificate", "provenance"])
@pytest.mark.parametrize("text", ["null", "[]", "{", "1e999", "[" * 5000 + "]" * 5000])
def test_metadata_of_another_kind_are_refused_in_a_sentence(key, text, tmp_path):
    path = tmp_path / "a.safetensors"
    save_adaptive(adaptive(), path)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    rest = {k: v for k, v in metadata.items() if k != "sha256"} | {key: text}
    save_file(tensors, path, rest | {"sha256": tensors_checksum(tensors, rest)})
    with pytest.raises(ValueError, match=f"is damaged: its {key} is not"):
        load_adaptive(path)


@pytest.mark.parametrize("kind", [torch.complex64, torch.int32, torch.float16])
def test_tensors_of_another_kind_are_refused_in_a_sentence(kind):
    parts = dict(network().named_buffers())
    with pytest.raises(ValueError, match="float32"):
        WeightNetwork(**parts | {"nodes": parts["nodes"].to(kind)})
