"""Networks in files: safetensors with the configuration, the certificate and the provenance as metadata."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.files import write_whole
from lipspline.certification.proof import Certificate, certify
from lipspline.networks.builders import Network, denoiser, mlp
from lipspline.networks.inference import for_inference_, plain
from lipspline.networks.rescale import averaged

FORMAT = "lipspline/1"
BUILDERS = {"denoiser": denoiser, "mlp": mlp}


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
    for_inference_(model)
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
