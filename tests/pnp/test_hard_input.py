"""What users may hand over: denoisers that work in place, other types, data that are huge, zero or unexplainable."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lipspline import declare
from lipspline.models import zoo
from lipspline.operators import MRI, Identity, Matrix, cartesian_mask
from lipspline.pnp import ValidationProblem, fbs, stability, tune

DIAGONAL = Matrix(torch.diag(torch.tensor([1.0, 0.5])))
DATA = torch.tensor([[1.0, -1.0]])


class TestDenoisers:
    def test_one_that_works_in_place_gives_the_same_image(self):
        """β weighs D(z) against z: z must still be there."""
        other = fbs(DATA, DIAGONAL, nn.ReLU(), 0.1, max_steps=5000)
        same = fbs(DATA, DIAGONAL, nn.ReLU(inplace=True), 0.1, max_steps=5000)
        assert torch.equal(other.value, same.value)
        # z = x - α(Hᵀ(Hx - y)) with α = 1; in the second entry x = 0.9 (0.75 x - 0.5)
        assert other.value[0, 1].item() == pytest.approx(-0.45 / 0.325, rel=1e-4)

    def test_one_that_returns_another_precision_is_read_in_that_of_the_image(self):
        denoiser = declare(lambda x: torch.relu(x).double(), 1.0, "test")
        assert fbs(DATA, DIAGONAL, denoiser).value.dtype == torch.float32

    @pytest.mark.parametrize(
        ("answer", "words"),
        [(lambda x: x + 0j, "but returned torch.complex64"), (lambda x: None, "but returned NoneType")],
    )
    def test_one_that_returns_no_real_tensor_is_refused(self, answer, words):
        with pytest.raises(ValueError, match=f"must return a real tensor, {words}"):
            fbs(DATA, DIAGONAL, declare(answer, 1.0, "test"))

    def test_one_with_weights_of_another_precision_is_refused(self):
        y = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
        with pytest.raises(ValueError, match=r"weights of torch\.float32, but the images are of torch\.float64"):
            fbs(y, Identity((1, 8, 8)), zoo("lls", noise=15))

    @pytest.mark.parametrize("upper", [-1.0, float("nan"), "one"])
    def test_a_bound_that_is_none_is_no_guarantee(self, upper):
        def denoiser(x):
            return x

        denoiser.certificate = SimpleNamespace(upper=upper)
        with pytest.raises(ValueError, match=r"certificate\.upper of the denoiser must"):
            fbs(DATA, DIAGONAL, denoiser)

    def test_a_certificate_without_a_number_is_no_certificate(self):
        def denoiser(x):
            return x

        denoiser.certificate = SimpleNamespace(upper=None)
        with pytest.raises(ValueError, match="has no Lipschitz certificate"):
            fbs(DATA, DIAGONAL, denoiser)

    @pytest.mark.parametrize("denoiser", [None, "lls"])
    def test_what_cannot_be_called_is_refused(self, denoiser):
        with pytest.raises(ValueError, match="must be a module or a function of a tensor, but is a"):
            fbs(DATA, DIAGONAL, denoiser, guarantee=False)

    def test_nothing_is_guaranteed_of_one_that_returns_nan(self):
        solution = fbs(DATA, DIAGONAL, declare(lambda x: x * torch.nan, 1.0, "test"))
        assert torch.isfinite(solution.value).all()
        assert not solution.certificate.guaranteed
        assert "returned NaN" in solution.certificate.guarantee

    def test_every_part_of_a_network_is_left_in_the_mode_it_was_in(self):
        network = nn.Sequential(nn.ReLU(), nn.ReLU()).train()
        network[1].eval()
        fbs(DATA, DIAGONAL, network)
        assert [module.training for module in network.modules()] == [True, True, False]


class TestData:
    @pytest.mark.parametrize(("guarantee", "step"), [(True, None), (False, 1e300), (False, torch.nan)])
    def test_what_overflows_is_refused_and_never_returned(self, guarantee, step):
        y = torch.full((1, 2), 3e38)
        with pytest.raises(ValueError, match="first image α Hᵀ y has 2 NaN or infinite"):
            fbs(y, Matrix(torch.ones(2, 2)), nn.ReLU(), step=step, guarantee=guarantee)

    def test_data_that_no_image_explains_do_not_refute_the_certificate(self):
        """Their round-off is that of ‖y‖ and not of ‖x‖, which may be 10⁵ times smaller."""
        A = torch.randn(100, 5)
        Q = torch.linalg.qr(A)[0]
        unexplained = torch.randn(1, 100)
        unexplained = unexplained - unexplained @ Q @ Q.T
        solution = fbs(torch.randn(1, 5) @ A.T + 1e5 * unexplained, Matrix(A), nn.ReLU(), max_steps=3000)
        assert solution.converged
        assert solution.certificate.guaranteed

    @pytest.mark.parametrize("y", [DATA.numpy(), [DATA, DATA]], ids=["numpy", "list"])
    def test_what_is_no_tensor_is_refused_with_the_way_out(self, y):
        with pytest.raises(ValueError, match=r"needs a torch tensor .*torch\.as_tensor"):
            fbs(y, DIAGONAL, nn.ReLU())

    def test_a_complex_start_of_real_images_is_refused(self):
        with pytest.raises(ValueError, match=r"start is complex .* real images"):
            fbs(DATA, DIAGONAL, nn.ReLU(), start=DATA + 1j)

    def test_numbers_are_numbers(self):
        with pytest.raises(ValueError, match="beta must be a number, but is None"):
            fbs(DATA, DIAGONAL, nn.ReLU(), beta=None)

    def test_an_operator_too_small_to_square_is_refused(self):
        with pytest.raises(ValueError, match="too small or too large to be squared"):
            fbs(DATA, 1e-170 * DIAGONAL, nn.ReLU())


@pytest.mark.parametrize("accelerate", [False, True])
@pytest.mark.parametrize("contraction", [0.9, 0.99])
def test_the_distance_bounds_the_true_one_in_float32_too(contraction, accelerate):
    """The reference is the iteration in float64 with the very same matrix, run to its end."""
    matrix = torch.diag(torch.tensor([1.0, 0.1]))
    y = torch.tensor([[1.0, 0.3]])
    options = {"contraction": contraction, "accelerate": accelerate, "max_steps": 100_000}
    solution = fbs(y, Matrix(matrix), nn.ReLU(), tol=1e-6, **options)
    exact = fbs(y.double(), Matrix(matrix.double()), nn.ReLU(), tol=1e-14, **options)
    distance = float((solution.value - exact.value).norm())
    assert distance > 0
    assert distance <= solution.certificate.distance <= 1e-2


class TestStability:
    def test_data_that_are_zero_are_perturbed_too(self):
        evidence = stability(torch.cat([DATA, torch.zeros_like(DATA)]), DIAGONAL, nn.ReLU(), perturbations=2, ascents=2)
        assert evidence.holds
        assert {p.image for p in evidence.perturbations} == {0, 1}
        assert all(p.size > 0 for p in evidence.perturbations)

    def test_an_image_that_no_data_move_is_stable(self):
        """D = -Id with β = 1/2 makes every image zero: there is no direction of ascent."""
        evidence = stability(DATA, DIAGONAL, declare(lambda x: -x, 1.0, "test"), 0.5, perturbations=1, ascents=2)
        assert evidence.holds
        assert evidence.worst("eq:EstForward", optimised=True) == 0

    def test_the_table_says_what_was_not_tried_and_where_residuals_are_the_reason(self):
        with pytest.raises(ValueError, match=r"both 0, so that nothing would be tried\. Give one of them"):
            stability(DATA, DIAGONAL, nn.ReLU(), perturbations=0, ascents=0)
        half = str(stability(DATA, DIAGONAL, nn.ReLU(), perturbations=0, ascents=2))
        assert "not tried" in half
        assert "nan" not in half
        early = stability(DATA, DIAGONAL, nn.ReLU(), 0.1, size=1e-4, max_steps=2, ascents=0, start=torch.zeros(1, 2))
        assert early.holds
        assert early.worst("eq:EstForward", optimised=False) > 1
        assert "holds, but for what the residuals allow" in str(early)

    def test_without_guarantee_no_step_is_too_odd(self):
        evidence = stability(DATA, DIAGONAL, nn.ReLU(), step=-0.1, guarantee=False, ascents=0, max_steps=3)
        assert "no guarantee" in str(evidence)

    def test_a_denoiser_that_cannot_be_differentiated_is_refused_for_ascents(self):
        denoiser = declare(lambda x: torch.from_numpy(np.maximum(x.numpy(), 0)), 1.0, "test")
        with pytest.raises(ValueError, match="Pass ascents=0"):
            stability(DATA, DIAGONAL, denoiser, perturbations=1, ascents=1)
        assert stability(DATA, DIAGONAL, denoiser, perturbations=1, ascents=0).holds


def test_the_phase_of_complex_images_does_not_change_their_scores():
    H = MRI(cartesian_mask(16, 2, 0.25), convention="centred")
    x = torch.rand(1, 1, 16, 16)
    scores = []
    for phase in (1, 1j):
        problem = ValidationProblem(H.forward(x * phase + 0j), H, x * phase + 0j)
        trials = tune([problem], {5.0: declare(lambda x: 0.9 * x, 1.0, "test")}, [0.1, 0.2], refinements=0).trials
        scores.append([trial.score for trial in trials])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_tuning_needs_a_trial():
    with pytest.raises(ValueError, match="max_trials must be at least 1, but is 0"):
        tune([ValidationProblem(DATA, DIAGONAL, DATA)], {5.0: nn.ReLU()}, max_trials=0)


class TestOperators:
    def test_an_image_denoiser_on_vectors_is_refused_in_a_sentence(self):
        with pytest.raises(ValueError, match=r"fails on images of shape \(1, 2\).*wrap the denoiser with a reshape"):
            fbs(DATA, DIAGONAL, zoo("lls", noise=15))

    def test_a_bound_on_the_norm_that_is_far_too_large_is_warned_of(self, monkeypatch):
        """Steps that are 2500 times too short look like convergence."""
        H = Matrix(torch.eye(2))
        monkeypatch.setattr(Matrix, "norm_bounds", lambda self: (0.0, 50.0))
        with pytest.warns(UserWarning, match=r"at most 50, .*more than 1\. .*2\.5e\+03 times too short"):
            fbs(DATA, H, nn.ReLU(), max_steps=3)

    def test_a_bound_that_is_tight_is_not_warned_of(self, monkeypatch, recwarn):
        monkeypatch.setattr(Matrix, "norm_bounds", lambda self: (0.0, 1.0))
        fbs(DATA, Matrix(torch.eye(2)), nn.ReLU(), max_steps=3)
        assert not recwarn.list
