"""Unrolled ridge descent: the constant 1 and where it is reached, the step size that would break it, and the kernel."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import lipspline as ls
from lipspline.functional.ridge import bank_norm_upper, descent_norm_upper, largest_step, sampled_bank_upper
from lipspline.kernels import ridge as kernel
from lipspline.nn import FoldedSpline, LinearSpline, RidgeStep, UnrolledRidge


def jacobian(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(model)(x).reshape(x.numel(), x.numel()).detach()


def norm(matrix: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def finished(filters: int, size: int, strength: float, seed: int, *, even: int = 0, scale: float = 1.0) -> RidgeStep:
    """A step with random filters, the first ones even and the others odd, and random odd splines."""
    g = torch.Generator().manual_seed(seed)
    raw = torch.randn(filters, 1, size, size, generator=g)
    weight = torch.cat([raw[:even] + raw[:even].flip(2, 3), raw[even:] - raw[even:].flip(2, 3)]) if even else raw
    weight = weight / bank_norm_upper(weight) ** 0.5 * (1 - 1e-6)
    spline = FoldedSpline(filters, regions=8, radius=1.0)
    half = torch.rand(filters, 4, generator=g).round(decimals=1)
    spline.slopes, spline.scale = torch.cat([half.flip(1), half], dim=1), scale * torch.ones(filters)
    return RidgeStep.of(weight, spline.refresh(), torch.tensor(float(strength)).log())


def scalar(*strengths: float) -> UnrolledRidge:
    """Steps on one pixel with filter 1 and the identity as spline, so that the Jacobian is a number."""
    steps = []
    for strength in strengths:
        spline = FoldedSpline(1, regions=2, radius=1.0)
        spline.refresh()
        steps.append(RidgeStep.of(torch.ones(1, 1, 1, 1), spline, torch.tensor(strength).log()))
    return UnrolledRidge(*steps).double()


def test_a_step_is_the_formula():
    step, x, y = finished(4, 3, 5.0, seed=0), torch.randn(2, 1, 6, 7), torch.randn(2, 1, 6, 7)
    tau = 2 / (2 + 5.0)
    responses = step.activation(torch.nn.functional.conv2d(x, step.weight, padding=1))
    gradient = torch.nn.functional.conv_transpose2d(responses, step.weight, padding=1)
    torch.testing.assert_close(step(x, y), (1 - tau) * x + tau * y - tau * 5 * gradient, atol=2e-5, rtol=0)


def test_many_equal_steps_are_the_prox():
    """The fixed point solves x + λ∇R(x) = y."""
    step, y = finished(4, 3, 3.0, seed=1).double(), torch.randn(1, 1, 8, 8, dtype=torch.float64)
    x = UnrolledRidge(*[step] * 200)(y)
    torch.testing.assert_close(x + 3 * step.gradient(x), y, atol=1e-4, rtol=0)


def test_the_jacobian_of_one_pixel_is_the_recursion_of_numbers():
    """J' = (1 - τ - τλ) J + τ with J = 1 before the first step."""
    expected = 1.0
    for strength in (50.0, 2.0, 7.0):
        tau = float(largest_step(torch.tensor(strength)))
        expected = (1 - tau - tau * strength) * expected + tau
    model = scalar(50.0, 2.0, 7.0)
    assert float(jacobian(model, torch.zeros(1, 1, 1, 1, dtype=torch.float64))) == pytest.approx(expected, abs=1e-6)


def test_the_constant_is_reached_by_steps_of_different_strengths():
    """A strong step turns a difference around, and a second one turns it back: 1 is not too much."""
    model = scalar(1e6, 1e6)
    found = norm(jacobian(model, torch.zeros(1, 1, 1, 1, dtype=torch.float64)))
    assert found == pytest.approx(1, abs=1e-5)
    assert found <= ls.certify(model).upper == 1


@pytest.mark.parametrize(
    ("name", "wrong"), [("2/(1 + L)", lambda strength: 2 / (1 + strength)), ("1", torch.ones_like)]
)
def test_a_larger_step_is_above_one_and_not_certified(name, wrong, monkeypatch):
    """With 2/(1 + L), up to which descent converges, two different steps reach 1.63; with 1, far more."""
    monkeypatch.setattr("lipspline.nn.ridge.largest_step", wrong)
    model = scalar(50.0, 2.0)
    found = norm(jacobian(model, torch.zeros(1, 1, 1, 1, dtype=torch.float64)))
    assert found > 1.6
    assert ls.certify(model).upper >= found


@pytest.mark.parametrize("seed", range(12))
def test_no_jacobian_is_above_the_certificate(seed):
    g = torch.Generator().manual_seed(seed)
    strengths = torch.rand(4, generator=g).mul(5).exp().tolist()
    model = UnrolledRidge(*(finished(4, 3, s, seed=10 * seed + k, scale=4.0) for k, s in enumerate(strengths))).double()
    upper = ls.certify(model).upper
    assert upper == 1
    found = [norm(jacobian(model, torch.randn(1, 1, 5, 5, dtype=torch.float64, generator=g))) for _ in range(4)]
    assert max(found) <= 1 + 1e-12


@pytest.mark.parametrize("slope", [-0.5, 3.0])
def test_slopes_outside_the_unit_interval_are_certified_as_they_are(slope):
    """One pixel: |1 - τ - τλs| + τ if the steps have opposite signs; the exact Jacobian shows that 1 is lost."""
    model = scalar(4.0, 4.0)
    for step in model.steps:
        step.activation.slopes.fill_(slope)  # type: ignore[union-attr]
        step.activation.refresh()  # type: ignore[union-attr]
    found = norm(jacobian(model, torch.zeros(1, 1, 1, 1, dtype=torch.float64)))
    assert 1 < found <= ls.certify(model).upper


def test_the_bound_of_a_step_is_that_of_its_worst_matrices():
    """For A = diag of the two ends and J = b sign(A): ‖A J + τI‖ reaches the bound."""
    tau, weight, before = 0.3, 2.0, 1.5
    upper = descent_norm_upper(before, tau, weight, (-0.2, 1.0), 1.0)
    ends = torch.tensor([1 - tau - weight, 1 - tau + 0.2 * weight], dtype=torch.float64)
    assert upper == pytest.approx(float((before * ends.abs() + tau).max()), rel=1e-9)


def test_a_bank_too_large_is_certified_as_it_is():
    step = finished(4, 3, 3.0, seed=2)
    step.weight.mul_(3.0)
    assert ls.certify(UnrolledRidge(step, step)).upper > 1.5


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_the_sampled_bound_is_above_the_norm_and_close(size):
    filters = torch.randn(6, 1, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    frequencies = torch.fft.fft2(filters[:, 0], s=(501, 501)).abs().square().sum(dim=0)
    assert float(frequencies.max()) <= float(sampled_bank_upper(filters)) <= 1.041 * float(frequencies.max()) * 1.001


def test_learned_filters_stay_in_the_unit_ball_and_can_be_assigned():
    step = RidgeStep(6, 5)
    with torch.no_grad():
        step.parametrizations["weight"].original.mul_(100)  # type: ignore[union-attr]
    assert 0.9 < bank_norm_upper(step.weight) <= 1 + 1e-6
    feasible = torch.randn(6, 1, 5, 5) / 100
    step.weight = feasible
    torch.testing.assert_close(step.weight.detach(), feasible)


def test_it_learns_to_denoise_and_is_exported():
    torch.manual_seed(0)
    model = UnrolledRidge(RidgeStep(4, 3), RidgeStep(4, 3))
    clean = torch.rand(8, 1, 3, 3).repeat_interleave(6, dim=2).repeat_interleave(6, dim=3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(clean + 0.1 * torch.randn_like(clean)) - clean).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())
    exported, y = ls.plain(model), torch.randn(2, 1, 12, 12)
    torch.testing.assert_close(exported(y), model(y), atol=1e-5, rtol=0)
    assert ls.certify(model).upper == ls.certify(exported).upper == 1
    assert not any(parametrize.is_parametrized(module) for module in exported.modules())


@pytest.mark.skipif(not kernel.has_ridge(torch.zeros(1)), reason="needs the kernel in C")
@pytest.mark.parametrize("even", [0, 4, 8])
def test_the_kernel_computes_the_same_step(even, monkeypatch):
    step = finished(8, 5, 3.0, seed=3, even=even) if even else finished(8, 5, 3.0, seed=3)
    x = torch.randn(2, 1, 20, 27)
    assert (step._for_c(x) is not None) == (even > 0)
    value = step.gradient(x)
    torch.testing.assert_close(value, step.double().gradient(x.double()).float(), atol=1e-5, rtol=0)


@pytest.mark.skipif(not kernel.has_ridge(torch.zeros(1)), reason="needs the kernel in C")
def test_the_kernel_forgets_numbers_that_were_changed():
    step, x = finished(4, 3, 3.0, seed=4, even=4), torch.randn(1, 1, 9, 9)
    before = step.gradient(x)
    step.weight.mul_(0.5)
    assert not torch.allclose(step.gradient(x), before)
    step.activation.slopes.mul_(0.5)  # type: ignore[union-attr]
    step.activation.refresh()  # type: ignore[union-attr]
    torch.testing.assert_close(step.gradient(x), step.double().gradient(x.double()).float(), atol=1e-5, rtol=0)


class Louder(RidgeStep):
    def forward(self, x, y):
        return 2 * super().forward(x, y)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: RidgeStep(4, 4), "kernel must be odd"),
        (lambda: UnrolledRidge(), "number of steps"),
        (lambda: UnrolledRidge(RidgeStep(4))(torch.zeros(1, 2, 5, 5)), r"shape \(B, 1, H, W\)"),
        (lambda: ls.certify(UnrolledRidge(RidgeStep(4, activation=nn.Tanh()))), "no rule inside"),
        (lambda: ls.certify(UnrolledRidge(Louder(4))), "must be RidgeStep as it is, not .*Louder"),
    ],
)
def test_errors_say_what_to_do(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_splines_of_any_kind_are_taken():
    for spline in (LinearSpline(4, slope=(0.0, 1.0), radius=1.0, init="relu"), nn.ReLU()):
        assert ls.certify(UnrolledRidge(RidgeStep(4, 3, activation=spline))).upper == 1
