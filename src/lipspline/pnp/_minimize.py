"""Reconstruction as the minimum of data term and energy, certified at the image that is returned."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.certification.round_off import EPS
from lipspline.operators import LinearOperator
from lipspline.pnp._fbs import fixed_point_setting
from lipspline.pnp.batch import ImageRun, Progress, norms
from lipspline.pnp.certificate import (
    Pairing,
    ReconstructionCertificate,
    Solution,
    check_norm,
    measure_pairing,
    operator_round_off,
    pairing_violations,
    wide,
)
from lipspline.pnp.descent import EVERYTHING, Box, Slope, descend
from lipspline.pnp.guarantee import Denoiser, ObjectiveSetting, Setting, Tier, lipschitz_bound
from lipspline.pnp.primal_dual import PrimalDual
from lipspline.pnp.promises import (
    check_energy,
    first_iterate,
    promised_constants,
    singular_value_violations,
    smallest_bound,
    supported,
)
from lipspline.priors.energy import AdaptiveEnergy, AnalysisEnergy, Energy

CONVEXITY = 1e-4
FIRST_PASS, FINE = 0.02, 1e-5
"""An adaptive energy multiplies what the first pass leaves open by hundreds: where the tolerance is at most FINE, so
that the answer matters and not a first look, the first pass is solved FIRST_PASS times as far."""
# Round-off of the gradient of an energy in float64, in units of eps times the norms involved.
ENERGY_TERMS = 1e4


@torch.no_grad()
def minimize(
    y: Tensor,
    H: LinearOperator,
    energy: Energy,
    strength: float,
    *,
    positive: bool = False,
    box: tuple[float, float] | None = None,
    convexity: float = CONVEXITY,
    reference: Tensor | None = None,
    tol: float = 1e-6,
    max_steps: int = 1000,
    start: Tensor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    r"""Reconstruct images from data `y = H x + n` as the minimisers of data term and energy.

    .. math:: J(x) = \tfrac12 \|Hx - y\|^2 + \lambda R(x) + \tfrac{\varepsilon}{2} \|x - r\|^2

    The certificate is a posteriori: it holds for the image returned, whatever steps led to it, and is computed in
    float64. For a convex energy the minimiser exists, is unique, depends on the data with the constants stated, and the
    distance of the image to it is bounded. For a weakly convex energy this holds where H makes up for it, as in
    denoising; elsewhere the tier is DESCENT: no step raises J, and the steps converge to a critical point.

    Each image of the batch is a problem of its own and stops on its own. Images are zero outside `H.support`. The
    energy of a complex image is that of its real and its imaginary part.

    An energy with kinks (`AnalysisEnergy`) is minimised with its dual, and certified by the duality gap; it takes
    complex images as they are. An `AdaptiveEnergy` is minimised in two passes, the second with the first image as its
    reference; the certificate is that of both together.

    Args:
        y: data `(B, *H.output_shape)`.
        energy: R, for one noise level if it has several.
        strength: λ, not negative.
        positive: look for images `x >= 0` only.
        box: look for images `low <= x <= high` only.
        convexity: ε in units of ‖H‖² (its upper bound); the smaller, the less the image is drawn towards `reference`,
            and the larger the constants.
        reference: r, an image or a batch that does not depend on y; 0 if not given.
        tol: stop when the gradient of J (reduced by the constraint) is at most `tol ‖H‖² ‖x‖`; for a convex energy the
            image is then within `tol / convexity · ‖x‖` of the minimiser, in truth often much nearer. A tolerance below
            the precision of the images, 1.2e-7 in float32, is taken for that.
        max_steps: the largest number of calls of the gradient, in each pass.
        start: first iterate; `Hᵀy / ‖H‖²` if not given.
        progress: called with a `Progress` after each call of the gradient.
    """
    limits = _check(y, H, energy, strength, positive, box, tol, max_steps)
    adaptive = energy if isinstance(energy, AdaptiveEnergy) else None
    setting = _first_setting(H, energy, float(strength), convexity, limits != EVERYTHING)
    norm = setting.norm
    first = first_iterate(y, H, 1 / norm[1] ** 2, start)
    if first.is_complex() and limits != EVERYTHING:
        raise ValueError("Complex images have no order: positive=True and box=... are for real images.")
    pairing = measure_pairing(H, first)
    wrong = pairing_violations(pairing, norm[1]) + singular_value_violations(H, first, setting.smallest)
    if wrong:
        raise ValueError(wrong[0])
    check_energy(energy, torch.cat([first.real, first.imag]) if first.is_complex() else first)
    problem = _Problem(y, H, energy, setting, limits, supported(_reference(reference, first), H))
    told = progress if progress is None or adaptive is None else _OfTwoPasses(progress)
    finest = torch.finfo(first.dtype).eps
    tol = max(tol, finest)
    before = max(FIRST_PASS * tol, finest) if adaptive and tol <= FINE else tol
    value, runs, evidence = problem.solve(first, before, max_steps, told)
    if adaptive:
        problem, moved = problem.second_pass(adaptive, value, float(strength))
        value, later, distances = problem.solve(value, tol, max_steps, told)
        evidence = distances + moved * evidence
        runs = [_joined(*pair) for pair in zip(runs, later, strict=True)]
    return Solution(value, tuple(runs), _certificate(problem.setting, pairing, runs, value, evidence))


def promise(
    H: LinearOperator,
    prior: Denoiser,
    weight: float,
    *,
    contraction: float = 1.0,
    positive: bool = False,
    convexity: float = CONVEXITY,
) -> Setting | ObjectiveSetting:
    """What is known about a reconstruction before it is computed: it depends on no data.

    For a denoiser it is the setting of `fbs`, for an energy that of `minimize`; of two passes, that of the second,
    whose image is returned. `promise` is its sentence, `estimates()` are its constants.

    Args:
        prior: a denoiser or an energy.
        weight: β of a denoiser, λ of an energy.
        contraction: of `fbs`.
        positive, convexity: of `minimize`.

    Example:
        >>> from lipspline.operators import MRI
        >>> from lipspline.priors.sparsity import TotalVariation
        >>> setting = promise(MRI(torch.ones(8, dtype=torch.bool)), TotalVariation(), 0.1)
        >>> setting.promise, setting.estimates()[0].constant <= 1
        ('the minimiser exists and is unique: the objective is strongly convex with μ = 1', True)
    """
    if not isinstance(prior, Energy):
        return fixed_point_setting(H, prior, lipschitz_bound(prior), weight, contraction)
    setting = _first_setting(H, prior, float(weight), convexity, positive)
    return _second_setting(setting, prior, float(weight)) if isinstance(prior, AdaptiveEnergy) else setting


def _first_setting(
    H: LinearOperator, energy: Energy, strength: float, convexity: float, constrained: bool
) -> ObjectiveSetting:
    """The numbers of the theorems for a minimiser, or for the first pass of an adaptive energy."""
    norm = check_norm(H.norm_bounds())
    lipschitz, weak_convexity = promised_constants(energy)
    setting = ObjectiveSetting(
        strength=strength,
        convexity=checks.positive("convexity", convexity, "It is ε / ‖H‖².") * norm[1] ** 2,
        norm=norm,
        smallest=smallest_bound(H),
        lipschitz=lipschitz,
        weak_convexity=weak_convexity,
        constrained=constrained,
    )
    if not isinstance(energy, AdaptiveEnergy):
        return setting
    pulled = setting.convexity * energy.pulls[0]
    return replace(setting, strength=strength * energy.first_strength, convexity=pulled)


def _second_setting(before: ObjectiveSetting, energy: AdaptiveEnergy, strength: float) -> ObjectiveSetting:
    """The numbers for the second pass, whose energy and reference move with the image of the first."""
    stability = before.estimates()[1].constant
    assert stability is not None, "the first energy is convex"
    setting = replace(before, strength=strength, convexity=before.convexity * energy.pulls[1] / energy.pulls[0])
    gradient = strength * energy.sensitivity + setting.convexity
    return replace(setting, moving=gradient * stability * (1 + 1e-12))


def _joined(first: ImageRun, second: ImageRun) -> ImageRun:
    """The record of two passes one after the other."""
    return replace(
        second,
        steps=first.steps + second.steps,
        accelerated=first.accelerated + second.accelerated,
        residuals=first.residuals + second.residuals,
        status=second.status if first.converged else first.status,
    )


class _OfTwoPasses:
    """Hands on the progress of two passes as that of one; the second is taken to be as long as the first."""

    def __init__(self, progress: Callable[[Progress], None]):
        self.progress = progress
        self.first: Progress | None = None
        self.last: Progress | None = None

    def __call__(self, told: Progress) -> None:
        if self.last is not None and told.calls == 1:
            self.first = self.last
        self.last = told
        if self.first is None:
            eta = None if told.eta is None else 2 * told.eta + told.seconds
            self.progress(replace(told, running=max(told.running, 1), eta=eta))
        else:
            calls, seconds = self.first.calls + told.calls, self.first.seconds + told.seconds
            self.progress(replace(told, calls=calls, seconds=seconds))


class _Problem:
    """One objective for a batch of images."""

    def __init__(
        self, y: Tensor, H: LinearOperator, energy: Energy, setting: ObjectiveSetting, box: Box, reference: Tensor
    ):
        self.y, self.H, self.energy, self.setting, self.box, self.reference = y, H, energy, setting, box, reference

    def solve(
        self, first: Tensor, tol: float, max_steps: int, progress: Callable[[Progress], None] | None
    ) -> tuple[Tensor, list[ImageRun], Tensor]:
        """Images, their records, and bounds `(B,)` on their distance to the minimisers, infinite where unknown."""
        if isinstance(self.energy, AnalysisEnergy):
            value, runs, dual = self._primal_dual(self.energy).solve(
                first, tol=tol, max_steps=max_steps, progress=progress
            )
            return value, runs, self._distances_by_duality(value, dual)
        value, runs = descend(
            self.slope, self.value, first, self.setting, box=self.box, tol=tol, max_steps=max_steps, progress=progress
        )
        return value, runs, self._distances(value)

    def second_pass(self, energy: AdaptiveEnergy, x: Tensor, strength: float) -> tuple["_Problem", float]:
        """The objective after the first images x, and how far its minimiser moves with them at most."""
        setting = _second_setting(self.setting, energy, strength)
        gradient = strength * energy.sensitivity + setting.convexity
        problem = _Problem(self.y, self.H, energy.adapted(x), setting, self.box, x)
        return problem, gradient / setting.modulus * (1 + 1e-12)

    def slope(self, x: Tensor, rows: Tensor) -> Slope:
        """The gradient of J, zero outside the support, and `Hx`."""
        gradient, data = self._without_energy(x, rows)
        if self.setting.strength:
            energy = self.energy.select(rows, 2 if x.is_complex() else 1)
            gradient = gradient + self.setting.strength * by_parts(energy.gradient, x)
        return Slope(supported(gradient, self.H, rows), data)

    def _without_energy(self, x: Tensor, rows: Tensor) -> Slope:
        """The gradient of `½‖Hx - y‖² + (ε/2)‖x - r‖²`, and `Hx`."""
        data = self._measure(x, rows)
        y, reference = (self.y, self.reference) if len(rows) == len(self.y) else (self.y[rows], self.reference[rows])
        gradient = self._back(data - y, rows) + self.setting.convexity * (x - reference)
        return Slope(supported(gradient, self.H, rows), data)

    def _primal_dual(self, energy: AnalysisEnergy) -> PrimalDual:
        return PrimalDual(
            lambda x, rows: self._without_energy(x, rows).gradient,
            lambda x, rows: supported(x, self.H, rows),
            energy,
            self.setting,
            self.box,
        )

    def _wide(self) -> "_Problem":
        return _Problem(wide(self.y), self.H, self.energy.wide(), self.setting, self.box, wide(self.reference))

    def _distances_by_duality(self, x: Tensor, dual: Tensor) -> Tensor:
        """In float64 at the image returned; the dual variable is made feasible again in float64."""
        exact, image = self._wide(), wide(x)
        assert isinstance(exact.energy, AnalysisEnergy)
        solver, rows = exact._primal_dual(exact.energy), torch.arange(len(x), device=x.device)
        p = exact.energy.project(wide(dual), self.setting.strength)
        slope = exact._without_energy(image, rows).gradient
        residual = norms(solver.residual(image, slope, p, rows)) + self._lost(exact, image)
        features = self.setting.strength * exact.energy(image) + norms(p) * norms(exact.energy.analyse(image))
        slack = solver.slack(image, p) + ENERGY_TERMS * EPS * features
        pairs = zip(residual.tolist(), slack.tolist(), strict=True)
        return residual.new_tensor([self.setting.distance(q, a) for q, a in pairs])

    def _lost(self, exact: "_Problem", image: Tensor) -> Tensor:
        """A bound on the round-off of the gradient of J in float64."""
        size, top, setting = norms(image), self.setting.norm[1], self.setting
        lost = operator_round_off(self.H, image) * top * (top * size + norms(exact.y))
        if isinstance(exact.energy, AnalysisEnergy):
            of_energy = setting.strength * exact.energy.norm * math.sqrt(exact.energy.analyse(image[:1]).numel())
            return lost + ENERGY_TERMS * EPS * (of_energy + setting.convexity * size)
        return lost + ENERGY_TERMS * EPS * (setting.strength * setting.lipschitz + setting.convexity) * size

    def value(self, x: Tensor, data: Tensor) -> Tensor:
        """J at all images, in float64 but for the energy, given `Hx`."""
        parts = torch.cat([x.real, x.imag]) if x.is_complex() else x
        energy = self.energy(parts).double().reshape(-1, len(x)).sum(dim=0)
        pull = self.setting.convexity / 2 * norms(x - self.reference) ** 2
        return norms(data - self.y) ** 2 / 2 + self.setting.strength * energy + pull

    def _distances(self, x: Tensor) -> Tensor:
        """In float64 at the image returned, with what float64 may lose."""
        setting = self.setting
        if setting.tier is not Tier.PROVEN:
            return norms(x).new_full((len(x),), math.inf)
        exact, image = self._wide(), wide(x)
        gradient = exact.slope(image, torch.arange(len(x), device=x.device)).gradient
        residual = norms(self.box.reduced(image, gradient)) + self._lost(exact, image)
        return residual.new_tensor([setting.distance(q) for q in residual.tolist()])

    def _measure(self, x: Tensor, rows: Tensor) -> Tensor:
        if self.H.domain.batch is None or len(rows) == len(self.y):
            return self.H.forward(x)
        # The operator holds data for each image, so it needs the whole batch.
        whole = x.new_zeros((len(self.y), *x.shape[1:])).index_copy(0, rows, x)
        return self.H.forward(whole)[rows]

    def _back(self, data: Tensor, rows: Tensor) -> Tensor:
        if self.H.codomain.batch is None or len(rows) == len(self.y):
            return self.H.adjoint(data)
        whole = data.new_zeros((len(self.y), *data.shape[1:])).index_copy(0, rows, data)
        return self.H.adjoint(whole)[rows]


def by_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A real function of images, of real and imaginary part where they are complex."""
    if not x.is_complex():
        return function(x)
    return torch.complex(*function(torch.cat([x.real, x.imag])).chunk(2))


def _check(
    y: Tensor,
    H: LinearOperator,
    energy: Energy,
    strength: float,
    positive: bool,
    box: tuple[float, float] | None,
    tol: float,
    max_steps: int,
) -> Box:
    if not isinstance(H, LinearOperator):
        raise ValueError(f"H must be a lipspline.operators.LinearOperator, but is a {type(H).__name__}.")
    if not isinstance(energy, Energy):
        raise ValueError(
            f"The energy must be a lipspline.priors.energy.Energy, but is a {type(energy).__name__}. One with several "
            f"noise levels is bound to one by .at(noise)."
        )
    H.codomain.check("pnp.minimize(y, ...)", y)
    checks.finite("y", y, "Remove or zero such measurements, and leave them out of the operator too.")
    if not 0 <= checks.number("strength", strength) < math.inf:
        raise ValueError(f"strength must be a finite number, at least 0, but is {strength!r}.")
    checks.positive("tol", tol)
    checks.at_least("max_steps", max_steps, 1)
    if positive and box is not None:
        raise ValueError("Pass positive=True or box=(low, high), not both: positive images are box=(0, inf).")
    if positive:
        return Box(0.0, math.inf)
    if box is None:
        return EVERYTHING
    low, high = (checks.number("An end of box", end) for end in box)
    if not low < high:
        raise ValueError(f"box must be a pair (low, high) with low < high, but is {box!r}.")
    if H.support is not None and (low > 0 or high < 0):
        raise ValueError(f"box must contain 0, which images are outside the support of H, but is {box!r}.")
    return Box(low, high)


def _reference(reference: Tensor | None, like: Tensor) -> Tensor:
    if reference is None:
        return torch.zeros_like(like)
    if reference.is_complex() and not like.is_complex():
        raise ValueError(f"The reference is complex ({reference.dtype}), but the images are real ({like.dtype}).")
    try:
        return checks.finite("reference", reference.to(like)).expand_as(like)
    except RuntimeError:
        raise ValueError(
            f"The reference has the shape {tuple(reference.shape)}, which does not fit images of {tuple(like.shape)}."
        ) from None


def _certificate(
    setting: ObjectiveSetting, pairing: Pairing, runs: list[ImageRun], value: Tensor, distances: Tensor
) -> ReconstructionCertificate:
    violations = sorted({run.status.sentence for run in runs if run.status.refutes})
    known = bool(torch.isfinite(distances).all())
    return ReconstructionCertificate.of(
        setting,
        violations,
        pairing,
        runs,
        value,
        distances if known and not violations else None,
        "" if known else "the objective is not known to be strongly convex",
    )
