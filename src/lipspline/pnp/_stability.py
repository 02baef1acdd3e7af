r"""Stability measured: perturb the data, solve again, and hold the answer against the paper's bounds.

The bounds speak of fixed points, but an iteration stops before. For iterates with `x' = T(x)` and `g = x' - x`,
differences `Δ` between two runs and `d = ‖Δy‖` the proofs of [sec:pnp_results] give, with nothing neglected,

    ‖HΔx'‖² <= ‖HΔx'‖ d + ‖Δx'‖ ‖Δg‖ / α        and        ‖Δx'‖ <= K (‖Δg‖ + α ‖H‖ d) / (1 - K)

for a firmly nonexpansive and a K-Lipschitz D_β, and `‖Δx'‖ <= c d + ‖Δg‖ / (α (σ² + e))` for the firm contraction.
These are the limits that a measured ratio may not exceed; they tend to [eq:EstForward], [eq:EstCont] and the constant c
as `g → 0`.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators import LinearOperator
from lipspline.pnp._fbs import averaged_map, certified_bound, evaluating, solve
from lipspline.pnp._minimize import minimize
from lipspline.pnp.batch import norms, pick, scale
from lipspline.pnp.certificate import Solution
from lipspline.pnp.guarantee import Denoiser, ObjectiveSetting, Setting
from lipspline.priors.energy import Energy

Kind = Literal["random", "data", "image"]
Solve = Callable[..., Solution]

# Round-off of a reconstruction, in units of eps ‖x‖; it counts as a part of the residual g.
ROUND_OFF = 10.0
# Terms of the series Σ_j (∂T/∂x)ᵀʲ in the gradient of a fixed point: enough for a direction of ascent.
TERMS = 20
# Perturbations solved in one batch.
TOGETHER = 10


@dataclass(frozen=True)
class Ratio:
    """A measured ratio of distances beside what theory allows: its limit for this run, and for exact fixed points."""

    label: str
    measured: float
    limit: float | None
    """None where the estimate is not claimed, for lack of its hypotheses."""

    @property
    def holds(self) -> bool:
        """Whether theory and measurement agree; where nothing is claimed nothing can fail."""
        return self.limit is None or self.measured <= self.limit


@dataclass(frozen=True)
class Perturbation:
    """One perturbation of the data of one image, and what it did to the reconstruction."""

    kind: Kind
    """"random", or optimised to move `H x` ("data") or `x` ("image")."""
    image: int
    size: float
    converged: bool
    ratios: tuple[Ratio, ...]
    """[eq:EstForward], [eq:H_invert], [eq:EstCont] in this order."""


@dataclass(frozen=True)
class Evidence:
    """All perturbations tried; `str()` is a table of the worst against the bounds."""

    perturbations: tuple[Perturbation, ...]
    solution: Solution

    @property
    def holds(self) -> bool:
        """Whether no perturbation broke an estimate that is claimed."""
        return all(ratio.holds for perturbation in self.perturbations for ratio in perturbation.ratios)

    def worst(self, label: str, *, optimised: bool) -> float:
        """The largest measured ratio for an estimate, over the random or the optimised perturbations."""
        chosen = (p for p in self.perturbations if (p.kind != "random") == optimised)
        return max((r.measured for p in chosen for r in p.ratios if r.label == label), default=math.nan)

    def to_json(self) -> str:
        """The certificate of the unperturbed problem and every perturbation, as a JSON document."""
        trials = [asdict(perturbation) for perturbation in self.perturbations]
        certificate = json.loads(self.solution.certificate.to_json())
        return json.dumps({"holds": self.holds, "certificate": certificate, "perturbations": trials}, indent=2)

    def __str__(self) -> str:
        rows = [("estimate", "bound", "random", "optimised", "")]
        for estimate in self.solution.certificate.estimates:
            bound = "not claimed" if estimate.constant is None else f"{estimate.constant:.6g}"
            verdict = "" if estimate.constant is None else self._verdict(estimate.label, estimate.constant)
            seen = (self.worst(estimate.label, optimised=how) for how in (False, True))
            random, optimised = ("not tried" if math.isnan(ratio) else f"{ratio:.6g}" for ratio in seen)
            rows.append((f"[{estimate.label}]", bound, random, optimised, verdict))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        table = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*table, self.solution.certificate.guarantee])

    def _verdict(self, label: str, constant: float) -> str:
        ratios = [ratio for p in self.perturbations for ratio in p.ratios if ratio.label == label]
        if not all(ratio.holds for ratio in ratios):
            return "BROKEN"
        exceeded = max(ratio.measured for ratio in ratios) > constant
        return "holds, but for what the residuals allow" if exceeded else "holds"


def stability(
    y: Tensor,
    H: LinearOperator,
    denoiser: Denoiser | Energy,
    beta: float = 0.5,
    *,
    perturbations: int = 50,
    ascents: int = 10,
    ascent_steps: int = 4,
    size: float = 0.01,
    step: float | None = None,
    contraction: float = 1.0,
    tol: float = 1e-6,
    max_steps: int = 1000,
    start: Tensor | None = None,
    guarantee: bool = True,
    seed: int = 0,
) -> Evidence:
    r"""Measure how far a reconstruction moves when the data do, against [eq:EstForward], [eq:H_invert], [eq:EstCont].

    Args:
        y: data `(B, *H.output_shape)`; every image is perturbed.
        denoiser: or an energy; then `beta` is its strength, and the bounds are those of `minimize`.
        perturbations: how many random perturbations.
        ascents: how many perturbations found by gradient ascent through the fixed point, half of them to move `H x`,
            half to move `x`; they need a denoiser that autograd can differentiate.
        ascent_steps: gradient steps for each of these; every one solves the problem again.
        size: `‖Δy‖ / ‖y‖`.
        seed: of the random numbers.

    The other arguments are those of `fbs`; `start` is for the unperturbed problem, all others start from its solution.
    All solves are accelerated.

    Example:
        >>> from torch import nn
        >>> from lipspline.operators import Matrix
        >>> H, y = Matrix(torch.diag(torch.tensor([2.0, 1.0]))), torch.tensor([[2.0, 1.0]])
        >>> evidence = stability(y, H, nn.ReLU(), perturbations=3, ascents=2)
        >>> evidence.holds, round(evidence.worst("eq:H_invert", optimised=True), 3)
        (True, 1.0)
    """
    checks.at_least("perturbations", perturbations, 0)
    checks.at_least("ascents", ascents, 0)
    if not perturbations and not ascents:
        raise ValueError("perturbations and ascents are both 0, so that nothing would be tried. Give one of them.")
    checks.positive("size", size)
    if isinstance(denoiser, Energy):
        if step is not None or contraction != 1.0:
            raise ValueError("step and contraction are for denoisers: an energy is minimised by steps of its own.")
        again = partial(minimize, H=H, energy=denoiser, strength=beta, tol=tol, max_steps=max_steps)
        counts = perturbations, ascents, ascent_steps
        return _of_minimisers(again, y, H, size, counts, start, torch.Generator().manual_seed(seed))
    options = {"beta": beta, "step": step, "contraction": contraction, "tol": tol, "max_steps": max_steps}
    bound = certified_bound(denoiser, guarantee)
    again: Solve = partial(solve, H=H, denoiser=denoiser, bound=bound, accelerate=True, guarantee=guarantee, **options)
    base = again(y, start=start)
    assert isinstance(base.certificate.setting, Setting)
    pull_back = partial(_pull_back, H=H, denoiser=denoiser, setting=base.certificate.setting)
    generator = torch.Generator().manual_seed(seed)
    found: list[Perturbation] = []
    for kind, copies in _portions(perturbations, ascents, TOGETHER if H.domain.batch is None else 1):
        data, settled = _repeat(y, copies), _repeat(base.value, copies)
        radius = size * _sizes(data)
        delta = _random(data, radius, generator)
        moved = again(data + delta, start=settled)
        for _ in range(ascent_steps if kind != "random" else 0):
            change = moved.value - settled
            direction = H.adjoint(H.forward(change)) if kind == "data" else change
            pulled = pull_back(direction, moved.value, data + delta)
            length = norms(pulled)
            delta = pick(length > 0, scale(radius / length.clamp_min(torch.finfo(length.dtype).tiny), pulled), delta)
            moved = again(data + delta, start=settled)
        found += _compare(base, moved, settled, H, delta, kind)
    return Evidence(tuple(found), base)


def _of_minimisers(
    again: Callable[..., Solution],
    y: Tensor,
    H: LinearOperator,
    size: float,
    counts: tuple[int, int, int],
    start: Tensor | None,
    generator: torch.Generator,
) -> Evidence:
    """The same for minimisers of an energy, whose transposed derivatives come from the solver itself.

    With M the Hessian of the objective, data that move by δy move the minimiser by `M⁻¹Hᵀδy`, and a reference that
    moves by w / ε moves it by `M⁻¹w`: so one more solve gives `H M⁻¹ w`, the transposed derivative.
    """
    base = again(y, start=start)
    perturbations, ascents, ascent_steps = counts
    setting = base.certificate.setting
    assert isinstance(setting, ObjectiveSetting)
    found: list[Perturbation] = []
    for kind, copies in _portions(perturbations, ascents, 1 if H.domain.batch is not None else TOGETHER):
        data, settled = _repeat(y, copies), _repeat(base.value, copies)
        radius = size * _sizes(data)
        delta = _random(data, radius, generator)
        moved = again(data + delta, start=settled)
        for _ in range(ascent_steps if kind != "random" else 0):
            change = moved.value - settled
            if kind == "data":
                pulled = H.forward(change)
            else:
                pulled = H.forward(again(data, start=settled, reference=change / setting.convexity).value - settled)
            length = norms(pulled)
            delta = pick(length > 0, scale(radius / length.clamp_min(torch.finfo(length.dtype).tiny), pulled), delta)
            moved = again(data + delta, start=settled)
        found += _compare_minimisers(base, moved, settled, H, delta, kind)
    return Evidence(tuple(found), base)


def _compare_minimisers(
    base: Solution, moved: Solution, start: Tensor, H: LinearOperator, delta: Tensor, kind: Kind
) -> list[Perturbation]:
    """The ratios for each image; what the images may be away from their minimisers is granted."""
    dx = moved.value - start
    far = (base.certificate.distance or 0.0) + (moved.certificate.distance or 0.0)
    data, image = base.certificate.estimates
    top = base.certificate.setting.norm[1]
    result = []
    sizes, moves = norms(delta).tolist(), zip(norms(H.forward(dx)).tolist(), norms(dx).tolist(), strict=True)
    for i, (d, (measured, whole)) in enumerate(zip(sizes, moves, strict=True)):
        ratios = (
            Ratio(data.label, measured / d, None if data.constant is None else data.constant + top * far / d),
            Ratio(image.label, whole / d, None if image.constant is None else image.constant + far / d),
        )
        row = i % len(base.images)
        settled = base.images[row].converged and moved.images[i].converged
        result.append(Perturbation(kind, row, d, settled, ratios))
    return result


def _portions(perturbations: int, ascents: int, together: int) -> Iterator[tuple[Kind, int]]:
    """Kinds of perturbations and how many of a kind are solved in one batch."""
    counts: dict[Kind, int] = {"random": perturbations, "data": (ascents + 1) // 2, "image": ascents // 2}
    for kind, count in counts.items():
        for first in range(0, count, together):
            yield kind, min(together, count - first)


def _repeat(x: Tensor, copies: int) -> Tensor:
    return x.repeat(copies, *[1] * (x.ndim - 1))


def _sizes(y: Tensor) -> Tensor:
    """‖y‖ of each image; data that are zero count as large as the largest of the batch, or as 1."""
    size = norms(y)
    return torch.where(size > 0, size, size.max() if size.any() else 1.0)


def _random(like: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    return scale(radius / norms(noise), noise)


def _pull_back(w: Tensor, x: Tensor, y: Tensor, H: LinearOperator, denoiser: Denoiser, setting: Setting) -> Tensor:
    """Transposed derivative of the fixed point `x` by the data: `(∂T/∂y)ᵀ Σ_j (∂T/∂x)ᵀʲ w`, the series cut short.

    At the scale of a perturbation the map from data to image is nearly linear, so that to repeat this from the change
    it made, at constant size, is a power iteration towards the worst perturbation.
    """
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    try:
        with torch.enable_grad(), evaluating(denoiser):
            image = averaged_map(y, H, denoiser, setting)(x, torch.arange(len(y), device=y.device))
    except RuntimeError as error:
        raise ValueError(
            f"The denoiser cannot be differentiated ({error}), which the perturbations found by gradient ascent need. "
            f"Pass ascents=0."
        ) from error
    total = w
    for _ in range(TERMS):
        w = torch.autograd.grad(image, x, w, retain_graph=True)[0]
        total = total + w
    return torch.autograd.grad(image, y, total)[0]


def _compare(
    base: Solution, moved: Solution, start: Tensor, H: LinearOperator, delta: Tensor, kind: Kind
) -> list[Perturbation]:
    """The ratios for each image of `moved`, a multiple of the batch of `base`, whose values are in `start`."""
    dx = moved.value - start
    sizes, data, image = norms(delta).tolist(), norms(H.forward(dx)).tolist(), norms(dx).tolist()
    noise = ROUND_OFF * torch.finfo(dx.dtype).eps * (norms(start) + norms(moved.value))
    result = []
    for i, after in enumerate(moved.images):
        row = i % len(base.images)
        before = base.images[row]
        residual = before.change + after.change + float(noise[i])
        ratios = _ratios(base, sizes[i], data[i], image[i], residual)
        result.append(Perturbation(kind, row, sizes[i], before.converged and after.converged, ratios))
    return result


def _ratios(base: Solution, d: float, data: float, image: float, residual: float) -> tuple[Ratio, ...]:
    """Measured ratios `‖HΔx‖/d` and `‖Δx‖/d` with their limits, where `residual` bounds ‖Δg‖."""
    setting = base.certificate.setting
    assert isinstance(setting, Setting)
    forward, inverse, contract, firm = (estimate.constant for estimate in base.certificate.estimates)
    reached = None
    if forward is not None:
        reached = (1 + math.sqrt(1 + 4 * image * residual / (setting.step * d**2))) / 2
    k = setting.lipschitz
    return (
        Ratio("eq:EstForward", data / d, reached),
        Ratio("eq:H_invert", image / d, None if reached is None or inverse is None else reached * inverse),
        Ratio("eq:EstCont", image / d, None if contract is None else contract + k * residual / ((1 - k) * d)),
        Ratio("firm contraction", image / d, None if firm is None else firm + _excess(setting, residual) / d),
    )


def _excess(setting: Setting, residual: float) -> float:
    """What a residual adds to `‖Δx‖` in the estimate of a firm contraction."""
    return residual / (setting.step * ((setting.smallest or 0.0) ** 2 + setting.pull))
