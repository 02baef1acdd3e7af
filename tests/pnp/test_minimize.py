"""Minimisers of data term and energy: closed forms, constants that are attained, distances, tiers."""

import math
from itertools import pairwise

import pytest
import torch
from energies import DoubleWell, Huber, Quadratic
from torch import Tensor

from lipspline.operators import MRI, Identity, Matrix, MultiCoilMRI, cartesian_mask, simulated_maps
from lipspline.pnp import Tier, minimize
from lipspline.pnp.batch import Status
from lipspline.pnp.descent import PATIENCE, _Descent
from lipspline.pnp.guarantee import ObjectiveSetting
from lipspline.priors import resolve
from lipspline.priors.energy import AdaptiveEnergy, Energy


def random_energy(n: int) -> Quadratic:
    q = torch.randn(n, n, dtype=torch.float64)
    return Quadratic(q @ q.mT / n)


def solved(a: Tensor, y: Tensor, energy: Quadratic, strength: float, epsilon: float, r: Tensor | None = None) -> Tensor:
    """The normal equations of a quadratic objective."""
    n = a.shape[1]
    matrix = a.mT @ a + strength * energy.matrix + epsilon * torch.eye(n, dtype=a.dtype)
    right = y @ a + (0 if r is None else epsilon * r)
    return torch.linalg.solve(matrix, right.mT).mT


class Nothing(Energy):
    """R = 0."""

    def forward(self, x):
        return x.flatten(1).sum(1) * 0

    def gradient(self, x):
        return torch.zeros_like(x)

    @property
    def lipschitz(self):
        return 0.0


class TestMinimisers:
    def test_a_quadratic_objective_is_minimised_exactly_each_image_for_itself(self):
        a, energy = torch.randn(6, 8, dtype=torch.float64), random_energy(8)
        y = torch.randn(3, 6, dtype=torch.float64) * torch.tensor([[1.0], [100.0], [0.01]])
        r = torch.randn(8, dtype=torch.float64)
        solution = minimize(y, Matrix(a), energy, 0.3, convexity=1e-2, reference=r, tol=1e-11)
        exact = solved(a, y, energy, 0.3, solution.certificate.setting.convexity, r)
        assert solution.converged
        far = (solution.value - exact).norm(dim=1)
        assert (far <= 1e-8 * exact.norm(dim=1).clamp_min(1)).all()
        assert far.max() <= solution.certificate.distance
        alone = minimize(y[2:], Matrix(a), energy, 0.3, convexity=1e-2, reference=r, tol=1e-11)
        assert torch.allclose(alone.value, solution.value[2:], atol=1e-9)

    def test_the_minimum_in_a_box_satisfies_the_optimality_conditions(self):
        a, energy = torch.randn(9, 6, dtype=torch.float64), random_energy(6)
        y = torch.randn(4, 9, dtype=torch.float64)
        solution = minimize(y, Matrix(a), energy, 0.1, box=(-0.05, 0.1), convexity=1e-3, tol=1e-11)
        x, epsilon = solution.value, solution.certificate.setting.convexity
        gradient = (x @ a.mT - y) @ a + 0.1 * energy.gradient(x) + epsilon * x
        low, high = x == -0.05, x == 0.1
        assert low.any()
        assert high.any()
        assert (~low & ~high).any()
        assert (gradient[low] > -1e-7).all()
        assert (gradient[high] < 1e-7).all()
        assert gradient[~low & ~high].abs().max() < 1e-7
        assert ((x >= -0.05) & (x <= 0.1)).all()

    def test_positive_is_a_box_without_a_lid(self):
        y = torch.tensor([[-1.0, 2.0]])
        solution = minimize(y, Matrix(torch.eye(2)), Nothing(), 0.0, positive=True)
        assert solution.value[0, 0] == 0
        assert solution.value[0, 1] == pytest.approx(2 / (1 + 1e-4), rel=1e-5)
        with pytest.raises(ValueError, match="not both"):
            minimize(y, Matrix(torch.eye(2)), Nothing(), 0.0, positive=True, box=(0, 1))

    def test_complex_images_are_two_real_ones(self):
        mask = torch.rand(10, 12) > 0.4
        H = MRI(mask, convention="centred")
        y = H.forward(torch.randn(2, 1, 10, 12, dtype=torch.complex128))
        energy = Huber(0.1)
        x = minimize(y, H, energy, 0.05, tol=1e-10).value
        both = 0.05 * torch.complex(energy.gradient(x.real), energy.gradient(x.imag))
        gradient = H.adjoint(H.forward(x) - y) + both + 1e-4 * x
        assert gradient.abs().max() < 1e-8
        with pytest.raises(ValueError, match="Complex images have no order"):
            minimize(y, H, energy, 0.05, positive=True)

    def test_images_are_zero_where_no_coil_sees_them(self):
        maps = simulated_maps(3, (8, 8))
        maps[:, :2] = 0
        H = MultiCoilMRI(cartesian_mask(8, 2, 0.25), maps)
        y = H.forward(torch.rand(1, 1, 8, 8))
        solution = minimize(y, H, Huber(0.1), 0.05, tol=1e-5)
        assert (solution.value[..., :2, :] == 0).all()
        assert solution.converged

    def test_an_operator_with_data_of_its_own_for_each_image_works_too(self):
        maps = torch.stack([simulated_maps(3, (8, 8)), 0.5 * simulated_maps(3, (8, 8))])
        H = MultiCoilMRI(cartesian_mask(8, 2, 0.25), maps)
        y = H.forward(torch.rand(2, 1, 8, 8, dtype=torch.float64))
        y[0] *= 1e-3  # so that the two stop at different times
        together = minimize(y, H, Huber(0.1), 0.05, tol=1e-9, max_steps=3000)
        assert together.converged
        alone = minimize(
            y[1:], MultiCoilMRI(H.mask, maps[1]), Huber(0.1), 0.05, tol=1e-10, convexity=4e-4, max_steps=3000
        )
        assert torch.allclose(together.value[1:], alone.value, atol=1e-6)


class TestConstants:
    """Each constant is attained, and no perturbation exceeds it."""

    def test_the_constant_of_the_image_is_attained_at_the_worst_singular_value(self):
        """A singular value √ε: x = s/(s² + ε) y, the largest ratio there is."""
        H, epsilon = Matrix(torch.diag(torch.tensor([1.0, 0.1, 0.3]).double())), 0.01
        options = {"convexity": epsilon, "tol": 1e-12}
        first, second = (
            minimize(y, H, Nothing(), 0.0, **options)
            for y in (torch.zeros(1, 3).double(), torch.tensor([[0, 1.0, 0]]).double())
        )
        ratio = float((first.value - second.value).norm())
        constant = first.certificate.estimates[1].constant
        assert constant == pytest.approx(1 / (2 * math.sqrt(epsilon)))
        assert ratio == pytest.approx(constant, rel=1e-6)

    def test_the_constant_of_the_data_is_attained_at_the_largest_singular_value(self):
        H = Matrix(torch.diag(torch.tensor([2.0, 0.1]).double()))
        options = {"convexity": 0.05, "tol": 1e-12}
        second = minimize(torch.tensor([[1.0, 0]]).double(), H, Nothing(), 0.0, **options)
        constant = second.certificate.estimates[0].constant
        assert float(H.forward(second.value).norm()) == pytest.approx(constant, rel=1e-9)
        assert constant == pytest.approx(1 / 1.05)

    @pytest.mark.parametrize("strength", [0.5, 1.5])
    def test_weakly_convex_denoising_has_the_constant_of_the_quotient(self, strength):
        """R = -ρ/2 x²: x = y / (1 + ε - λρ), for λρ < 1."""
        energy = Quadratic(-0.6 * torch.eye(4, dtype=torch.float64))
        y = torch.randn(1, 4, dtype=torch.float64)
        solution = minimize(y, Identity((4,)), energy, strength, convexity=1e-3, tol=1e-12)
        assert solution.certificate.tier is Tier.PROVEN
        constant = 1 / (1 + 1e-3 - 0.6 * strength)
        assert torch.allclose(solution.value, y * constant)
        assert [e.constant for e in solution.certificate.estimates] == [pytest.approx(constant)] * 2

    def test_known_singular_values_improve_the_constant(self):
        """σ >= √ε: σ/(σ² + ε), not 1/(2√ε)."""
        H = Matrix(torch.diag(torch.tensor([1.0, 0.5]).double()))
        certificate = minimize(torch.ones(1, 2).double(), H, Nothing(), 0.0, convexity=1e-4).certificate
        assert certificate.estimates[1].constant == pytest.approx(0.5 / (0.25 + 1e-4))
        moved = minimize(torch.tensor([[0, 1.0]]).double(), H, Nothing(), 0.0, convexity=1e-4, tol=1e-12).value
        assert float(moved.norm()) == pytest.approx(certificate.estimates[1].constant)

    @pytest.mark.parametrize("positive", [False, True])
    def test_no_perturbation_of_random_problems_exceeds_a_constant(self, positive):
        for seed in range(20):
            torch.manual_seed(seed)
            H, energy = Matrix(torch.randn(5, 7, dtype=torch.float64)), random_energy(7)
            options = {"convexity": 1e-3, "tol": 1e-11, "positive": positive, "max_steps": 3000}
            y, delta = torch.randn(2, 1, 5, dtype=torch.float64)
            one, other = (minimize(data, H, energy, 0.2, **options) for data in (y, y + delta))
            moved, size = one.value - other.value, float(delta.norm())
            data, image = (estimate.constant for estimate in one.certificate.estimates)
            assert float(H.forward(moved).norm()) <= data * size * (1 + 1e-6)
            assert float(moved.norm()) <= image * size * (1 + 1e-6)


class TestDistance:
    def test_it_is_exact_where_only_the_weakest_direction_is_wrong(self):
        """H does not see the second pixel: there J is ε/2 x², and the gradient over ε is the distance."""
        H = Matrix(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
        y, start = torch.ones(1, 1).double(), torch.tensor([[1 / (1 + 1e-3), 0.7]]).double()
        solution = minimize(y, H, Nothing(), 0.0, convexity=1e-3, max_steps=1, start=start)
        assert solution.certificate.distance == pytest.approx(0.7, rel=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("options", [{}, {"positive": True}, {"box": (0.0, 0.2)}])
    def test_it_bounds_the_true_distance_after_any_number_of_steps(self, options, dtype):
        H = Matrix(torch.randn(20, 30, dtype=torch.float64))
        y, energy = torch.randn(2, 20, dtype=torch.float64), random_energy(30)
        options = {"convexity": 1e-2, **options}
        exact = minimize(y, H, energy, 0.5, tol=1e-13, max_steps=5000, **options).value
        for steps in (1, 3, 10, 100):
            solution = minimize(y.to(dtype), H, energy, 0.5, max_steps=steps, **options)
            far = float((solution.value - exact).norm(dim=1).max())
            assert far <= solution.certificate.distance
            assert solution.certificate.distance <= 400 * far + 1e-9

    def test_the_constraint_must_be_used_in_it(self):
        """At a bound the gradient does not vanish: a distance from it would be large for ever."""
        solution = minimize(-torch.ones(1, 3).double(), Identity((3,)), Nothing(), 0.0, positive=True)
        assert (solution.value == 0).all()
        assert solution.certificate.distance < 1e-9


class Rough(Quadratic):
    """A gradient that is off by a fixed small image: none is shorter than that."""

    def gradient(self, x):
        return super().gradient(x) + 3e-6 * torch.randn(
            x.shape, generator=torch.Generator().manual_seed(int(1e9 * abs(float(x.sum()))) % 2**31)
        )


class TestPrecision:
    def test_a_tolerance_below_the_precision_of_the_images_is_taken_for_it(self):
        a, y = torch.eye(6) + 0.1 * torch.randn(6, 6), torch.randn(1, 6)
        solution = minimize(y, Matrix(a), Quadratic(torch.eye(6)), 0.1, tol=1e-12)
        assert solution.converged
        assert solution.certificate.tol == torch.finfo(torch.float32).eps

    def test_gradients_that_are_round_off_end_the_descent(self):
        a, y = torch.eye(6) + 0.1 * torch.randn(6, 6), torch.randn(1, 6)
        solution = minimize(y, Matrix(a), Rough(torch.eye(6)), 1.0, tol=1e-7, max_steps=2000)
        assert solution.certificate.status is Status.ROUND_OFF
        assert solution.denoiser_calls < 400

    def test_residuals_stall_only_where_they_are_tiny_and_do_not_fall(self):
        descent = object.__new__(_Descent)
        descent.eps = 1e-7
        flat, falling = [1.0] + 100 * [5e-6], [1e-5 * 0.99**k for k in range(120)]
        assert descent._stalls(flat)
        assert not descent._stalls(flat[:PATIENCE])
        assert not descent._stalls([10 * residual for residual in flat])
        assert not descent._stalls(falling)


class TestWeaklyConvex:
    H = Matrix(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64))

    def test_reconstruction_descends_to_a_critical_point_and_claims_no_more(self):
        energy, values = DoubleWell(0.5), []

        def objective(x: Tensor) -> float:
            data = (self.H.forward(x) - y).square().sum() / 2
            return float(data + 0.8 * energy(x).sum() + epsilon / 2 * x.square().sum())

        y, epsilon = torch.tensor([[3.0, -2.0]], dtype=torch.float64), 1e-4 * self.H.norm_bounds()[1] ** 2
        solution = minimize(
            y, self.H, energy, 0.8, tol=1e-10, progress=lambda p: values.append(objective(p.value.clone()))
        )
        certificate = solution.certificate
        assert certificate.tier is Tier.DESCENT
        assert certificate.guarantee.startswith("descent")
        assert certificate.distance is None
        assert [e.constant for e in certificate.estimates] == [None, None]
        assert "not claimed" in str(certificate)
        assert solution.converged
        assert all(later <= earlier + 1e-12 for earlier, later in pairwise(values))
        x = solution.value
        gradient = self.H.adjoint(self.H.forward(x) - y) + 0.8 * energy.gradient(x) + epsilon * x
        assert float(gradient.norm()) < 1e-8

    def test_many_starts_all_descend(self):
        energy = DoubleWell(0.9)
        for seed in range(30):
            torch.manual_seed(seed)
            H = Matrix(torch.randn(3, 5, dtype=torch.float64) * 0.3)
            y = torch.randn(1, 3, dtype=torch.float64) * 3
            solution = minimize(y, H, energy, 0.7, start=3 * torch.randn(1, 5).double(), tol=1e-8, max_steps=5000)
            assert solution.converged, solution.reason


class TestRefusals:
    def test_what_is_no_energy_is_refused(self):
        with pytest.raises(ValueError, match=r"must be a lipspline.priors.energy.Energy, but is a ReLU"):
            minimize(torch.ones(1, 2), Identity((2,)), torch.nn.ReLU(), 0.1)

    @pytest.mark.parametrize("strength", [-1.0, math.inf, math.nan])
    def test_a_strength_is_finite_and_not_negative(self, strength):
        with pytest.raises(ValueError, match="strength must be a finite number, at least 0"):
            minimize(torch.ones(1, 2), Identity((2,)), Nothing(), strength)

    def test_a_box_is_not_empty(self):
        with pytest.raises(ValueError, match=r"low < high"):
            minimize(torch.ones(1, 2), Identity((2,)), Nothing(), 0.1, box=(1, 0))

    def test_an_energy_that_returns_nan_ends_with_a_finite_image(self):
        class Broken(Nothing):
            def gradient(self, x):
                return x / 0 * 0

        solution = minimize(torch.ones(1, 2), Identity((2,)), Broken(), 0.1)
        assert torch.isfinite(solution.value).all()
        assert not solution.converged
        assert "NaN" in solution.reason
        assert solution.certificate.tier is Tier.NONE


class Tilt(Energy):
    """R(z) = -⟨t, z⟩, with a slope of its own for each image."""

    def __init__(self, slope):
        super().__init__()
        self.register_buffer("slope", slope)

    def forward(self, x):
        return -(self.slope * x).flatten(1).sum(1)

    def gradient(self, x):
        return -self.slope.to(x.dtype).expand_as(x)

    def select(self, rows, parts):
        return Tilt(self.slope[rows])

    @property
    def lipschitz(self):
        return 0.0


class Follower(AdaptiveEnergy):
    """A first pass without energy, and a second that is drawn along S times the first image in reversed order."""

    def __init__(self, size, pulls=(100.0, 10.0)):
        super().__init__()
        self.size, self.pulls = size, pulls

    def forward(self, x):
        return x.flatten(1).sum(1) * 0

    def gradient(self, x):
        return torch.zeros_like(x)

    lipschitz = 0.0
    first_strength = 1.0
    first_pass = Nothing()

    def adapted(self, x):
        return Tilt(self.size * x.flip(1))

    @property
    def sensitivity(self):
        return self.size


class TestTwoPasses:
    def test_both_minimisers_are_those_of_the_normal_equations(self):
        a = torch.randn(6, 4, dtype=torch.float64)
        y = torch.randn(3, 6, dtype=torch.float64) * torch.tensor([[1.0], [30.0], [0.1]])
        solution = minimize(y, Matrix(a), Follower(0.7), 2.0, convexity=1e-3, tol=1e-12)
        unit = Matrix(a).norm_bounds()[1] ** 2
        gram, eye = a.mT @ a, torch.eye(4, dtype=a.dtype)
        first = torch.linalg.solve(gram + 0.1 * unit * eye, (y @ a).mT).mT
        right = y @ a + 2.0 * 0.7 * first.flip(1) + 0.01 * unit * first
        second = torch.linalg.solve(gram + 0.01 * unit * eye, right.mT).mT
        torch.testing.assert_close(solution.value, second, rtol=1e-7, atol=1e-9)
        assert (solution.value - second).norm(dim=1).max() <= solution.certificate.distance
        assert all(estimate.constant is not None for estimate in solution.certificate.estimates)

    def test_the_constant_is_attained_where_the_second_pass_follows_the_worst_of_the_first(self):
        """The first image moves most along √ε; turned around, it moves the second along the weakest direction."""
        turned = Matrix(torch.diag(torch.tensor([0.1, 1.0, 1e-4], dtype=torch.float64)))
        y = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
        solution = minimize(y, turned, Follower(5.0, pulls=(100.0, 10.0)), 1.0, convexity=1e-4, tol=1e-12)
        bound = solution.certificate.estimates[1].constant
        assert bound is not None
        assert 0.9 * bound <= float(solution.value.norm()) <= bound

    def test_the_constant_with_a_moving_gradient_is_attained_in_one_dimension(self):
        """x = (s + m) y / (s² + ε) is the minimiser if the gradient moves by m y, and the worst s is the constant's."""
        for m in (0.0, 0.01, 0.3, 5.0):
            setting = ObjectiveSetting(1.0, 0.01, (1.0, 1.0), None, 0.0, 0.0, moving=m)
            s = torch.linspace(0, 1, 2_000_001, dtype=torch.float64)
            data, image = (estimate.constant for estimate in setting.estimates())
            assert image == pytest.approx(float(((s + m) / (s**2 + 0.01)).max()), rel=1e-9)
            assert data == pytest.approx(float((s * (s + m) / (s**2 + 0.01)).max()), rel=1e-9)

    def test_the_distance_counts_that_of_the_first_pass(self):
        """Few steps: the image is far from that of exact passes, and the bound knows."""
        g = torch.Generator().manual_seed(3)
        a = torch.randn(20, 12, generator=g, dtype=torch.float64)
        y = torch.randn(2, 20, generator=g, dtype=torch.float64)
        exact = minimize(y, Matrix(a), Follower(0.5), 1.0, convexity=1e-3, tol=1e-12).value
        for steps in (1, 3, 6):
            solution = minimize(y, Matrix(a), Follower(0.5), 1.0, convexity=1e-3, tol=1e-14, max_steps=steps)
            assert solution.certificate.distance is not None
            assert (solution.value - exact).norm(dim=1).max() <= solution.certificate.distance

    def test_no_perturbation_of_a_shipped_adaptive_energy_exceeds_a_constant(self):
        prior, g = resolve("ridge-adaptive"), torch.Generator().manual_seed(1)
        image = torch.zeros(1, 1, 14, 14, dtype=torch.float64)
        image[..., 4:11, 5:10] = 0.8
        H = MRI(cartesian_mask(14, acceleration=3, center=0.2))
        y = H.forward(image)
        energy, weight = prior.at(8).wide(), prior.strength(8, 4)
        before = minimize(y, H, energy, weight, tol=1e-7)
        data, whole = (estimate.constant for estimate in before.certificate.estimates)
        for size in (1e-3, 0.1, 10.0):
            step = H.forward(torch.randn(image.shape, generator=g, dtype=torch.float64)) * size
            after = minimize(y + step, H, energy, weight, tol=1e-7)
            moved = after.value - before.value
            slack = after.certificate.distance + before.certificate.distance
            assert float(moved.norm()) <= whole * float(step.norm()) + slack
            assert float(H.forward(moved).norm()) <= data * float(step.norm()) + slack

    def test_the_first_pass_of_a_fine_solution_is_solved_so_far_that_the_distance_says_something(self):
        H = MRI(cartesian_mask(32, acceleration=2, seed=0))
        energy = resolve("ridge-adaptive").at(0.05)
        y = H.forward(torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0)))
        assert isinstance(energy, AdaptiveEnergy)
        fine, coarse = (minimize(y, H, energy, 1.0, tol=tol).certificate for tol in (1e-5, 2e-5))
        assert fine.relative_distance is not None
        assert coarse.relative_distance is not None
        assert fine.relative_distance < coarse.relative_distance / 10


def test_a_reference_of_another_shape_is_refused():
    """In a sentence with both shapes."""
    y = torch.zeros(1, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^The reference has the shape \(1, 3\), .* not fit images of \(1, 4\)"):
        minimize(y, Matrix(torch.eye(4, dtype=torch.float64)), Nothing(), 0.3, reference=torch.zeros(1, 3))
