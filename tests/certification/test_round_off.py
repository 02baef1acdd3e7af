"""The running bound on round-off, against evaluation in more than float64."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipspline.certification import declare
from lipspline.certification.round_off import UnknownRoundOff, evaluate_exactly
from lipspline.networks.builders import denoiser as build_denoiser
from lipspline.networks.rescale import Rescaled
from lipspline.nn.combine import Averaged


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.weight.data, layer.bias.data = weight, bias
    return layer


def in_long_double(layers: list[nn.Linear], x: Tensor) -> np.ndarray:
    value = x.numpy().astype(np.longdouble)
    for i, layer in enumerate(layers):
        value = value @ layer.weight.detach().numpy().astype(np.longdouble).T
        value = value + layer.bias.detach().numpy().astype(np.longdouble)
        value = np.maximum(value, 0) if i + 1 < len(layers) else value
    return value


@pytest.mark.parametrize("level", [0.0, 1e3, 1e7, 1e12])
def test_the_bound_holds_and_grows_with_what_cancels_inside(level):
    """Biases that cancel cost digits: the error is measured in 80 bits, and the bound is within a factor of it."""
    n = 40
    w = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0]
    layers = [linear(w, torch.full((n,), level).double()), linear(w.T.contiguous(), -w.T.sum(1) * level)]
    x = torch.randn(3, n, dtype=torch.float64)
    y, bound = evaluate_exactly(nn.Sequential(layers[0], nn.ReLU(), layers[1]), x, torch.zeros(3))
    true = np.linalg.norm((y.numpy() - in_long_double(layers, x)).astype(float), axis=1)
    assert (true <= bound.numpy()).all()
    assert (bound.numpy() <= 1e4 * np.maximum(true, 1e-16 * n)).all()


def test_the_error_of_the_input_is_multiplied_by_the_lipschitz_bounds():
    """Exactly, where round-off is nothing: 2 · 3 · 0.5."""
    layers = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    layers[0].weight.data.fill_(2.0)
    layers[1].weight.data.fill_(3.0)
    _, error = evaluate_exactly(layers, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0.5]))
    assert float(error) == pytest.approx(3.0, rel=1e-9)
    averaged = Averaged(layers, 0.25)
    _, error = evaluate_exactly(averaged, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0.5]))
    assert float(error) == pytest.approx(0.25 * 3.0 + 0.75 * 0.5, rel=1e-9)
    for beta, expected in ((-1.0, 3.0 + 2 * 0.5), (2.0, 2 * 3.0 + 0.5)):
        averaged.beta = beta  # certify bounds it, so its round-off is bounded too
        _, error = evaluate_exactly(averaged, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0.5]))
        assert float(error) == pytest.approx(expected, rel=1e-9)
    _, error = evaluate_exactly(Rescaled(layers, 7.0), torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0.5]))
    assert float(error) == pytest.approx(3.0, rel=1e-9)


@pytest.mark.parametrize("activation", ["lls", "relu", "gs", "hh", "prelu", "av"])
def test_our_denoisers_have_rules_for_every_layer(activation):
    model = build_denoiser(activation, channels=4, depth=3)
    x = torch.rand(2, 1, 9, 10, dtype=torch.float64)
    y, error = evaluate_exactly(model, x, torch.zeros(2))
    with torch.no_grad():
        assert torch.allclose(model(x.float()).double(), y, atol=1e-5)
    assert ((error > 0) & (error < 1e-10)).all()


def test_an_unknown_layer_is_said_to_be_one():
    with pytest.raises(UnknownRoundOff, match="Declared"):
        evaluate_exactly(declare(torch.relu, 1.0, "test"), torch.ones(1, 3, dtype=torch.float64), torch.zeros(1))


def test_the_model_stays_as_it_was():
    model = build_denoiser("lls", channels=4, depth=3).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluate_exactly(model, torch.rand(1, 1, 8, 8, dtype=torch.float64), torch.zeros(1))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
