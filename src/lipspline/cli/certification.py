"""`lipspline certify`."""

import importlib.util
import json as jsonlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import lipspline
from lipspline.certification import estimate_lower
from lipspline.cli.output import Json, Seed, Threads, err, show, start


def certify(
    weights: Annotated[
        str,
        typer.Argument(help="A network written by lipspline (safetensors), an ONNX file, or module.py:function."),
    ],
    lipschitz: Annotated[float, typer.Option(help="The constant to prove.")] = 1.0,
    shape: Annotated[
        str | None, typer.Option(help="Shape of one input without batch, such as 3,32,32; ONNX files usually have it.")
    ] = None,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
) -> None:
    """Prove a Lipschitz bound of a network, layer by layer; exit code 0 only if the asked constant is proved.

    With `module.py:function` that file is run, and the function, without arguments, must return the module.
    """
    start(seed, threads)
    sizes = _sizes(shape)
    if weights.endswith(".onnx"):
        from lipspline.networks.onnx_module import from_onnx

        network: nn.Module = from_onnx(weights)
        certificate = lipspline.certify(network, _example(network, sizes))
    elif ".py:" in weights:
        network = _from_function(weights)
        certificate = lipspline.certify(network, sizes)
    else:
        network = lipspline.models.load(Path(weights))
        certificate = replace(lipspline.certify(network), lower=estimate_lower(network, sizes))
    show(jsonlib.loads(certificate.to_json()), str(certificate), json)
    if certificate.upper > lipschitz:
        err.print(f"lipspline: the bound {certificate.upper:.9g} exceeds {lipschitz:g}.", style="red")
        raise typer.Exit(1)


def _sizes(shape: str | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    try:
        sizes = tuple(int(word) for word in shape.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ValueError(
            f"shape must be positive integers with commas between them, such as 3,32,32, but is {shape!r}."
        )
    return sizes


def _example(network: nn.Module, sizes: tuple[int, ...] | None) -> Tensor:
    """An input for an ONNX network: of the shape that the file or the user says."""
    stored: tuple[int | None, ...] = network.input_sizes  # type: ignore[assignment]
    if sizes is None:
        if any(size is None or size < 1 for size in stored[1:]):
            raise ValueError(f"The file leaves sizes of its input open ({stored}). Say them with shape=3,32,32.")
        sizes = tuple(size or 1 for size in stored[1:])
    return torch.randn(stored[0] or 1, *sizes)


def _from_function(place: str) -> nn.Module:
    """Run a file of Python and call a function of it that returns a module."""
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"There is no file {file}. Write module.py:function.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{path.name} has no function {name!r}.")
    network = function()
    if not isinstance(network, nn.Module):
        raise ValueError(f"{path.name}:{name} returned a {type(network).__name__}, not an nn.Module.")
    return network
