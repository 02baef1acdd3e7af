"""The certificate of a reconstruction in plain words: one line a fact, one sentence a clinician can read."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import partial
from typing import Literal

from lipspline.functional.quality import Agreement, DataMisfit
from lipspline.pnp import ReconstructionCertificate
from lipspline.pnp.batch import Status
from lipspline.pnp.guarantee import Estimate, ObjectiveSetting, Setting, Tier, contracts

Standing = Literal["proven", "measured", "chosen", "vouched for", "not claimed", "violated"]
MARKS: dict[Standing, str] = {
    "proven": "●",
    "measured": "◐",
    "chosen": "◇",
    "vouched for": "◆",
    "not claimed": "○",
    "violated": "✕",
}
PROMISED, HYPOTHESES, FIT = "What is promised", "What the promise rests on", "Fit to the measurements"


@dataclass(frozen=True)
class Line:
    """One line of a certificate: what it is about, its value, what it means, and how we know."""

    name: str
    value: str
    sentence: str
    standing: Standing


def certificate_lines(
    certificate: ReconstructionCertificate, misfit: DataMisfit | None = None
) -> dict[str, list[Line]]:
    """All that is known about a reconstruction, under three headings [eq:pnp_fbs, eq:EstForward]."""
    promised, hypotheses = promise_lines(certificate.setting, certificate.violations).values()
    fit = [] if misfit is None else [misfit_line(misfit)]
    return {
        PROMISED: [*promised, _distance(certificate)],
        "What happened": [*fit, *_familiar(certificate), _settled(certificate), _steps(certificate)],
        HYPOTHESES: [*hypotheses, _pairing(certificate)],
    }


def promise_lines(setting: Setting | ObjectiveSetting, violations: Sequence[str] = ()) -> dict[str, list[Line]]:
    """What is known before the first step, for a denoiser or an energy."""
    if isinstance(setting, ObjectiveSetting):
        return objective_lines(setting, violations)
    return setting_lines(setting, violations)


def setting_lines(setting: Setting, violations: Sequence[str] = ()) -> dict[str, list[Line]]:
    """What is known before the first step: it depends on the numbers of the theorem alone [eq:pnp_fbs]."""
    estimates = setting.estimates()
    silent = [replace(estimate, constant=None) for estimate in estimates]
    return {
        PROMISED: [_convergence(setting, violations), *map(_estimate, silent if violations else estimates)],
        HYPOTHESES: [_denoiser(setting), _weight(setting), _step(setting), _norm(setting)],
    }


def objective_lines(setting: ObjectiveSetting, violations: Sequence[str] = ()) -> dict[str, list[Line]]:
    """What is known of the minimiser of data term and energy."""
    estimates = setting.estimates()
    silent = [replace(estimate, constant=None) for estimate in estimates]
    energy = "convex" if not setting.weak_convexity else f"weakly convex, ρ ≤ {at_most(setting.weak_convexity)}"
    pull = "A small pull towards a fixed reference makes the answer unique; the larger it is, the more stable it is."
    passes, words = [], partial(_estimate, smaller="; the prior ridge has smaller ones" if setting.moving else "")
    if setting.moving:
        pull = "A small pull towards the image of the first pass; the larger it is, the more stable the answer is."
        sentence = (
            "The energy of the second pass has weights that a certified network reads off the first image. With the "
            "data its slope moves by at most this, over their change."
        )
        passes = [Line("Two passes", f"≤ {at_most(setting.moving)}", sentence, "proven")]
    return {
        PROMISED: [_minimiser(setting, violations), *map(words, silent if violations else estimates)],
        HYPOTHESES: [
            Line("Energy R", energy, "Computed from its weights, for every image.", "proven"),
            *passes,
            Line("Strength λ", f"{setting.strength:.4g}", "How much the energy counts beside the data.", "chosen"),
            Line("Convexity ε", f"{setting.convexity:.3g}", pull, "chosen"),
            _norm(setting),
        ],
    }


def _minimiser(setting: ObjectiveSetting, violations: Sequence[str]) -> Line:
    if violations:
        sentence = f"No theorem covers this image, so it must be judged by eye alone. {' '.join(violations)}"
        return Line("Existence", "not proven", sentence, "violated")
    if setting.tier is Tier.PROVEN:
        sentence = "There is exactly one best compromise between the measurements and the energy."
        return Line("Existence", "one answer", sentence, "proven")
    sentence = (
        "No step made the compromise between measurements and energy worse, and the steps converge; there may be other "
        "answers from other starts."
    )
    return Line("Descent", "to a critical point", sentence, "proven")


def misfit_line(misfit: DataMisfit) -> Line:
    """Whether the image explains the measurements."""
    value = f"off by {percent(misfit.value)}"
    noise = f"their noise is estimated at {percent(misfit.noise)}"
    if misfit.fit is not Agreement.UNEXPLAINED:
        sentence = f"The measurements that this image predicts are off by {percent(misfit.value)}; {noise}."
        if misfit.fit is Agreement.EXPLAINED:
            return Line(FIT, value, sentence, "measured")
        return Line(FIT, f"{value}, doubtful", f"{sentence} {doubt(misfit)} {TO_CHECK}", "measured")
    if misfit.implausible:
        reason = f"; {noise}, which is hardly possible: signal seems to have been taken for noise. It explains nothing"
    else:
        reason = f", but {noise}: the model of the scanner is not that of the scan"
    sentence = f"The measurements that this image predicts are {value}{reason}. {TO_CHECK}"
    return Line(FIT, value, sentence, "violated")


def doubt(misfit: DataMisfit) -> str:
    """Why a misfit is doubtful, and what is known to do that."""
    if misfit.structured:
        reason = "More than half of this is no noise, for neighbouring detectors and angles are off together."
        return f"{reason} Rings, beam hardening and coarse pixels do that; so does a geometry that is a little wrong."
    reason = "That is more than noise and the right model of a scanner usually leave."
    return (
        f"{reason} Rings, beam hardening, coarse pixels and inexact coil maps may do it; so does a geometry that is a "
        f"little wrong."
    )


TO_CHECK = (
    "Check angles, rotation axis, orientation, field of view, coil maps, and that frequency zero lies in the middle of "
    "k-space."
)


def lines_text(lines: Mapping[str, Sequence[Line]], width: int = 100) -> str:
    """Lines for a terminal, in the words of the page: a mark, the name, the value, and the sentence below.

    Example:
        >>> steps = Line("Steps", "3", "All steps were those of the theorem.", "measured")
        >>> print(lines_text({"What happened": [steps]}))
        What happened
          ◐ Steps: 3 (measured)
            All steps were those of the theorem.
    """
    rows = []
    for heading, group in lines.items():
        rows.append(heading)
        for line in group:
            rows.append(f"  {MARKS[line.standing]} {line.name}: {line.value} ({line.standing})")
            rows += textwrap.wrap(line.sentence, width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(rows)


def percent(share: float) -> str:
    """A share in per cent, in two digits.

    Example:
        >>> percent(0.00512), percent(0.64), percent(0)
        ('0.51 %', '64 %', '0 %')
    """
    return f"{float(f'{100 * share:.2g}'):g} %"


LARGE = 100.0
"""A bound above this is rounded to three digits, and one on stability is said to be of little use."""


TELLING = 2.0
"""A bound on data stability up to this has a tick on a page: measurements do not get much worse by the image."""
LOOSE = 0.1
"""A bound on the distance to the answer above this share of the image is said to be improved by more steps."""
LEAST_PERCENT = 0.001
"""Smaller shares of the image are said to be at most this."""


def at_most(bound: float, digits: int | None = None) -> str:
    """An upper bound in a few digits that is still an upper bound; without their number three, and six up to 100.

    Example:
        >>> at_most(1.0000001), at_most(0.99999999), at_most(2.5), at_most(187.3601)
        ('1.00001', '1', '2.5', '188')
    """
    if not math.isfinite(bound):
        return "∞"
    precise = Context(prec=digits or (6 if bound <= LARGE else 3), rounding=ROUND_CEILING)
    return f"{Decimal(bound).normalize(precise):f}"


def one_part_in(share: float) -> str:
    """A small share in words.

    Example:
        >>> one_part_in(0.00012), one_part_in(0.0)
        ('1 part in 8,300', 'nothing')
    """
    if share <= 0:
        return "nothing"
    return f"1 part in {float(f'{1 / share:.2g}'):,.0f}" if share < 0.5 else "about all of itself"


def _convergence(setting: Setting, violations: Sequence[str]) -> Line:
    if violations:
        sentence = f"No theorem covers this image, so it must be judged by eye alone. {' '.join(violations)}"
        return Line("Convergence", "not proven", sentence, "violated")
    if setting.vouched:
        sentence = "The calculation is proven to approach an answer if the bound that was vouched for is right."
        return Line("Convergence", "if the bound holds", sentence, "vouched for")
    if contracts(setting.rate):
        sentence = "There is exactly one answer, and the calculation is proven to reach it from wherever it starts."
        return Line("Convergence", "to the only answer", sentence, "proven")
    sentence = "Wherever it starts, the calculation is proven to approach an answer, provided that there is one."
    return Line("Convergence", "to an answer", sentence, "proven")


def _denoiser(setting: Setting) -> Line:
    if setting.denoiser is None:
        sentence = "Nothing is known about how the denoiser treats small changes."
        return Line("Denoiser D", "no bound", sentence, "violated")
    value = f"Lipschitz ≤ {at_most(setting.denoiser)}"
    if setting.vouched and setting.lipschitz <= 1:
        sentence = f"This bound is not proven here: whoever made the denoiser vouches for it ({setting.vouched})."
        return Line("Denoiser D", value, sentence, "vouched for")
    if setting.denoiser <= 1:
        sentence = "Two images never differ more after the learned denoiser than before: it cannot amplify noise."
        return Line("Denoiser D", value, sentence, "proven")
    sentence = "The denoiser may enlarge the difference between two images by this factor."
    return Line("Denoiser D", value, sentence, "proven" if setting.lipschitz <= 1 else "violated")


def _weight(setting: Setting) -> Line:
    share = 100 * setting.beta
    mixture = f"Each step mixes {share:.3g} % of the denoised image with {100 - share:.3g} % of the image before it"
    shrink = "" if setting.contraction == 1 else f", and shrinks the result by {setting.contraction:g}"
    return Line("Weight β", f"{setting.beta:g}", f"{mixture}{shrink}.", "chosen")


def _step(setting: Setting) -> Line:
    limit = 2 / setting.norm[1] ** 2
    value = f"{setting.step:.3g}, limit {limit:.3g}"
    if 0 < setting.step < limit:
        return Line("Step α", value, "Each step towards the measurements is short enough for the proof.", "proven")
    sentence = "The step towards the measurements is not in the range for which the proof holds."
    return Line("Step α", value, sentence, "violated")


def _norm(setting: Setting | ObjectiveSetting) -> Line:
    low, high = setting.norm
    value = f"{low:.5g} to {at_most(high, 6)}" if low < high else f"{high:.6g}"
    sentence = "The model of the scanner enlarges no image by more than this; both limits are computed, not guessed."
    return Line("Scanner model ‖H‖", value, sentence, "proven")


def _pairing(certificate: ReconstructionCertificate) -> Line:
    sentence = "The model of the scanner and the way back from data to image fit together up to this relative error."
    return Line("Model and its reverse", f"{certificate.pairing.error:.1g}", sentence, "measured")


def _settled(certificate: ReconstructionCertificate) -> Line:
    if certificate.converged:
        sentence = f"The last step changed the image by less than {one_part_in(certificate.tol)}: it has settled."
        return Line("Last change", f"{certificate.residual:.2g}", sentence, "measured")
    if certificate.status is Status.ROUND_OFF:
        sentence = (
            f"Numbers are rounded too coarsely for a smaller change, so that this is the end: "
            f"{one_part_in(certificate.tol)} was asked for."
        )
        return Line("Last change", f"{certificate.residual:.2g}", sentence, "measured")
    sentence = (
        f"The calculation was ended early: its last step still changed the image by "
        f"{one_part_in(certificate.residual)}, and {one_part_in(certificate.tol)} was asked for."
    )
    return Line("Last change", f"{certificate.residual:.2g}", sentence, "violated")


UNFAMILIAR = 0.005
"""A larger share of values that the denoiser was not trained on is warned of."""


def _familiar(certificate: ReconstructionCertificate) -> list[Line]:
    if certificate.unfamiliar is None:
        return []
    name, share = "Values new to the denoiser", certificate.unfamiliar
    if share <= UNFAMILIAR:
        return [Line(name, percent(share), "Nearly all values are among those that it was trained on.", "measured")]
    sentence = (
        "So many values are brighter or darker than those that it was trained on. The proof holds for them too, but "
        "what the denoiser makes of them may look wrong. Take an energy such as ridge, or other units of the data."
    )
    return [Line(name, f"{percent(share)}, doubtful", sentence, "measured")]


def _steps(certificate: ReconstructionCertificate) -> Line:
    plain, fast = certificate.plain_steps, certificate.accelerated_steps
    if not fast:
        return Line("Steps", f"{plain}", "All steps were those of the theorem.", "measured")
    sentence = "Faster steps were taken only where they keep the proof intact; the others are those of the theorem."
    return Line("Steps", f"{plain} plain, {fast} faster", sentence, "measured")


def _distance(certificate: ReconstructionCertificate) -> Line:
    if certificate.distance is None:
        sentence = "The proof promises that the answer is approached, not how near to it this image is."
        return Line("Distance to the answer", "no bound", sentence, "not claimed")
    far, share = f"≤ {at_most(certificate.distance)}", certificate.relative_distance
    sentence = "The image shown is at most this far from the exact answer, counted over all pixels together."
    if share is None:
        return Line("Distance to the answer", far, sentence, "proven")
    sentence = (
        f"The image shown is at most this far from the exact answer, as a share of the image, counted over all pixels "
        f"together; in numbers, {far}."
    )
    if share > LOOSE:
        sentence += " Usually it is much nearer; a smaller tolerance makes the proof say so."
    value = f"≤ {at_most(max(100 * share, LEAST_PERCENT), 2)} % of the image"
    return Line("Distance to the answer", value, sentence, "proven")


ESTIMATES = {
    "firm contraction": (
        "Image stability, sharper",
        "If the measurements change, the image changes {amount}.",
        "No step shrinks the image, so shrinking gives no bound; a contraction K < 1 would.",
    ),
    "minimiser:data": (
        "Data stability",
        "If the measurements change, what this image predicts for them changes {amount}.",
        "No bound is claimed on how far the predicted measurements move with the real ones.",
    ),
    "minimiser:image": (
        "Image stability",
        "If the measurements change, the image changes {amount}.",
        "No bound is claimed on how far the image moves with the measurements.",
    ),
    "eq:EstForward": (
        "Data stability",
        "If the measurements change, what this image predicts for them changes {amount}.",
        "No bound is claimed on how far the predicted measurements move with the real ones.",
    ),
    "eq:H_invert": (
        "Image stability, by the scanner",
        "If the measurements change, the image changes {amount}.",
        "The measurements alone do not pin down every part of the image, so they give no bound on it.",
    ),
    "eq:EstCont": (
        "Image stability, by shrinking",
        "If the measurements change, the image changes {amount}.",
        "No step shrinks the image, so shrinking gives no bound; a contraction K < 1 would.",
    ),
}


def _estimate(estimate: Estimate, smaller: str = "") -> Line:
    """A bound in words; `smaller` is which prior has a smaller one, to be said where this one is of little use."""
    name, claim, silence = ESTIMATES[estimate.label]
    if estimate.constant is None:
        return Line(name, "no bound", silence, "not claimed")
    sentence = claim.format(amount=_amount(estimate.constant))
    if estimate.constant > LARGE:
        sentence += f" So large a bound holds, but says little in practice{smaller}."
    return Line(name, f"≤ {at_most(estimate.constant)}", sentence, "proven")


def _amount(constant: float) -> str:
    return "no more than they do" if constant == 1 else f"at most {at_most(constant)} times as much"
