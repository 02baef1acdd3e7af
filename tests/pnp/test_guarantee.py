"""The hypotheses of the theorem and the constants of the estimates, against definitions and dense matrices."""

import math

import pytest
import torch
from certified_denoisers import network
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lipspline.certification import declare
from lipspline.models import load, save
from lipspline.networks import denoiser
from lipspline.operators import MRI, Matrix, cartesian_mask
from lipspline.pnp.certificate import measure_pairing
from lipspline.pnp.guarantee import Setting, lipschitz_bound

DEFAULT = Setting(denoiser=1.0, beta=0.5, contraction=1.0, step=0.25, norm=(1.9, 2.0), smallest=0.5)


def setting(**changes) -> Setting:
    return Setting(**{**DEFAULT.__dict__, **changes})


def constants(**changes) -> list[float | None]:
    return [estimate.constant for estimate in setting(**changes).estimates()[:3]]


def test_bounds_come_from_certificates_only():
    assert lipschitz_bound(declare(torch.relu, 0.7, "test")) == 0.7
    assert lipschitz_bound(nn.Sequential(nn.ReLU(), nn.Sigmoid())) == 0.25
    assert lipschitz_bound(network(5, 0.5)) == pytest.approx(0.5, rel=1e-6)
    assert lipschitz_bound(lambda x: x) is None


@pytest.mark.parametrize("change", ["in place", "behind the back of autograd", "by another tensor"])
def test_a_network_whose_weights_changed_is_certified_anew(change, tmp_path):
    """What was proved of a file, or a call before, is not believed of other weights."""
    save(denoiser(channels=4, depth=2), tmp_path / "net.safetensors")
    network = load(tmp_path / "net.safetensors")
    assert lipschitz_bound(network) == lipschitz_bound(network) <= 1
    layer = network[0]
    if change == "in place":
        layer.weight.mul_(3)
    elif change == "by another tensor":
        layer.weight = nn.Parameter(3 * layer.weight)
    else:
        layer.weight.data[:] *= 3
    assert lipschitz_bound(network) == pytest.approx(3, rel=1e-5)


@given(st.floats(0.01, 0.99), st.floats(0.1, 1.5), st.floats(0.1, 1.0), st.integers(0, 99))
def test_the_lipschitz_bound_of_the_averaged_denoiser_is_attained(beta, bound, contraction, seed):
    """`K (β L + 1 - β)` is the norm of D_β for D = L Id; for other D of norm L it is a bound."""
    q = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).Q
    identity = torch.eye(4, dtype=torch.float64)
    s = setting(denoiser=bound, beta=beta, contraction=contraction)
    norm = [
        torch.linalg.matrix_norm(contraction * (beta * bound * d + (1 - beta) * identity), 2) for d in (identity, q)
    ]
    assert s.lipschitz == pytest.approx(float(norm[0]))
    assert float(norm[1]) <= s.lipschitz * (1 + 1e-12)


@given(st.floats(0.01, 0.99), st.floats(0.05, 1.0), st.floats(0.1, 1.0))
def test_firm_means_that_the_reflection_is_nonexpansive(beta, bound, contraction):
    """`‖2 D_β - Id‖` is largest for D = ± L Id; [prop:stability1] needs it to be at most 1."""
    s = setting(denoiser=bound, beta=beta, contraction=contraction)
    reflections = [abs(2 * contraction * (beta * sign * bound + 1 - beta) - 1) for sign in (1, -1)]
    if abs(max(reflections) - 1) > 1e-9:
        assert s.firm == (max(reflections) < 1)


@pytest.mark.parametrize(("beta", "firm"), [(0.49, True), (0.5, True), (0.51, False)])
def test_for_a_1_lipschitz_denoiser_firm_is_beta_up_to_one_half(beta, firm):
    """[prop:stability1]."""
    assert setting(beta=beta).firm is firm
    assert (constants(beta=beta)[0] is not None) is firm


def test_the_constants_are_those_of_the_paper():
    """[eq:EstForward] has 1, [eq:H_invert] 1/σ_min(H), [eq:EstCont] α ‖H‖ K / (1 - K) [prop:stability2]."""
    assert constants() == [1.0, 2.0, None]
    assert constants(smallest=None) == [1.0, None, None]
    assert constants(contraction=0.8) == [1.0, 2.0, pytest.approx(0.25 * 2.0 * 0.8 / 0.2)]
    assert constants(denoiser=0.6) == [1.0, 2.0, pytest.approx(0.25 * 2.0 * 0.8 / 0.2)]
    assert constants(denoiser=None) == [None, None, None]
    assert constants(beta=0.7) == [None, None, None]
    assert constants(beta=0.7, contraction=0.5)[2] == pytest.approx(0.5)


def test_what_does_not_hold_has_a_reason():
    for estimate in setting(beta=0.7).estimates():
        assert estimate.reason
    assert "σ" not in setting().estimates()[0].reason


@pytest.mark.parametrize("fraction", [0.1, 1.0, 1.7])
def test_the_rate_is_the_norm_of_the_iteration_for_the_worst_denoiser(fraction):
    """`K ‖Id - α HᵀH‖` against the dense matrix."""
    a = torch.randn(6, 4, dtype=torch.float64)
    H, step = Matrix(a), fraction / torch.linalg.matrix_norm(a, 2).item() ** 2
    norm = torch.linalg.matrix_norm(torch.eye(4, dtype=torch.float64) - step * a.mT @ a, 2).item()
    s = setting(step=step, norm=H.norm_bounds(), smallest=H.smallest_singular_value(), contraction=0.9)
    assert s.rate == pytest.approx(0.9 * norm)


def test_without_contraction_there_is_no_distance():
    assert setting(smallest=None).distance(1.0) is None
    assert setting(smallest=None, contraction=0.8).distance(2.0) == pytest.approx(10.0)
    assert setting(denoiser=None).distance(1.0) is None


def test_a_contraction_that_drowns_in_round_off_is_not_claimed():
    """A folded network is certified a hair below 1; a constant of millions would be true and useless."""
    assert constants(denoiser=1 - 1e-7) == [1.0, 2.0, None]
    assert setting(denoiser=1 - 1e-7, smallest=None).distance(1.0) is None
    assert constants(contraction=1 - 1e-5)[2] is not None


def test_all_hypotheses_are_looked_at():
    assert setting().violations() == []
    assert len(setting(denoiser=1.1, beta=1.0, step=0.5).violations()) == 3
    assert setting(step=math.nextafter(0.5, 0)).violations() == []


def test_the_upper_bound_on_the_norm_decides_about_the_step():
    """2/‖H‖² is only known from the upper bound: a step between the two bounds is not proven to be safe."""
    assert setting(step=0.51, norm=(1.9, 2.0)).violations()


def test_a_good_adjoint_pairs_to_round_off_and_a_scaled_one_is_seen():
    a = torch.randn(7, 5, dtype=torch.float64)
    assert measure_pairing(Matrix(a), torch.zeros(2, 5, dtype=torch.float64)).error < 1e-14
    assert measure_pairing(MRI(cartesian_mask(16)), torch.zeros(2, 1, 8, 16)).error < 1e-6


def test_the_stretch_is_a_lower_bound_on_the_norm():
    a = torch.randn(7, 5, dtype=torch.float64)
    stretch = measure_pairing(Matrix(a), torch.zeros(1, 5, dtype=torch.float64)).stretch
    assert 0.5 < stretch / torch.linalg.matrix_norm(a, 2).item() <= 1


def test_an_operator_that_sees_nothing_is_refused():
    with pytest.raises(ValueError, match="maps a random image to zero"):
        measure_pairing(Matrix(torch.zeros(3, 3)), torch.zeros(1, 3))


def test_outside_the_interval_of_beta_the_bound_is_that_of_the_triangle_inequality():
    """β D + (1 - β) Id for D = -Id is (1 - 2β) Id."""
    for beta in (1.5, -0.5, 0.0, 1.0):
        assert setting(beta=beta, smallest=None).lipschitz == pytest.approx(abs(beta) + abs(1 - beta))
