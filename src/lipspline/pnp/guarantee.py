r"""The theorem behind [eq:pnp_fbs] as code: its hypotheses, what it promises, and what breaks it.

With `D_β = K (β D + (1 - β) Id)` and `D` Lipschitz with constant `L`, the iteration `T = D_β ∘ (Id - α Hᵀ(H· - y))`
converges to a fixed point, if there is one, when `D_β` is averaged and `0 < α < 2 / ‖H‖²` [sec:PnPReconstruction].
The paper has `K = 1`, and then `D_β` is averaged if and only if `L <= 1` is all that is known of `D`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification import Declared, certify
from lipspline.operators import LinearOperator
from lipspline.pnp.norms import inner, norms

Denoiser = Callable[[Tensor], Tensor]

# An adjoint that is off by more than this is another operator, not round-off in float32.
ADJOINT_TOLERANCE = 1e-4
# A contraction by less than this is there on paper, but drowns in the round-off of float32.
LEAST_CONTRACTION = 1e-6


def lipschitz_bound(denoiser: Denoiser) -> float | None:
    """The certified Lipschitz bound of a denoiser, or None if it has no certificate.

    A module is certified by `lipspline.certify`, as it is now: a `certificate` it may carry is about the weights it
    had. Another callable is certified if it has an attribute `certificate` with a number `upper`. `lipspline.declare`
    makes a module of any callable.

    Example:
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
        bound = "none" if self.denoiser is None else f"<= {self.denoiser:.9g}"
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
        return s / (s**2 + self.pull) * (1 + 1e-12)

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
class Pairing:
    """How well `H.adjoint` is the adjoint of `H.forward`, and the largest stretch of H seen on the way."""

    error: float
    stretch: float


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
