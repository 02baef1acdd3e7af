"""The section of a page about one reconstruction problem."""

from collections.abc import Mapping, Sequence
from typing import Literal

from lipspline.formats.png import data_uri
from lipspline.functional.quality import Agreement, DataMisfit
from lipspline.pnp import Evidence, ReconstructionCertificate
from lipspline.pnp.batch import Status
from lipspline.report import drawing
from lipspline.report.case import PRESETS, Case, Picture
from lipspline.report.drawing import Html, Window, asset, escape, fill, join, ratio_bar, tag, void
from lipspline.report.plain_words import (
    ESTIMATES,
    MARKS,
    TELLING,
    Line,
    at_most,
    certificate_lines,
    percent,
)


def case_section(case: Case, number: int) -> Html:
    """The section of a case; `number` tells cases of one page apart."""
    names = [picture.name for picture in case.shown()]
    return fill(
        asset("case.html"),
        id=f"case-{number}",
        title=case.title,
        summary=case.summary,
        notes=join(tag("p", note, class_="note") for note in case.notes),
        verdict=_verdict(case),
        numbers=numbers_table({escape(p.name): picture_numbers(case, p) for p in case.pictures}),
        legend=_legend(case),
        left=_options(names, 1 if case.reference is not None and len(names) > 2 else 0),
        right=_options(names, len(names) - 1),
        pictures=_gallery(case, f"case-{number}"),
        residuals=_residuals(case),
        stability=_stability(case.stability),
        certificates=_certificates(case),
        ratio=_aspect(case),
        presets=_presets(case),
        **_window_places(case),
    )


def _aspect(case: Case) -> str:
    height, width = case.shown()[0].pixels.shape
    return f"{width} / {height}"


def _window_places(case: Case) -> dict[str, str]:
    """The window in the unit of the page, and as shares of the shades that are stored."""
    stored, shown = case.stored_window(), case.window()
    span = stored.high - stored.low
    width = (shown.high - shown.low) / span
    level = ((shown.low + shown.high) / 2 - stored.low) / span
    return {
        "low": f"{case.rescale.shown(stored.low):.6g}",
        "high": f"{case.rescale.shown(stored.high):.6g}",
        "unit": case.rescale.unit,
        "width": f"{100 * width:.4g}",
        "level": f"{100 * level:.4g}",
        "slope": f"{1 / width:.6g}",
        "offset": f"{0.5 - level / width:.6g}",
    }


def _presets(case: Case) -> Html:
    if case.rescale.unit != "HU":
        return Html()
    buttons = [
        tag("button", name, type="button", name="preset", data_low=low, data_high=high)
        for name, (low, high) in PRESETS.items()
    ]
    return tag("div", *buttons, class_="presets", role="group", aria_label="Windows")


def _options(names: list[str], chosen: int) -> Html:
    return join(tag("option", name, value=i, selected="" if i == chosen else None) for i, name in enumerate(names))


def _verdict(case: Case) -> Html:
    last = case.pictures[-1]
    if last.certificate is None:
        return Html()
    confirmed = None if case.stability is None else case.stability.holds
    return join(tag("li", text, class_=kind) for text, kind in headline(last.certificate, last.misfit, confirmed))


def headline(
    certificate: ReconstructionCertificate, misfit: DataMisfit | None, confirmed: bool | None
) -> list[tuple[str, Literal["good", "bad", "moot"]]]:
    """What a hurried reader needs (is it proven, settled, stable), each with a tick, a cross or neither.

    An image that does not explain the data has no ticks: what is proven about it is about the wrong scanner. Nor have
    bounds on stability that are too large to tell much.

    Args:
        confirmed: whether perturbations that were tried stayed within the bounds, if any were.
    """
    bound, vouched = certificate.estimates[0].constant, getattr(certificate.setting, "vouched", "")
    proven = "Convergence proven, if the bound that was vouched for is right" if vouched else "Convergence proven"
    settled = certificate.converged or certificate.status is Status.ROUND_OFF
    facts: list[tuple[str, bool | None]] = [
        (proven, True) if certificate.guaranteed else ("Convergence not proven", False),
        ("Settled", True) if settled else ("Not settled", False),
        ("No stability bound", False)
        if bound is None
        else (f"Data stability ≤ {at_most(bound)}", True if bound <= TELLING else None),
    ]
    if confirmed is not None:
        facts.append(("Stability confirmed", True) if confirmed else ("Stability bound broken", False))
    fits = misfit is None or misfit.explained
    if misfit is not None and not fits:
        words = (
            f"The noise seems to be {percent(misfit.noise)} of the measurements, which is hardly possible"
            if misfit.implausible
            else "Noise cannot explain how far it is from the measurements"
        )
        facts.insert(0, (words, False))
    elif misfit is not None and misfit.fit is Agreement.DOUBTFUL:
        facts.insert(0, ("Fit to the measurements doubtful", None))
    return [(text, "bad" if good is False else "good" if good and fits else "moot") for text, good in facts]


COLUMNS = {
    "psnr": "PSNR",
    "ssim": "SSIM",
    "psnr_object": "PSNR, object",
    "ssim_object": "SSIM, object",
    "misfit": "Misfit",
    "held_out": "Held out",
    "steps": "Steps",
    "seconds": "Time",
}


def numbers_table(rows: Mapping[Html, Mapping[str, tuple[str, str]]], first: str = "", kind: str = "numbers") -> Html:
    """A table of numbers and their units by row; columns that nothing is known for are left out."""
    names = [name for name in COLUMNS if any(name in cells for cells in rows.values())]
    head = tag("tr", *(tag("th", text, scope="col") for text in (first, *(COLUMNS[name] for name in names))))
    body = [
        tag("tr", tag("th", row, scope="row"), *(_cell(name, cells) for name in names)) for row, cells in rows.items()
    ]
    return tag("table", tag("thead", head), tag("tbody", *body), class_=kind)


def picture_numbers(case: Case, picture: Picture) -> dict[str, tuple[str, str]]:
    """What is known of a picture in numbers, with units."""
    quality, run = case.quality(picture), picture.run
    where = "_object" if case.reference_measured else ""
    found = {
        f"psnr{where}": None if quality is None else (f"{quality[0]:.2f}", "dB"),
        f"ssim{where}": None if quality is None else (f"{quality[1]:.3f}", ""),
        "misfit": None if picture.misfit is None else (percent(picture.misfit.value).removesuffix(" %"), "%"),
        "held_out": None if picture.held_out is None else (f"{100 * picture.held_out.value:.4g}", "%"),
        "steps": None if run is None else (str(run.steps), ""),
        "seconds": None if picture.seconds is None else (f"{picture.seconds:.1f}", "s"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _legend(case: Case) -> Html:
    """What the columns of the table mean that do not speak for themselves."""
    lines = []
    if case.reference is not None:
        where = ", over the pixels of the object only" if case.reference_measured else ""
        lines.append(f"PSNR and SSIM are against the reference{where} (profile {case.profile}).")
    if any(picture.misfit is not None for picture in case.pictures):
        lines.append("Misfit: how far the measurements that an image predicts are from those used.")
    if any(picture.held_out is not None for picture in case.pictures):
        lines.append(
            "Held out: the same for measurements that were left out, predicted by an image made of the others. It "
            "needs no truth, so it is a hint only: methods that differ by less than a tenth are not ranked by it."
        )
    return tag("p", " ".join(lines), class_="hint") if lines else Html()


def _cell(name: str, cells: Mapping[str, tuple[str, str]]) -> Html:
    if name not in cells:
        return tag("td")
    number, unit = cells[name]
    return tag("td", number, tag("small", f" {unit}"), data_number=name, data_label=COLUMNS[name])


def _gallery(case: Case, name: str) -> Html:
    """All pictures in one window, and below each the error in one scale of colours: that of what was reconstructed.

    The direct image may be much farther off; its map is then as bright as colours go.
    """
    window = case.stored_window()
    first = [
        _figure(picture, data_uri(window.bytes(picture.pixels)), "grey", "", f"filter: url(#window-{name})")
        for picture in case.shown()
    ]
    errors = list(case.errors())
    if not errors:
        return tag("div", *first, class_="gallery", style="--columns: 1")
    solved = [error for picture, error in errors if picture.solution is not None] or [error for _, error in errors]
    largest = max(float(error.max()) for error in solved) or 1.0
    scale, colours = Window(0.0, largest), drawing.palette()
    word = "Error: " if case.reference is not None else "Difference: "
    maps = [_figure(p, data_uri(scale.bytes(error), colours), "error", word) for p, error in errors]
    return tag("div", *first, _colour_bar(case, largest), *maps, class_="gallery", style=f"--columns: {len(first)}")


def _figure(picture: Picture, source: str, kind: str, prefix: str, style: str | None = None) -> Html:
    name = f"{prefix}{picture.name}"
    image = void("img", src=source, alt=name, class_=kind, draggable="false", decoding="async", style=style)
    return tag("figure", tag("div", image, class_="frame"), tag("figcaption", name), class_=kind)


def _colour_bar(case: Case, largest: float) -> Html:
    """Explains the colours of the error maps; it takes the place below the picture they are compared with."""
    against = case.shown()[0].name.lower()
    colours = f"background: linear-gradient(90deg, {', '.join(drawing.ANCHORS)})"
    top = f"{case.rescale.slope * largest:.3g} {case.rescale.unit}".strip()
    bar = tag("div", class_="bar", role="img", aria_label=f"Colours from 0 to {top}", style=colours)
    ends = tag("div", tag("span", "0"), tag("span", top), class_="ends")
    title = tag("h3", "Errors" if case.reference is not None else "Differences")
    text = tag(
        "p",
        f"Distance from the {against}, pixel by pixel. The colours mean the same in every map; what is farther off has "
        f"the last one.",
    )
    return tag("div", title, bar, ends, text, class_="scale")


def _residuals(case: Case) -> Html:
    solved = {p.name: p.run.residuals for p in case.pictures if p.run is not None}
    if not solved:
        return Html()
    tol = sorted({p.certificate.tol for p in case.pictures if p.certificate is not None})
    keys = [tag("li", name, class_=f"key-{k}") for k, name in enumerate(solved)]
    text = "By how much a plain step would change the image, relative to it. Only below its dashed line may it stop."
    return tag(
        "section",
        tag("h3", "How it settled"),
        tag("p", text),
        tag("ul", *keys, class_="keys"),
        drawing.residual_chart(solved, *tol),
    )


def _stability(evidence: Evidence | None) -> Html:
    if evidence is None:
        return Html()
    optimised = sum(p.kind != "random" for p in evidence.perturbations)
    count = len(evidence.perturbations)
    times = "once" if count == 1 else f"{count} times"
    harm = f", {optimised} of them in the way found to do most harm" if optimised else ""
    text = (
        f"The measurements were disturbed {times}{harm}, and the image computed again. "
        f"Each bar is the largest reaction seen, each mark the bound for this calculation."
    )
    rows = [row for estimate in evidence.solution.certificate.estimates if (row := _measured(evidence, estimate.label))]
    return tag("section", tag("h3", "Tried, not only proven"), tag("p", text), tag("dl", *rows, class_="ratios"))


def _measured(evidence: Evidence, label: str) -> Html:
    """The worst ratio seen for an estimate beside its limit; nothing where neither is of interest."""
    ratios = [r for p in evidence.perturbations for r in p.ratios if r.label == label and r.limit is not None]
    if not ratios:
        return Html()
    worst = max(ratios, key=lambda ratio: ratio.measured / (ratio.limit or 1.0))
    limit = worst.limit or 0.0
    holds = all(ratio.holds for ratio in ratios)
    text = f"{worst.measured:.3f} of at most {at_most(limit, 4)}"
    return join(
        [
            tag("dt", ESTIMATES[label][0]),
            tag(
                "dd",
                ratio_bar(worst.measured, limit),
                tag("span", text, class_="figure" if holds else "figure bad"),
            ),
        ]
    )


def _certificates(case: Case) -> Html:
    """The certificate of the last picture, and those of the others folded up."""
    solved = [(p.name, certificate_lines(p.certificate, p.misfit)) for p in case.pictures if p.certificate is not None]
    parts = []
    for k, (name, lines) in enumerate(reversed(solved)):
        summary = tag("summary", f"Certificate of {name}")
        parts.append(tag("details", summary, lines_table(lines), open="" if k == 0 else None))
    return join(parts)


def lines_table(lines: Mapping[str, Sequence[Line]]) -> Html:
    """Lines of certificates below their headings."""
    groups = [
        tag("tbody", tag("tr", tag("th", heading, colspan=4, scope="rowgroup"), class_="group"), *map(_row, group))
        for heading, group in lines.items()
    ]
    return tag("table", *groups, class_="certificate")


def _row(line: Line) -> Html:
    kind = line.standing.replace(" ", "-")
    standing = tag("span", tag("span", MARKS[line.standing], aria_hidden="true"), f" {line.standing}", class_=kind)
    return tag(
        "tr",
        tag("th", line.name, scope="row"),
        tag("td", line.value, class_="value"),
        tag("td", line.sentence, class_="sentence"),
        tag("td", standing, class_="standing"),
    )
