"""Rules of modules made of modules: each combines the bounds of its parts."""

import math

from torch import nn

from lipspline.certification.certificate import BoundProduct, add_up, multiply_up, root_sum_of_squares_up
from lipspline.certification.inspection import REPEATS_ITS_MODULE, number_of, row
from lipspline.certification.proof import Bound, ChildBounds, register_rule
from lipspline.nn.combine import Averaged, Concatenated, Sum
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline
from lipspline.nn.spline import LinearSpline


@register_rule(nn.Sequential, composite=True)
def _row(layer: nn.Sequential, bounds: ChildBounds) -> BoundProduct:
    return BoundProduct([bound for name, child in row(layer) for bound in bounds(name, child)])


@register_rule(*REPEATS_ITS_MODULE, composite=True)
def _replicated(layer: nn.DataParallel, bounds: ChildBounds) -> BoundProduct:
    return bounds("", layer.module)


@register_rule(Averaged, composite=True)
def _averaged(layer: Averaged, bounds: ChildBounds) -> Bound:
    beta = number_of(layer, "beta")
    check_reads_only("inner", layer.inner)
    inner = bounds("inner", layer.inner).upper
    reason = f"beta * {inner:.9g} + (1 - beta), beta = {beta:g}"
    if inner == 1.0 and 0 <= beta <= 1:
        return 1.0, reason
    rest = abs(math.nextafter(1.0 - beta, math.inf if beta <= 1 else -math.inf))
    return add_up(multiply_up(abs(beta), inner), rest), reason


@register_rule(Sum, composite=True)
def _sum(layer: Sum, bounds: ChildBounds) -> Bound:
    uppers = [bound.upper for bound in _branches(layer, bounds)]
    return add_up(*uppers), "sum of " + ", ".join(f"{upper:.9g}" for upper in uppers)


@register_rule(Concatenated, composite=True)
def _concatenated(layer: Concatenated, bounds: ChildBounds) -> Bound:
    uppers = [bound.upper for bound in _branches(layer, bounds)]
    return root_sum_of_squares_up(*uppers), "root of the sum of squares of " + ", ".join(f"{u:.9g}" for u in uppers)


def _branches(layer: Sum | Concatenated, bounds: ChildBounds) -> list[BoundProduct]:
    for i, branch in enumerate(layer.branches):
        check_reads_only(f"branches.{i}", branch)
    return [bounds(f"branches.{i}", branch) for i, branch in enumerate(layer.branches)]


def check_reads_only(name: str, module: nn.Module) -> None:
    """Refuse a branch that writes over the input that others read after it."""
    culprit = _first_writer(module)
    if culprit is not None:
        raise ValueError(
            f"{name} begins with a {type(culprit).__name__} that writes over its input, which is read again "
            f"afterwards. Set its inplace to False."
        )


_ALLOCATE = (
    *(nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase),
    *(LinearSpline, FoldedSpline, FreeKnotSpline, Averaged, Sum, Concatenated),
)


def _first_writer(module: nn.Module) -> nn.Module | None:
    """The first layer that overwrites the input of a module, if one does."""
    if isinstance(module, nn.Sequential):
        for child in module._modules.values():
            writer = None if child is None else _first_writer(child)
            if writer is not None or isinstance(child, _ALLOCATE):
                return writer
        return None
    for wrapped in ("module", "_orig_mod"):  # of nn.DataParallel and torch.compile
        if isinstance(getattr(module, wrapped, None), nn.Module):
            return _first_writer(getattr(module, wrapped))
    return (
        module if getattr(module, "inplace", False) and not isinstance(module, nn.modules.dropout._DropoutNd) else None
    )
