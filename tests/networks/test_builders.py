"""The builders: architectures of the paper, every activation, and bad arguments."""

import re

import pytest
import torch
from torch import nn

from lipspline import certify
from lipspline.models import Network, activation
from lipspline.networks import denoiser, mlp
from lipspline.nn import AbsoluteValue, FoldedSpline, GroupSort, Householder, LinearSpline, LipschitzPReLU

KINDS = {
    "relu": nn.ReLU,
    "av": AbsoluteValue,
    "prelu": LipschitzPReLU,
    "gs": GroupSort,
    "hh": Householder,
    "lls": LinearSpline,
}


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def test_the_default_denoiser_is_the_paper_s():
    """[sec:PnPReconstruction]: 8 convolutions 3x3, 64 channels, splines with 50 regions on ±0.1 from the identity."""
    model = denoiser()
    layers = convolutions(model)
    assert [(c.in_channels, c.out_channels, c.kernel_size) for c in layers] == [
        (1, 64, (3, 3)),
        *[(64, 64, (3, 3))] * 6,
        (64, 1, (3, 3)),
    ]
    splines = [module for module in model if isinstance(module, LinearSpline)]
    assert len(splines) == 7
    assert {(s.channels, s.regions, s.radius, s.constraint) for s in splines} == {(64, 50, 0.1, "clip")}
    x = torch.randn(5, 64)
    torch.testing.assert_close(splines[0](x), x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_every_activation_makes_a_one_lipschitz_denoiser(name: str):
    """[eq:architecture], certified; the parameters of all layers get gradients."""
    model = denoiser(name, channels=4, depth=3, padding_mode="circular")
    assert sum(isinstance(module, KINDS[name]) for module in model) == 2
    y = model(torch.rand(2, 1, 9, 7))
    assert y.shape == (2, 1, 9, 7)
    y.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    certificate = certify(model)
    assert certificate.upper == pytest.approx(1.0, abs=1e-5)
    assert len(certificate.layers) == 5


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("constraint", ["orthonormal", "spectral"])
def test_every_activation_makes_a_one_lipschitz_mlp(name: str, constraint: str):
    """[eq:architecture], certified."""
    model = mlp(3, 2, width=6, depth=3, activation=name, constraint=constraint)
    assert [(m.in_features, m.out_features) for m in model if isinstance(m, nn.Linear)] == [(3, 6), (6, 6), (6, 2)]
    assert model(torch.randn(5, 3)).shape == (5, 2)
    assert certify(model).upper <= 1 + 1e-5


def test_options_reach_the_layers():
    """Colours, kernel, padding and the activation's own arguments."""
    model = denoiser(
        "lls", 4, 2, kernel=5, colors=3, padding_mode="circular", activation_options={"regions": 7, "init": "abs"}
    )
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.padding_mode) for c in convolutions(model)] == [
        (3, 4, (5, 5), "circular"),
        (4, 3, (5, 5), "circular"),
    ]
    assert model[1].regions == 7
    assert denoiser("gs", 4, 2, activation_options={"size": 4})[1].size == 4
    assert mlp(1, 1, width=4, depth=2, activation_options={"radius": 2.0})[1].radius == 2.0


def test_one_layer_is_a_network():
    """No activation without something before and after it."""
    assert len(denoiser(depth=1)) == 1
    assert len(mlp(2, 2, depth=1)) == 1


def test_a_network_knows_how_it_was_built():
    """The same arguments give the same row of layers."""
    model = denoiser("hh", 4, 3)
    config = dict(model.config)
    assert config.pop("kind") == "denoiser"
    again = denoiser(**config)
    assert isinstance(again, Network)
    assert again.state_dict().keys() == model.state_dict().keys()


def test_folded_networks_are_ordinary_layers():
    """What a file is read into."""
    model = denoiser("lls", 4, 3, folded=True, activation_options={"regions": 9, "shared": True, "init": "abs"})
    assert [type(layer) for layer in model] == [nn.Conv2d, FoldedSpline, nn.Conv2d, FoldedSpline, nn.Conv2d]
    assert model[1].shared
    assert model[1].regions == 9


def test_activations_by_name():
    """The six words of the paper's tables [lipschitz_activation_section]."""
    for name, kind in KINDS.items():
        assert type(activation(name, 4)) is kind
    assert activation("prelu", 4, init=0.5).a.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: denoiser("elu"),
            "activation must be one of 'relu', 'av', 'prelu', 'gs', 'maxmin', 'hh', 'lls', but is 'elu'.",
        ),
        (lambda: denoiser(depth=0), "depth must be at least 1, but is 0."),
        (lambda: mlp(2, 2, depth=0), "depth must be at least 1, but is 0."),
        (lambda: denoiser(kernel=0), "kernel must be at least 1, but is 0."),
        (lambda: denoiser(channels=0), "c_out must be at least 1, but is 0."),
        (
            lambda: denoiser(padding_mode="reflect"),
            "padding_mode must be one of 'zeros', 'circular', but is 'reflect'.",
        ),
        (
            lambda: denoiser("hh", channels=5),
            "Householder reflects pairs of channels, so channels must be even, but is 5.",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(make, message: str):
    """Got, wanted."""
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        make()
