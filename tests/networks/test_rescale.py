"""Denoisers at another noise level than they were trained for: the formula, and the certificate."""

import pytest
import torch
from torch import nn

from lipspline.certification.proof import certify
from lipspline.networks.builders import Network, denoiser
from lipspline.networks.inference import plain
from lipspline.networks.rescale import Rescaled, averaged, level_for, rescale_, serve_, serving
from lipspline.nn.combine import Averaged
from lipspline.pnp import lipschitz_bound


@pytest.mark.parametrize("factor", [1 / 3, 1.0, 2.0])
def test_it_is_the_denoiser_on_another_scale_of_grey_values(factor):
    """Soft thresholding at t becomes soft thresholding at c t."""
    x = torch.linspace(-3, 3, 25, dtype=torch.float64)
    torch.testing.assert_close(Rescaled(nn.Softshrink(0.5), factor)(x), nn.Softshrink(0.5 * factor)(x))


def test_factors_multiply():
    model = denoiser("lls", channels=4, depth=2).double()
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(Rescaled(Rescaled(model, 3.0), 0.5)(x), Rescaled(model, 1.5)(x))


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 0.7, 3.0])
def test_the_certificate_is_that_of_the_denoiser(factor):
    """[sec:exp_pnp]: no round-off of c · (1/c) spoils a bound of 1."""
    model = plain(denoiser("lls", channels=4, depth=2))
    upper = certify(model).upper
    assert upper <= 1
    assert lipschitz_bound(Rescaled(model, factor)) == upper
    assert certify(Rescaled(model, factor)).upper == upper


def test_a_stretched_denoiser_stays_stretched():
    stretched = nn.Linear(1, 1, bias=False)
    stretched.weight.data.fill_(2.0)
    assert certify(Rescaled(stretched, 0.25)).upper == pytest.approx(2.0, rel=1e-6)
    assert Rescaled(stretched, 0.25)(torch.tensor([[1.0]])).item() == 2.0


def test_a_factor_must_be_positive():
    with pytest.raises(ValueError, match="factor must be a positive finite number, but is 0"):
        Rescaled(nn.ReLU(), 0)


@pytest.mark.parametrize("activation", ["relu", "av", "prelu", "gs", "hh", "lls"])
@pytest.mark.parametrize("fold", [False, True], ids=["to train", "plain"])
def test_rescaled_parameters_are_the_rescaled_denoiser(activation, fold):
    """[sec:exp_pnp]: biases by c, scales of splines by 1/c; also for what is then trained further."""
    model = denoiser(activation, channels=4, depth=3).double()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model = plain(model) if fold else model
    x = torch.rand(2, 1, 9, 9, dtype=torch.float64)
    expected = Rescaled(model, 0.4)(x)
    upper = certify(model).upper
    torch.testing.assert_close(rescale_(model, 0.4)(x), expected)
    assert certify(model).upper == upper


def test_a_layer_that_is_not_known_to_scale_is_refused():
    with pytest.raises(ValueError, match=r"does not know how Tanh scales. Wrap the network in Rescaled."):
        rescale_(Network([nn.Tanh()], {}), 2.0)


@pytest.mark.parametrize(("noise", "level"), [(1, 5), (5, 5), (7, 5), (7.1, 10), (12, 10), (12.5, 15), (50, 15)])
def test_the_nearest_level_serves(noise, level):
    assert level_for(noise, [10, 15, 5]) == level


@pytest.mark.parametrize(("noise", "kind"), [(3, Averaged), (15, Network), (20, Rescaled)])
def test_more_noise_is_served_by_rescaling_and_less_by_averaging(noise, kind):
    """[sec:exp_pnp]: the network that was changed is the same function as the one that was wrapped."""
    model = plain(denoiser("lls", channels=4, depth=3))
    x = torch.rand(1, 1, 9, 9)
    wrapped = serving(model, 15, noise)
    expected = wrapped(x)
    assert type(wrapped) is kind
    changed = serve_(model, 15, noise)
    assert isinstance(changed, Network)
    torch.testing.assert_close(changed(x), expected, rtol=1e-5, atol=1e-6)
    assert certify(changed).upper <= 1


def test_an_average_can_be_rescaled():
    """c (β D(x/c) + (1 - β) x/c) = β c D(x/c) + (1 - β) x."""
    model = plain(denoiser("lls", channels=4, depth=3))
    x = torch.rand(1, 1, 9, 9)
    expected = Rescaled(Averaged(model, 0.3), 2.0)(x)
    torch.testing.assert_close(rescale_(averaged(model, 0.3), 2.0)(x), expected, rtol=1e-5, atol=1e-6)
