"""How complicated the learned splines of a model are: TV² and effective linear regions [eq:control_knots]."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lipspline.functional.spline import difference
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.linear_spline import LinearSpline


class EffectiveRegions(NamedTuple):
    """Average number of effective linear regions (AELR) of each layer and over all splines [table:nbr_knots]."""

    layers: dict[str, float]
    overall: float
    largest: int


def linear_splines(model: nn.Module) -> dict[str, LinearSpline]:
    """The learned splines of a model by name, in registration order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LinearSpline)}


def tv2(model: nn.Module) -> Tensor:
    r"""Sum of TV² over all learned splines of a model: the regulariser of [eq:optim_network].

    .. math:: \sum_{\ell, n} \mathrm{TV}^{(2)}(\sigma_{\ell, n}) = \sum_{\ell, n} \tfrac1T \|L c_{\ell, n}\|_1

    Example:
        >>> round(tv2(LinearSpline(3, init="abs")).item(), 3)
        6.0
    """
    terms = [difference(spline.slopes()).abs().sum() for spline in linear_splines(model).values()]
    return torch.stack(terms).sum() if terms else torch.zeros(())


@torch.no_grad()
def effective_regions(model: nn.Module, threshold: float = 0.01) -> EffectiveRegions:
    """Count the linear regions whose slopes differ by more than `threshold`, per layer and overall [table:nbr_knots].

    Example:
        >>> effective_regions(nn.Sequential(LinearSpline(2, init="abs"), LinearSpline(2))).layers
        {'0': 2.0, '1': 1.0}
    """
    slopes = {
        name: layer.slopes() if isinstance(layer, LinearSpline) else layer.slopes
        for name, layer in model.named_modules()
        if isinstance(layer, (LinearSpline, FoldedSpline))
    }
    counts = {name: (difference(each).abs() > threshold).sum(dim=-1) + 1 for name, each in slopes.items()}
    if not counts:
        raise ValueError(
            "effective_regions counts the regions of LinearSpline and FoldedSpline layers, but the model has none."
        )
    every = torch.cat(list(counts.values()))
    return EffectiveRegions(
        layers={name: count.float().mean().item() for name, count in counts.items()},
        overall=every.float().mean().item(),
        largest=int(every.max()),
    )
