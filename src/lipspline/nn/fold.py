"""Turn constrained layers into ordinary ones: the constraint is evaluated once and forgotten."""

import copy
from typing import TypeGuard

import torch
from torch import nn
from torch.nn.utils import parametrize

from lipspline.nn.inference import FoldedSpline
from lipspline.nn.spline import LinearSpline


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """Copy a model with every parametrization and every learned spline folded into plain tensors, in eval mode.

    Constraints are evaluated in float64 and rounded once, so that an orthonormal weight is orthonormal up to the
    rounding of its entries, not of its computation.
    """
    folded = copy.deepcopy(model).eval()
    for parent in list(folded.modules()):
        for name, child in parent._modules.items():
            if child is not None and _is_spline(child):
                parent._modules[name] = FoldedSpline.from_spline(child)
    for module in list(folded.modules()):
        if parametrize.is_parametrized(module) and not _is_spline(module):
            _fold_parametrizations(module)
    folded = FoldedSpline.from_spline(folded) if _is_spline(folded) else folded
    return folded.eval().requires_grad_(False)


def _is_spline(module: nn.Module) -> TypeGuard[LinearSpline]:
    """Whether a module is a learned spline and nothing more: no forward of its own, no hooks that would be lost."""
    forward = getattr(module.forward, "__func__", None)
    return forward is LinearSpline.forward and not (module._forward_hooks or module._forward_pre_hooks)


def _fold_parametrizations(module: nn.Module) -> None:
    """Replace each parametrized tensor of one module by its value.

    `parametrize.remove_parametrizations` would change the class of the module in place, which its copies share.
    """
    assert isinstance(module.parametrizations, nn.ModuleDict)
    exact = copy.deepcopy(module).double()
    values = {name: getattr(exact, name).to(getattr(module, name)) for name in module.parametrizations}
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value))
