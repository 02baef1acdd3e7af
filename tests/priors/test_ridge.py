"""Ridge energies: gradients, constants that are proven and attained, nonexpansive proxes, checked files."""

import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn import functional as F

from lipspline.functional.ridge import bank_norm_upper, hats, odd_tables, potential_constants
from lipspline.kernels import piecewise_affine
from lipspline.kernels import ridge as kernel
from lipspline.priors import ridge_files
from lipspline.priors.ridge import RidgeEnergy, normalised
from lipspline.priors.ridge_files import load_ridge, save_ridge

NODES = torch.tensor([0.01, 0.02, 0.04])
NOISE = 0.03


def symmetric_filters(channels, size, dtype=torch.float32):
    """Half of them even with mean zero, half odd."""
    w = torch.randn(channels, 1, size, size, dtype=dtype, generator=torch.Generator().manual_seed(0)) / size
    even, odd = w.chunk(2)
    even = even + even.flip(2, 3)
    return torch.cat([even - even.mean(dim=(2, 3), keepdim=True), odd - odd.flip(2, 3)])


def make_energy(channels=8, size=5, low=0.0, dtype=torch.float32, strength=2.0):
    g = torch.Generator().manual_seed(1)
    slopes = low + (1 - low) * torch.rand(channels, 6, generator=g, dtype=dtype)
    slopes[:, 0], slopes[:, -1] = 1.0, 0.0
    filters = symmetric_filters(channels, size, dtype)
    return RidgeEnergy(
        filters / math.sqrt(bank_norm_upper(filters) * (1 + 1e-6)),
        slopes,
        torch.randn(channels, 3, generator=g, dtype=dtype) / 4,
        torch.full((3,), math.log(strength), dtype=dtype),
        NODES.to(dtype),
        even=channels // 2,
        radius=3.0,
    )


def dense(filters, height, width):
    """The matrix of the bank with zeros around an image."""
    images = torch.eye(height * width, dtype=torch.float64).reshape(-1, 1, height, width)
    return F.conv2d(images, filters.double(), padding=filters.shape[-1] // 2).flatten(1).mT


def test_the_odd_tables_are_a_spline_through_its_knots():
    """Against interpolation between cumulative sums of the slopes."""
    slopes = torch.rand(3, 7, dtype=torch.float64)
    scale = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    b, s, region_scale, offset = odd_tables(slopes, 2.0, scale)
    for c in range(3):
        t = torch.linspace(0, 4 / float(scale[c]), 101, dtype=torch.float64)
        u = (t * scale[c] * 7 / 2).clamp_max(6.999)
        values = F.pad(slopes[c].cumsum(0) * 2 / 7, (1, 0))
        i = u.long()
        expected = (values[i] + slopes[c][i] * (t * scale[c] - i * 2 / 7)) / scale[c]
        i = (region_scale[c] * t + offset).floor().clamp(0, 13).long()
        torch.testing.assert_close(b[c][i] + s[c][i] * t, expected)
        i = (region_scale[c] * -t + offset).floor().clamp(0, 13).long()
        torch.testing.assert_close(b[c][i] - s[c][i] * t, -expected)


def test_the_potential_is_a_continuous_primitive():
    tables = odd_tables(torch.rand(2, 5, dtype=torch.float64), 2.0, torch.tensor([0.7, 2.0], dtype=torch.float64))
    p = potential_constants(tables)
    knots = (torch.arange(1, 10, dtype=torch.float64) - tables.offset) / tables.scale[:, None]
    left, right = (
        p[:, i] + tables.b[:, i] * knots + tables.s[:, i] * knots.square() / 2 for i in (slice(0, 9), slice(1, 10))
    )
    torch.testing.assert_close(left, right)
    assert (p[:, 4:6] == 0).all()


def test_interpolation_is_exact_at_nodes_and_constant_beyond():
    assert torch.allclose(hats(NODES, NODES), torch.eye(3), atol=1e-5)
    assert torch.allclose(hats(torch.tensor([1e-4, 1.0]), NODES), torch.eye(3)[[0, 2]])
    assert torch.allclose(hats(torch.tensor(math.sqrt(0.01 * 0.02)), NODES), torch.tensor([0.5, 0.5, 0.0]), atol=1e-5)


@pytest.mark.parametrize("low", [0.0, -0.3])
def test_the_gradient_is_the_derivative_of_the_energy(low):
    fixed = make_energy(channels=4, size=3, low=low, dtype=torch.float64).at(NOISE)
    x = torch.rand(2, 1, 4, 3, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(fixed(x).sum(), x)
    torch.testing.assert_close(fixed.gradient(x), derivative)
    assert torch.autograd.gradcheck(fixed, (x,))


def test_the_energy_is_what_the_formula_says():
    """Clips that are wider than any response: half the squared norm of the responses."""
    energy = RidgeEnergy(
        symmetric_filters(4, 3), torch.ones(4, 2), torch.zeros(4, 3), torch.zeros(3), NODES, even=2, radius=1.0
    )
    x = torch.rand(3, 1, 6, 5)
    expected = F.conv2d(x, energy.filters, padding=1).square().sum(dim=(1, 2, 3)) / 2
    torch.testing.assert_close(energy.energy(x, NOISE), expected)


def test_the_scale_divides_responses_and_multiplies_the_energy():
    r"""R_s(x) with a twice as large is R_s(2 x) / 4."""
    first = make_energy(dtype=torch.float64)
    second = RidgeEnergy(
        first.filters, first.slopes, first.log_scale + math.log(2), first.log_strength, first.nodes,
        even=first.even, radius=first.radius,
    )  # fmt: skip
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(second.energy(x, NOISE), first.energy(2 * x, NOISE) / 4)


def test_the_adjoint_is_the_transpose():
    fixed = make_energy(dtype=torch.float64).at(NOISE)
    matrix = dense(fixed.filters, 6, 5)
    z = torch.randn(1, 8, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(fixed.adjoint(z).flatten(), matrix.mT @ z.flatten())
    x = torch.randn(1, 1, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(fixed.responses(x).flatten(), matrix @ x.flatten())


@pytest.mark.parametrize(("channels", "size"), [(1, 3), (4, 5), (8, 13)])
def test_the_bound_on_the_bank_is_above_the_norm_and_close(channels, size):
    filters = torch.randn(channels, 1, size, size, generator=torch.Generator().manual_seed(size))
    upper = bank_norm_upper(filters)
    power = torch.fft.fft2(filters[:, 0].double(), s=(509, 509)).abs().square().sum(dim=0)  # frequencies of its own
    assert float(power.max()) <= upper <= 1.002 * float(power.max())


def test_the_bound_on_the_bank_is_above_the_dense_norm_and_attained_in_the_limit():
    """Filters that peak at frequency π in both directions, where a small image already comes close."""
    sign = torch.tensor([1.0, -1.0, 1.0])
    filters = torch.outer(sign, sign)[None, None] * torch.rand(3, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    norms = [float(torch.linalg.matrix_norm(dense(filters, n, n), ord=2)) ** 2 for n in (4, 16)]
    upper = bank_norm_upper(filters)
    assert norms[0] < norms[1] <= upper
    torch.testing.assert_close(upper, 81 * float(filters[:, 0, 0, 0].double().square().sum()), rtol=4e-4, atol=0)
    assert upper <= 1.06 * norms[1]


def test_scaled_filters_have_scaled_bounds():
    filters = torch.randn(4, 1, 5, 5)
    torch.testing.assert_close(bank_norm_upper(3 * filters.double()), 9 * bank_norm_upper(filters))
    assert bank_norm_upper(torch.zeros(4, 1, 5, 5)) == 0
    with pytest.raises(ValueError, match="finite"):
        bank_norm_upper(filters * math.inf)


@pytest.mark.parametrize("low", [0.0, -0.3])
def test_constants_bound_the_slope_of_the_gradient_and_are_nearly_attained(low):
    """The Hessian Wᵀ diag(σ') W of the formula, dense, near its extreme: slopes 1, or `low`, in all regions."""
    energy = make_energy(low=low)
    assert energy.upper <= 1
    extreme = low if low else 1.0
    constant = RidgeEnergy(
        energy.filters, torch.full_like(energy.slopes, extreme), energy.log_scale, energy.log_strength, energy.nodes,
        even=energy.even, radius=energy.radius,
    ).at(NOISE)  # fmt: skip
    images = torch.eye(14 * 14, dtype=torch.float64).reshape(-1, 1, 14, 14)
    hessian = constant.gradient(images).flatten(1)
    eigenvalues = torch.linalg.eigvalsh(hessian)
    if low:
        assert constant.weak_convexity == pytest.approx(0.3, rel=1e-3)
        assert -constant.weak_convexity <= float(eigenvalues.min()) <= -0.9 * constant.weak_convexity
    else:
        assert 0.9 * constant.lipschitz <= float(eigenvalues.max()) <= constant.lipschitz
        assert float(eigenvalues.min()) >= -1e-12


def test_the_convexity_of_denoising_is_one_minus_strength_times_weakness():
    energy = make_energy(low=-0.3, strength=2.0)
    strength = energy.strength(0.01)
    assert energy.denoising_convexity == pytest.approx(1 - strength * energy.weak, abs=1e-4)
    assert energy.denoising_convexity <= 1 - strength * energy.weak
    assert make_energy().convex
    assert make_energy().denoising_convexity == 1


def test_normalising_keeps_the_denoisers():
    plain = make_energy(dtype=torch.float64)
    larger = RidgeEnergy(
        1.7 * plain.filters, plain.slopes, plain.log_scale - math.log(1.7), plain.log_strength - 2 * math.log(1.7),
        plain.nodes, even=plain.even, radius=plain.radius,
    )  # fmt: skip
    assert larger.upper > 2.8
    again = normalised(larger)
    assert again.upper <= 1
    assert again.strength(NOISE) == pytest.approx(plain.strength(NOISE), rel=1e-3)
    y = torch.rand(1, 1, 10, 10, dtype=torch.float64)
    expected = larger.denoise(y, NOISE, tol=1e-9).value
    torch.testing.assert_close(again.denoise(y, NOISE, tol=1e-9).value, expected, atol=1e-7, rtol=0)


def test_signs_and_complex_parts_are_treated_alike():
    energy = make_energy()
    x = torch.randn(2, 1, 12, 9)
    torch.testing.assert_close(energy.gradient(-x, NOISE), -energy.gradient(x, NOISE))
    torch.testing.assert_close(energy.energy(-x, NOISE), energy.energy(x, NOISE))
    z = torch.complex(x, x.flip(2))
    torch.testing.assert_close(energy.gradient(z, NOISE).imag, energy.gradient(x.flip(2), NOISE))
    torch.testing.assert_close(energy.energy(z, NOISE), energy.energy(x, NOISE) + energy.energy(x.flip(2), NOISE))
    torch.testing.assert_close(energy.gradient(1j * z, NOISE), 1j * energy.gradient(z, NOISE))


def test_offsets_do_not_matter_away_from_the_border():
    energy = make_energy(dtype=torch.float64)
    x = torch.rand(1, 1, 20, 20, dtype=torch.float64)
    inner = (..., slice(4, -4), slice(4, -4))
    torch.testing.assert_close(energy.gradient(x + 3, NOISE)[inner], energy.gradient(x, NOISE)[inner])
    assert not torch.allclose(energy.gradient(x + 3, NOISE), energy.gradient(x, NOISE))


@pytest.mark.skipif(not kernel.has_ridge(torch.zeros(1)), reason="the C kernels cannot run here")
@pytest.mark.parametrize("size", [(1, 1), (5, 24), (17, 31), (40, 49)])
@pytest.mark.parametrize("filter_size", [3, 13])
def test_the_kernel_computes_the_same_gradient(size, filter_size):
    energy = make_energy(channels=16, size=filter_size, low=-0.2)
    x = torch.randn(3, 1, *size)
    x[0] *= 100
    fixed = energy.at(NOISE)
    expected = F.conv_transpose2d(
        _spline(F.conv2d(x.double(), energy.filters.double(), padding=filter_size // 2), fixed.tables),
        energy.filters.double(),
        padding=filter_size // 2,
    )
    scale = float(expected.abs().max())
    torch.testing.assert_close(fixed.gradient(x).double(), expected, atol=2e-6 * scale, rtol=0)
    torch.testing.assert_close(fixed.gradient(x)[1:2], fixed.gradient(x[1:2]), atol=0, rtol=0)


def _spline(z, tables):
    b, s, scale, offset = (t.double() if isinstance(t, torch.Tensor) else t for t in tables)
    i = (scale[:, None, None] * z + offset).floor().clamp(0, s.shape[1] - 1).long()
    rows = torch.arange(len(s))[:, None, None].expand_as(i)
    return b[rows, i] + s[rows, i] * z


@pytest.mark.skipif(not kernel.has_ridge(torch.zeros(1)), reason="the C kernels cannot run here")
def test_the_pairing_has_the_derivatives_of_its_formula():
    """Against autograd through the convolutions, one set of tables for each image."""
    filters = symmetric_filters(8, 5).requires_grad_()
    slopes = torch.rand(8, 4, requires_grad=True)
    scale = torch.rand(2, 8) + 0.5
    e, x = torch.randn(2, 2, 1, 11, 30)
    results = []
    for use_kernel in (True, False):
        tables = odd_tables(slopes, 2.0, scale)
        if use_kernel:
            pairing = kernel.ridge_pairing(e, x, filters, 4, tables)
        else:
            z, u = (F.conv2d(image, filters, padding=2) for image in (x, e))
            pairing = (u * piecewise_affine(z, *tables)).sum(dim=(1, 2, 3))
        by_filters, by_slopes = torch.autograd.grad((pairing * torch.tensor([1.0, -2.0])).sum(), (filters, slopes))
        even, odd = by_filters.chunk(2)  # only what keeps filters even or odd counts
        halves = torch.cat([even + even.flip(2, 3), odd - odd.flip(2, 3)])
        results.append((pairing.detach(), halves, by_slopes))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-4)


def test_the_prox_solves_its_equation_and_knows_how_well():
    energy = make_energy(low=-0.2, dtype=torch.float64)
    y = torch.rand(2, 1, 12, 12, dtype=torch.float64)
    exact = energy.denoise(y, NOISE, tol=1e-12, max_steps=5000)
    gradient = exact.value - y + energy.strength(NOISE) * energy.gradient(exact.value, NOISE)
    assert float(gradient.abs().max()) < 1e-11
    rough = energy.denoise(y, NOISE, tol=1e-3)
    error = float((rough.value - exact.value).square().mean(dim=(1, 2, 3)).max().sqrt())
    assert 0 < error <= rough.distance <= 1e-3
    assert rough.steps < exact.steps
    short = energy.denoise(y, NOISE, tol=1e-12, max_steps=3)
    assert short.steps == 3
    assert short.distance > 1e-12


def test_the_prox_of_a_quadratic_energy_is_a_linear_solve():
    """All slopes one: (Id + λ WᵀW) x = y."""
    energy = make_energy(dtype=torch.float64)
    energy = RidgeEnergy(
        energy.filters, torch.ones_like(energy.slopes), energy.log_scale, energy.log_strength, energy.nodes,
        even=energy.even, radius=energy.radius,
    )  # fmt: skip
    matrix = dense(energy.filters, 7, 6)
    y = torch.randn(1, 1, 7, 6, dtype=torch.float64)
    system = torch.eye(42, dtype=torch.float64) + energy.strength(NOISE) * matrix.mT @ matrix
    expected = torch.linalg.solve(system, y.flatten())
    torch.testing.assert_close(energy.denoise(y, NOISE, tol=1e-11).value.flatten(), expected, atol=1e-9, rtol=0)
    assert torch.linalg.eigvalsh(system).max() <= 1 + energy.strength(NOISE) * energy.upper


def test_the_prox_of_a_convex_energy_is_firmly_nonexpansive():
    r"""‖Py - Pv‖² <= ⟨Py - Pv, y - v⟩, with equality where the energy does not see the difference."""
    energy = make_energy(dtype=torch.float64)
    for size in (1e-3, 0.1, 3.0):
        y = torch.rand(1, 1, 10, 10, dtype=torch.float64)
        v = y + size * torch.randn_like(y)
        difference = energy.denoise(y, NOISE, tol=1e-10).value - energy.denoise(v, NOISE, tol=1e-10).value
        assert float(difference.square().sum()) <= float((difference * (y - v)).sum()) + 1e-9
    zero = RidgeEnergy(
        energy.filters, torch.zeros_like(energy.slopes), energy.log_scale, energy.log_strength, energy.nodes,
        even=energy.even, radius=energy.radius,
    )  # fmt: skip
    torch.testing.assert_close(zero.denoise(y, NOISE).value, y)


def test_the_prox_of_a_weakly_convex_energy_has_its_lipschitz_constant():
    """One over 1 - λρ; nearly attained by the extreme slopes everywhere."""
    energy = make_energy(low=-0.3, dtype=torch.float64)
    strength, y = energy.strength(NOISE), torch.rand(1, 1, 10, 10, dtype=torch.float64)
    v = y + 0.01 * torch.randn_like(y)
    difference = energy.denoise(y, NOISE, tol=1e-10).value - energy.denoise(v, NOISE, tol=1e-10).value
    assert float(difference.norm()) <= float((y - v).norm()) / (1 - strength * energy.weak)
    extreme = RidgeEnergy(
        energy.filters, torch.full_like(energy.slopes, -0.3), energy.log_scale, energy.log_strength, energy.nodes,
        even=energy.even, radius=energy.radius,
    )  # fmt: skip
    hessian = strength * extreme.at(NOISE).gradient(torch.eye(196, dtype=torch.float64).reshape(-1, 1, 14, 14))
    worst = torch.linalg.eigh(hessian.flatten(1)).eigenvectors[:, 0].reshape(1, 1, 14, 14)
    gain = float(extreme.denoise(worst, NOISE, tol=1e-9).value.norm())
    assert 0.8 / (1 - strength * extreme.weak) <= gain <= 1 / (1 - strength * extreme.weak)


def test_a_strength_that_is_too_large_is_refused():
    fixed = make_energy(low=-0.3).at(NOISE)
    with pytest.raises(ValueError, match=r"strength·ρ < 1"):
        fixed.prox(torch.rand(1, 1, 8, 8), 4.0)


@pytest.mark.parametrize("noise", [0, -1.0, math.nan, math.inf, "15"])
def test_a_noise_level_must_be_positive(noise):
    with pytest.raises(ValueError, match="noise must be a positive number"):
        make_energy().at(noise)


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (1, 2, 8, 8)])
def test_images_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(B, 1, H, W\)"):
        make_energy().gradient(torch.rand(shape), NOISE)


def test_filters_that_are_neither_even_nor_odd_are_refused():
    energy = make_energy()
    with pytest.raises(ValueError, match="must be even"):
        RidgeEnergy(
            energy.filters + 1e-3 * torch.rand(8, 1, 5, 5), energy.slopes, energy.log_scale, energy.log_strength,
            energy.nodes, even=4, radius=3.0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="log_scale of shape"):
        RidgeEnergy(
            energy.filters, energy.slopes, energy.log_scale[:3], energy.log_strength, energy.nodes, even=4, radius=3.0
        )
    with pytest.raises(ValueError, match="constant ratio"):
        RidgeEnergy(
            energy.filters, energy.slopes, energy.log_scale, energy.log_strength, torch.tensor([0.1, 0.2, 0.3]),
            even=4, radius=3.0,
        )  # fmt: skip


def test_a_file_gives_back_the_same_energy(tmp_path):
    energy = make_energy(low=-0.2)
    energy.provenance = {"trained": {"noise": [0.1, 0.2]}}
    save_ridge(energy, tmp_path / "energy.safetensors")
    again = load_ridge(tmp_path / "energy.safetensors")
    x = torch.rand(1, 1, 16, 16)
    assert torch.equal(again.gradient(x, NOISE), energy.gradient(x, NOISE))
    assert (again.upper, again.weak, again.even, again.provenance) == (
        energy.upper,
        energy.weak,
        energy.even,
        energy.provenance,
    )


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "energy.safetensors"
    save_ridge(make_energy(), path)
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for changed_tensors, changed_metadata in (
        ({**tensors, "slopes": tensors["slopes"] * 0.5}, metadata),
        (tensors, {**metadata, "provenance": json.dumps({"trained": "elsewhere"})}),
        (tensors, {**metadata, "config": metadata["config"].replace("3.0", "4.0")}),
    ):
        save_file(changed_tensors, path, changed_metadata)
        with pytest.raises(ValueError, match="changed after it was written"):
            load_ridge(path)
    save_file(tensors, path, {**metadata, "format": "other"})
    with pytest.raises(ValueError, match="is no ridge energy"):
        load_ridge(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="damaged"):
        load_ridge(path)


def test_a_file_that_promises_too_much_is_refused(tmp_path, monkeypatch):
    energy, path = make_energy(low=-0.2), tmp_path / "energy.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(RidgeEnergy, "weak", 0.1)
        save_ridge(energy, path)
    with pytest.raises(ValueError, match="only prove"):
        load_ridge(path)


ODD = {
    "deep": lambda t, m: m.update(provenance="[" * 100_000 + "]" * 100_000),
    "provenance is no object": lambda t, m: m.update(provenance="null"),
    "infinite": lambda t, m: m.update(config='{"even": 1e999, "radius": 1.0}'),
    "half a filter": lambda t, m: m.update(config='{"even": 4.5, "radius": 3.0}'),
    "promise": lambda t, m: m.update(certificate='{"upper": NaN, "weak": NaN}'),
    "no config": lambda t, m: m.pop("config"),
    "no axis": lambda t, m: t.update(slopes=torch.zeros(())),
    "no filters": lambda t, m: t.pop("filters"),
    "complex": lambda t, m: t.update(log_strength=t["log_strength"].to(torch.complex64)),
    "float8": lambda t, m: t.update(filters=t["filters"].to(torch.float8_e4m3fn)),
    "two types": lambda t, m: t.update(nodes=t["nodes"].double()),
    "true": lambda t, m: t.update(slopes=t["slopes"] > 0),
    "scales": lambda t, m: t.update(log_scale=t["log_scale"] - 500),
    "large": lambda t, m: t.update(filters=torch.zeros(8, 1, 301, 301)),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_file_made_to_look_right_is_refused_in_one_sentence(odd, tmp_path):
    """Whoever writes a file can write its checksum, too."""
    path = tmp_path / "energy.safetensors"
    save_ridge(make_energy(), path)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    ODD[odd](tensors, metadata)
    metadata["sha256"] = ridge_files.tensors_checksum(tensors, metadata)
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError) as error:
        load_ridge(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 900


def test_the_constants_are_those_of_the_weights_as_they_are():
    """What was proven for other numbers is not said of these."""
    energy = make_energy(low=0.0)
    taken = energy.at(NOISE)
    assert taken.double().lipschitz == taken.lipschitz  # the same numbers in another precision
    energy.slopes.mul_(-3)
    assert energy.weak > 2
    assert not energy.convex
    assert energy.upper > 2
    for name in ("filters", "slopes", "intercepts", "scale"):
        changed = make_energy(low=0.0).at(NOISE)
        getattr(changed, name).mul_(-3)
        for constant in ("lipschitz", "weak_convexity"):
            with pytest.raises(ValueError, match="were changed after it was built"):
                getattr(changed, constant)
