"""Turn constrained layers into ordinary ones: the constraint is evaluated once and forgotten."""

import copy
from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from lipspline.nn.inference import FoldedSpline
from lipspline.nn.spline import LinearSpline


def fold(model: nn.Module) -> nn.Module:
    """Copy a model with every parametrization and every learned spline folded into plain tensors, in eval mode.

    Constraints are evaluated in float64 and rounded once, so that an orthonormal weight is orthonormal up to the
    rounding of its entries, not of its computation. See `freeze` for the very weights that the model runs with.
    """
    return _fold(model, _in_float64)


def freeze(model: nn.Module) -> nn.Module:
    """The same with the weights that the model multiplies with, whatever the rounding of their computation."""
    return _fold(model, weights_as_run)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy. Tensors that belong to a graph of autograd, as a `forward` may keep them, are copied without it."""
    kept = {id(tensor): tensor for part in model.modules() for tensor in _tensors_in(list(vars(part).values()))}
    return copy.deepcopy(model, {at: tensor.detach().clone() for at, tensor in kept.items() if not tensor.is_leaf})


def _tensors_in(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors_in(part)]


@torch.no_grad()
def _fold(model: nn.Module, weights: Callable[[nn.Module], dict[str, Tensor]]) -> nn.Module:
    folded = copied(model).eval()
    for parent in list(folded.modules()):
        for name, child in parent._modules.items():
            if child is not None and _is_spline(child):
                parent._modules[name] = FoldedSpline.from_spline(child)
    for module in list(folded.modules()):
        if parametrize.is_parametrized(module) and not _is_spline(module):
            _replace_parametrizations(module, weights(module))
    folded = FoldedSpline.from_spline(folded) if _is_spline(folded) else folded
    return folded.eval().requires_grad_(False)


def _is_spline(module: nn.Module) -> TypeGuard[LinearSpline]:
    """Whether a module is a learned spline and nothing more: no forward of its own, no hooks that would be lost."""
    forward = getattr(module.forward, "__func__", None)
    return forward is LinearSpline.forward and not (module._forward_hooks or module._forward_pre_hooks)


def _replace_parametrizations(module: nn.Module, values: dict[str, Tensor]) -> None:
    """Replace each parametrized tensor of one module by its value.

    `parametrize.remove_parametrizations` would change the class of the module in place, which its copies share.
    """
    module.__class__ = class_before(module)
    del module.parametrizations
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=False))


def class_before(module: nn.Module) -> type[nn.Module]:
    """The class of a module before `torch.nn.utils.parametrize` gave it one with properties for its tensors."""
    kind = type(module)
    if not parametrize.is_parametrized(module):
        return kind
    harmless = {"__getstate__", "__deepcopy__", "__module__", "__doc__", "__slotnames__"}
    by_torch = kind.__module__ == parametrize.__name__ and all(
        name in harmless or (isinstance(value, property) and value.fget.__module__ == parametrize.__name__)
        for name, value in vars(kind).items()
    )
    return kind.__bases__[0] if by_torch else kind  # a user's class may only look parametrized


def _in_float64(module: nn.Module) -> dict[str, Tensor]:
    """The parametrized tensors of a module, evaluated in float64 and rounded to the type they have."""
    exact = {name: copy.deepcopy(parametrization).double().eval() for name, parametrization in _parametrized(module)}
    return {name: parametrization().to(module.parametrizations[name]()) for name, parametrization in exact.items()}  # type: ignore[index]


@torch.no_grad()
def weights_as_run(module: nn.Module) -> dict[str, Tensor]:
    """The parametrized tensors of a module in eval mode, as its `forward` computes them. The module does not change.

    A parametrization that gives two values, or changes its own state, has no one weight to speak of: `ValueError`.
    """
    with torch.random.fork_rng():
        return {name: _as_run(parametrization, name, module) for name, parametrization in _parametrized(module)}


def _parametrized(module: nn.Module) -> list[tuple[str, ParametrizationList]]:
    assert isinstance(module.parametrizations, nn.ModuleDict)
    return [(name, parametrization) for name, parametrization in module.parametrizations.items()]  # type: ignore[misc]


def _as_run(parametrization: ParametrizationList, name: str, module: nn.Module) -> Tensor:
    tensors = {id(tensor): tensor for tensor in (*parametrization.parameters(), *parametrization.buffers())}
    if _only_value(copy.deepcopy(parametrization).eval()) is None:
        raise ValueError(
            f"The parametrization of {name!r} is random or changes its own state in eval mode, so the weight is "
            f"another one at each call. Remove it with torch.nn.utils.parametrize.remove_parametrizations."
        )
    # What it computes depends, in the last bits, on where the tensors lie, and on what a parametrization has kept.
    runs = copy.deepcopy(parametrization, memo=dict(tensors))
    runs = runs.eval() if any(part.training for part in runs.modules()) else runs
    value = runs()
    cached = parametrize._cache.get((id(module), name)) if parametrize._cache_enabled else None
    if cached is not None and not module.training and not _equal(cached.detach(), value):
        raise ValueError(
            f"The {name!r} that torch.nn.utils.parametrize.cached() keeps is not the one that its parameters give now. "
            f"Leave the context after changing parameters."
        )
    return value.detach()


def _only_value(trial: ParametrizationList) -> Tensor | None:
    """What a copy of a parametrization gives each time, or None if there is more than one value or a state changes."""
    before = [tensor.clone() for tensor in (*trial.parameters(), *trial.buffers())]
    try:
        first = trial()
        with torch.enable_grad():
            second = trial().detach()
    except Exception as error:
        raise ValueError(f"A parametrization cannot be evaluated ({type(error).__name__}: {error}).") from error
    after = [*trial.parameters(), *trial.buffers()]
    same_state = len(before) == len(after) and all(_equal(x, y) for x, y in zip(before, after, strict=True))
    return first if same_state and _equal(first, second) else None


@torch.no_grad()
def depends_on_mode(module: nn.Module) -> bool:
    """Whether a parametrized tensor of a module is another one, or changes, with its parametrization as it is now."""
    with torch.random.fork_rng():
        for _, parametrization in _parametrized(module):
            now = _only_value(copy.deepcopy(parametrization))
            later = _only_value(copy.deepcopy(parametrization).eval())
            if now is None or later is None or not _equal(now, later):
                return True
    return False


def _equal(x: Tensor, y: Tensor) -> bool:
    """Bit by bit, NaN being itself."""
    return x.shape == y.shape and x.dtype == y.dtype and bool(((x == y) | ((x != x) & (y != y))).all())
