"""From a trained network to a file: ordinary layers with a certificate, safetensors and ONNX."""

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline._infra import checks
from lipspline._infra.files import write_whole
from lipspline.certification.proof import Certificate, certify, layer_bound
from lipspline.kernels import eager
from lipspline.networks.denoiser import denoiser
from lipspline.networks.mlp import mlp
from lipspline.networks.network import Network
from lipspline.networks.rescale import averaged
from lipspline.nn.fold import fold
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.inference_conv import InferenceConv2d

FORMAT = "lipspline/1"
BUILDERS = {"denoiser": denoiser, "mlp": mlp}
ROUNDING = 1e-4  # how far a constraint may miss its target by rounding; more is an error of the constraint


@torch.no_grad()
def plain(model: nn.Module) -> nn.Module:
    """Copy a model with all constraints folded in: ordinary layers and tables, the same outputs, certified.

    A layer whose rigorous bound exceeds its target by rounding is divided by that bound, so that a network built of
    1-Lipschitz layers is certified <= 1, not 1.0000004. Layers without a constraint stay as they are.

    The copy is for inference: convolutions run channels last and, where autograd is off, by Winograd's algorithm, and
    a spline behind a layer in an `nn.Sequential` overwrites what that layer returned.

    Example:
        >>> from lipspline.nn.layers import linear
        >>> layer = plain(linear(5, 3))
        >>> type(layer).__name__, certify(layer).upper <= 1
        ('Linear', True)
    """
    targets = {
        name: constraint.lipschitz
        for name, layer in model.named_modules()
        if parametrize.is_parametrized(layer, "weight")
        for constraint in layer.parametrizations.weight  # type: ignore[union-attr]
        if hasattr(constraint, "lipschitz")
    }
    folded = fold(model)
    for name, target in targets.items():
        _shrink(folded.get_submodule(name), target, name)
    return _for_inference(folded)


def _for_inference(model: nn.Module) -> nn.Module:
    """Let convolutions run channels last, by Winograd's algorithm, and splines overwrite what a layer before returned.

    It is the same function, faster. All is decided once, by the measurement in docs/kernels.md, and not anew on each
    machine: a choice that depends on the load of the moment would change the last bits from run to run.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # torch goes by the weight, whatever the layout of the image
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
            if type(module) is nn.Conv2d:
                module.__class__ = InferenceConv2d
        if isinstance(module, nn.Sequential):
            for before, after in itertools.pairwise(module):
                if isinstance(after, FoldedSpline) and isinstance(before, (nn.Conv2d, nn.Linear)):
                    after.overwrite = not before._forward_hooks
    return model


def _shrink(layer: nn.Module, target: float, name: str) -> None:
    """Divide the weight of a layer by its bound until the bound of the rounded weight is at most `target`."""
    weight = layer.get_parameter("weight")
    exact, divisor = weight.double(), 1.0
    while (bound := layer_bound(layer).upper) > target:
        if bound > target * (1 + ROUNDING):
            raise ValueError(
                f"Layer {name!r} should have Lipschitz constant {target:g}, but its bound is {bound:.9g}: "
                f"more than rounding explains, so plain will not hide it."
            )
        divisor *= bound / target * (1 + 1e-9)
        weight.copy_((exact / divisor).to(weight.dtype))


def save(model: Network, path: str | os.PathLike[str], provenance: dict[str, Any] | None = None) -> Certificate:
    """Write a network as safetensors: plain layers, with configuration, certificate and provenance as metadata.

    The file appears whole or not at all. Nothing in it is code.

    Args:
        model: made by `models.denoiser` or `models.mlp`.
        path: the file to write.
        provenance: where it comes from, any JSON values: data, training, scores.

    Returns:
        The certificate that stands in the file.
    """
    if not isinstance(model, Network):
        raise ValueError(
            f"save writes networks made by models.denoiser or models.mlp, but got a {type(model).__name__}. "
            f"For other modules use safetensors on their state_dict."
        )
    ordinary = plain(model)
    certificate = certify(ordinary, steps=0)
    tensors = {name: tensor.contiguous() for name, tensor in ordinary.state_dict().items()}
    if odd := _misfit(_build(model.config), tensors):
        raise ValueError(
            f"save writes a network as its configuration builds it, but {odd[0]!r} no longer fits it: a layer was "
            f"replaced, by sparsify for instance. Export such a network with to_onnx."
        )
    metadata = {
        "format": FORMAT,
        "config": json.dumps(_without_start(model.config)),
        "certificate": certificate.to_json(),
        "provenance": json.dumps(provenance or {}),
        "sha256": checksum(tensors),
    }
    write_whole(Path(path), to_bytes(tensors, metadata))
    return certificate


def load(path: str | os.PathLike[str]) -> Network:
    """Read a network written by `save`, and certify it again: the file is believed in nothing it can be asked.

    The network carries `certificate` (recomputed) and `provenance` (as written).
    """
    tensors, metadata = _read(Path(path))
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not a lipspline network: its format is {metadata.get('format')!r}, not {FORMAT!r}."
        )
    try:
        config, provenance = json.loads(metadata["config"]), json.loads(metadata["provenance"])
        promised = float(json.loads(metadata["certificate"])["upper"])
        model = _build(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has damaged metadata ({error}).") from error
    if checksum(tensors) != metadata.get("sha256"):
        raise ValueError(f"{path} was changed after it was written: its checksum does not match.")
    _fill(model, tensors, path)
    certificate = certify(model, steps=0)
    if certificate.upper > promised * (1 + 1e-9):  # the bound's own rounding depends on the machine
        raise ValueError(
            f"{path} promises the Lipschitz constant {promised:.9g}, but its layers only prove {certificate.upper:.9g}."
        )
    model.certificate, model.provenance = certificate, provenance
    _for_inference(model)
    return model


def checksum(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a safetensors file, or is truncated ({error}).") from error


def _build(config: dict[str, Any]) -> Network:
    """The empty network that a configuration describes."""
    options = dict(config)
    kind = checks.one_of("kind", options.pop("kind", None), BUILDERS)
    beta = options.pop("averaged", None)
    with torch.device("meta"):  # its tensors come from a file: neither time nor random numbers are spent on others
        network = BUILDERS[kind](**options, folded=True).eval().requires_grad_(False)
    return network if beta is None else averaged(network, beta)


def _without_start(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what the activations started as, which may be a function and no longer matters."""
    options = {key: value for key, value in config["activation_options"].items() if key != "init"}
    return {**config, "activation_options": options}


def _misfit(model: Network, tensors: dict[str, Tensor]) -> tuple[str, str | None, str | None] | None:
    """The first tensor that a network should have with another shape: its name, the shape wanted, the shape given."""
    wanted, given = _shapes(model.state_dict()), _shapes(tensors)
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            return name, wanted.get(name), given.get(name)
    return None


def _shapes(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Shapes by name, in words; integers are no parameters."""
    kinds = {True: "", False: " of integers"}
    return {name: f"{tuple(t.shape)}{kinds[t.is_floating_point()]}" for name, t in tensors.items()}


def _fill(model: Network, tensors: dict[str, Tensor], path: str | os.PathLike[str]) -> None:
    if odd := _misfit(model, tensors):
        raise ValueError(
            f"{path} does not fit its configuration: tensor {odd[0]!r} should have shape {odd[1]}, but has {odd[2]}."
        )
    model.load_state_dict(tensors, assign=True)
    model.requires_grad_(False)


def to_onnx(model: nn.Module, path: str | os.PathLike[str], input_shape: tuple[int, ...]) -> None:
    """Export the plain form of a model to ONNX, with the batch and the image size left free.

    Args:
        model: any model that `plain` accepts.
        path: the file to write.
        input_shape: shape of one input, without batch.
    """
    checks.require("onnxscript", "onnx", "Exporting to ONNX")
    example = torch.zeros(2, *input_shape)
    free = {0: torch.export.Dim.AUTO, **dict.fromkeys(range(2, example.ndim), torch.export.Dim.AUTO)}
    program = torch.export.export(plain(model), (example,), dynamic_shapes=(free,))
    converted = torch.onnx.export(program.run_decompositions(_in_plain_torch()), dynamo=True, verbose=False)
    assert converted is not None
    converted.save(os.fspath(path))


def _in_plain_torch() -> dict[Any, Any]:
    """What replaces the library's own operators where only torch's are known."""
    table = torch.export.default_decompositions()
    operators = torch.ops.lipspline
    table[operators.piecewise_affine.default] = eager.piecewise_affine
    table[operators.swap_pairs.default] = eager.swap_pairs
    table[operators.householder.default] = eager.householder
    table[torch.ops.aten.searchsorted.Tensor] = _count_knots
    return table


def _count_knots(knots: Tensor, x: Tensor, **_: Any) -> Tensor:
    """`torch.searchsorted` from the right, which ONNX lacks, by comparing with every knot of a free-knot spline."""
    return (x.unsqueeze(-1) >= knots.unsqueeze(-2)).sum(dim=-1)
