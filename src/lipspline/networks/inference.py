"""A trained network as ordinary layers, ready to run fast or elsewhere: its plain form, and ONNX."""

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline import kernels
from lipspline._infra import checks
from lipspline._infra.files import write_whole
from lipspline.certification import layer_bound
from lipspline.certification.graph import quiet
from lipspline.certification.inspection import unwrapped
from lipspline.nn.convolutions import Conv2d
from lipspline.nn.fold import fold
from lipspline.nn.inference import InferenceConv2d, InferenceSequential

ROUNDING = 1e-4  # how far a constraint may miss its target by rounding; more is an error of the constraint


@torch.no_grad()
def plain(model: nn.Module) -> nn.Module:
    """Copy a model with all constraints folded in: ordinary layers and tables, the same outputs, certified.

    A layer whose rigorous bound exceeds its target by rounding is divided by that bound, so that a network built of
    1-Lipschitz layers is certified <= 1, not 1.0000004. Layers without a constraint stay as they are. What wraps the
    whole model (`torch.compile`, `DistributedDataParallel`, ...) is taken off.

    The copy is for inference: convolutions run channels last and, where autograd is off, by Winograd's algorithm, and
    in an `nn.Sequential` a spline writes over what the layer before it has returned. Nothing that a caller can see is
    overwritten, and containers with a forward of their own run as they did.

    Example:
        >>> from lipspline.certification import certify
        >>> from lipspline.nn import linear
        >>> layer = plain(linear(5, 3))
        >>> type(layer).__name__, certify(layer).upper <= 1
        ('Linear', True)
    """
    model = unwrapped(checks.module("plain", model))
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
    return for_inference_(folded)


def for_inference_(model: nn.Module) -> nn.Module:
    """Let convolutions run channels last, by Winograd's algorithm, and rows reuse the memory between their layers.

    It is the same function, faster. All is decided once, by the measurement in docs/kernels.md, and not anew on each
    machine: a choice that depends on the load of the moment would change the last bits from run to run.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # torch goes by the weight, whatever the layout of the image
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
            if type(module) in (nn.Conv2d, Conv2d):
                module.__class__ = InferenceConv2d
        if type(module) is nn.Sequential:
            module.__class__ = InferenceSequential
    return model


def _shrink(layer: nn.Module, target: float, name: str) -> None:
    """Divide the weight of a layer by its bound until the bound of the rounded weight is at most `target`."""
    weight = layer.get_parameter("weight")
    exact, divisor = weight.double(), 1.0
    allowed, least = _rounding(weight)
    while (bound := layer_bound(layer).upper) > target:
        if divisor == 1 and bound > target * (1 + allowed):
            raise ValueError(
                f"Layer {name!r} should have Lipschitz constant {target:g}, but its bound is {bound:.9g}: "
                f"more than rounding explains, so plain will not hide it."
            )
        divisor *= max(bound / target, least) * (1 + 1e-9)
        weight.copy_((exact / divisor).to(weight.dtype))


def _rounding(weight: Tensor) -> tuple[float, float]:
    """How far rounding may push the norm of a weight above its target, and the smallest factor that changes entries.

    Entries of half precision are off by eps/2 of their size, and the norm by that times the root of the rank at most.
    """
    eps = torch.finfo(weight.dtype).eps
    if eps < ROUNDING:
        return ROUNDING, 1.0
    rank = min(weight.shape[0], weight.numel() // weight.shape[0])
    return eps * math.sqrt(rank), 1 + eps / 8


def to_onnx(
    model: nn.Module, path: str | os.PathLike[str], input_shape: tuple[int, ...], *, force: bool = False
) -> None:
    """Export the plain form of a model to ONNX, with the batch and the image size left free.

    The file appears whole or not at all.

    Args:
        model: any model that `plain` accepts.
        path: the file to write.
        input_shape: shape of one input, without batch.
        force: replace a file that exists.
    """
    checks.require("onnxscript", "onnx", "Exporting to ONNX")
    target = Path(path)
    if os.path.lexists(target) and (target.is_dir() or not force):
        way = "" if target.is_dir() else ", or replace it with force=True"
        raise FileExistsError(f"{target} exists already. Choose another name{way}.")
    if not isinstance(input_shape, (tuple, list)) or not all(isinstance(n, int) and n > 0 for n in input_shape):
        raise ValueError(
            f"input_shape must be the shape of one input without batch, such as (3, 32, 32), but is {input_shape!r}."
        )
    dtype = next((p.dtype for p in checks.module("to_onnx", model).parameters()), torch.float32)
    program = _as_onnx(model, torch.zeros(2, *input_shape, dtype=dtype))
    write_whole(target, program.SerializeToString())


def _as_onnx(model: nn.Module, example: Tensor) -> Any:
    free = {0: torch.export.Dim.AUTO, **dict.fromkeys(range(2, example.ndim), torch.export.Dim.AUTO)}
    ordinary = plain(model)
    with quiet():
        program = torch.export.export(ordinary, (example,), dynamic_shapes=(free,))
        converted = torch.onnx.export(program.run_decompositions(_in_plain_torch()), dynamo=True, verbose=False)
    assert converted is not None
    return converted.model_proto


def _in_plain_torch() -> dict[Any, Any]:
    """What replaces the library's own operators where only torch's are known."""
    table = torch.export.default_decompositions()
    table.update(kernels.decompositions())
    table[torch.ops.aten.searchsorted.Tensor] = _count_knots
    return table


def _count_knots(knots: Tensor, x: Tensor, **_: Any) -> Tensor:
    """`torch.searchsorted` from the right, which ONNX lacks, by comparing with every knot of a free-knot spline."""
    return (x.unsqueeze(-1) >= knots.unsqueeze(-2)).sum(dim=-1)
