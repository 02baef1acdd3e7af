"""What is proven about a reconstruction, and what is measured: the adjoint, round-off, and the residual in float64."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification.round_off import EPS, UnknownRoundOff, evaluate_exactly
from lipspline.operators import LinearOperator
from lipspline.pnp.batch import ImageRun, Status, inner, join_parts, norms, split_parts
from lipspline.pnp.guarantee import Denoiser, Estimate, ObjectiveSetting, Setting, Tier, contracts

# An adjoint that is off by more than this is another operator, not round-off in float32.
ADJOINT_TOLERANCE = 1e-4
# Round-off of H and Hᵀ in float64, in units of eps times the norms involved: sums of up to thousands of terms.
OPERATOR_TERMS = 1e4
# An operator that computes in less than float64 is known by its adjoint: this many times what was measured is allowed.
PAIRING_MARGIN = 10.0


@dataclass(frozen=True)
class Pairing:
    """How well `H.adjoint` is the adjoint of `H.forward`, and the largest stretch of H seen on the way."""

    error: float
    stretch: float


NEARLY = 0.05
"""Values that are outside of the range of a denoiser by less than this share of it do it no harm."""


@dataclass(frozen=True)
class ReconstructionCertificate:
    """The theorem that covers a reconstruction with every number in it; `str()` is a table.

    Of a batch, `residual` and `distance` are those of the worst image, and steps are those of the longest.
    """

    setting: Setting | ObjectiveSetting
    violations: tuple[str, ...]
    """Hypotheses that do not hold; empty if convergence is proven."""
    pairing: Pairing
    converged: bool
    residual: float
    tol: float
    plain_steps: int
    accelerated_steps: int
    distance: float | None
    """Bound on the distance `‖x - x*‖` to the fixed point, where the iteration is a contraction."""
    distance_note: str = ""
    """Why there is no bound on the distance, if there is none."""
    relative_distance: float | None = None
    """Bound on `‖x - x*‖ / ‖x‖`: the distance as a share of the image."""
    status: Status = Status.CONVERGED
    """How the iteration ended, for the first image that did not converge, if any."""
    unfamiliar: float | None = None
    """The share of values at the end that the denoiser was not trained on, if it says which those are."""

    @classmethod
    def of(
        cls,
        setting: Setting | ObjectiveSetting,
        violations: Sequence[str],
        pairing: Pairing,
        runs: Sequence[ImageRun],
        value: Tensor,
        distances: Tensor | None,
        distance_note: str,
        unfamiliar: float | None = None,
    ) -> "ReconstructionCertificate":
        """The certificate of a batch from the record of each image, and bounds `(B,)` on their distances."""
        longest = max(runs, key=lambda run: run.steps)
        shares = None if distances is None else distances / norms(value) * (1 + 1e-9)
        return cls(
            setting=setting,
            violations=tuple(violations),
            pairing=pairing,
            converged=all(run.converged for run in runs),
            residual=max(run.residuals[-1] for run in runs),
            tol=runs[0].tol,
            plain_steps=longest.steps - longest.accelerated,
            accelerated_steps=longest.accelerated,
            distance=None if distances is None else float(distances.max()),
            distance_note=distance_note,
            relative_distance=None if shares is None or not torch.isfinite(shares).all() else float(shares.max()),
            status=next((run.status for run in runs if not run.converged), Status.CONVERGED),
            unfamiliar=unfamiliar,
        )

    @property
    def guaranteed(self) -> bool:
        """Whether all hypotheses of the convergence theorem hold."""
        return not self.violations

    @property
    def tier(self) -> Tier:
        """How much is proven."""
        return self.setting.tier if self.guaranteed else Tier.NONE

    @property
    def guarantee(self) -> str:
        """What is promised, as a sentence; it begins with "no guarantee" where nothing is."""
        return "no guarantee: " + " ".join(self.violations) if self.violations else self.setting.promise

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The stability estimates; none of them holds without a guarantee."""
        if self.guaranteed:
            return self.setting.estimates()
        return tuple(Estimate(e.label, e.statement, None, "no guarantee") for e in self.setting.estimates())

    @property
    def image_stability(self) -> Estimate | None:
        """The estimate with the smallest proven constant in `‖x1 - x2‖ <= c ‖y1 - y2‖`; None if there is none."""
        proven = [e for e in self.estimates if e.constant is not None and e.statement.startswith("‖x1")]
        return min(proven, key=lambda estimate: estimate.constant or 0.0, default=None)

    def to_json(self) -> str:
        """The certificate as a JSON document."""
        return json.dumps(_finite({**asdict(self), **self._derived()}), indent=2, ensure_ascii=False)

    def _derived(self) -> dict[str, object]:
        return {
            "guarantee": self.guarantee,
            "guaranteed": self.guaranteed,
            "tier": str(self.tier),
            **self.setting.derived(),
            "estimates": [asdict(estimate) for estimate in self.estimates],
        }

    def __str__(self) -> str:
        settled = "converged" if self.converged else "not converged"
        far = f"not claimed: {self.distance_note}" if self.distance is None else f"<= {self.distance:.3g}"
        far += "" if self.relative_distance is None else f", {100 * self.relative_distance:.2g} % of ‖x‖"
        rows = [
            ("guarantee", self.guarantee),
            *self.setting.rows(),
            ("‖H‖", f"between {self.setting.norm[0]:.6g} and {self.setting.norm[1]:.6g}"),
            ("adjoint error", f"{self.pairing.error:.2g}"),
            ("residual", f"{self.residual:.3g} ({settled}, tol {self.tol:g})"),
            ("steps", f"{self.plain_steps} plain, {self.accelerated_steps} accelerated"),
            ("distance to x*", far),
            *((f"[{e.label}]", _describe(e)) for e in self.estimates),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)


def _describe(estimate: Estimate) -> str:
    if estimate.constant is None:
        return f"not claimed: {estimate.reason}"
    return f"{estimate.statement}, c = {estimate.constant:.6g}"


def _finite(value: object) -> object:
    """JSON has no infinity: such numbers become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


@dataclass(frozen=True)
class Solution:
    """A reconstruction and the evidence for it; `images` has the story of each image of the batch."""

    value: Tensor
    """The reconstructions `(B, ...)`: always finite, whether converged or not."""
    images: tuple[ImageRun, ...]
    certificate: ReconstructionCertificate

    @property
    def converged(self) -> bool:
        """Whether every image reached the tolerance."""
        return all(image.converged for image in self.images)

    @property
    def reason(self) -> str:
        """Why the iteration ended, for the first image that did not converge, if any."""
        return next((image.reason for image in self.images if not image.converged), Status.CONVERGED.sentence)

    @property
    def steps(self) -> int:
        """Steps taken by the image that needed most."""
        return max(image.steps for image in self.images)

    @property
    def denoiser_calls(self) -> int:
        """Calls of the denoiser, each for all images still running."""
        return max(image.calls for image in self.images)

    @property
    def residuals(self) -> list[float]:
        """Relative residual `‖x_{k+1} - x_k‖ / ‖x_k‖` of the worst image after each call of the denoiser."""
        curves = [image.residuals for image in self.images]
        return [max(curve[min(k, len(curve) - 1)] for curve in curves) for k in range(self.denoiser_calls)]

    def __str__(self) -> str:
        done = sum(image.converged for image in self.images)
        head = f"{done} of {len(self.images)} images converged in {self.denoiser_calls} calls: {self.reason}"
        return f"{head}\n{self.certificate}"


def measure_pairing(H: LinearOperator, x: Tensor) -> Pairing:
    r"""Try the adjoint of `H` on random tensors like the images `x`.

    The error is the larger of `|⟨Hx, y⟩ - ⟨x, Hᵀy⟩| / (‖Hx‖ ‖y‖)` and `|‖Hx‖² - ⟨x, HᵀHx⟩| / ‖Hx‖²`: with signed noise
    the first alone is blind to a wrong scale.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    hx = H.forward(x)
    y = torch.randn(hx.shape, generator=generator, dtype=hx.dtype).to(hx.device)
    hty, hthx = H.adjoint(y), H.adjoint(hx)
    size = norms(hx)
    if not torch.isfinite(size).all():
        raise ValueError(f"{H!r} maps a random image to NaN or infinity.")
    if not (size > 0).all():
        raise ValueError(f"{H!r} maps a random image to zero: there is nothing to reconstruct from.")
    cross = (inner(hx, y) - inner(x, hty)).abs() / (size * norms(y))
    square = (size**2 - inner(x, hthx)).abs() / size**2
    return Pairing(float(torch.maximum(cross, square).max()), float((norms(hthx) / size).max()))


def pairing_violations(pairing: Pairing, upper: float) -> list[str]:
    """What the measured pairing says against the operator's own promises."""
    found = []
    if not pairing.error <= ADJOINT_TOLERANCE:
        found.append(
            f"The adjoint of the operator is off by {pairing.error:.2g} (relative), so Hᵀ(Hx - y) is not the gradient "
            f"of the data term. Use an operator whose adjoint is exact to {ADJOINT_TOLERANCE:g}."
        )
    if not pairing.stretch <= upper * (1 + ADJOINT_TOLERANCE):
        found.append(
            f"The operator stretches an image by {pairing.stretch:.6g}, more than the upper bound {upper:.6g} that its "
            f"norm_bounds() gives. Correct norm_bounds()."
        )
    return found


def check_norm(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds `(lower, upper)` on ‖H‖ if a step can be derived from them."""
    lower, upper = bounds
    if not lower <= upper * (1 + ADJOINT_TOLERANCE) and not math.isnan(upper):
        raise ValueError(
            f"norm_bounds() gives a lower bound {lower:g} on ‖H‖ that is not below the upper one, {upper:g}."
        )
    if upper == math.inf:
        raise ValueError(
            f"No upper bound on ‖H‖ is known (a lower one is {lower:.6g}), so that no step is known to be safe. Give a "
            f"proven one where the operator is wrapped, as norm=..., or norm='dense' if it is small."
        )
    checks.positive("The upper bound on the norm of the operator", upper, "The default step is 1/‖H‖².")
    if not 0 < upper**2 < math.inf:
        raise ValueError(
            f"The norm of the operator, at most {upper:g}, is too small or too large to be squared. Scale it."
        )
    return float(lower), float(upper)


def operator_round_off(H: LinearOperator, x: Tensor) -> float:
    """The relative round-off of `H.forward` and `H.adjoint` on images like `x` in float64, with a wide margin."""
    return OPERATOR_TERMS * EPS + PAIRING_MARGIN * measure_pairing(H, x).error


@torch.no_grad()
def distance_bound(
    value: Tensor,
    y: Tensor,
    H: LinearOperator,
    denoiser: Denoiser,
    setting: Setting,
    reference: Tensor | None = None,
) -> tuple[Tensor | None, str]:
    """Bounds `(B,)` on the distances of the images `value` to their fixed points, or None and why there are none.

    `T(x) - x` is computed again in float64 at the image returned, whatever steps led to it, and what float64 may have
    lost, inside the denoiser too, is added.
    """
    if not contracts(setting.rate):
        return None, "the iteration is not known to be a contraction; contraction=K makes it one"
    if not isinstance(denoiser, nn.Module):
        return None, "the round-off inside a denoiser that is not a module is unknown"
    x, data = wide(value), wide(y)
    unit = operator_round_off(H, x)
    z = x - setting.step * H.adjoint(H.forward(x) - data)
    lost = unit * (norms(x) + setting.step * setting.norm[1] * (setting.norm[1] * norms(x) + norms(data)))
    try:
        parts = [_denoised(denoiser, image, bound) for image, bound in zip(z.split(1), lost.split(1), strict=True)]
    except UnknownRoundOff as error:
        return None, str(error)
    denoised = torch.cat([part for part, _ in parts])
    if H.support is not None:
        denoised = torch.where(H.support, denoised, 0)
    mapped = setting.contraction * (z + setting.beta * (denoised - z))
    if reference is not None:
        mapped = mapped + (1 - setting.contraction) * wide(reference)
    inside = torch.cat([bound for _, bound in parts])
    lost = setting.contraction * (setting.beta * inside + (1 - setting.beta) * lost)
    lost = lost + 10 * EPS * (norms(x) + norms(z) + norms(denoised))
    residuals = norms(mapped - x) + lost
    return residuals.new_tensor([setting.distance(residual) for residual in residuals.tolist()]), ""


@torch.no_grad()
def denoiser_round_off(denoiser: Denoiser, x: Tensor) -> Tensor:
    """A bound `(B,)` on the round-off of the denoiser in the precision of `x`; 0 if it cannot be looked into."""
    nothing = torch.zeros_like(norms(x))
    if not isinstance(denoiser, nn.Module):
        return nothing
    try:
        errors = torch.cat([_denoised(denoiser, image, nothing[:1])[1] for image in wide(x).split(1)])
    except UnknownRoundOff:
        return nothing
    return errors * (torch.finfo(x.dtype).eps / EPS)


def _denoised(denoiser: nn.Module, x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """The denoiser at one image, by real and imaginary part, and its error."""
    if not x.is_complex():
        return evaluate_exactly(denoiser, x, error)
    shift = imaginary_shift(denoiser)
    flat = split_parts(x, shift)
    parts, errors = evaluate_exactly(denoiser, flat, error.repeat(2) + _shift_round_off(flat, shift))
    return join_parts(parts, shift), (errors + _shift_round_off(parts, shift)).square().sum().sqrt().unsqueeze(0)


def imaginary_shift(denoiser: Denoiser) -> float:
    """What is added to imaginary parts before a denoiser is applied to them, and taken off after it."""
    return float(getattr(denoiser, "imaginary_shift", 0.0))


def unfamiliar_share(denoiser: Denoiser, z: Tensor) -> float | None:
    """The share of values outside of those that a denoiser was trained on, in the worst image or part of one."""
    known = getattr(denoiser, "grey_values", None)
    if known is None:
        return None
    margin = NEARLY * (known[1] - known[0])
    parts = split_parts(z, imaginary_shift(denoiser)) if z.is_complex() else z
    strange = (parts < known[0] - margin) | (parts > known[1] + margin)
    return float(strange.flatten(1).double().mean(dim=1).max())


def _shift_round_off(parts: Tensor, shift: float) -> Tensor:
    """What the shift of imaginary parts may lose, for real and imaginary parts: `(2B, ...) -> (2B,)`."""
    return EPS * (norms(parts) + norms(torch.full_like(parts, shift))) if shift else torch.zeros_like(norms(parts))


def wide(x: Tensor) -> Tensor:
    """The same numbers in float64."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)
