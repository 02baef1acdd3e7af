"""Networks in files: safetensors with the configuration, the certificate and the provenance as metadata.

Nothing in a file is trusted. It is read in this order: the metadata, each field by its type; the shapes of the tensors,
which bound every size in the configuration; the checksum; and the certificate, which is computed again.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.files import checksum, write_whole
from lipspline.certification import Certificate, certify
from lipspline.functional.matrices import METHODS
from lipspline.networks.builders import ACTIVATIONS, Network, denoiser, mlp
from lipspline.networks.inference import for_inference_, plain
from lipspline.networks.rescale import averaged
from lipspline.nn.convolutions import PADDING_MODES
from lipspline.nn.matrices import INITS
from lipspline.nn.spline import CONSTRAINTS

FORMAT = "lipspline/2"
"""Its checksum covers the tensors and all metadata."""
FIRST_FORMAT = "lipspline/1"
"""Its checksum covers the tensors only; such files are still read."""
BUILDERS = {"denoiser": denoiser, "mlp": mlp}
DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
DEEPEST = 32
"""Levels of nested lists and objects in the provenance."""
LARGEST = 1e300
"""No number in the metadata is larger."""


def save(model: Network, path: str | os.PathLike[str], provenance: dict[str, Any] | None = None) -> Certificate:
    """Write a network as safetensors: plain layers, with configuration, certificate and provenance as metadata.

    The file appears whole or not at all. Nothing in it is code.

    Args:
        model: made by `models.denoiser` or `models.mlp`.
        path: the file to write.
        provenance: where it comes from, any JSON values: data, training, scores. The noise level that a denoiser was
            trained for is `{"noise": 15}`, in units of 1/255.

    Returns:
        The certificate that stands in the file.
    """
    if not isinstance(model, Network):
        raise ValueError(
            f"save writes networks made by models.denoiser or models.mlp, but got a {type(model).__name__}. "
            f"For other modules use torch.save, or safetensors with contiguous tensors, on their state_dict."
        )
    ordinary = plain(model)
    certificate = certify(ordinary)
    tensors = {name: tensor.contiguous() for name, tensor in ordinary.state_dict().items()}
    if odd := _misfit(_build(model.config), {name: _words(t.shape, _dtype(t)) for name, t in tensors.items()}):
        raise ValueError(
            f"save writes a network as its configuration builds it, but {odd[0]!r} no longer fits it: a layer was "
            f"replaced, by sparsify for instance. Export such a network with to_onnx."
        )
    metadata = {
        "format": FORMAT,
        "config": json.dumps(_without_start(model.config)),
        "certificate": certificate.to_json(),
        "provenance": json.dumps(_check_provenance(provenance or {})),
    }
    metadata["sha256"] = _seal(tensors, metadata)
    write_whole(Path(path), to_bytes(tensors, metadata))
    return certificate


def load(path: str | os.PathLike[str]) -> Network:
    """Read a network written by `save`, and certify it again; nothing in the file is trusted.

    The network carries `certificate` (recomputed) and `provenance` (as written).

    Raises:
        ValueError: the file is damaged, was changed, or does not keep its promise; in one sentence.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            return _read(file, path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a safetensors file, or is truncated ({error}).") from error


def _read(file: Any, path: Path) -> Network:
    metadata = file.metadata() or {}
    if metadata.get("format") not in (FORMAT, FIRST_FORMAT):
        raise ValueError(
            f"{path} is not a lipspline network: its format is {_short(metadata.get('format'))}, not {FORMAT!r}."
        )
    names = list(file.keys())
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    dtypes = {name: file.get_slice(name).get_dtype() for name in names}
    try:
        config = _check_config(_json("config", metadata), shapes)
        provenance = _check_provenance(_json("provenance", metadata))
        promised = _check_certificate(_json("certificate", metadata))
        model = _build(config)
    except ValueError as error:
        raise ValueError(f"{path} has damaged metadata: {_cut(str(error), 300)}") from error
    if odd := _misfit(model, {name: _words(shapes[name], dtypes[name]) for name in names}):
        raise ValueError(
            f"{path} does not fit its configuration: tensor {odd[0]!r} should have shape {odd[1]}, but has {odd[2]}."
        )
    if len(set(dtypes.values())) > 1:
        raise ValueError(f"{path} mixes numbers of several types: {', '.join(sorted(set(dtypes.values())))}.")
    tensors = {name: file.get_tensor(name) for name in names}
    sealed = _seal(tensors, metadata) if metadata["format"] == FORMAT else checksum(tensors)
    if sealed != metadata.get("sha256"):
        raise ValueError(f"{path} was changed after it was written: its checksum does not match.")
    model.load_state_dict(tensors, assign=True)
    model.requires_grad_(False)
    model.certificate, model.provenance = _certified(model, promised, path), provenance
    for_inference_(model)
    return model


def _certified(model: Network, promised: float, path: Path) -> Certificate:
    try:
        certificate = certify(model)
    except ValueError as error:
        raise ValueError(f"{path} cannot be certified: {error}") from error
    if certificate.upper > promised * (1 + 1e-9):  # the bound's own rounding depends on the machine
        raise ValueError(
            f"{path} promises the Lipschitz constant {promised:.9g}, but its layers only prove {certificate.upper:.9g}."
        )
    return certificate


def _seal(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """SHA-256 over the tensors and every field of the metadata but itself."""
    fields = {**metadata, "sha256": checksum(tensors)}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


# The schema of the metadata


def _json(field: str, metadata: dict[str, str]) -> dict[str, Any]:
    """A field of the metadata, which must be a JSON object without a name twice."""
    if field not in metadata:
        raise ValueError(f"the field {field!r} is missing.")
    try:
        value = json.loads(metadata[field], object_pairs_hook=_no_name_twice)
    except RecursionError:
        raise ValueError(f"{field} is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{field} is not valid JSON ({error}).") from None
    if not isinstance(value, dict):
        raise ValueError(f"{field} must be an object, but is {_short(value)}.")
    return value


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _short(value: object) -> str:
    return _cut(repr(value), 60)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _check_provenance(provenance: dict[str, Any]) -> dict[str, Any]:
    """Where a network comes from: JSON values of any kind, except that noise levels are positive numbers."""
    if not isinstance(provenance, dict):
        raise ValueError(f"provenance must be an object, but is {_short(provenance)}.")
    level: list[Any] = [provenance]
    for _ in range(DEEPEST):
        level = [child for value in level for child in _children(value)]
        if not level:
            break
    else:
        raise ValueError(f"provenance is nested more than {DEEPEST} levels deep.")
    trained = provenance.get("trained")
    for source in (provenance, trained if isinstance(trained, dict) else {}):
        if source.get("noise") is not None:
            _positive("noise", source["noise"])
    return provenance


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


def _check_certificate(certificate: dict[str, Any]) -> float:
    """The Lipschitz constant that a file promises."""
    if "upper" not in certificate:
        raise ValueError("certificate has no upper bound.")
    return _positive("the upper bound of the certificate", certificate["upper"])


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < LARGEST:
        raise ValueError(f"{name} must be a positive finite number, but is {_short(value)}.")
    return float(value)


FieldCheck = Callable[[str, Any], object]


def _word(*words: str) -> FieldCheck:
    return lambda name, value: checks.one_of(name, value, words)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, but is {_short(value)}.")


def _channel_dim(name: str, value: object) -> None:
    if isinstance(value, bool) or value not in (1, -1):
        raise ValueError(f"{name} must be 1 or -1, but is {_short(value)}.")


def _check_config(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """A configuration whose fields have the right types, and no size above those of the tensors in the file."""
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    if config.get("depth") == 1:  # then widths and options of activations are not used
        largest = 2**31

    def size(name: str, value: Any) -> None:
        _within(name, value, largest, "the sizes of the tensors")

    def depth(name: str, value: Any) -> None:
        _within(name, value, len(shapes), "the number of the tensors")

    both: dict[str, FieldCheck] = {
        "kind": _word(*BUILDERS),
        "activation": _word(*ACTIVATIONS),
        "depth": depth,
        "method": lambda name, value: value is None or checks.one_of(name, value, METHODS),
        "init": _word(*INITS),
        "activation_options": lambda name, value: _check_options(value, config.get("activation"), size),
        "averaged": lambda name, value: _positive(name, value) <= 1 or _refuse(f"{name} must not exceed 1."),
    }
    own: dict[str, dict[str, FieldCheck]] = {
        "denoiser": {
            **dict.fromkeys(("channels", "kernel", "colors"), size),
            "padding_mode": _word(*PADDING_MODES),
            "constraint": _word("orthogonal", "spectral"),
        },
        "mlp": {
            **dict.fromkeys(("n_in", "n_out", "width"), size),
            "constraint": _word("orthonormal", "spectral"),
        },
    }
    kind = checks.one_of("kind", config.get("kind"), BUILDERS)
    _check_fields("config", config, {**both, **own[kind]})
    for name in ("n_in", "n_out") if kind == "mlp" else ():
        if name not in config:
            raise ValueError(f"config has no {name}.")
    return config


def _check_options(options: Any, activation: object, size: FieldCheck) -> None:
    spline: dict[str, FieldCheck] = {
        "regions": size,
        "radius": _positive,
        "slope": lambda name, value: checks.interval(name, value),
        "constraint": _word(*CONSTRAINTS),
        "learn_scale": _flag,
        "shared": _flag,
    }
    own: dict[object, dict[str, FieldCheck]] = {"relu": {"inplace": _flag}, "gs": {"size": size}, "lls": spline}
    if not isinstance(options, dict):
        raise ValueError(f"activation_options must be an object, but is {_short(options)}.")
    channel_dim: dict[str, FieldCheck] = {} if activation in ("relu", "av") else {"channel_dim": _channel_dim}
    _check_fields("activation_options", options, {**own.get(activation, {}), **channel_dim})


def _check_fields(owner: str, fields: dict[str, Any], known: dict[str, FieldCheck]) -> None:
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"{owner} has an unknown field {_short(name)}.")
        known[name](name, value)


def _within(name: str, value: Any, largest: int, what: str) -> None:
    if checks.at_least(name, value, 1) > largest:
        raise ValueError(f"{name} {_short(value)} exceeds {what} in the file, {largest}.")


def _refuse(sentence: str) -> None:
    raise ValueError(sentence)


# Building and comparing


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


def _misfit(model: Network, given: dict[str, str]) -> tuple[str, str | None, str | None] | None:
    """The first tensor that a network should have with another shape: its name, the shape wanted, the shape given."""
    wanted = {name: _words(tensor.shape, "F32") for name, tensor in model.state_dict().items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            return name, wanted.get(name), given.get(name)
    return None


def _words(shape: tuple[int, ...], dtype: str) -> str:
    """A shape in words; only torch's ordinary floating-point types are parameters."""
    return f"{tuple(shape)}" + ("" if dtype in DTYPES else f" of type {dtype}")


def _dtype(tensor: Tensor) -> str:
    """The type of a tensor as safetensors spells it, if it is one of `DTYPES`."""
    spellings = {name: short for short, name in DTYPES.items()}
    name = str(tensor.dtype).removeprefix("torch.")
    return spellings.get(name, name)
