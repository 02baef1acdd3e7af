"""Rules of activations, splines, pooling, rearrangements and modules of modules, and why some layers have none."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline._infra.devices import remembered
from lipspline.certification.certificate import BoundProduct, add_up, multiply_up, root_sum_of_squares_up, root_up
from lipspline.certification.functions import HARMLESS_THRESHOLD
from lipspline.certification.inspection import (
    REPEATS_ITS_MODULE,
    as_it_runs,
    axes_of,
    class_that_runs,
    number_of,
    row,
    sizes_of,
    weight_of,
)
from lipspline.certification.linear_rules import adaptive_pool_upper
from lipspline.certification.proof import Bound, ChildBounds, layer_bound, register_rule
from lipspline.functional.convolutions import conv_norm_upper
from lipspline.functional.knots import FreeKnots, intercepts
from lipspline.functional.matrices import spectral_norm_upper
from lipspline.functional.ridge import bank_norm_upper, descent_norm_upper
from lipspline.functional.spline import region_tables
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.blocks import (
    Centering,
    ConvexPotential,
    InvertibleDownsampling,
    InvertibleUpsampling,
    L2NormPool2d,
)
from lipspline.nn.combine import Averaged, Concatenated, Sum
from lipspline.nn.convolutions import SampleUnshuffle
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline
from lipspline.nn.ridge import RidgeStep, UnrolledRidge
from lipspline.nn.spline import LinearSpline


@register_rule(LinearSpline)
@torch.no_grad()
def _learned_spline(layer: LinearSpline) -> Bound:
    b, slopes, scale, _ = layer.tables()
    if not bool((scale > 0).all() & torch.isfinite(scale).all() & torch.isfinite(b).all()):
        raise ValueError("The scale of a LinearSpline must be a positive finite number, but exp(log_scale) is not.")
    checks.finite("The slopes of a spline", slopes, "A network with such parameters has no Lipschitz bound.")
    # The kernels in C and in torch may round a slope that is not clipped in two ways.
    upper = max(float(slopes.abs().max()), float(layer.slopes().abs().max()))
    return upper, "largest slope of the splines"


@register_rule(FoldedSpline)
def _folded_spline(layer: FoldedSpline) -> Bound:
    if not bool((layer.scale > 0).all()):
        raise ValueError("The scales of a FoldedSpline must be positive, but some are not.")
    slopes = weight_of(layer, "slopes", ndim=2)
    if layer.regions != slopes.shape[1]:
        raise ValueError(f"regions is {layer.regions!r}, but the spline has {slopes.shape[1]} slopes.")
    radius = checks.positive("radius", layer.radius)
    derived = region_tables(slopes.double(), layer.mean.double(), radius, layer.scale.double())[0]
    return _largest_slope(layer, derived, defined_by="slopes, mean or scale")


@register_rule(FreeKnotSpline)
def _free_knot_spline(layer: FreeKnotSpline) -> Bound:
    if not bool((layer.knots.diff(dim=-1) >= 0).all()):
        raise ValueError("The knots of a FreeKnotSpline must ascend, but some do not.")
    weight_of(layer, "slopes", ndim=2)
    derived = intercepts(FreeKnots(*(part.double() for part in layer.splines())))
    return _largest_slope(layer, derived, defined_by="slopes, knots or intercept")


def _largest_slope(layer: FoldedSpline | FreeKnotSpline, derived: Tensor, defined_by: str) -> Bound:
    """The largest slope of splines, whose intercepts must be those that make them continuous."""
    tolerance = 8 * torch.finfo(layer.b.dtype).eps
    derived = derived.to(layer.b)
    largest = float(derived.abs().max())
    if layer.b.shape != derived.shape or not bool(((layer.b - derived).abs() <= tolerance * largest).all()):
        raise ValueError(
            f"The intercepts of a {type(layer).__name__} do not follow from its slopes, so it may jump. "
            f"Call refresh() after changing its {defined_by}."
        )
    return float(layer.slopes.abs().max()), "largest slope of the splines"


@register_rule(AbsoluteValue, GroupSort, MaxMin)
def _gradient_norm_preserving(_: nn.Module) -> Bound:
    return 1.0, "preserves gradient norms"


@register_rule(Centering, L2NormPool2d)
def _shortens(_: nn.Module) -> Bound:
    return 1.0, "no difference gets longer"


@register_rule(ConvexPotential)
@torch.no_grad()
def _convex_potential(layer: ConvexPotential) -> Bound:
    """The Jacobian is I - 2 AᵀDA, A = T^(-1/2) W, with the slopes of the activation on the diagonal of D."""
    low, high = _slopes_of(layer.activation)
    weight = weight_of(layer, "weight").double()
    scaled = weight / layer.diagonal().double().sqrt().reshape(-1, *[1] * (weight.ndim - 1))
    square = (spectral_norm_upper if weight.ndim == 2 else conv_norm_upper)(scaled) ** 2
    square *= 1 + 1e-14
    upper = max(1 + 2 * max(0.0, -low) * square, 2 * max(high, 0.0) * square - 1)
    return (upper * (1 + 1e-15) if upper != 1 else 1.0), f"symmetric residual, slopes in [{low:.3g}, {high:.3g}]"


@register_rule(UnrolledRidge)
@torch.no_grad()
def _unrolled_ridge(layer: UnrolledRidge) -> Bound:
    """Step by step: the Jacobian by y after each, from that before it."""
    upper, largest = 1.0, 0.0
    for step in layer.steps:
        if class_that_runs(step, within_eval=False) is not RidgeStep or RidgeStep.forward is not _RIDGE_STEP:
            raise ValueError(f"The steps of an UnrolledRidge must be RidgeStep as it is, not {type(step).__name__}.")
        run = as_it_runs(step)
        assert isinstance(run, RidgeStep)
        tau, weight = (checks.within("A coefficient of a RidgeStep", float(c), 0, 1e300) for c in run.coefficients())
        low, high = _slopes_of(run.activation)
        bank = _bank_norm(weight_of(run, "weight", ndim=4))
        upper = descent_norm_upper(upper, tau, weight, (low, high), bank)
        largest = max(largest, weight * bank * high / tau)
    return upper, f"{len(layer.steps)} symmetric steps towards the input, L up to {largest:.3g}"


_bank_norm = remembered(bank_norm_upper)
_RIDGE_STEP = RidgeStep.forward


def _slopes_of(activation: nn.Module) -> tuple[float, float]:
    if type(activation) is nn.ReLU:
        return 0.0, 1.0
    if type(activation) in (LinearSpline, FoldedSpline, FreeKnotSpline):
        layer_bound(activation)  # which checks the splines
        slopes: Any = activation.slopes() if isinstance(activation, LinearSpline) else activation.slopes
        tables = activation.tables()[1] if isinstance(activation, LinearSpline) else slopes
        return min(float(slopes.min()), float(tables.min())), max(float(slopes.max()), float(tables.max()))
    raise ValueError(
        f"{type(activation).__name__} has no rule inside a ConvexPotential or a RidgeStep: use nn.ReLU or a "
        f"LinearSpline."
    )


@register_rule(Householder)
@torch.no_grad()
def _householder(layer: Householder) -> Bound:
    """`x - 2 (vᵀx) v` has the norm |1 - 2 |v|²| along v, and 1 across."""
    square = float(layer.v().double().square().sum(dim=-1).max())
    return max(1.0, math.nextafter(2 * math.nextafter(square, math.inf) - 1, math.inf)), "reflects pairs of channels"


@register_rule(LipschitzPReLU)
def _lipschitz_prelu(_: LipschitzPReLU) -> Bound:
    return 1.0, "slopes clipped to [-1, 1]"


@register_rule(nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Softshrink, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink)
def _slope_at_most_one(_: nn.Module) -> Bound:
    return 1.0, "slopes between 0 and 1"


def _steepest(upper: float, *kinds: type[nn.Module]) -> None:
    register_rule(*kinds)(lambda _: (upper, "largest slope of the function"))


_steepest(0.25, nn.Sigmoid)
_steepest(math.nextafter(1 / 6, 1), nn.Hardsigmoid)
_steepest(1.5, nn.Hardswish)
_steepest(1.0998394, nn.SiLU)
_steepest(1.0885, nn.Mish)
_steepest(1.7580994, nn.SELU)


@register_rule(nn.GELU)
def _gelu(layer: nn.GELU) -> Bound:
    exact = checks.one_of("approximate", layer.approximate, ("none", "tanh")) == "none"
    return 1.1289043 if exact else 1.1290, "largest slope of the function"


@register_rule(nn.ELU)
def _elu(layer: nn.ELU) -> Bound:
    return max(abs(number_of(layer, "alpha")), 1.0), "max(1, |alpha|)"


@register_rule(nn.CELU)
def _celu(layer: nn.CELU) -> Bound:
    checks.positive("alpha of a certified nn.CELU", layer.alpha)
    return 1.0, "slopes between 0 and 1"


@register_rule(nn.Softplus)
def _softplus(layer: nn.Softplus) -> Bound:
    if number_of(layer, "beta") == 0 or number_of(layer, "threshold") < HARMLESS_THRESHOLD:
        raise ValueError(
            f"nn.Softplus goes over to the identity where beta x = threshold, and jumps there (by 2e-9 with the "
            f"default threshold 20): it has no Lipschitz constant. Use nn.Softplus(threshold=40): from "
            f"{HARMLESS_THRESHOLD:g} on the jump is below the rounding of float64."
        )
    return 1.0, "slopes between 0 and 1"


@register_rule(nn.PReLU)
def _prelu(layer: nn.PReLU) -> Bound:
    return max(float(weight_of(layer, "weight").abs().max()), 1.0), "max(1, |a|)"


@register_rule(nn.LeakyReLU)
def _leaky_relu(layer: nn.LeakyReLU) -> Bound:
    return max(abs(number_of(layer, "negative_slope")), 1.0), "max(1, |a|)"


@register_rule(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, SampleUnshuffle)
@register_rule(InvertibleDownsampling, InvertibleUpsampling)
@register_rule(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
def _rearrangement(_: nn.Module) -> Bound:
    return 1.0, "keeps distances"


@register_rule(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _max_pool(layer: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d) -> Bound:
    _check_one_output(layer)
    axes = axes_of(layer)
    kernel = sizes_of("kernel_size", layer.kernel_size, axes)
    stride = kernel if layer.stride is None else sizes_of("stride", layer.stride, axes)
    windows = math.prod(
        -(-size * math.gcd(step, gap) // step)
        for size, step, gap in zip(kernel, stride, sizes_of("dilation", layer.dilation, axes), strict=True)
    )
    return root_up(windows), f"each pixel is in at most {windows} window(s)"


@register_rule(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
def _adaptive_max_pool(layer: nn.AdaptiveMaxPool2d) -> Bound:
    _check_one_output(layer)
    axes = axes_of(layer)
    return adaptive_pool_upper(layer.output_size, axes), "a pixel is in at most as many windows as there are outputs"


def _check_one_output(layer: Any) -> None:
    if layer.return_indices:
        raise ValueError("With return_indices=True it has two outputs. Set it to False.")


def _no_rule(reason: str, *kinds: type[nn.Module]) -> None:
    """Refuse classes for which no rule can be written that would be of use, and say why."""

    @register_rule(*kinds)
    def refuse(layer: nn.Module) -> Bound:
        raise ValueError(f"certify has no rule for {type(layer).__name__}: {reason}")


_no_rule(
    "it divides by the spread of its own input, so that it stretches small differences by up to 1/sqrt(eps). Use batch "
    "normalisation, whose statistics are fixed in eval mode, or vouch for a bound with lipspline.declare.",
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.LocalResponseNorm),
    *(nn.RMSNorm,),
)
_no_rule("it jumps. Use nn.Softshrink, which does not.", nn.Hardshrink)
_no_rule("it jumps. Use nn.ReLU, which does not.", nn.Threshold)
_no_rule(
    "its Lipschitz constant grows with its input. Use layers without products of their inputs.",
    *(nn.MultiheadAttention, nn.Bilinear, nn.GLU),
)


# Modules made of modules


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
