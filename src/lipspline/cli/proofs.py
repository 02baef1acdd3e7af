"""`lipspline certify`: a bound for a file of weights, an ONNX file, or a module that a function of the user returns."""

import importlib.util
import json as jsonlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import lipspline
from lipspline._infra import checks
from lipspline.certification import estimate_lower
from lipspline.certification.graph import as_example
from lipspline.certification.quantized import is_quantized
from lipspline.cli.program import Device, Json, Seed, Threads, err, show, start
from lipspline.networks.inference import ROUNDING


def certify(
    weights: Annotated[
        str,
        typer.Argument(help="A network written by lipspline (safetensors), an ONNX file, or module.py:function."),
    ],
    lipschitz: Annotated[float, typer.Option(help="The constant to prove.")] = 1.0,
    shape: Annotated[
        str | None, typer.Option(help="Shape of one input without batch, such as 3,32,32; ONNX files usually have it.")
    ] = None,
    input_bound: Annotated[
        float | None,
        typer.Option(help="Also bound the rounding of what runs, where no entry of an input is larger; needs --shape."),
    ] = None,
    json: Json = False,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Prove a Lipschitz bound of a network, layer by layer; exit code 0 only if the asked constant is proved.

    With `module.py:function` that file is run, and the function, without arguments, must return the module.
    """
    start(seed, threads, device, only="proofs are computed on the processor, in double precision")
    checks.positive("lipschitz", lipschitz)
    sizes = _sizes(shape)
    if input_bound is not None and sizes is None and not weights.endswith(".onnx"):
        raise ValueError(
            "--input-bound needs --shape, that of one input: rounding grows with the number of its entries."
        )
    if weights.endswith(".onnx"):
        from lipspline.networks.onnx_module import from_onnx

        network: nn.Module = from_onnx(weights)
        certificate = lipspline.certify(network, _example(network, sizes), input_bound=input_bound)
    elif ".py:" in weights:
        network = _from_function(weights)
        certificate = _smaller_bound(network, sizes, lipschitz, input_bound)
    else:
        _check_is_a_network(Path(weights))
        network = lipspline.models.load(Path(weights))
        if input_bound is None:
            certificate = replace(lipspline.certify(network), lower=estimate_lower(network, sizes))
        else:
            certificate = lipspline.certify(network, sizes, input_bound=input_bound)
    show(jsonlib.loads(certificate.to_json()), str(certificate), json)
    if certificate.upper > lipschitz:
        rounded = certificate.upper <= lipschitz * (1 + ROUNDING)
        hint = " That may be the rounding of weights, which lipspline.plain(network) divides away." if rounded else ""
        err.print(f"lipspline: the bound {certificate.upper:.9g} exceeds {lipschitz:g}.{hint}", style="red")
        raise typer.Exit(1)


def _smaller_bound(
    network: nn.Module, sizes: tuple[int, ...] | None, lipschitz: float, input_bound: float | None
) -> lipspline.Certificate:
    """The bound for inputs of every size, or, where it does not do, that for inputs of these sizes if it is smaller."""
    try:
        certificate = lipspline.certify(network, sizes, input_bound=input_bound)
        if sizes is not None and certificate.upper > lipschitz and not is_quantized(network):
            traced = lipspline.certify(network, as_example(network, sizes))
            kept = {"lower": certificate.lower, "rounding": certificate.rounding}
            certificate = replace(min(certificate, traced, key=lambda c: c.upper), **kept)
    except SystemExit as error:
        raise ValueError(f"The network ended the program (SystemExit: {error.code}) when it ran.") from error
    return certificate


def _check_is_a_network(path: Path) -> None:
    if path.suffix == ".py":
        raise ValueError(f"Write {path}:function, with the name of a function that returns the network.")
    if path.suffix in (".pt", ".pth", ".ckpt", ".bin", ".pkl"):
        raise ValueError(
            f"{path.name}: weights alone do not say what network they belong to, and nothing is unpickled here. Write "
            f"module.py:function, with a function that builds the network and loads them."
        )


def _sizes(shape: str | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    try:
        sizes = tuple(int(word) for word in shape.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ValueError(f"shape must be positive integers with commas between, such as 3,32,32, but is {shape!r}.")
    return sizes


def _example(network: nn.Module, sizes: tuple[int, ...] | None) -> Tensor:
    """An input for an ONNX network: of the shape that the file or the user says."""
    stored: tuple[int | None, ...] = network.input_sizes  # type: ignore[assignment]
    if sizes is None:
        if any(size is None or size < 1 for size in stored[1:]):
            raise ValueError(f"The file leaves sizes of its input open ({stored}). Say them with shape=3,32,32.")
        sizes = tuple(size or 1 for size in stored[1:])
    return torch.randn(stored[0] or 1, *sizes)


@contextmanager
def _users_code(path: Path, name: str) -> Iterator[None]:
    """Whatever a file of the user does: its errors become one sentence, what it prints is no result."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        at = f" (line {lines[-1].lineno}: `{lines[-1].line}`)" if lines else ""
        said = f": {error}" if str(error) else ""
        raise ValueError(
            f"{path.name}:{name} ended with {type(error).__name__}{said}{at}. It must be a function without arguments "
            f"that returns the network."
        ) from error


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
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))  # as python does for a script
    with _users_code(path, name):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function) or isinstance(function, nn.Module):
        instead = "" if function is None else f", but a {type(function).__name__}: write a function that returns it"
        raise ValueError(f"{path.name} has no function {name!r}{instead}.")
    with _users_code(path, name):
        network = function()
    if not isinstance(network, nn.Module):
        raise ValueError(f"{path.name}:{name} returned a {type(network).__name__}, not an nn.Module.")
    return network
