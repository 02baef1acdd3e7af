"""Ridge energies in files: safetensors with the constants, the provenance and a checksum of everything as metadata.

Nothing in a file is trusted: each field is checked by its type, and the constants are proven again from the weights.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from lipspline._infra.files import write_whole
from lipspline.priors.ridge import RidgeEnergy

FORMAT = "lipspline-ridge/1"


def save_ridge(energy: RidgeEnergy, path: str | os.PathLike[str]) -> None:
    """Write an energy as safetensors, with its constants, provenance and a checksum of everything as metadata."""
    tensors = {name: tensor.float().contiguous() for name, tensor in energy.named_buffers()}
    metadata = {
        "format": FORMAT,
        "config": json.dumps({"even": energy.even, "radius": energy.radius}),
        "certificate": json.dumps({"upper": energy.upper, "weak": energy.weak}),
        "provenance": json.dumps(energy.provenance),
    }
    metadata["sha256"] = tensors_checksum(tensors, metadata)
    write_whole(Path(path), to_bytes(tensors, metadata))


def file_format(path: str | os.PathLike[str]) -> str:
    """What a safetensors file says that it holds, empty if it says nothing; nothing else in it is looked at."""
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("format", "")
    except (SafetensorError, OSError):
        return ""


def read_sealed(path: str | os.PathLike[str], wanted: str, what: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a safetensors file of one format, with its checksum compared.

    Args:
        wanted: the format.
        what: it holds, in words, for errors.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, AttributeError, TypeError) as error:  # the last two: types torch does not have
        raise ValueError(f"{path} is no safetensors file, or is damaged ({error}).") from error
    if metadata.get("format") != wanted:
        raise ValueError(f"{path} is no {what}: its format is {metadata.get('format')!r:.60}, not {wanted!r}.")
    if tensors_checksum(tensors, metadata) != metadata.get("sha256"):
        raise ValueError(f"{path} was changed after it was written: its checksum does not match.")
    return metadata, tensors


def load_ridge(path: str | os.PathLike[str]) -> RidgeEnergy:
    """Read an energy written by `save_ridge`: all is checked, and the constants are proven again from the weights."""
    metadata, tensors = read_sealed(path, FORMAT, "ridge energy")
    try:
        config, certificate, provenance = (
            json_object(metadata, key) for key in ("config", "certificate", "provenance")
        )
        energy = RidgeEnergy(
            *(tensors.pop(name) for name in ("filters", "slopes", "log_scale", "log_strength", "nodes")),
            even=whole_field(config, "even"),
            radius=number_field(config, "radius"),
            provenance=provenance,
        )
        promised = number_field(certificate, "upper"), number_field(certificate, "weak")
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it has no {error}.") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if tensors:
        raise ValueError(f"{path} is no ridge energy: it has the unknown tensors {sorted(tensors)}.")
    if energy.upper > promised[0] * (1 + 1e-9) or energy.weak > promised[1] * (1 + 1e-9):
        raise ValueError(
            f"{path} promises the constants {promised[0]:.9g} and {promised[1]:.9g}, but its weights only prove "
            f"{energy.upper:.9g} and {energy.weak:.9g}."
        )
    return energy


def json_object(metadata: dict[str, str], key: str) -> dict[str, Any]:
    """A field of the metadata, which must be a JSON object."""
    try:
        value = json.loads(metadata[key])
    except (ValueError, RecursionError):
        raise ValueError(f"its {key} is not valid JSON.") from None
    if not isinstance(value, dict):
        raise ValueError(f"its {key} is not an object.")
    return value


def number_field(fields: dict[str, Any], name: str) -> float:
    """A field that must be a number, not negative."""
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e300:
        raise ValueError(f"{name} must be a number that is not negative, but is {value!r:.60}.")
    return value


def whole_field(fields: dict[str, Any], name: str) -> int:
    """A field that must be an integer, not negative."""
    if not isinstance(fields[name], int):
        raise ValueError(f"{name} must be an integer, but is {fields[name]!r:.60}.")
    return int(number_field(fields, name))


def tensors_checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """SHA-256 over names, types, shapes and values of tensors, and over all metadata but the checksum itself."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for key in sorted(metadata.keys() - {"sha256"}):
        digest.update(f"{key}={metadata[key]};".encode())
    return digest.hexdigest()
