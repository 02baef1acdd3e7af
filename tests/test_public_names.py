"""The names that users, docs and outside checks rely on: each can be called as the design writes it, and works."""

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import typer
from torch import nn

import lipspline as ls
from lipspline import cli

SIGNATURES: dict[str, dict[str, Any]] = {
    "nn.LinearSpline": {
        "regions": 50,
        "radius": 0.1,
        "init": "identity",
        "slope": (-1.0, 1.0),
        "constraint": "clip",
        "learn_scale": True,
        "shared": False,
    },
    "nn.linear": {"constraint": "orthonormal"},
    "nn.conv2d": {"constraint": "orthogonal", "stride": 1, "padding_mode": "zeros"},
    "certify": {"input_shape": None},
    "models.denoiser": {"activation": "lls", "channels": 64, "depth": 8},
    "models.zoo": {"noise": 15},
    "operators.cartesian_mask": {"acceleration": 4, "center": 0.08, "seed": 0},
    "operators.MRI": {"convention": "paper"},
    "operators.ParallelBeamCT": {"spacing": None},
    "pnp.fbs": {"beta": 0.5, "step": None, "tol": 1e-6, "max_steps": 1000, "accelerate": False},
    "pnp.minimize": {"positive": False, "convexity": 1e-4},
    "reconstruct": {"prior": "auto", "strength": "auto"},
}
"""The arguments that the design names, with their defaults."""


ROUND_OFF = 2e-6
"""By how much weights in float32 may exceed the norm 1."""


def named(path: str) -> Any:
    thing: Any = ls
    for name in path.split("."):
        thing = getattr(thing, name)
    return thing


@pytest.mark.parametrize("path", SIGNATURES)
def test_arguments_have_the_names_and_defaults_of_the_design(path: str):
    parameters = inspect.signature(named(path)).parameters
    found = {name: parameters[name].default for name in SIGNATURES[path]}
    assert found == SIGNATURES[path]


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"spline, {init}": lambda init=init: ls.nn.LinearSpline(4, init=init)
        for init in ("identity", "relu", "leaky_relu", "abs", "maxmin", "zero")
    },
    "spline, callable": lambda: ls.nn.LinearSpline(4, init=torch.sin),
    "spline, normalize": lambda: ls.nn.LinearSpline(4, constraint="normalize", learn_scale=False, shared=True),
    "absolute value": lambda: ls.nn.AbsoluteValue(),
    "PReLU": lambda: ls.nn.LipschitzPReLU(4, 0.25),
    "group sort": lambda: ls.nn.GroupSort(2),
    "maxmin": lambda: ls.nn.MaxMin(),
    "householder": lambda: ls.nn.Householder(4),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_of_the_design_is_certified(name: str):
    layer = ACTIVATIONS[name]()
    assert layer(torch.randn(2, 4, 3)).shape == (2, 4, 3)
    assert ls.certify(layer).upper <= 1


def test_an_unconstrained_spline_can_be_made():
    assert ls.nn.LinearSpline(4, constraint="none")(torch.zeros(1, 4)).shape == (1, 4)


@pytest.mark.parametrize("constraint", ["orthonormal", "spectral"])
def test_linear_is_a_plain_layer_of_torch(constraint):
    layer = ls.nn.linear(4, 3, constraint=constraint)
    assert isinstance(layer, nn.Linear)
    assert ls.certify(layer).upper == pytest.approx(1, abs=ROUND_OFF)


@pytest.mark.parametrize("constraint", ["orthogonal", "spectral"])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_conv2d_is_a_plain_layer_of_torch(constraint, padding_mode):
    layer = ls.nn.conv2d(2, 2, 3, constraint=constraint, stride=1, padding_mode=padding_mode)
    assert isinstance(layer, nn.Conv2d)
    assert ls.certify(layer, (2, 6, 6)).upper <= 1 + ROUND_OFF


def test_a_network_from_certificate_to_optimizer():
    model = ls.models.mlp(3, 1, width=4, depth=2)
    certificate = ls.certify(model)
    assert certificate.upper <= 1 + ROUND_OFF
    assert certificate.layers
    assert "Lipschitz constant <=" in str(certificate)
    assert json.loads(certificate.to_json())["upper"] == certificate.upper
    assert hasattr(certificate, "lower")
    x = torch.randn(5, 3)
    torch.testing.assert_close(ls.plain(model)(x), model(x))
    assert sum(len(group["params"]) for group in ls.param_groups(model, lr=1e-3)) == len(list(model.parameters()))
    assert ls.tv2(model).shape == ()
    assert ls.effective_regions(model)


def test_the_denoisers_that_ship_have_their_names():
    assert ls.certify(ls.models.zoo("lls", noise=15)).upper <= 1
    assert isinstance(ls.models.denoiser(activation="lls", channels=4, depth=2), nn.Module)


def test_operators_and_solvers_as_the_design_writes_them():
    mask = ls.operators.cartesian_mask(8, acceleration=2, center=0.25, seed=0)
    assert mask.shape == (8,)
    assert mask.dtype == torch.bool
    x = torch.rand(1, 1, 8, 8)
    maps = torch.full((2, 8, 8), 0.5**0.5, dtype=torch.complex64)
    for H in (
        ls.operators.MRI(mask, convention="paper"),
        ls.operators.MRI(mask, convention="centred"),
        ls.operators.MultiCoilMRI(mask, maps, convention="centred"),
        ls.operators.ParallelBeamCT(8, 6, 8, spacing=None),
        ls.operators.ParallelBeamCT(8, torch.linspace(0, 3, 6), 8),
    ):
        y = H.forward(x)
        assert H.adjoint(y).shape == x.shape
        lower, upper = H.norm_bounds()
        assert lower <= upper
        solution = ls.pnp.fbs(y, H, nn.Identity(), beta=0.5, step=None, tol=1e-6, max_steps=3, accelerate=False)
        assert solution.value.shape == x.shape
        assert isinstance(solution.converged, bool)
        assert len(solution.residuals) == solution.steps
        setting = solution.certificate.setting
        assert (setting.denoiser, setting.beta, setting.norm) == (1.0, 0.5, (lower, upper))
        assert setting.step < 2 / upper**2
        assert solution.certificate.estimates


def test_espirit_and_minimize_as_the_design_writes_them():
    x = torch.rand(1, 1, 16, 16)
    maps = ls.operators.espirit(torch.fft.fftshift(torch.fft.fft2(torch.rand(3, 16, 16), norm="ortho"), (-2, -1)))
    assert maps.shape == (3, 16, 16)
    H = ls.operators.MRI(torch.ones(16, dtype=torch.bool))
    energy = ls.priors.resolve("tv").at(5)
    solution = ls.pnp.minimize(H.forward(x), H, energy, 0.01, positive=False, convexity=1e-4, max_steps=20)
    assert solution.value.shape == x.shape


def test_priors_by_name_as_the_design_writes_them():
    assert {"ridge", "lls", "tv", "wavelet"} <= set(ls.priors.catalogue())
    for name in ("ridge", "lls", "tv", "wavelet"):
        assert isinstance(ls.priors.resolve(name).at(10), nn.Module)


def test_certified_radii_as_the_design_writes_them():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert (ls.robust.certified_radius(logits) > 0).all()
    assert callable(ls.robust.certified_accuracy)


COMMANDS = {
    "demo": [],
    "denoise": ["in.png", "out.png", "--noise", "15"],
    "reconstruct mri": ["in.h5", "out.npy", "--prior", "ridge", "--compare", "lls,tv,ridge"],
    "reconstruct ct": ["in.npy", "out.npy", "--prior", "net.safetensors", "--compare", "lls,tv,ridge"],
    "certify": ["net.safetensors"],
    "train": ["recipe.toml"],
    "reproduce": ["fig-1d", "--scale", "smoke"],
    "inspect": ["in.h5"],
    "verify": ["out.npy"],
    "bench": [],
}
"""The commands of the design, as it writes them."""


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_take_the_arguments_and_options_of_the_design(name: str):
    """Every one takes --json, --seed and --threads beside its own; nothing is run here."""
    command: Any = typer.main.get_command(cli.app)
    for word in name.split():
        command = command.commands[word]
    context = command.make_context(name, [*COMMANDS[name], "--json", "--seed", "3", "--threads", "1"])
    assert (context.params["json"], context.params["seed"], context.params["threads"]) == (True, 3, 1)
    with pytest.raises(Exception, match="No such option"):
        command.make_context(name, [*COMMANDS[name], "--no-such-option"])
