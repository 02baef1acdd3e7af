"""What is proven about a reconstruction, and what was measured while it ran."""

import json
import math
from dataclasses import asdict, dataclass

from lipspline.pnp.guarantee import Estimate, Pairing, Setting, Tier
from lipspline.pnp.objective import ObjectiveSetting


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
