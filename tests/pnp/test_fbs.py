"""Plug-and-play forward-backward splitting: fixed points in closed form, convergence, refusals [eq:pnp_fbs]."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from certified_denoisers import (
    averaging_map,
    box,
    haar_frame,
    linear,
    linear_layer,
    network,
    random_nonexpansive_matrix,
    reflected_soft_threshold,
    soft_threshold,
)
from torch import Tensor, nn

from lipspline.certification import declare
from lipspline.operators import (
    MRI,
    Blur,
    Identity,
    LinearOperator,
    Matrix,
    MultiCoilMRI,
    Space,
    cartesian_mask,
    simulated_maps,
)
from lipspline.pnp import fbs
from lipspline.pnp._fbs import denoise


def random_matrix(m: int, n: int) -> Matrix:
    return Matrix(torch.randn(m, n, dtype=torch.float64))


class TestFixedPoints:
    @pytest.mark.parametrize("accelerate", [False, True])
    @pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
    def test_for_a_linear_denoiser_it_solves_the_linear_system(self, beta, accelerate):
        """[eq:pnp_fbs] is affine then, and its fixed point is `(Id - M)⁻¹ b`."""
        H, matrix = random_matrix(6, 8), random_nonexpansive_matrix(8)
        y = torch.randn(1, 6, dtype=torch.float64)
        step = 1.5 / H.norm_bounds()[1] ** 2
        solution = fbs(y, H, linear(matrix), beta, step, tol=1e-11, max_steps=100_000, accelerate=accelerate)
        m, b = averaging_map(H, y, matrix, beta, step)
        expected = torch.linalg.solve(torch.eye(8, dtype=torch.float64) - m, b)
        assert solution.converged
        assert torch.allclose(solution.value[0], expected, rtol=1e-6, atol=1e-8)

    def test_first_steps_are_the_formula(self):
        """[eq:pnp_fbs], the default step 1/‖H‖² and the default start α Hᵀ y."""
        H, matrix = random_matrix(5, 4), random_nonexpansive_matrix(4)
        y = torch.randn(1, 5, dtype=torch.float64)
        step = 1 / torch.linalg.matrix_norm(H.matrix, 2).item() ** 2
        m, b = averaging_map(H, y, matrix, 0.3, step, factor=0.8)
        expected = step * H.matrix.mT @ y[0]
        for steps in (1, 2, 3):
            expected = m @ expected + b
            solution = fbs(y, H, linear(matrix), 0.3, max_steps=steps, contraction=0.8)
            assert torch.allclose(solution.value[0], expected, rtol=1e-9)
            assert solution.steps == solution.denoiser_calls == len(solution.residuals) == steps
            assert not solution.converged
            assert "not converged" in solution.reason

    @pytest.mark.parametrize("accelerate", [False, True])
    def test_with_a_reflected_proximal_operator_it_is_ista(self, accelerate):
        """β = 1/2 turns `2 prox - Id` into prox; for an orthonormal H the minimiser is known."""
        orthonormal = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q
        H, y, step = Matrix(orthonormal), torch.randn(1, 12, dtype=torch.float64), 0.3
        weight = 0.4
        solution = fbs(y, H, reflected_soft_threshold(step * weight), 0.5, step, tol=1e-12, accelerate=accelerate)
        back = y @ orthonormal
        assert torch.allclose(solution.value, back - back.clamp(-weight, weight), atol=1e-9)

    def test_residuals_are_the_relative_steps(self):
        H, y = Matrix(torch.eye(1, dtype=torch.float64)), torch.tensor([[3.0]], dtype=torch.float64)
        solution = fbs(y, H, linear(torch.zeros(1, 1, dtype=torch.float64)), 0.5, step=0.5, tol=1e-3)
        # x ↦ (x + 3) / 4 from 3/2: the next are 9/8, 33/32, ...
        assert solution.residuals[0] == pytest.approx((1.5 - 1.125) / 1.5)
        assert solution.residuals[1] == pytest.approx((1.125 - 1.03125) / 1.125)
        assert solution.residuals[-1] <= 1e-3 < solution.residuals[-2]

    def test_zero_data_give_zero(self):
        solution = fbs(torch.zeros(1, 3), Matrix(torch.eye(3)), soft_threshold(0.1))
        assert solution.converged
        assert solution.steps == 1
        assert solution.residuals == [0.0]
        assert torch.equal(solution.value, torch.zeros(1, 3))

    def test_an_iteration_that_shrinks_to_zero_ends(self):
        solution = fbs(torch.zeros(1, 3), Matrix(torch.eye(3)), soft_threshold(0.0), 0.5, 0.5, start=torch.ones(1, 3))
        assert solution.converged
        assert solution.value.abs().max() < 1e-6


def converging_problem(seed: int):
    """Operator, data of five problems, denoiser, β and step, all random within the hypotheses."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    m, n = (int(torch.randint(2, 11, (), generator=generator)) for _ in range(2))
    H = random_matrix(m, n)
    denoiser = [soft_threshold(0.1), reflected_soft_threshold(0.1), box(), network(n), haar_like(n)][seed % 5]
    beta, fraction = (float(torch.empty(()).uniform_(0.02, 0.98, generator=generator)) for _ in range(2))
    return H, torch.randn(5, m, dtype=torch.float64), denoiser, beta, fraction * 2 / H.norm_bounds()[1] ** 2


def haar_like(n: int):
    """Soft thresholding in a random orthonormal basis."""
    q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q
    return declare(lambda x: (x @ q - (x @ q).clamp(-0.2, 0.2)) @ q.mT, 1.0, "proximal operator")


class TestConvergence:
    @pytest.mark.parametrize("accelerate", [False, True])
    @pytest.mark.parametrize("block", range(4))
    def test_random_problems_converge(self, block, accelerate):
        """Every α in (0, 2/L) and β in (0, 1) will do [sec:PnPReconstruction]: 20 settings of 5 problems."""
        for seed in range(5 * block, 5 * block + 5):
            H, y, denoiser, beta, step = converging_problem(seed)
            options = {"beta": beta, "step": step, "tol": 1e-4, "max_steps": 20_000, "accelerate": accelerate}
            solution = fbs(y, H, denoiser, **options)
            assert solution.converged, (seed, solution.reason)
            assert solution.certificate.guaranteed

    @pytest.mark.parametrize("fraction", [0.3, 1.0, 1.9])
    def test_the_residual_of_plain_steps_never_increases(self, fraction):
        H, denoiser = random_matrix(5, 8), haar_like(8)
        y = torch.randn(1, 5, dtype=torch.float64)
        step = fraction / H.norm_bounds()[1] ** 2
        run = {"beta": 0.7, "step": step, "tol": 1e-15}
        changes = [fbs(y, H, denoiser, max_steps=k, **run).images[0].change for k in range(1, 30)]
        assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(changes))

    def test_a_step_beyond_the_limit_diverges_and_says_so(self):
        """The hypothesis is needed: with α > 2/L the iteration leaves every bound."""
        H, y = Matrix(torch.eye(2)), torch.ones(1, 2)
        identity = declare(lambda x: x, 1.0, "identity")
        solution = fbs(y, H, identity, step=2.5, start=torch.zeros(1, 2), guarantee=False)
        assert not solution.converged
        assert "diverges" in solution.reason
        assert torch.isfinite(solution.value).all()


class TestContraction:
    @pytest.mark.parametrize("accelerate", [False, True])
    def test_the_distance_to_the_fixed_point_is_bounded_by_the_residual(self, accelerate):
        """`‖T(x) - x‖ / (1 - q)` at the image returned, against the closed form; the bound is not idle either."""
        H, matrix = random_matrix(6, 8), random_nonexpansive_matrix(8, symmetric=True)
        y = torch.randn(1, 6, dtype=torch.float64)
        step = 1 / H.norm_bounds()[1] ** 2
        m, b = averaging_map(H, y, matrix, 0.4, step, factor=0.9)
        exact = torch.linalg.solve(torch.eye(8, dtype=torch.float64) - m, b)
        for max_steps in (1, 3, 10, 30):
            options = {"max_steps": max_steps, "tol": 1e-14, "contraction": 0.9, "accelerate": accelerate}
            solution = fbs(y, H, linear_layer(matrix), 0.4, **options)
            distance = float((solution.value[0] - exact).norm())
            assert distance <= solution.certificate.distance
            residual = float((m @ solution.value[0] + b - solution.value[0]).norm())
            assert solution.certificate.distance == pytest.approx(
                residual / (1 - solution.certificate.setting.rate), rel=1e-6, abs=1e-9
            )

    def test_the_distance_is_exact_where_the_worst_case_is_attained(self):
        """D = Id and H = 0 on one of two coordinates: the error there shrinks by exactly K a step."""
        H = Matrix(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
        y, start = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[0.0, 1.0]], dtype=torch.float64)
        solution = fbs(y, H, nn.Identity(), contraction=0.8, max_steps=5, start=start)
        assert float(solution.value.norm()) == pytest.approx(0.8**5)
        assert solution.certificate.distance == pytest.approx(0.8**5)

    def test_an_injective_operator_makes_it_a_contraction_by_itself(self):
        H, y = Matrix(torch.diag(torch.tensor([1.0, 0.5]))), torch.ones(1, 2)
        certificate = fbs(y, H, nn.Softshrink(0.1)).certificate
        assert certificate.setting.rate == pytest.approx(0.75)
        assert "only fixed point" in certificate.guarantee
        assert certificate.distance is not None

    def test_the_constant_of_a_firm_contraction_is_attained(self):
        """D = Id and a singular value √e, e = (1-K)/(Kα): x = s y / (s² + e), and [eq:EstCont] is 10 times as much."""
        contraction, step = 0.99, 1.0
        e = (1 - contraction) / (contraction * step)
        H = Matrix(torch.diag(torch.tensor([1.0, math.sqrt(e), 1e-3]).double()))
        y = torch.tensor([[0.0, 1.0, 0.0]]).double()
        solution = fbs(y, H, nn.Identity(), step=step, contraction=contraction, tol=1e-12, max_steps=20_000)
        best = solution.certificate.image_stability
        assert best.label == "firm contraction"
        assert best.constant == pytest.approx(0.5 * math.sqrt(step * contraction / (1 - contraction)))
        assert float(solution.value.norm()) == pytest.approx(best.constant, rel=1e-6)
        assert solution.certificate.estimates[2].constant > 10 * best.constant

    def test_a_firm_contraction_needs_beta_at_most_one_half(self):
        y, H = torch.ones(1, 2), Matrix(torch.eye(2))
        assert fbs(y, H, nn.Identity(), 0.6, contraction=0.9).certificate.estimates[3].constant is None
        assert fbs(y, H, nn.Identity(), 0.5, contraction=0.9).certificate.estimates[3].constant is not None
        assert fbs(y, H, nn.Identity(), 0.5).certificate.estimates[3].constant is None

    def test_images_are_contracted_towards_the_reference(self):
        """H does not see the second pixel: there x = r + K (x - r), so x = r."""
        H = Matrix(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
        r = torch.tensor([[0.3, 0.8]]).double()
        options = {"contraction": 0.9, "tol": 1e-12, "max_steps": 5000}
        solution = fbs(torch.ones(1, 1).double(), H, nn.Identity(), reference=r, **options)
        assert float(solution.value[0, 1]) == pytest.approx(0.8)
        # x = 0.03 + 0.9 (x - (x - 1)) in the first
        assert float(solution.value[0, 0]) == pytest.approx(0.93)
        assert solution.certificate.distance < 1e-8

    def test_round_off_inside_the_denoiser_is_counted(self):
        """Biases that cancel inside cost float32 its digits: the distance says so, and is not idle."""
        n = 30
        w = torch.linalg.qr(torch.randn(n, n))[0] * 0.99
        layers = [nn.Linear(n, n), nn.Linear(n, n)]
        for layer, weight in zip(layers, (w, w.mT.contiguous()), strict=True):
            layer.weight.data = weight
        layers[0].bias.data.fill_(5e7)
        layers[1].bias.data = -(layers[1].weight.data.double() @ layers[0].bias.data.double()).float()
        denoiser = nn.Sequential(layers[0], nn.ReLU(), layers[1])
        y, H = torch.rand(1, n), Matrix(torch.eye(n)[: n // 2])
        solution = fbs(y[:, : n // 2], H, denoiser, contraction=0.9, max_steps=300)
        exact = fbs(
            *(y[:, : n // 2].double(), H, copy.deepcopy(denoiser).double()),
            contraction=0.9,
            tol=1e-13,
            max_steps=2000,
        )
        truth = float((solution.value - exact.value).norm())
        assert truth > 0.05
        assert truth <= solution.certificate.distance <= 100 * truth
        assert exact.certificate.distance < 1e-4

    def test_a_denoiser_that_cannot_be_looked_into_has_no_distance(self):
        certificate = fbs(torch.ones(1, 2), Matrix(torch.eye(2)), soft_threshold(0.1), contraction=0.9).certificate
        assert certificate.distance is None
        assert "nobody has bounded the round-off of Declared" in str(certificate)


class TestBatches:
    def test_each_image_is_a_problem_of_its_own(self):
        H, denoiser = random_matrix(6, 6), soft_threshold(0.1)
        y = torch.randn(3, 6, dtype=torch.float64) * torch.tensor([[1.0], [10.0], [0.01]])
        together = fbs(y, H, denoiser, tol=1e-5, max_steps=50_000)
        for i in range(3):
            alone = fbs(y[i : i + 1], H, denoiser, tol=1e-5, max_steps=50_000)
            assert torch.allclose(together.value[i], alone.value[0], rtol=1e-12)
            assert together.images[i].steps == alone.steps
            assert together.images[i].residuals == pytest.approx(alone.residuals)

    def test_finished_images_cost_no_further_calls(self):
        H, sizes = Identity((2,)), []

        def watched(x: Tensor) -> Tensor:
            sizes.append(len(x))
            return x.clamp(0, 1)

        y = torch.tensor([[3.0, 0.0], [0.5, 0.5]])
        solution = fbs(y, H, declare(watched, 1.0, "projection"), 0.2, step=0.3, tol=1e-5)
        assert solution.images[0].calls < solution.images[1].calls == solution.denoiser_calls
        sizes = sizes[2:]  # of the trial of what was vouched for
        assert solution.denoiser_calls == len(solution.residuals) == len(sizes)
        assert sizes[0] == 2
        assert sizes[-1] == 1

    def test_operators_with_data_for_each_image_see_the_whole_batch(self):
        """Maps that differ between the images of a batch stay with their images when others have finished."""
        maps = torch.stack([simulated_maps(2, (8, 8)), simulated_maps(2, (8, 8)).flip(-1)])
        mask = cartesian_mask(8, 2, 0.25)
        H, denoiser = MultiCoilMRI(mask, maps, convention="centred"), haar_frame(0.01, levels=1)
        y = H.forward(torch.rand(2, 1, 8, 8, dtype=torch.complex64) * torch.tensor([1.0, 0.2]).reshape(2, 1, 1, 1))
        together = fbs(y, H, denoiser, tol=1e-5)
        assert together.images[0].calls != together.images[1].calls
        for i in range(2):
            alone = fbs(y[i : i + 1], MultiCoilMRI(mask, maps[i], convention="centred"), denoiser, tol=1e-5)
            assert torch.allclose(together.value[i], alone.value[0], atol=1e-4)


def cropped_maps(*batch: int) -> Tensor:
    """Maps of two coils that see nothing in a corner, another one for each image of a batch."""
    maps = simulated_maps(2, (8, 8)).expand(*batch, 2, 8, 8).clone()
    for k, each in enumerate(maps.view(-1, 2, 8, 8)):
        each[:, :3, 4 * k : 4 * k + 3] = 0
    return maps


class Brighten(nn.Module):
    """1-Lipschitz, and a steady drift where no data hold against it."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01


class TestWhereNoCoilSees:
    @pytest.mark.parametrize("accelerate", [False, True])
    @pytest.mark.parametrize("convention", ["paper", "centred"])
    def test_the_image_is_zero_and_the_rest_converges(self, convention, accelerate):
        H = MultiCoilMRI(torch.ones(8, dtype=torch.bool), cropped_maps(), convention=convention)
        y, start = H.forward(1 + torch.rand(1, 1, 8, 8)), torch.ones(1, 1, 8, 8)
        denoiser = declare(Brighten(), 1.0, "a translation")
        solution = fbs(y, H, denoiser, start=start, tol=1e-6, accelerate=accelerate)
        assert solution.converged
        assert (solution.value[..., :3, :3] == 0).all()
        assert (solution.value[..., 3:, 3:].abs() > 0.5).all()

    def test_every_image_of_a_batch_has_its_own(self):
        """Also when one image has finished and the other goes on."""
        maps, mask, denoiser = cropped_maps(2), cartesian_mask(8, 2, 0.25), haar_frame(0.01, levels=1)
        H = MultiCoilMRI(mask, maps, convention="centred")
        y = H.forward(torch.rand(2, 1, 8, 8, dtype=torch.complex64) * torch.tensor([0.2, 1.0]).reshape(2, 1, 1, 1))
        together = fbs(y, H, denoiser, tol=1e-5)
        assert together.images[0].calls < together.images[1].calls
        for i in range(2):
            alone = fbs(y[i : i + 1], MultiCoilMRI(mask, maps[i], convention="centred"), denoiser, tol=1e-5)
            assert torch.allclose(together.value[i], alone.value[0], atol=1e-4)


class TestComplexImages:
    def test_the_denoiser_sees_real_and_imaginary_part(self):
        x = torch.tensor([[1.0 + 2.0j], [-3.0 - 0.05j]])
        assert torch.equal(denoise(soft_threshold(0.1), x), torch.tensor([[0.9 + 1.9j], [-2.9 + 0.0j]]))

    def test_a_complex_problem_is_two_real_ones_where_the_operator_is_real(self):
        H, y = random_matrix(4, 5), torch.randn(1, 4, dtype=torch.complex128)
        options = {"tol": 1e-10, "max_steps": 50_000, "accelerate": True}
        solution = fbs(y, H, soft_threshold(0.1), **options)
        for part, data in ((solution.value.real, y.real), (solution.value.imag, y.imag)):
            assert torch.allclose(part, fbs(data, H, soft_threshold(0.1), **options).value, atol=1e-6)

    @pytest.mark.parametrize("convention", ["paper", "centred"])
    def test_mri_is_reconstructed_in_either_convention(self, convention):
        H = MRI(cartesian_mask(16, 2, 0.25), convention=convention)
        x = torch.zeros(1, 1, 16, 16)
        x[..., 4:12, 4:12] = 1
        solution = fbs(H.forward(x), H, haar_frame(0.01), 0.4, tol=1e-5, accelerate=True)
        assert solution.converged
        assert solution.value.is_complex() == (convention == "centred")
        assert (solution.value - x).norm() < 0.5 * (H.adjoint(H.forward(x)) - x).norm()


class Lying(LinearOperator):
    """An operator whose promises can be broken one by one."""

    def __init__(self, adjoint: float = 1.0, upper: float = 1.0):
        self.domain = self.codomain = Space((4,))
        self.scale, self.upper = adjoint, upper

    def _apply(self, x: Tensor) -> Tensor:
        return x

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return self.scale * y

    def norm_bounds(self) -> tuple[float, float]:
        return 0.0, self.upper

    def smallest_singular_value(self) -> float | None:
        return None


ONES = torch.ones(1, 4)


class TestRefusals:
    """A violated hypothesis is refused before the first call of the denoiser."""

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"denoiser": torch.relu}, "no Lipschitz certificate.*lipspline.declare"),
            (
                {"denoiser": declare(torch.relu, 1.0000045, "round-off")},
                "1.0000045, above 1.*lipspline.plain.*K <= 0.999997",
            ),
            ({"beta": 0.0}, "beta must lie strictly between 0 and 1.*but is 0"),
            ({"beta": 1.0}, "beta must lie strictly between 0 and 1.*but is 1"),
            ({"beta": math.nan}, "beta must lie strictly between 0 and 1.*but is nan"),
            ({"step": 2.0}, "strictly between 0 and 2/‖H‖² = 2, but is 2"),
            ({"step": 0.0}, "strictly between 0 and 2/‖H‖² = 2, but is 0"),
            ({"step": -1.0}, "strictly between 0 and 2/‖H‖²"),
            ({"step": math.nan}, "strictly between 0 and 2/‖H‖²"),
            ({"H": Lying(adjoint=1.01)}, "adjoint of the operator is off by 0.01"),
            ({"H": Lying(upper=0.5)}, "stretches an image by 1.*norm_bounds"),
        ],
    )
    def test_without_its_hypotheses_the_theorem_is_not_claimed(self, arguments, words):
        calls = {"y": ONES, "H": Identity((4,)), "denoiser": nn.ReLU(), **arguments}
        with pytest.raises(ValueError, match=words):
            fbs(**calls)
        if not math.isnan(arguments.get("step", 0.0)) and not math.isnan(arguments.get("beta", 0.0)):
            solution = fbs(**calls, guarantee=False, max_steps=5)
            assert "no guarantee" in str(solution)
            assert "no guarantee" in solution.certificate.to_json()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"y": torch.full((1, 4), math.nan)}, "y has 4 NaN"),
            ({"y": torch.ones(4)}, "Add the batch dimension"),
            ({"y": torch.ones(1, 5)}, "needs shape"),
            ({"y": torch.ones(0, 4)}, "the batch is empty"),
            ({"y": torch.ones(1, 4, dtype=torch.int64)}, "Convert with"),
            ({"H": torch.eye(4)}, "H must be a lipspline.operators.LinearOperator"),
            ({"H": 0.0 * Identity((4,))}, "upper bound on the norm.*positive"),
            ({"tol": 0.0}, "tol must be a positive"),
            ({"tol": 1e-9}, "below the round-off"),
            ({"max_steps": 0}, "max_steps must be at least 1"),
            ({"contraction": 1.5}, "contraction must lie strictly between 0 and 1"),
            ({"start": torch.ones(1, 5)}, "needs shape"),
            ({"start": torch.ones(2, 4)}, "start has shape"),
            ({"start": torch.full((1, 4), math.inf)}, "start has 4 NaN"),
            ({"denoiser": declare(lambda x: x[:, :2], 1.0, "wrong")}, "must keep the shape"),
            ({"denoiser": nn.Sequential(nn.Bilinear(2, 2, 2))}, "certify has no rule for Bilinear"),
        ],
    )
    def test_arguments_that_make_no_sense_are_refused(self, arguments, words):
        with pytest.raises(ValueError, match=words):
            fbs(**{"y": ONES, "H": Identity((4,)), "denoiser": nn.ReLU(), **arguments})

    def test_a_contraction_absorbs_a_bound_above_one(self):
        """`K (1 + β (L - 1)) <= 1` is all the theorem needs, so round-off in a certificate can be paid for."""
        barely = declare(torch.relu, 1.0000045, "round-off")
        certificate = fbs(ONES, Identity((4,)), barely, contraction=0.99999).certificate
        assert certificate.guaranteed
        assert certificate.setting.lipschitz == pytest.approx(0.99999 * (1 + 0.5 * 0.0000045), rel=1e-12)


class TestBadSurprises:
    @pytest.mark.parametrize("accelerate", [False, True])
    @pytest.mark.parametrize("when", [1, 2, 5])
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_nan_from_the_denoiser_stops_with_the_last_finite_iterate(self, bad, when, accelerate):
        calls = []

        def treacherous(x: Tensor) -> Tensor:
            calls.append(1)
            return torch.full_like(x, bad) if len(calls) >= when else x.clamp(0, 1)

        y = torch.tensor([[2.0, -1.0, 0.3, 0.0]])
        solution = fbs(y, Identity((4,)), declare(treacherous, 1.0, "a lie"), 0.1, 0.1, accelerate=accelerate)
        assert not solution.converged
        assert "NaN or infinity" in solution.reason
        assert torch.isfinite(solution.value).all()
        assert "NaN" not in solution.certificate.to_json().replace("NaN or infinity", "")

    @pytest.mark.parametrize("accelerate", [False, True])
    def test_a_denoiser_that_breaks_its_promise_is_caught_in_the_act(self, accelerate, monkeypatch):
        """Two iterates driven apart contradict the declared bound, and take the guarantee back."""
        monkeypatch.setattr("lipspline.pnp._fbs.denoiser_violations", lambda *_: [])  # not every lie is seen before
        expansive = declare(lambda x: 3 * x.roll(1, dims=1), 1.0, "a lie")
        H = Matrix(torch.tensor([[1.0, 0.0, 0.0]]))
        solution = fbs(torch.ones(1, 1), H, expansive, 0.9, start=torch.rand(1, 3), accelerate=accelerate)
        assert not solution.converged
        assert "drove two iterates apart" in solution.reason
        assert not solution.certificate.guaranteed
        assert str(solution.certificate).startswith("guarantee")
        assert "no guarantee" in str(solution)

    def test_without_a_fixed_point_it_says_that_it_did_not_converge(self):
        """A translation is 1-Lipschitz but moves for ever where the data say nothing."""
        shift = declare(lambda x: x + 1.0, 1.0, "translation")
        solution = fbs(torch.ones(1, 1), Matrix(torch.tensor([[1.0, 0.0]])), shift, max_steps=50, accelerate=True)
        assert not solution.converged
        assert torch.isfinite(solution.value).all()


class TestManners:
    def test_a_network_runs_in_eval_mode_and_is_left_as_it_was(self):
        model = nn.Sequential(nn.Dropout(0.5), nn.ReLU()).train()
        solution = fbs(ONES, Identity((4,)), model)
        assert torch.allclose(solution.value, ONES)
        assert model.training
        assert model[0].training

    def test_nothing_is_recorded_for_autograd(self):
        model = network(4)
        value = fbs(torch.ones(1, 4, dtype=torch.float64), Identity((4,)), model, tol=1e-3).value
        assert not value.requires_grad

    def test_data_and_start_are_left_alone(self):
        y, start = torch.rand(2, 4), torch.rand(2, 4)
        copies = y.clone(), start.clone()
        fbs(y, Identity((4,)), nn.ReLU(), 0.3, 0.4, start=start, accelerate=True)
        assert torch.equal(y, copies[0])
        assert torch.equal(start, copies[1])

    def test_progress_reports_every_call(self):
        reports = []
        kernel = torch.ones(3, 3) / 9
        H = Blur(kernel, (1, 8, 8))
        solution = fbs(torch.rand(2, 1, 8, 8), H, haar_frame(0.05, 1), tol=1e-4, progress=reports.append)
        assert [report.calls for report in reports] == list(range(1, solution.denoiser_calls + 1))
        assert [report.residual for report in reports] == solution.residuals
        assert reports[-1].running == 0
        assert reports[-1].eta == 0
        assert any(report.eta for report in reports[5:-1])

    def test_progress_shows_every_iterate(self):
        """[eq:pnp_fbs]: each is the image of the one before under the plain step, the last is what is returned."""
        seen = []
        y = torch.rand(2, 4)
        solution = fbs(y, Identity((4,)), nn.ReLU(), 0.3, 0.4, progress=lambda report: seen.append(report.value))
        for before, after in pairwise(seen):
            z = before - 0.4 * (before - y)
            torch.testing.assert_close(after, 0.3 * z.relu() + 0.7 * z)
        assert torch.equal(seen[-1], solution.value)

    def test_progress_can_end_the_iteration(self):
        """What it raises reaches the caller."""

        def refuse(report):
            raise InterruptedError(f"call {report.calls}")

        with pytest.raises(InterruptedError, match="call 1"):
            fbs(torch.rand(1, 4), Identity((4,)), nn.ReLU(), progress=refuse)

    def test_a_callable_with_a_certificate_attribute_is_taken_at_its_word(self):
        class Denoiser:
            certificate = type("Certificate", (), {"upper": 0.75})

            def __call__(self, x: Tensor) -> Tensor:
                return 0.75 * x

        assert fbs(ONES, Identity((4,)), Denoiser()).certificate.setting.denoiser == 0.75
