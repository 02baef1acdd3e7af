"""How many linear regions the splines of a network have, and how to have fewer [eq:control_knots, thm:spline_good1].

`tv2` is the regulariser that keeps regions few in training, `effective_regions` counts them, and `sparsify` removes
those that a trained network does not need.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lipspline._infra import checks
from lipspline.functional.knots import FreeKnots, free_knot_spline, merge_slopes, sparsest_interpolant
from lipspline.functional.spline import difference, grid, integrate
from lipspline.nn.fold import copied
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline
from lipspline.nn.spline import LinearSpline

SplineLayer = LinearSpline | FoldedSpline | FreeKnotSpline
DEFAULT_TOL = 0.01  # the slope change from which the paper counts a region [table:nbr_knots]
VISIBLE = 1e-4  # smaller changes of slope are the rounding of coefficients, and do not count as knots


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
    checks.module("tv2", model)
    terms = [difference(spline.slopes()).abs().sum() for spline in linear_splines(model).values()]
    return torch.stack(terms).sum() if terms else torch.zeros(())


@torch.no_grad()
def effective_regions(model: nn.Module, threshold: float = 0.01) -> EffectiveRegions:
    """Count the linear regions whose slopes differ by more than `threshold`, per layer and overall [table:nbr_knots].

    Example:
        >>> effective_regions(nn.Sequential(LinearSpline(2, init="abs"), LinearSpline(2))).layers
        {'0': 2.0, '1': 1.0}
    """
    checks.module("effective_regions", model)
    if not checks.number("threshold", threshold) >= 0:
        raise ValueError(f"threshold must be a difference of slopes, at least 0, but is {threshold!r}.")
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


class RegionCounts(NamedTuple):
    """Average number of linear regions of the splines, before and after."""

    before: float
    after: float


class SparsifyReport(NamedTuple):
    """Linear regions of each layer and over all splines."""

    layers: dict[str, RegionCounts]
    overall: RegionCounts


@torch.no_grad()
def sparsify(
    model: nn.Module, inputs: Tensor | None = None, tol: float | None = None
) -> tuple[nn.Module, SparsifyReport]:
    r"""Copy a model with fewer knots in its splines, none of them steeper than before.

    With `tol`, neighbouring regions whose slopes span at most `tol` get their mean slope, on the same grid. The values
    at the knots that stay are kept; between the outer knots ±r/α a spline moves by at most `tol r / (2α)`, and beyond
    them by at most `tol (|x| - r/α)`.

    With `inputs`, each spline is replaced by the spline of least TV² and then fewest knots through what it does on
    these inputs [eq:var_lip_1d], as in the proof of [thm:spline_good1]. The outputs on these inputs do not change,
    except by rounding; elsewhere they may. A neuron that always sees the same number keeps the line it is on.

    With both, the first comes first.

    Args:
        model: any module with `LinearSpline`, `FoldedSpline` or `FreeKnotSpline` layers.
        inputs: a batch for `model`, all the inputs that matter.
        tol: largest difference of slopes that is merged; 0.01 if there are no inputs, nothing otherwise.

    Returns:
        The new model in eval mode, and the linear regions before and after.

    Example:
        >>> layer = LinearSpline(1, regions=4, radius=2.0, init=lambda t: (t.abs() + 0.001 * t**2) / 2)
        >>> sparsify(layer)[1].overall
        RegionCounts(before=4.0, after=2.0)
    """
    checks.module("sparsify", model)
    if tol is not None:
        checks.positive("tol", tol, "It is a difference of slopes.")
    if not _splines(model):
        raise ValueError(
            "sparsify removes knots from LinearSpline, FoldedSpline and FreeKnotSpline layers, but the model has none."
        )
    before = _regions(model)
    if inputs is not None:
        _check_inputs(inputs)
    sparse = copied(model).eval()
    if tol is not None or inputs is None:
        sparse = _replace(sparse, lambda _, layer: _merged(layer, DEFAULT_TOL if tol is None else tol))
    if inputs is not None:
        seen = _preactivations(sparse, inputs)
        sparse = _replace(
            sparse,
            lambda name, layer: _interpolating(layer, seen[name]) if name in seen and _is_no_more(layer) else layer,
        )
    return sparse, _report(before, _regions(sparse))


@torch.no_grad()
def free_knots(layer: SplineLayer) -> FreeKnots:
    """The splines of a layer in float64, `(C, ·)` or `(1, ·)` if shared, in the coordinates of its inputs."""
    if isinstance(layer, FreeKnotSpline):
        return FreeKnots(*(part.double() for part in layer.splines()))
    slopes, values = _slopes_and_values(layer)
    scale = (layer.scale if isinstance(layer, FoldedSpline) else layer.log_scale.exp()).double()
    t = grid(layer.regions, layer.radius, slopes) / scale[:, None]
    return FreeKnots(t[:, 1:-1].contiguous(), slopes, values[:, 0] / scale - slopes[:, 0] * t[:, 0])


def _slopes_and_values(layer: LinearSpline | FoldedSpline) -> tuple[Tensor, Tensor]:
    """Slopes `(C, R)` and knot values `(C, K)` on the uniform grid, before scaling, in float64."""
    slopes, mean = layer.constrained() if isinstance(layer, LinearSpline) else (layer.slopes, layer.mean)
    step = 2 * layer.radius / layer.regions
    return slopes.double(), integrate(slopes.double() * step) + mean.double()[:, None]


def _splines(model: nn.Module) -> dict[str, SplineLayer]:
    """The spline layers of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, SplineLayer)}


def _replace(model: nn.Module, new: Callable[[str, SplineLayer], nn.Module]) -> nn.Module:
    """The model with each spline layer exchanged for `new(name, layer)`, in place; a layer used twice stays one."""
    exchanged: dict[nn.Module, nn.Module] = {layer: new(name, layer) for name, layer in _splines(model).items()}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in exchanged:
                parent._modules[name] = exchanged[child]
    return exchanged.get(model, model)


def _merged(layer: SplineLayer, tol: float) -> SplineLayer:
    """The layer with nearly equal neighbouring slopes made equal."""
    if isinstance(layer, FreeKnotSpline):
        return layer
    slopes, values = _slopes_and_values(layer)
    slopes = merge_slopes(slopes, tol)
    rising = integrate(slopes * (2 * layer.radius / layer.regions))
    values = rising - rising[:, :1] + values[:, :1]
    if isinstance(layer, FoldedSpline):
        return _folded(layer, slopes, values)
    merged = copy.deepcopy(layer)
    merged.coefficients.copy_(values)
    return merged


def _folded(layer: FoldedSpline, slopes: Tensor, values: Tensor) -> FoldedSpline:
    """A folded spline like `layer`, with other slopes and knot values."""
    folded = copy.deepcopy(layer)
    folded.slopes, folded.mean = slopes.to(layer.slopes), values.mean(dim=-1).to(layer.mean)
    return folded.refresh()


def _is_no_more(layer: SplineLayer) -> bool:
    """Whether a layer is its splines and nothing else: no forward of its own, no hooks that would be lost."""
    known = (kind.forward for kind in (LinearSpline, FoldedSpline, FreeKnotSpline))
    hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return not hooked and any(type(layer).forward is forward for forward in known)


def _check_inputs(inputs: object) -> None:
    if not isinstance(inputs, Tensor) or not inputs.numel():
        given = f"the shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
        raise ValueError(f"inputs must be a tensor, a batch of at least one input, but got {given}.")


def _preactivations(model: nn.Module, inputs: Tensor) -> dict[str, list[Tensor]]:
    """What each spline layer receives when the model sees the inputs, by name, for each of its calls."""
    seen: dict[str, list[Tensor]] = {}

    def watch(name: str, layer: nn.Module) -> RemovableHandle:
        return layer.register_forward_pre_hook(lambda _, args: seen.setdefault(name, []).append(args[0]))

    handles = [watch(name, layer) for name, layer in _splines(model).items()]
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _interpolating(layer: SplineLayer, seen: list[Tensor]) -> FreeKnotSpline:
    """The sparsest splines that do on the numbers seen what the layer does [eq:var_lip_1d]."""
    splines = free_knots(layer)
    rows = splines.intercept.numel()
    points = torch.cat([x.movedim(layer.channel_dim, 0).reshape(rows, -1) for x in seen], dim=1)
    sparse = [_sparsest(FreeKnots(*(part[row] for part in splines)), points[row]) for row in range(rows)]
    shared = layer.channels if layer.shared else None
    dtype = layer.log_scale.dtype if isinstance(layer, LinearSpline) else layer.slopes.dtype
    return FreeKnotSpline.from_splines(sparse, channels=shared, channel_dim=layer.channel_dim).to(dtype)


def _sparsest(spline: FreeKnots, points: Tensor) -> FreeKnots:
    """The sparsest spline equal to `spline` at the points, up to the rounding of these."""
    x = points.double().unique()
    region = torch.searchsorted(spline.knots, x, right=True)
    telling = _telling(region)
    x, y = x[telling], free_knot_spline(x[telling], spline)
    if len(x) == 1:
        slope = spline.slopes[region]
        return FreeKnots(x.new_empty(0), slope, (y - slope * x)[0])
    rounding = torch.finfo(points.dtype).eps * float(torch.cat([x, y]).abs().max())
    knots, slopes, intercept = sparsest_interpolant(x, y, tol=rounding)
    return FreeKnots(knots, slopes.clamp(spline.slopes.min(), spline.slopes.max()), intercept)


def _telling(region: Tensor) -> Tensor:
    """The first, a middle and the last of the points in each region; the others are on the same line."""
    _, count = region.unique_consecutive(return_counts=True)
    last = count.cumsum(0) - 1
    first = last - count + 1
    return torch.cat([first, (first + last) // 2, last]).unique()


def _regions(model: nn.Module) -> dict[str, Tensor]:
    """Number of linear regions of every spline, by layer."""
    return {
        name: (difference(free_knots(layer).slopes).abs() > VISIBLE).sum(dim=-1) + 1
        for name, layer in _splines(model).items()
    }


def _report(before: dict[str, Tensor], after: dict[str, Tensor]) -> SparsifyReport:
    def average(counts: Tensor) -> float:
        return counts.double().mean().item()

    layers = {name: RegionCounts(average(before[name]), average(after[name])) for name in before}
    overall = RegionCounts(average(torch.cat(list(before.values()))), average(torch.cat(list(after.values()))))
    return SparsifyReport(layers, overall)
