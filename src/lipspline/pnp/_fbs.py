"""Plug-and-play forward-backward splitting with its theorem checked before the first step [eq:pnp_fbs]."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline._infra import checks
from lipspline.operators import LinearOperator
from lipspline.operators.base import rayleigh_lower_bound
from lipspline.pnp.batch import Progress, join_parts, norms, split_parts
from lipspline.pnp.certificate import (
    ReconstructionCertificate,
    Solution,
    check_norm,
    denoiser_round_off,
    distance_bound,
    imaginary_shift,
    measure_pairing,
    pairing_violations,
    unfamiliar_share,
)
from lipspline.pnp.guarantee import Denoiser, Setting, lipschitz_bound, vouched_reason
from lipspline.pnp.iterate import Anderson, FixedPointMap, iterate
from lipspline.pnp.promises import (
    denoiser_violations,
    first_iterate,
    singular_value_violations,
    smallest_bound,
    supported,
)
from lipspline.priors.energy import Energy

IMAGES = 4  # the dimensions of a batch of images
# An upper bound on ‖H‖ that exceeds what images are stretched by so many times makes steps too short to get anywhere.
FAR = 2.0


def fbs(
    y: Tensor,
    H: LinearOperator,
    denoiser: Denoiser,
    beta: float = 0.5,
    step: float | None = None,
    tol: float = 1e-6,
    max_steps: int = 1000,
    accelerate: bool = False,
    *,
    contraction: float = 1.0,
    reference: Tensor | None = None,
    start: Tensor | None = None,
    guarantee: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    r"""Reconstruct images from data `y = H x + n` by plug-and-play forward-backward splitting [eq:pnp_fbs].

    .. math:: x^{k+1} = K \bigl(\beta D + (1 - \beta) \mathrm{Id}\bigr) \bigl(x^k - \alpha H^T (H x^k - y)\bigr)

    Before the first step the hypotheses of the theorem are checked: a certificate that D is 1-Lipschitz, β in (0, 1),
    α in (0, 2/‖H‖²) with a proven bound on ‖H‖, an adjoint that is one. Each image of the batch is a problem of its
    own and stops on its own. A real denoiser is applied to real and imaginary part of complex images.

    Images are zero outside `H.support`, where data cannot hold the denoiser back: D is followed by P, which sets pixels
    to zero there. All iterates lie in the range of P, and on it P D is 1-Lipschitz if D is: the theorem is about P D.

    An image is stopped, with `converged` False, a `reason` and the last finite iterate, if the denoiser returns NaN, if
    the iteration diverges (possible only without guarantee), or if it does what the certificate excludes.

    Args:
        y: data `(B, *H.output_shape)`.
        denoiser: D, any callable `(B, *H.input_shape) -> ` the same shape; its certificate is found by
            `lipschitz_bound`.
        beta: weight of D against the identity; [eq:EstForward] needs `beta <= 1/2`.
        step: α; `1/‖H‖²`, from the upper bound on the norm, if not given.
        tol: stop when `‖x^{k+1} - x^k‖ <= tol ‖x^k‖`; accelerated, when the fixed point is near too (see `iterate`).
        max_steps: the largest number of denoiser calls.
        accelerate: use Anderson's steps, safeguarded so that convergence stays proven (the theorem is in `Anderson`).
        contraction: K, at most 1; below 1 the fixed point is unique, [eq:EstCont] holds and the distance to the fixed
            point is bounded.
        reference: r, an image that does not depend on y: images are contracted towards it, `r + K (D_1(z) - r)`, and
            not towards black; all estimates stay.
        start: first iterate; `α Hᵀ y` if not given.
        guarantee: False runs without the hypotheses, and says so in everything returned.
        progress: called with a `Progress` after each denoiser call.

    Example:
        >>> from lipspline.operators import Matrix
        >>> H = Matrix(torch.eye(2))
        >>> solution = fbs(torch.tensor([[2.0, 0.0]]), H, nn.ReLU(), tol=1e-6)
        >>> solution.converged, solution.value
        (True, tensor([[2., 0.]]))
    """
    return solve(
        y,
        H,
        denoiser,
        bound=certified_bound(denoiser, guarantee),
        beta=beta,
        step=step,
        tol=tol,
        max_steps=max_steps,
        accelerate=accelerate,
        contraction=contraction,
        reference=reference,
        start=start,
        guarantee=guarantee,
        progress=progress,
    )


def solve(
    y: Tensor,
    H: LinearOperator,
    denoiser: Denoiser,
    *,
    bound: float | None,
    beta: float,
    step: float | None = None,
    tol: float,
    max_steps: int,
    accelerate: bool,
    contraction: float = 1.0,
    reference: Tensor | None = None,
    start: Tensor | None = None,
    guarantee: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """`fbs` with the Lipschitz bound of the denoiser already known: to certify it takes longer than a small problem."""
    _check_data(y, H, denoiser, tol, max_steps)
    setting = fixed_point_setting(H, denoiser, bound, beta, contraction, step)
    norm = setting.norm
    violations = setting.violations()
    _refuse(violations, guarantee)
    first = first_iterate(y, H, setting.step, start)
    _check_tolerance(tol, first)
    pairing = measure_pairing(H, first)
    violations += pairing_violations(pairing, norm[1]) + singular_value_violations(H, first, setting.smallest)
    if setting.vouched and bound is not None:
        with evaluating(denoiser), torch.no_grad():
            violations += denoiser_violations(lambda z: denoise(denoiser, z), first, bound, setting.vouched)
    _refuse(violations, guarantee)
    if step is None and FAR * norm[0] < norm[1]:
        _warn_of_short_steps(H, norm)
    magnitude = setting.step * norm[1] * norms(y)
    towards = (
        None if reference is None else supported(checks.finite("reference", reference.to(first)), H).expand_as(first)
    )
    with evaluating(denoiser):
        value, runs = iterate(
            averaged_map(y, H, denoiser, setting, towards),
            first,
            tol=tol,
            max_steps=max_steps,
            nonexpansive=guarantee,
            accelerator=Anderson() if accelerate else None,
            pace=1 - setting.contraction * (1 - 2 * setting.beta),  # of x, where the data say nothing
            magnitude=magnitude,
            round_off=functools.cache(lambda: setting.beta * denoiser_round_off(denoiser, first)),
            progress=progress,
        )
    if not guarantee:
        violations.insert(0, "guarantee=False was passed.")
    violations += sorted({run.status.sentence for run in runs if run.status.refutes})
    distance = distance_bound(value, y, H, denoiser, setting, towards) if not violations else (None, "no guarantee")
    with torch.no_grad():
        unfamiliar = unfamiliar_share(denoiser, value - setting.step * H.adjoint(H.forward(value) - y))
    certificate = ReconstructionCertificate.of(setting, violations, pairing, runs, value, *distance, unfamiliar)
    return Solution(value, tuple(runs), certificate)


def fixed_point_setting(
    H: LinearOperator,
    denoiser: Denoiser,
    bound: float | None,
    beta: float,
    contraction: float = 1.0,
    step: float | None = None,
) -> Setting:
    """The numbers of the theorem, with the step `1/‖H‖²` if none is given [eq:pnp_fbs]."""
    norm = check_norm(H.norm_bounds())
    return Setting(
        denoiser=bound,
        beta=checks.number("beta", beta),
        contraction=contraction if contraction == 1 else checks.within("contraction", contraction, 0.0, 1.0),
        step=1 / norm[1] ** 2 if step is None else checks.number("step", step),
        norm=norm,
        smallest=smallest_bound(H),
        vouched=vouched_reason(denoiser),
    )


def certified_bound(denoiser: Denoiser, guarantee: bool = True) -> float | None:
    """The certified bound; without guarantee a network that cannot be certified is merely one without a bound."""
    if isinstance(denoiser, Energy):
        kind = type(denoiser).__name__
        raise ValueError(f"fbs needs a denoiser, but {kind} is an energy. Minimise it with pnp.minimize.")
    try:
        return lipschitz_bound(denoiser)
    except ValueError:
        if guarantee:
            raise
        return None


def averaged_map(
    y: Tensor, H: LinearOperator, denoiser: Denoiser, setting: Setting, reference: Tensor | None = None
) -> FixedPointMap:
    """The map `T(x, rows)` whose fixed points are the reconstructions [eq:pnp_fbs]; differentiable in x and y.

    It maps images that are zero outside `H.support` to such images.
    """

    def gradient(x: Tensor, rows: Tensor) -> Tensor:
        if H.domain.batch is None or len(rows) == len(y):
            return H.adjoint(H.forward(x) - y[rows])
        # The operator holds data for each image, so it needs the whole batch.
        whole = x.new_zeros((len(y), *x.shape[1:])).index_copy(0, rows, x)
        return H.adjoint(H.forward(whole) - y)[rows]

    def mapped(x: Tensor, rows: Tensor) -> Tensor:
        z = x - setting.step * gradient(x, rows)
        denoised = supported(denoise(denoiser, z), H, rows)
        contracted = setting.contraction * (z + setting.beta * (denoised - z))
        return contracted if reference is None else contracted + (1 - setting.contraction) * reference[rows]

    return mapped


def denoise(denoiser: Denoiser, x: Tensor) -> Tensor:
    """Apply a real denoiser, to real and imaginary part if `x` is complex: this keeps its Lipschitz constant.

    (Applied to magnitude and phase it would not.)
    """
    shift = imaginary_shift(denoiser)
    flat = split_parts(x, shift) if x.is_complex() else x.clone()  # it may work in place
    _check_precision(denoiser, flat)
    try:
        result = denoiser(flat)
    except (RuntimeError, IndexError, TypeError) as error:
        if flat.ndim == IMAGES or flat.requires_grad:
            raise
        raise ValueError(
            f"The denoiser fails on images of shape {tuple(flat.shape)}, which is what the operator maps ({error}). "
            f"Image denoisers need (B, 1, H, W): use an operator on such images, or wrap the denoiser with a reshape."
        ) from error
    if not isinstance(result, Tensor) or result.is_complex():
        kind = result.dtype if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"The denoiser must return a real tensor, but returned {kind}.")
    if result.shape != flat.shape:
        raise ValueError(
            f"The denoiser maps shape {tuple(flat.shape)} to {tuple(result.shape)}, but must keep the shape."
        )
    result = result.to(flat.dtype)
    return join_parts(result, shift) if x.is_complex() else result


def _check_precision(denoiser: Denoiser, x: Tensor) -> None:
    """Check that a network has weights of the type of `x`: what else it would round is not in the certificate."""
    tensors = chain(denoiser.parameters(), denoiser.buffers()) if isinstance(denoiser, nn.Module) else ()
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), x.dtype)
    if dtype != x.dtype:
        raise ValueError(
            f"The denoiser has weights of {dtype}, but the images are of {x.dtype}. Convert the data, or the denoiser "
            f"with denoiser.to({x.dtype})."
        )


def _check_data(y: Tensor, H: LinearOperator, denoiser: Denoiser, tol: float, max_steps: int) -> None:
    if not isinstance(H, LinearOperator):
        raise ValueError(f"H must be a lipspline.operators.LinearOperator, but is a {type(H).__name__}.")
    if not callable(denoiser):
        raise ValueError(
            f"The denoiser must be a module or a function of a tensor, but is a {type(denoiser).__name__}."
        )
    H.codomain.check("pnp.fbs(y, ...)", y)
    checks.finite("y", y, "Remove or zero such measurements, and leave them out of the operator too.")
    checks.positive("tol", tol)
    checks.at_least("max_steps", max_steps, 1)


def _refuse(violations: list[str], guarantee: bool) -> None:
    if violations and guarantee:
        raise ValueError(f"{violations[0]} To run without any guarantee, pass guarantee=False.")


def _warn_of_short_steps(H: LinearOperator, norm: tuple[float, float]) -> None:
    lower = max(norm[0], rayleigh_lower_bound(H)) if H.domain.batch is None and None not in H.domain.shape else norm[0]
    if 0 < FAR * lower < norm[1]:
        warnings.warn(
            f"norm_bounds() of {H!r} says that ‖H‖ is at most {norm[1]:.3g}, but of the images tried none is stretched "
            f"by more than {lower:.3g}. The step 1/‖H‖² may be {(norm[1] / lower) ** 2:.2g} times too short, and an "
            f"iteration that hardly moves looks converged. Prove a better bound.",
            stacklevel=4,
        )


def _check_tolerance(tol: float, x: Tensor) -> None:
    eps = torch.finfo(x.dtype).eps
    if tol < eps:
        raise ValueError(
            f"tol {tol:g} is below the round-off {eps:.2g} of {x.dtype}. Pass a larger tol or float64 data."
        )


@contextlib.contextmanager
def evaluating(denoiser: Denoiser) -> Iterator[None]:
    """Run a network in eval mode, as it was certified, and compute constrained weights once."""
    modules = list(denoiser.modules()) if isinstance(denoiser, nn.Module) else []
    training = [module.training for module in modules]
    if isinstance(denoiser, nn.Module):
        denoiser.eval()
    try:
        with parametrize.cached():
            yield
    finally:
        for module, before in zip(modules, training, strict=True):
            module.training = before
