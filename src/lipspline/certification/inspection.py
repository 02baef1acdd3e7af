"""Whether a module runs what its class says, and the very numbers that it runs with.

A rule knows the `forward` of a class. Hooks, methods replaced on an instance and subclasses with ways of their own make
a module run something else, and are refused here. Parametrized weights are evaluated as `forward` does it.
"""

import math
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

from lipspline._infra import checks
from lipspline.nn.fold import class_before, depends_on_mode, weights_as_run
from lipspline.nn.inference import InferenceSequential

_DECIDES_WHAT_RUNS = (
    *("forward", "__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward", "_compiled_call_impl"),
    *("__iter__", "__getattr__", "__getattribute__", "_modules", "_forward_hooks", "_forward_pre_hooks"),
)
_DEPENDS_ON_MODE = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RReLU)
REPEATS_ITS_MODULE = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
_Methods = (types.FunctionType, types.BuiltinFunctionType, classmethod, staticmethod, property)


class LayerError(ValueError):
    """Why a layer has no bound, in a message that says already which layer it is."""


class NoLayerRule(LayerError):
    """A class of layers without a rule: its operations may have rules."""


def class_that_runs(module: nn.Module, *, within_eval: bool) -> type[nn.Module]:
    """The class whose `forward` a module runs, and nothing else; an error if something else runs.

    Args:
        module: any module; its children are not looked at.
        within_eval: whether the network around it is in eval mode, so that it must be, too.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"is no nn.Module but a {type(module).__name__}, of which certify knows nothing. "
            f"Vouch for a bound with lipspline.declare. (Of a program of torch.export, give its .module().)"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            "is of TorchScript, which certify cannot look into. Give certify the module that it was made from."
        )
    kind = class_before(module)
    _check_hooks(module)
    _check_instance(module, kind)
    if within_eval:
        _check_mode(module)
    return nn.Sequential if _is_sequential(kind) else kind


def compiled_from(module: nn.Module) -> nn.Module | None:
    """The module that `torch.compile` wrapped, or None if it did not. Nothing is imported for the question."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None or type(module) is not compiler.OptimizedModule:
        return None
    _check_hooks(module)
    if not hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable"):
        raise ValueError("was compiled, but its forward was replaced afterwards. Compile it again.")
    return module._orig_mod  # type: ignore[return-value]


def unwrapped(model: nn.Module) -> nn.Module:
    """The module within wrappers of torch that compute what it computes; an error if one does something beside."""
    try:
        inner = compiled_from(model)
        if inner is None and type(model) in REPEATS_ITS_MODULE:
            class_that_runs(model, within_eval=False)
            inner = model.module
    except ValueError as error:
        raise ValueError(f"The {type(model).__name__} {error}") from None
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def check_has_values(model: object) -> None:
    """Refuse a module whose weights lie on the meta device: they have shapes, and no numbers."""
    if not isinstance(model, nn.Module):
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ValueError(
                f"Parameter {name!r} is on the meta device, without values, so that nothing about it can be proven. "
                f"Load its weights first: model.to_empty(device='cpu'), then model.load_state_dict(...)."
            )


def _check_hooks(module: nn.Module) -> None:
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise ValueError(
            "runs global forward hooks (torch.nn.modules.module.register_module_forward_hook), and certify cannot see "
            "what they do. Remove them."
        )
    if module._forward_hooks or module._forward_pre_hooks:
        raise ValueError(
            "has forward hooks, and certify cannot see what they do. Remove them. (Those of torch.nn.utils.weight_norm "
            "and torch.nn.utils.spectral_norm have successors without hooks in torch.nn.utils.parametrizations.)"
        )


def _check_instance(module: nn.Module, kind: type[nn.Module]) -> None:
    """Attributes of the instance must not stand for methods of the class, which `forward` may call."""
    for name, value in vars(module).items():
        if name == "_compiled_call_impl" and value is not None:
            if getattr(value, "_torchdynamo_orig_callable", None) != module._call_impl:
                raise ValueError("has a _compiled_call_impl that module.compile() did not make.")
        elif isinstance(_of_class(kind, name), _Methods):
            raise ValueError(
                f"has a {name} that was set on the instance, and certify knows only that of its class "
                f"{kind.__name__}. Make it a class and register a rule for it."
            )


def _check_mode(module: nn.Module) -> None:
    bad = isinstance(module, _DEPENDS_ON_MODE) and module.training
    if parametrize.is_parametrized(module):
        parts: Any = module.parametrizations
        bad = bad or (any(part.training for part in parts.modules()) and depends_on_mode(module))
    if bad:
        raise ValueError(
            "is in training mode within a network in eval mode, and does something else there. Call eval() of the "
            "whole network."
        )


def _is_sequential(kind: type[nn.Module]) -> bool:
    """Whether a class is nn.Sequential, or ours for inference, in all that decides what it runs."""
    return any(
        issubclass(kind, row) and all(_of_class(kind, name) is _of_class(row, name) for name in _DECIDES_WHAT_RUNS)
        for row in (nn.Sequential, InferenceSequential)
    )


def _of_class(kind: type, name: str) -> object:
    """What a class, or the first of its bases that has it, holds under a name; no descriptor is asked."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def row(module: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """Names and layers in the order in which an nn.Sequential calls them, a layer's second place included."""
    if type(module._modules) not in (dict, OrderedDict):
        raise ValueError(f"keeps its layers in a {type(module._modules).__name__}, not in a dictionary.")
    yield from module._modules.items()  # type: ignore[misc]


def as_it_runs(module: nn.Module) -> nn.Module:
    """The layer with plain tensors where parametrizations were: those that it multiplies with. Nothing is copied."""
    layer = module
    if parametrize.is_parametrized(module):
        layer = object.__new__(class_before(module))
        vars(layer).update(vars(module))
        vars(layer)["_modules"] = {name: m for name, m in module._modules.items() if name != "parametrizations"}
        vars(layer)["_buffers"] = {**module._buffers, **weights_as_run(module)}
    for name, tensor in {**layer._parameters, **layer._buffers, **vars(layer)}.items():
        if isinstance(tensor, Tensor):
            _check_tensor(name, tensor)
    return layer


def _check_tensor(name: str, tensor: Tensor) -> None:
    """Refuse what has no values, or values that torch multiplies in another way than real numbers."""
    if type(tensor) not in (Tensor, nn.Parameter):
        odd = f"a {type(tensor).__name__}, which may multiply in its own way"
    elif tensor.is_meta:
        odd = "on the meta device, without values"
    elif tensor.is_quantized:
        odd = f"quantised ({tensor.dtype})"
    elif tensor.layout != torch.strided or tensor.is_nested:
        odd = f"not dense ({tensor.layout})"
    elif tensor.is_complex():
        odd = f"complex ({tensor.dtype})"
    else:
        if tensor.is_floating_point():
            values = tensor if tensor.element_size() > 1 else tensor.float()
            checks.finite(f"Parameter {name!r}", values, "A network with such parameters has no Lipschitz bound.")
        return
    raise ValueError(
        f"Parameter {name!r} is {odd}: certify bounds layers with real dense weights only. "
        f"Convert it, or vouch for a bound with lipspline.declare."
    )


def weight_of(layer: nn.Module, name: str, *, ndim: int | None = None) -> Tensor:
    """A weight that a rule may read: floating-point numbers, which float64 holds exactly, with `ndim` dimensions."""
    weight = getattr(layer, name)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        found = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(
            f"Parameter {name!r} holds {found}, but only floating-point weights have a norm that bounds what runs "
            f"(integers overflow). Convert the layer with .float()."
        )
    if ndim is not None and weight.ndim != ndim:
        raise ValueError(
            f"Parameter {name!r} of a {type(layer).__name__} must have {ndim} dimensions, but has shape "
            f"{tuple(weight.shape)}."
        )
    return weight.detach()


def number_of(layer: nn.Module, name: str) -> float:
    """An attribute that must be one finite number, whatever was written there after construction."""
    value = getattr(layer, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, but is {value!r}.")
    return float(value)


def sizes_of(name: str, value: object, axes: int, *, least: int = 1) -> tuple[int, ...]:
    """An attribute that torch takes as one integer for all axes, or as one for each; none is below `least`."""
    values: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(values) == 1:
        values *= axes
    if len(values) != axes or any(isinstance(v, bool) or not isinstance(v, int) or v < least for v in values):
        raise ValueError(
            f"{name} must be an integer of at least {least}, or one for each of {axes} axes, but is {value!r}."
        )
    return values


def axes_of(layer: nn.Module) -> int:
    """How many axes the images of a layer have, which is part of the name of its class: 2 for nn.Conv2d."""
    return int(type(layer).__name__[-2])
