"""Turn constrained layers into ordinary ones: the constraint is evaluated once and forgotten."""

import copy

import torch
from torch import nn
from torch.nn.utils import parametrize

from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.linear_spline import LinearSpline


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """Copy a model with every parametrization and every learned spline folded into plain tensors, in eval mode.

    Constraints are evaluated in float64 and rounded once, so that an orthonormal weight is orthonormal up to the
    rounding of its entries, not of its computation.
    """
    folded = copy.deepcopy(model).eval()
    if isinstance(folded, LinearSpline):
        return FoldedSpline.from_spline(folded)
    for parent in folded.modules():
        for name, child in parent.named_children():
            if isinstance(child, LinearSpline):
                setattr(parent, name, FoldedSpline.from_spline(child))
    for module in list(folded.modules()):
        if parametrize.is_parametrized(module):
            _fold_parametrizations(module)
    return folded.requires_grad_(False)


def _fold_parametrizations(module: nn.Module) -> None:
    """Replace each parametrized tensor of one module by its value."""
    assert isinstance(module.parametrizations, nn.ModuleDict)
    for name in list(module.parametrizations):
        dtype = getattr(module, name).dtype
        value = getattr(copy.deepcopy(module).double(), name).to(dtype)
        parametrize.remove_parametrizations(module, name, leave_parametrized=True)
        setattr(module, name, nn.Parameter(value))
