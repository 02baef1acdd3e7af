r"""The theorems behind reconstructions as code: their hypotheses, what they promise, and what breaks them.

**Fixed points** [eq:pnp_fbs]. With `D_β = K (β D + (1 - β) Id)` and `D` Lipschitz with constant `L`, the iteration
`T = D_β ∘ (Id - α Hᵀ(H· - y))` converges to a fixed point, if there is one, when `D_β` is averaged and
`0 < α < 2 / ‖H‖²` [sec:PnPReconstruction]. The paper has `K = 1`, and then `D_β` is averaged if and only if `L <= 1` is
all that is known of `D`.

**Minimisers** of `J(x) = ½‖Hx - y‖² + λ R(x) + (ε/2)‖x - r‖²` over a convex set C. Let `R + (ρ/2)‖·‖²` be convex, σ a
lower and M an upper bound on the singular values of H, and `e = ε - λρ`. J is strongly convex with modulus
`μ = σ² + e`. If `μ > 0`, then for all data there is exactly one minimiser, and for two data sets with differences `δ`
of the minimisers and `δy` of the data

    ‖Hδ‖² + e ‖δ‖² <= ⟨Hδ, δy⟩        (the optimality conditions, subtracted and multiplied by δ)

With `s = ‖Hδ‖/‖δ‖`, which lies in [σ, M], this is `‖δ‖ <= s/(s² + e) ‖δy‖` and `‖Hδ‖ <= s²/(s² + e) ‖δy‖`; the largest
values over [σ, M] are the constants. docs/guarantee.md has the proofs, and why the constraint only helps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification import Declared, certify
from lipspline.certification.certificate import printed_up

Denoiser = Callable[[Tensor], Tensor]

# A contraction by less than this is there on paper, but drowns in the round-off of float32.
LEAST_CONTRACTION = 1e-6
# The constants are computed by a few operations in float64: what they lose is far below this.
OUTWARD = 1 + 1e-12


def lipschitz_bound(denoiser: Denoiser) -> float | None:
    """The certified Lipschitz bound of a denoiser, or None if it has no certificate.

    A module is certified by `lipspline.certify`, as it is now: a `certificate` it may carry is about the weights it
    had. Another callable is certified if it has an attribute `certificate` with a number `upper`. `lipspline.declare`
    makes a module of any callable.

    Example:
        >>> import torch
        >>> lipschitz_bound(nn.ReLU()), lipschitz_bound(torch.relu)
        (1.0, None)
    """
    if isinstance(denoiser, nn.Module):
        return certify(denoiser).upper
    upper = getattr(getattr(denoiser, "certificate", None), "upper", None)
    if upper is None:
        return None
    if not checks.number("The Lipschitz bound certificate.upper of the denoiser", upper) >= 0:
        raise ValueError(f"The Lipschitz bound certificate.upper of the denoiser must not be negative, but is {upper}.")
    return float(upper)


def vouched_reason(denoiser: Denoiser) -> str:
    """Why the bound of a denoiser, or of a part of it, is taken on somebody's word; empty if it is proven.

    Example:
        >>> import torch
        >>> from lipspline.certification import declare
        >>> vouched_reason(nn.Sequential(nn.ReLU(), declare(torch.tanh, 1.0, "its slope is at most 1")))
        'its slope is at most 1'
    """
    if isinstance(denoiser, nn.Module):
        return "; ".join(part.reason for part in denoiser.modules() if isinstance(part, Declared))
    return "it says so itself" if getattr(denoiser, "certificate", None) is not None else ""


class Tier(StrEnum):
    """How much of a reconstruction is proven."""

    PROVEN = "proven"
    """Convergence, and every stability estimate that has a constant."""
    DESCENT = "descent"
    """The energy never rises and the iterates converge to a critical point; nothing about stability."""
    NONE = "none"
    """Nothing: a hypothesis does not hold."""


@dataclass(frozen=True)
class Estimate:
    """One of the paper's stability estimates: `constant` if it holds for this run, else None and the reason."""

    label: str
    statement: str
    constant: float | None
    reason: str


@dataclass(frozen=True)
class Setting:
    """The numbers the theorems speak of, and what follows from them.

    Args:
        denoiser: a proven bound `L` on the Lipschitz constant of D; None if there is none.
        beta: the weight β of D against the identity.
        contraction: the factor `K` that D_β is multiplied by; 1 leaves it as it is.
        step: the gradient step α.
        norm: proven bounds on ‖H‖.
        smallest: a proven positive lower bound on the smallest singular value of H; None if there is none.
        vouched: the user's reason for the bound of D, where it is not proven but declared; empty otherwise.

    Example:
        >>> setting = Setting(denoiser=1.0, beta=0.5, contraction=0.9, step=1.0, norm=(1.0, 1.0), smallest=None)
        >>> setting.lipschitz, setting.firm, setting.violations()
        (0.9, True, [])
        >>> print(round(setting.estimates()[2].constant, 6))
        9.0
    """

    denoiser: float | None
    beta: float
    contraction: float
    step: float
    norm: tuple[float, float]
    smallest: float | None
    vouched: str = ""

    @property
    def lipschitz(self) -> float:
        """`K (β L + 1 - β)`: a Lipschitz bound of D_β, infinite if D has none; D_β is averaged if it is at most 1.

        Outside [0, 1], where only `guarantee=False` leads, it is `K (|β| L + |1 - β|)`.
        """
        if not 0 < self.beta < 1:
            return self.contraction * ((abs(self.beta) * self._bound if self.beta else 0.0) + abs(1 - self.beta))
        return self.contraction * (1.0 + self.beta * (self._bound - 1.0))

    @property
    def firm(self) -> bool:
        """Whether D_β is firmly nonexpansive, that is, 2 D_β - Id is nonexpansive; for K = L = 1 this is `β <= 1/2`.

        `2 D_β - Id = 2 K β D + (2 K (1 - β) - 1) Id`, so `2 K β L + |2 K (1 - β) - 1| <= 1` is enough; this is it
        case by case, without round-off.
        """
        shrinks = 2 * self.contraction * (1 - self.beta) < 1
        return self.lipschitz <= 1 and (not shrinks or self.beta * self._bound <= 1 - self.beta)

    @property
    def rate(self) -> float:
        """A Lipschitz bound of the whole iteration: `‖Id - α HᵀH‖` times that of D_β."""
        spectrum = (self.smallest or 0.0, self.norm[1])
        return self.lipschitz * max(abs(1 - self.step * value**2) for value in spectrum)

    @property
    def tier(self) -> Tier:
        """All of it is proven, if the hypotheses hold."""
        return Tier.PROVEN

    @property
    def promise(self) -> str:
        """What is promised if the hypotheses hold, as a sentence."""
        if contracts(self.rate):
            return f"converges to the only fixed point, by a factor {self.rate:.6g} a step [eq:pnp_fbs]"
        return "converges to a fixed point, if there is one [eq:pnp_fbs]"

    def rows(self) -> list[tuple[str, str]]:
        """The numbers of this setting for a table, name and text."""
        bound = "none" if self.denoiser is None else f"<= {printed_up(self.denoiser)}"
        bound += f", not proven but vouched for: {self.vouched}" if self.vouched else ""
        factor = f"{self.beta:g}, {self.contraction:g}: D_β has Lipschitz bound {self.lipschitz:.9g}"
        step = f"{self.step:.6g} of at most {2 / self.norm[1] ** 2:.6g}"
        return [("Lipschitz bound of D", bound), ("β, contraction", factor), ("step α", step)]

    def derived(self) -> dict[str, object]:
        """What follows from this setting, for a document."""
        return {"lipschitz": self.lipschitz, "rate": self.rate}

    def violations(self) -> list[str]:
        """The hypotheses that do not hold, each as a sentence that says what to do; none if convergence is proven."""
        return [sentence for sentence in (self._about_denoiser(), self._about_beta(), self._about_step()) if sentence]

    def distance(self, residual: float) -> float | None:
        """The bound `‖T(x) - x‖ / (1 - q)` on the distance of x to the fixed point, with the `rate` q < 1 of T."""
        return residual / (1 - self.rate) if contracts(self.rate) else None

    def estimates(self) -> tuple[Estimate, Estimate, Estimate, Estimate]:
        """The stability estimates [eq:EstForward], [eq:H_invert], [eq:EstCont] with their constants for this setting.

        The first two are [prop:stability1] and need a firmly nonexpansive D_β, the third is [prop:stability2] and needs
        a contraction.
        The fourth is for `D_β = K F` with a firmly nonexpansive F: `(1-K)‖δ‖² + Kα‖Hδ‖² <= Kα⟨Hδ, δy⟩`, which is the
        estimate of a minimiser with `e = (1-K)/(Kα)`: `s/(s² + e)` at the worst singular value s, at most
        `½√(αK/(1-K))`, far below the third (docs/guarantee.md).
        The paper prints `1/σ_min(HᵀH)` in [eq:H_invert]; what follows from [eq:EstForward] is `1/σ_min(H)`.
        """
        forward = None if not self.firm else 1.0
        inverse = None if forward is None or self.smallest is None else 1.0 / self.smallest
        contract = None
        if contracts(self.lipschitz) and not self._about_step():
            contract = self.step * self.norm[1] * self.lipschitz / (1 - self.lipschitz)
        not_firm = "D_β is not known to be firmly nonexpansive; β <= 1/2 and a 1-Lipschitz D make it so"
        no_inverse = not_firm if forward is None else "no positive lower bound on the singular values of H is known"
        firm = self._firm_constant()
        no_contraction = "D_β is not known to be a contraction; contraction=K makes it one"
        return (
            Estimate("eq:EstForward", "‖Hx1 - Hx2‖ <= c ‖y1 - y2‖", forward, "" if forward else not_firm),
            Estimate("eq:H_invert", "‖x1 - x2‖ <= c ‖y1 - y2‖", inverse, "" if inverse else no_inverse),
            Estimate("eq:EstCont", "‖x1 - x2‖ <= c ‖y1 - y2‖", contract, no_contraction if contract is None else ""),
            Estimate("firm contraction", "‖x1 - x2‖ <= c ‖y1 - y2‖", firm, "" if firm else NOT_FIRM_CONTRACTION),
        )

    @property
    def pull(self) -> float:
        """`e = (1 - K) / (K α)`: what a contraction by K adds, as `(e/2)‖x‖²` would to a minimiser."""
        return (1 - self.contraction) / (self.contraction * self.step)

    def _firm_constant(self) -> float | None:
        """The largest `s/(s² + e)` over the singular values s of H; None without contraction or a firm F."""
        if not contracts(self.contraction) or self._bound > 1 or not 0 < self.beta <= 0.5 or self._about_step():
            return None
        s = min(max(math.sqrt(self.pull), self.smallest or 0.0), self.norm[1])
        return s / (s**2 + self.pull) * OUTWARD

    @property
    def _bound(self) -> float:
        return math.inf if self.denoiser is None else self.denoiser

    def _about_denoiser(self) -> str:
        if self.denoiser is None:
            return (
                "The denoiser has no Lipschitz certificate, so nothing is known about convergence. Use a module that "
                "lipspline.certify knows, or vouch for a bound with lipspline.declare(denoiser, upper, reason)."
            )
        if self.lipschitz > 1:
            return (
                f"The denoiser is certified to be Lipschitz with constant {self.denoiser:.9g}, above 1, so "
                f"β D + (1 - β) Id with β = {self.beta:g} is not averaged. If this is round-off, fold the network with "
                f"lipspline.plain, which divides by the bound; or pass contraction=K with K <= "
                f"{math.floor(1e6 / (1 + self.beta * (self.denoiser - 1))) / 1e6:g}."
            )
        return ""

    def _about_beta(self) -> str:
        if 0 < self.beta < 1:
            return ""
        return f"beta must lie strictly between 0 and 1 for the denoiser to be averaged, but is {self.beta:g}."

    def _about_step(self) -> str:
        limit = 2 / self.norm[1] ** 2
        if 0 < self.step < limit:
            return ""
        return (
            f"The step must lie strictly between 0 and 2/‖H‖² = {limit:.6g}, but is {self.step:g}. "
            f"Leave step out to get 1/‖H‖² = {limit / 2:.6g}."
        )


NOT_FIRM_CONTRACTION = "it needs contraction=K below 1, β <= 1/2 and a 1-Lipschitz D"


def contracts(lipschitz: float) -> bool:
    """Whether a Lipschitz constant is below 1 by more than round-off."""
    return lipschitz <= 1 - LEAST_CONTRACTION


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
        moving: a proven m: where energy or reference depend on the data, the gradient of J at any image changes by at
            most `‖Hᵀδy‖ + m ‖δy‖` with them.

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
    moving: float = 0.0

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
        passes = [("second pass", f"its gradient moves by at most {self.moving:.6g} ‖δy‖")] if self.moving else []
        return [
            ("energy", f"{kind}, {smooth}"),
            ("strength λ, ε", f"{self.strength:.6g}, {self.convexity:.6g}"),
            *passes,
        ]

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
        # with s = ‖Hδ‖/‖δ‖ in [low, high]: (s² + e)‖δ‖ <= (s + m)‖δy‖; the largest values are here, or at an end
        m = self.moving * OUTWARD
        top = -m + math.sqrt(max(m**2 + e, 0.0))
        data_top = high if e >= 0 else low
        if m > 0 and e > 0:
            data_top = (e + math.sqrt(e**2 + m**2 * e)) / m
        s, t = min(max(top, low), high), min(max(data_top, low), high)
        return t * (t + m) / (t**2 + e) * OUTWARD, (s + m) / (s**2 + e) * OUTWARD
