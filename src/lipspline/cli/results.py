"""What the terminal says of a reconstruction: the result in words, and what to mind about it."""

import textwrap
from collections.abc import Sequence

from lipspline.cli.program import translated
from lipspline.formats.output import Output
from lipspline.imaging.cache import Slice, kept
from lipspline.imaging.held_out import HELD
from lipspline.imaging.reconstruction import Reconstruction, Rival, mean
from lipspline.report import Agreement
from lipspline.report.plain_words import UNFAMILIAR, certificate_lines, doubt, lines_text, percent

TO_CHECK = {
    "CT": (
        "Check the sign (-log of the counts), the angles, their sense and arc, the rotation axis, the orientation and "
        "the geometry of a fan."
    ),
    "MR": (
        "Check that frequency zero lies in the middle of k-space (numpy.fft.fftshift puts it there), the orientation, "
        "the mask and the coil maps (an object larger than the field of view: --map-sets 2)."
    ),
}
VALUES = {  # of CT images
    "hounsfield": "; values in Hounsfield units",
    "per millimetre": "; values are attenuations per millimetre",
    "per pixel": "; values are attenuations per pixel, whose size is not known",
}


def warnings(result: Reconstruction) -> list[str]:
    """What to mind about a result, a sentence each."""
    sentences, level = list(filter(None, [result.strength.prior.caution])), result.request.noise
    if level != "auto" and level < 1:
        sentences.append(
            f"--noise {level:g} is in units of 1/255 of the brightness, for which a prior hardly does anything. If it "
            f"was meant as a part of the brightness, give --noise {255 * level:.4g}."
        )
    if slow := result.unsettled:
        reason = f" ({slow[0].run.reason})" if slow[0].run is not None else ""
        sentences.append(f"slice(s) {_numbers(slow)} did not converge{reason}.")
    if result.empty:
        sentences.append(
            f"slice(s) {_numbers(result.empty)} are empty: their data are zero everywhere, and so are their images."
        )
    if odd := result.fitting(Agreement.UNEXPLAINED):
        found = odd[0].misfit
        reason = (
            f" (it is estimated at {percent(found.noise)} of slice {odd[0].number}, which is hardly possible)"
            if found.implausible
            else ""
        )
        sentences.append(
            f"slice(s) {_numbers(odd)} fit the measurements worse than noise explains{reason}. "
            f"{TO_CHECK[result.scan.modality]}"
        )
    if vague := result.fitting(Agreement.DOUBTFUL):
        worst = max((done.misfit for done in vague), key=lambda misfit: misfit.value)
        sentences.append(
            f"slice(s) {_numbers(vague)}: whether the image fits the measurements is doubtful (off by "
            f"{percent(worst.value)}, noise {percent(worst.noise)}). {doubt(worst)} {TO_CHECK[result.scan.modality]}"
        )
    if strange := [
        done for done in result.slices if done.certificate and (done.certificate.unfamiliar or 0) > UNFAMILIAR
    ]:
        share = max(done.certificate.unfamiliar or 0 for done in strange if done.certificate)
        sentences.append(
            f"slice(s) {_numbers(strange)}: up to {percent(share)} of the values that the denoiser sees are brighter "
            f"or darker than those it was trained on, and may look wrong. Compare with --prior ridge."
        )
    return [*sentences, *(translated(note) for note in result.scan.notes)]


def interrupted(output: Output, slices: int) -> str:
    """What is left of a run that was stopped, and how to go on."""
    done = kept(output.parts)
    if not done:
        return f"none of {slices} slice(s) was finished, and nothing is kept: the same command begins again."
    left = "does the others and" if len(done) < slices else "does what is left besides, and"
    return (
        f"{len(done)} of {slices} slice(s) are finished (number {numbers(done)}) and kept in {output.parts}. The same "
        f"command {left} writes {output.path}; to begin again, remove that folder first."
    )


SCORES = {
    "psnr": "PSNR",
    "ssim": "SSIM",
    "psnr_object": "within the object PSNR",
    "ssim_object": "within the object SSIM",
}


def _compared(result: Reconstruction) -> list[str]:
    """The priors side by side on the slice that all of them reconstructed."""
    if not result.rivals:
        return []
    number, held = result.rivals[0].done.number, result.held_out
    own = next(done for done in result.slices if done.number == number)
    lines = [f"Compared on slice {number}:"]
    lines += [_rival(rival) for rival in (Rival(result.strength, own, held), *result.rivals)]
    if held is not None:
        lines += textwrap.wrap(
            f"held out: one readout or projection in {HELD} was left out, and the image made of the others predicts it "
            f"with this error; noise alone makes about {percent(held.noise)}. It needs no truth, so it is a hint only: "
            f"priors that differ by less than a tenth are not ranked by it.",
            100,
            initial_indent="  ",
            subsequent_indent="  ",
        )
    return lines


def _rival(rival: Rival) -> str:
    """One line about a slice reconstructed with a prior."""
    done, held = rival.done, rival.held_out
    scores = [] if held is None else [f"held out off by {100 * held.value:.4g} %"]
    scores += [f"misfit {percent(done.misfit.value)}"]
    scores += [f"{SCORES[name]} {done.quality[name]:.4g}" for name in done.quality]
    proven = (
        "all proven" if done.certificate and not any(e.constant is None for e in done.certificate.estimates) else ""
    )
    return ", ".join(filter(None, [f"  {rival.strength.name}: {scores[0]}", *scores[1:], proven]))


def numbers(slices: Sequence[int]) -> str:
    """The numbers of slices; of three and more in a row, the first and the last: a volume may have thousands of them.

    Example:
        >>> numbers([0, 1, 5, 6, 7, 9])
        '0, 1, 5 to 7, 9'
    """
    rows: list[list[int]] = []
    for number in slices:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def _numbers(slices: Sequence[Slice]) -> str:
    return numbers([done.number for done in slices])


def text(result: Reconstruction, output: Output) -> str:
    """A result in words: what was measured, what is proven, how good it is, and where it was written."""
    strength, solved = result.strength, result.solved
    shown = solved[len(solved) // 2]
    assert shown.certificate is not None
    lines = [
        f"{result.scan.summary}; {len(result.slices)} slice(s){VALUES.get(result.scan.unit, '')}",
        str(strength),
        *([f"slice {shown.number}, the middle one (counted from 0):"] if len(solved) > 1 else []),
        lines_text(certificate_lines(shown.certificate, shown.misfit)),
    ]
    before, after = mean([s.direct_quality for s in solved]), mean([s.quality for s in solved])
    gains = [f"{SCORES[name]} {before[name]:.4g} -> {after[name]:.4g}" for name in after if name in before]
    if gains:
        lines.append(f"{', '.join(gains)} (mean over slices, profile paper)")
    lines += _compared(result)
    lines.append(f"Written: {', '.join(map(str, output.written))}")
    return "\n".join(lines)
