"""Total variation and wavelets: adjoints, norms, duality, and a reference for each."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lipspline import kernels
from lipspline.kernels.wavelet import HIGH, LOW, wavelet_merge, wavelet_split
from lipspline.operators import MRI, Identity, cartesian_mask
from lipspline.pnp import Tier, minimize
from lipspline.priors.energy import AnalysisEnergy
from lipspline.priors.sparsity import TotalVariation, WaveletSparsity

ENERGIES = {
    "tv": TotalVariation(),
    "anisotropic tv": TotalVariation("anisotropic"),
    "wavelet": WaveletSparsity(3),
}


def random_image(complex_: bool, shape=(2, 1, 16, 20)) -> Tensor:
    return torch.randn(shape, dtype=torch.complex128 if complex_ else torch.float64)


def pairing(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).real.flatten(1).sum(1)


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("name", ENERGIES)
class TestLaws:
    def test_synthesis_is_the_adjoint_of_analysis(self, name, complex_):
        energy, x = ENERGIES[name], random_image(complex_)
        p = torch.randn_like(energy.analyse(x))
        assert torch.allclose(pairing(energy.analyse(x), p), pairing(x, energy.synthesise(p)))

    def test_the_energy_is_the_largest_pairing_with_the_dual_ball(self, name, complex_):
        """`R(x) = max ⟨p, Dx⟩`: attained by the projection of a multiple of Dx, and by nothing exceeded."""
        energy, x = ENERGIES[name], random_image(complex_)
        features = energy.analyse(x)
        best = energy.project(1e9 * features, 1.0)
        assert torch.allclose(pairing(best, features), energy(x), rtol=1e-6)
        for _ in range(10):
            p = energy.project(3 * torch.randn_like(features), 1.0)
            assert (pairing(p, features) <= energy(x)).all()
            assert torch.allclose(energy.project(p, 1.0), p)
            nearer = energy.project(torch.randn_like(features), 1.0)
            away = features - energy.project(features, 1.0)
            assert (pairing(away, nearer - energy.project(features, 1.0)) <= 1e-9).all()

    def test_the_subgradient_supports_the_energy(self, name, complex_):
        energy, x, z = ENERGIES[name], random_image(complex_), random_image(complex_)
        below = energy(x) + pairing(energy.gradient(x), z - x)
        assert (below <= energy(z) + 1e-6).all()
        assert torch.allclose(pairing(energy.gradient(x), x), energy(x), rtol=1e-6)


@pytest.mark.parametrize("name", ENERGIES)
def test_the_norm_is_an_upper_bound_and_nearly_attained(name):
    """By power iteration on a large image."""
    energy, x = ENERGIES[name], random_image(False, (1, 1, 32, 32))
    for _ in range(60):
        x = energy.synthesise(energy.analyse(x / x.norm()))
    stretch = math.sqrt(float(x.norm()))
    assert 0.95 * energy.norm <= stretch <= energy.norm


def test_total_variation_by_hand():
    x = torch.tensor([[[[0.0, 1.0], [2.0, 5.0]]]])
    # (2, 1) at the first pixel, 4 below the second, 3 beside the third
    assert float(TotalVariation()(x)) == pytest.approx(math.sqrt(5) + 4 + 3)
    assert float(TotalVariation("anisotropic")(x)) == pytest.approx(2 + 1 + 4 + 3)
    with pytest.raises(ValueError, match="direction must be one of 'isotropic', 'anisotropic', but is 'l1'"):
        TotalVariation("l1")


class TestWavelets:
    def test_the_filters_are_orthonormal_with_two_vanishing_moments(self):
        low, high, n = math.sqrt(2) * np.array(LOW), math.sqrt(2) * np.array(HIGH), np.arange(4)
        assert low @ low == pytest.approx(1)
        assert low[:2] @ low[2:] == pytest.approx(0)
        assert low @ high == pytest.approx(0)
        assert low.sum() == pytest.approx(math.sqrt(2))
        assert high @ np.ones(4) == pytest.approx(0)
        assert high @ n == pytest.approx(0)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
    @pytest.mark.parametrize("implementation", ["eager", "c"])
    @pytest.mark.parametrize("gap", [1, 2, 4, 7])
    def test_merging_undoes_splitting(self, gap, implementation, dtype):
        if implementation == "c" and kernels.native.library is None:
            pytest.skip("the C kernels are not built")
        x = torch.randn(2, 13, 17, dtype=dtype)
        with kernels.using(implementation):
            low, details = wavelet_split(x, gap)
            assert torch.allclose(wavelet_merge(low, details, gap), x)
        assert float(low.norm() ** 2 + details.norm() ** 2) == pytest.approx(float(x.norm()) ** 2)

    @pytest.mark.parametrize("gap", [1, 3])
    def test_splitting_is_a_correlation_along_rows_and_columns(self, gap):
        x = torch.zeros(1, 12, 15)
        x[0, 5, 7] = 1.0
        low, details = wavelet_split(x, gap)
        bands = [low[0], *details[0]]
        for band, (along, down) in zip(bands, itertools.product((LOW, HIGH), repeat=2), strict=True):
            expected = torch.zeros(12, 15)
            for (i, a), (j, b) in itertools.product(enumerate(down), enumerate(along)):
                expected[(5 - i * gap) % 12, (7 - j * gap) % 15] += a * b
            torch.testing.assert_close(band, expected)

    def test_what_does_not_fit_together_is_refused(self):
        with pytest.raises(ValueError, match=r"Images must be \(N, H, W\) and the gap at least 1"):
            wavelet_split(torch.ones(8, 8), 1)
        with pytest.raises(ValueError, match=r"Details must have the shape \(1, 3, 8, 8\)"):
            wavelet_merge(torch.ones(1, 8, 8), torch.ones(1, 2, 8, 8), 1)

    def test_projected_coefficients_are_the_nearest_within_their_limits(self):
        energy, p = WaveletSparsity(2), torch.randn(1, 6, 12, 12, dtype=torch.complex128)
        limits = 0.7 * torch.tensor([0.5] * 3 + [0.25] * 3).view(1, 6, 1, 1)
        shorter = p * (limits / p.abs()).clamp(max=1)
        assert torch.allclose(energy.project(p, 0.7), shorter)
        assert torch.allclose(energy.project(p.real.contiguous(), 0.7), torch.clamp(p.real, -limits, limits))
        assert float(energy.project(p, 0.0).abs().max()) == 0

    def test_it_is_the_mean_over_shifts_of_the_orthonormal_transform(self):
        """Every shift, transformed with decimation, by explicit loops."""
        x = torch.randn(16, 16, dtype=torch.float64)
        levels, total = 2, 0.0
        for dy in range(4):
            for dx in range(4):
                low = x.roll((-dy, -dx), (0, 1))
                for _ in range(levels):
                    low, *details = decimated(low)
                    total += sum(float(band.abs().sum()) for band in details) / 16
        assert float(WaveletSparsity(levels)(x[None, None])) == pytest.approx(total)

    def test_small_images_have_fewer_levels(self):
        assert WaveletSparsity(8).analyse(torch.ones(1, 1, 6, 6)).shape[1] == 2 * 3
        assert WaveletSparsity(8).analyse(torch.ones(1, 1, 2, 2)).shape[1] == 3


def decimated(x: Tensor) -> list[Tensor]:
    """One level of the orthonormal transform, circular: four bands of half the size."""
    taps = math.sqrt(2) * torch.tensor([LOW, HIGH], dtype=x.dtype)
    rows = [sum(taps[f, k] * x.roll(-k, 1) for k in range(4))[:, ::2] for f in range(2)]
    return [sum(taps[f, k] * row.roll(-k, 0) for k in range(4))[::2] for row in rows for f in range(2)]


class TestMinimisers:
    @pytest.mark.parametrize("options", [{}, {"box": (0.0, 1.0)}])
    @pytest.mark.parametrize("name", ENERGIES)
    def test_the_distance_bounds_the_true_one_after_any_number_of_steps(self, name, options):
        H = MRI(cartesian_mask(16, 2, 0.25))
        x = torch.zeros(2, 1, 16, 16, dtype=torch.float64)
        x[0, 0, 4:10, 3:9], x[1, 0, 2:5] = 1.0, 0.5
        y = H.forward(x) + 0.05 * torch.randn(2, 1, 16, 16, dtype=torch.complex128)
        options = {"convexity": 5e-2, **options}
        exact = minimize(y, H, ENERGIES[name], 0.05, tol=1e-6, max_steps=150, **options)
        assert exact.certificate.tier is Tier.PROVEN
        for steps in (1, 5, 20):
            solution = minimize(y, H, ENERGIES[name], 0.05, max_steps=steps, **options)
            far = (solution.value - exact.value).flatten(1).norm(dim=1)
            assert float(far.max()) <= solution.certificate.distance + exact.certificate.distance
            assert solution.certificate.distance <= 300 * float(far.max()) + 1e-3

    def test_the_dual_bound_is_attained(self):
        """Anisotropic TV of two pixels, p = 0: `A = λ|d|`, and the distance is √(A/μ) where q vanishes."""
        from lipspline.pnp.guarantee import ObjectiveSetting

        setting = ObjectiveSetting(0.1, 0.04, (1.0, 1.0), None, math.inf, 0.0)
        # J(z) = μ/2 z² + λ|z| at x with μ x = q, p = 0: μ t² = A + ‖q‖ t has the root below
        q, slack = 0.3, 0.2
        t = setting.distance(q, slack)
        assert setting.modulus * t**2 == pytest.approx(slack + q * t)
        assert setting.distance(0.0, slack) == pytest.approx(math.sqrt(slack / 0.04))
        assert setting.distance(q, 0.0) == pytest.approx(q / 0.04)

    def test_two_pixels_in_closed_form(self):
        """½‖x - y‖² + λ|x2 - x1|: the pixels move towards each other by λ, or meet."""
        H, options = Identity((1, 1, 2)), {"convexity": 1e-9, "tol": 1e-7, "max_steps": 500}
        y = torch.tensor([[[[0.0, 1.0]]], [[[0.0, 0.1]]]], dtype=torch.float64)
        x = minimize(y, H, TotalVariation(), 0.2, **options).value
        assert torch.allclose(x, torch.tensor([[[[0.2, 0.8]]], [[[0.05, 0.05]]]], dtype=torch.float64), atol=1e-6)

    def test_denoising_agrees_with_scikit_image(self):
        restoration = pytest.importorskip("skimage.restoration")
        y = torch.rand(1, 1, 24, 24, dtype=torch.float64)
        y[..., 6:15, 5:18] += 1
        weight = 0.1
        reference = restoration.denoise_tv_chambolle(y[0, 0].numpy(), weight=weight, eps=1e-12, max_num_iter=3000)
        ours = minimize(y, Identity((1, 24, 24)), TotalVariation(), weight, convexity=1e-6, tol=1e-4, max_steps=300)
        assert np.abs(ours.value[0, 0].numpy() - reference).max() < 2e-3

    def test_wavelets_leave_a_constant_image_alone(self):
        """A constant image has no details."""
        y = torch.full((1, 1, 8, 8), 0.7, dtype=torch.float64)
        x = minimize(y, Identity((1, 8, 8)), WaveletSparsity(), 0.3, convexity=1e-6, tol=1e-6, max_steps=50).value
        assert torch.allclose(x, y, atol=1e-5)

    def test_strength_zero_is_least_squares(self):
        y = torch.rand(1, 1, 6, 6)
        x = minimize(y, Identity((1, 6, 6)), TotalVariation(), 0.0, convexity=1e-3).value
        assert torch.allclose(x, y / 1.001, atol=1e-5)

    @pytest.mark.parametrize("name", ENERGIES)
    def test_no_perturbation_exceeds_the_constants(self, name):
        H = MRI(cartesian_mask(12, 2, 0.25))
        y = H.forward(torch.rand(1, 1, 12, 12, dtype=torch.float64))
        options = {"convexity": 5e-2, "tol": 1e-4, "max_steps": 100}
        base = minimize(y, H, ENERGIES[name], 0.05, **options)
        data, image = (estimate.constant for estimate in base.certificate.estimates)
        for seed in range(2):
            torch.manual_seed(seed)
            delta = 0.1 * torch.randn_like(y)
            moved = minimize(y + delta, H, ENERGIES[name], 0.05, **options).value - base.value
            assert float(moved.norm()) <= image * float(delta.norm()) * (1 + 5e-2)
            assert float(H.forward(moved).norm()) <= data * float(delta.norm()) * (1 + 5e-2)


def test_energies_are_abstract_until_filled_in():
    with pytest.raises(TypeError, match="abstract"):
        AnalysisEnergy()
