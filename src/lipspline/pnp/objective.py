r"""The theorems about minimisers of `J(x) = ½‖Hx - y‖² + λ R(x) + (ε/2)‖x - r‖²`, over a convex set C.

Let `R + (ρ/2)‖·‖²` be convex, σ a lower and M an upper bound on the singular values of H, and `e = ε - λρ`. J is
strongly convex with modulus `μ = σ² + e`. If `μ > 0`, then for all data there is exactly one minimiser, and for two
data sets with differences `δ` of the minimisers and `δy` of the data

    ‖Hδ‖² + e ‖δ‖² <= ⟨Hδ, δy⟩        (the optimality conditions, subtracted and multiplied by δ)

With `s = ‖Hδ‖/‖δ‖`, which lies in [σ, M], this is `‖δ‖ <= s/(s² + e) ‖δy‖` and `‖Hδ‖ <= s²/(s² + e) ‖δy‖`; the largest
values over [σ, M] are the constants. docs/guarantee.md has the proofs, and why the constraint only helps.
"""

import math
from dataclasses import dataclass

from lipspline.pnp.guarantee import Estimate, Tier

# The constants are computed by a few operations in float64: what they lose is far below this.
OUTWARD = 1 + 1e-12


@dataclass(frozen=True)
class ObjectiveSetting:
    """The numbers the theorems about a minimiser speak of, and what follows from them.

    Args:
        strength: λ, the strength of the energy.
        convexity: ε, of the term `(ε/2)‖x - r‖²`, absolute.
        norm: proven bounds on ‖H‖.
        smallest: a proven positive lower bound σ on the smallest singular value of H; None if there is none.
        lipschitz: a proven Lipschitz bound of ∇R; infinite if R has kinks.
        weak_convexity: ρ.
        constrained: whether images are confined to a box.

    Example:
        >>> setting = ObjectiveSetting(2.0, 0.01, (1.0, 1.0), None, 1.0, 0.0)
        >>> setting.tier, [round(estimate.constant, 3) for estimate in setting.estimates()]
        (<Tier.PROVEN: 'proven'>, [0.99, 5.0])
    """

    strength: float
    convexity: float
    norm: tuple[float, float]
    smallest: float | None
    lipschitz: float
    weak_convexity: float
    constrained: bool = False

    @property
    def excess(self) -> float:
        """`e = ε - λρ`, what the energies leave of the strong convexity; may be negative."""
        return self.convexity - self.strength * self.weak_convexity

    @property
    def modulus(self) -> float:
        """A lower bound on the modulus `μ = σ² + ε - λρ` of strong convexity of J; J is convex where it is positive."""
        size = max(self.convexity, self.strength * self.weak_convexity, (self.smallest or 0.0) ** 2)
        return (self.smallest or 0.0) ** 2 + self.excess - size * (OUTWARD - 1)

    @property
    def curvature(self) -> float:
        """A bound `M² + λL + ε` on the Lipschitz constant of the gradient of J."""
        return (self.norm[1] ** 2 + self.strength * self.lipschitz + self.convexity) * OUTWARD

    @property
    def tier(self) -> Tier:
        """PROVEN where J is strongly convex, else DESCENT."""
        return Tier.PROVEN if self.modulus > 0 else Tier.DESCENT

    @property
    def promise(self) -> str:
        """What is promised, as a sentence."""
        if self.tier is Tier.PROVEN:
            return f"the minimiser exists and is unique: the objective is strongly convex with μ = {self.modulus:.3g}"
        return (
            "descent: no step raised the objective, and the steps converge to a critical point; the energy is only "
            f"weakly convex (ρ = {self.weak_convexity:.3g}), so stability is not proven, but can be measured by "
            "pnp.stability"
        )

    def violations(self) -> list[str]:
        """None: what does not hold here is refused before."""
        return []

    def rows(self) -> list[tuple[str, str]]:
        """The numbers of this setting for a table, name and text."""
        kind = "convex" if not self.weak_convexity else f"weakly convex, ρ <= {self.weak_convexity:.6g}"
        smooth = f"gradient Lipschitz <= {self.lipschitz:.9g}" if math.isfinite(self.lipschitz) else "with kinks"
        return [("energy", f"{kind}, {smooth}"), ("strength λ, ε", f"{self.strength:.6g}, {self.convexity:.6g}")]

    def derived(self) -> dict[str, object]:
        """What follows from this setting, for a document."""
        return {"modulus": self.modulus}

    def estimates(self) -> tuple[Estimate, Estimate]:
        """How far data and image of the minimiser move with the data; not claimed where J is not strongly convex."""
        reason = "the objective is not known to be strongly convex"
        data = image = None
        if self.tier is Tier.PROVEN:
            reason, (data, image) = "", self._constants()
        return (
            Estimate("minimiser:data", "‖Hx1 - Hx2‖ <= c ‖y1 - y2‖", data, reason),
            Estimate("minimiser:image", "‖x1 - x2‖ <= c ‖y1 - y2‖", image, reason),
        )

    def distance(self, residual: float, slack: float = 0.0) -> float | None:
        r"""A bound on the distance of x to the minimiser from a residual q and a slack A of the energy, if μ > 0.

        If `J(z) >= J(x) - A + ⟨q, z - x⟩ + (μ/2)‖z - x‖²` for all z in C, with `q` of norm `residual`, then the
        distance t of x to the minimiser has `μt² <= A + ‖q‖t`. For a smooth energy `A = 0`.
        """
        if self.tier is not Tier.PROVEN:
            return None
        return (residual + math.sqrt(residual**2 + 4 * self.modulus * slack)) / (2 * self.modulus) * OUTWARD

    def _constants(self) -> tuple[float, float]:
        low, high = self.smallest or 0.0, self.norm[1]
        e = self.modulus - low**2
        # s²/(s² + e) rises with s if e >= 0 and falls otherwise; s/(s² + e) has its maximum at √e, or at an end
        s = high if e >= 0 else low
        data = s**2 / (s**2 + e)
        s = min(max(math.sqrt(max(e, 0.0)), low), high)
        return data * OUTWARD, s / (s**2 + e) * OUTWARD
