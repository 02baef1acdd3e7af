"""No public function changes a module that it is given: tensors, modes, hooks, gradients, classes, random numbers."""

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import lipspline as ls
from lipspline import certification, networks
from lipspline.certification import estimate_lower, layer_bound
from lipspline.certification.round_off import evaluate_exactly
from lipspline.networks.curves import activation_curves
from lipspline.networks.tiling import apply_tiled
from lipspline.nn.fold import fold, freeze

IMAGE = (1, 8, 8)


def state(model: nn.Module) -> dict[str, Any]:
    """All that a user could notice, and the state of torch's random numbers."""
    found: dict[str, Any] = {"random": torch.get_rng_state().tolist()}
    for name, module in model.named_modules():
        tensors = {**module._parameters, **module._buffers}
        found[name] = {
            "class": type(module),
            "training": module.training,
            "attributes": sorted(vars(module)),
            "hooks": [len(v) for k, v in sorted(vars(module).items()) if k.endswith("hooks")],
            "children": {key: id(child) for key, child in module._modules.items()},
            "tensors": {
                key: None if t is None else (id(t), t.dtype, t.shape, t.stride()) for key, t in tensors.items()
            },
            "values": {key: None if t is None else t.detach().flatten().tolist() for key, t in tensors.items()},
            "gradients": {
                key: None if t is None else (t.requires_grad, None if t.grad is None else t.grad.tolist())
                for key, t in tensors.items()
            },
            "numbers": {key: v for key, v in vars(module).items() if isinstance(v, (int, float, str, tuple))},
        }
    return found


def network() -> nn.Module:
    """A denoiser of ours."""
    return ls.models.denoiser("lls", channels=4, depth=3)


def mixed() -> nn.Module:
    """Layers with a state: statistics, power iterations, random numbers, kept weights."""
    return nn.Sequential(
        ls.nn.conv2d(1, 4, 3, constraint="spectral"),
        nn.BatchNorm2d(4),
        ls.nn.LinearSpline(4),
        nn.Dropout(0.5),
        parametrizations.spectral_norm(nn.Conv2d(4, 1, 1)),
        parametrizations.weight_norm(nn.Conv2d(1, 1, 1)),
    )


def dense() -> nn.Module:
    """A network in words of ReLU, to be rewritten."""
    return ls.models.mlp(3, 2, width=4, depth=2, activation="relu")


def problem() -> tuple[torch.Tensor, Any]:
    H = ls.operators.MRI(ls.operators.cartesian_mask(8, acceleration=2, center=0.3))
    return H.forward(torch.zeros(1, *IMAGE)), H


def stability_of(model: nn.Module) -> None:
    y, H = problem()
    ls.pnp.stability(y, H, model, beta=0.4, tol=1e-2, perturbations=1, ascents=1)


def tune_with(model: nn.Module) -> None:
    y, H = problem()
    validation = ls.pnp.ValidationProblem(y, H, torch.zeros(1, *IMAGE))
    ls.pnp.tune([validation], {15.0: model}, betas=(0.4,), max_steps=3)


IMAGES: dict[str, Callable[[Any, Path], object]] = {
    "certify": lambda model, _: ls.certify(model),
    "certify with a shape": lambda model, _: ls.certify(model, IMAGE),
    "certify with rounding": lambda model, _: ls.certify(model, IMAGE, input_bound=1.0),
    "estimate_lower": lambda model, _: estimate_lower(model, IMAGE, steps=2),
    "declare": lambda model, _: ls.certify(ls.declare(model, 2.0, "for a test")),
    "plain": lambda model, _: ls.plain(model),
    "fold": lambda model, _: fold(model),
    "freeze": lambda model, _: freeze(model),
    "tv2": lambda model, _: ls.tv2(model),
    "effective_regions": lambda model, _: ls.effective_regions(model),
    "sparsify": lambda model, _: ls.sparsify(model),
    "sparsify with inputs": lambda model, _: ls.sparsify(model, torch.zeros(2, *IMAGE)),
    "activation_curves": lambda model, _: activation_curves(model),
    "plot_activations": lambda model, _: ls.plot_activations(model),
    "param_groups": lambda model, _: ls.param_groups(model, lr=1e-3),
    "fbs": lambda model, _: ls.pnp.fbs(*problem(), model, beta=0.4, tol=1e-2, max_steps=3, guarantee=False),
    "stability": lambda model, _: stability_of(model),
    "tune": lambda model, _: tune_with(model),
    "layer_bound": lambda model, _: layer_bound(model[0]),
    "lipschitz_bound": lambda model, _: ls.pnp.lipschitz_bound(model),
    "evaluate_exactly": lambda model, _: evaluate_exactly(model, torch.zeros(1, *IMAGE).double(), torch.zeros(1)),
    "apply_tiled": lambda model, _: apply_tiled(model.eval(), torch.zeros(1, *IMAGE), tile=4),
}
ONLY_OURS = {
    "save": lambda model, path: ls.models.save(model, path / "network.safetensors"),
    "to_onnx": lambda model, path: ls.models.to_onnx(model, path / "network.onnx", IMAGE),
}


def check(make: Callable[[], nn.Module], call: Callable[[Any, Path], object], training: bool, path: Path) -> None:
    torch.manual_seed(0)
    model = make().train(training)
    shape = (2, 3) if make is dense else (2, *IMAGE)
    model(torch.randn(shape)).sum().backward()  # there are gradients, statistics and kept weights
    before = state(model)
    with contextlib.suppress(ValueError):  # also a refusal must leave it alone
        call(model, path)
    assert state(model) == before


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [network, mixed])
@pytest.mark.parametrize("name", IMAGES)
def test_no_function_changes_the_network_it_is_given(name: str, make, training: bool, tmp_path):
    """In both modes, whether it returns or refuses."""
    if name == "apply_tiled" and training:
        pytest.skip("runs the network as it is")
    check(make, IMAGES[name], training, tmp_path)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ONLY_OURS)
def test_no_export_changes_the_network_it_is_given(name: str, training: bool, tmp_path):
    """Files are written from copies."""
    if name == "to_onnx":
        pytest.importorskip("onnxscript")
    check(network, ONLY_OURS[name], training, tmp_path)


@pytest.mark.parametrize("training", [True, False])
def test_rewriting_leaves_the_network_alone(training: bool, tmp_path):
    """The result is a new one."""
    check(dense, lambda model, _: ls.rewrite(model, "prelu", bound=10.0, inputs=torch.ones(4, 3)), training, tmp_path)


@pytest.mark.parametrize("name", ["ridge", "ridge-weak", "tv", "wavelet"])
def test_minimising_leaves_the_energy_alone(name: str):
    energy = ls.priors.resolve(name).at(10.0)
    assert isinstance(energy, nn.Module)
    y, H = problem()
    before = state(energy)
    ls.pnp.minimize(y, H, energy, 0.1, max_steps=3)
    assert state(energy) == before


def test_every_public_function_of_modules_is_tried():
    """A new one joins the lists above."""
    tried = {name.split()[0] for name in (*IMAGES, *ONLY_OURS)} | {"rewrite", "minimize"}
    tried |= {"preactivation_bound"}  # reads the weights of a network that is rewritten
    arguments = {"model", "module", "network", "denoiser", "denoisers", "energy", "layer"}
    found = set()
    for owner in (ls, ls.pnp, ls.models, ls.priors, certification, networks):
        for name in getattr(owner, "__all__", dir(owner)):
            function = getattr(owner, name)
            if inspect.isfunction(function) and arguments & inspect.signature(function).parameters.keys():
                found.add(name)
    assert len(found) > 15
    assert found <= tried, found - tried


def test_the_comparison_sees_what_matters():
    """Each change is noticed."""
    changes: list[Callable[[nn.Module], object]] = [
        lambda model: model[1].train(not model[1].training),
        lambda model: model[1].running_mean.add_(1e-6),
        lambda model: model[2].coefficients.requires_grad_(False),
        lambda model: model.zero_grad(),
        lambda model: model[0].register_forward_hook(lambda *_: None),
        lambda model: model.double(),
        lambda model: torch.rand(1),
        lambda model: setattr(model[3], "p", 0.1),
        lambda model: model(torch.randn(2, *IMAGE)),
    ]
    for change in changes:
        model = mixed().train()
        model(torch.randn(2, *IMAGE)).sum().backward()
        before = state(model)
        assert state(model) == before
        with torch.no_grad():
            change(model)
        assert state(model) != before
