"""What a page shows of one reconstruction problem, and its section of the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipspline.formats.png import data_uri
from lipspline.functional.quality import Profile, psnr, ssim
from lipspline.pnp import Evidence, ImageRun, ReconstructionCertificate, Solution
from lipspline.report import drawing
from lipspline.report.drawing import AS_STORED, Rescale, Window, magnitude, ratio_bar, robust_window, spanning
from lipspline.report.plain_words import (
    ESTIMATES,
    MARKS,
    DataMisfit,
    Line,
    at_most,
    certificate_lines,
    headline,
    percent,
)
from lipspline.report.template import Html, asset, escape, fill, join, tag, void

SMALLEST, STORED = 7, 1.6  # pixels of the window of SSIM; how far the window shown first can be widened
PRESETS = {"Soft tissue": (-160.0, 240.0), "Lung": (-1350.0, 150.0), "Bone": (-500.0, 1300.0), "Brain": (0.0, 80.0)}
"""Windows for Hounsfield units that radiologists use."""
AIR, METAL = -1000.0, 2000.0  # Hounsfield units
LEAST_TISSUE = 0.05  # of the pixels, for that window to be shown first


@dataclass(frozen=True)
class Picture:
    """One image of the page, and the evidence for it if it was reconstructed by plug-and-play.

    Args:
        name: what it is called on the page.
        image: `(H, W)`, or with further dimensions of size 1; of complex images the modulus is shown.
        solution: what `pnp.fbs` returned, for a certificate and a curve of residuals.
        row: which image of the solution's batch this is.
        seconds: how long it took.
        misfit: how far its predictions are from the data.
        held_out: the same for data that were held out.
    """

    name: str
    image: Tensor
    solution: Solution | None = None
    row: int = 0
    seconds: float | None = None
    misfit: DataMisfit | None = None
    held_out: DataMisfit | None = None

    @property
    def pixels(self) -> Tensor:
        """The values shown, real, `(H, W)`."""
        return magnitude(self.image)

    @property
    def run(self) -> ImageRun | None:
        """How the iteration went."""
        return None if self.solution is None else self.solution.images[self.row]

    @property
    def certificate(self) -> ReconstructionCertificate | None:
        """What is proven about it."""
        return None if self.solution is None else self.solution.certificate


@dataclass(frozen=True)
class Case:
    """A problem and its solutions: baseline first, best last.

    Args:
        title: e.g. "Knee, slice 12".
        pictures: at least one, all of one size.
        reference: the truth, if it is known; errors, PSNR and SSIM are against it.
        summary: how the data came about, in a sentence.
        stability: how the last picture moved when the data did.
        profile: the conventions of PSNR and SSIM.
        number: of the slice, if it is one of a volume; a page shows the slices of a volume in one place.
        rescale: the unit that values are shown in.
    """

    title: str
    pictures: tuple[Picture, ...]
    reference: Tensor | None = None
    summary: str = ""
    stability: Evidence | None = None
    profile: Profile = "paper"
    number: int | None = None
    rescale: Rescale = AS_STORED

    def __post_init__(self) -> None:
        if not self.pictures:
            raise ValueError(f"The case {self.title!r} has no picture to show. Give it at least one.")
        sizes = {tuple(picture.pixels.shape) for picture in self.shown()}
        if len(sizes) > 1:
            raise ValueError(f"The pictures of {self.title!r} have different sizes: {sorted(sizes)}.")

    def shown(self) -> tuple[Picture, ...]:
        """All pictures of the page, the reference first."""
        known = () if self.reference is None else (Picture("Reference", self.reference),)
        return (*known, *self.pictures)

    def window(self) -> Window:
        """The grey values that all pictures are shown with at first.

        Those of the reference, or of the last picture, but for the few brightest; soft tissue for Hounsfield units, if
        there is some.
        """
        if self.rescale.unit == "HU":
            low, high = (self.rescale.stored(value) for value in PRESETS["Soft tissue"])
            share = float(((self._guide > low) & (self._guide < high)).double().mean())
            air = self.rescale.stored(AIR)
            return (
                Window(low, high) if share > LEAST_TISSUE else Window(air, robust_window(self._guide - air).high + air)
            )
        return robust_window(self._guide)

    def stored_window(self) -> Window:
        """The grey values that the page has shades for: whoever widens the window sees no more than these."""
        shown, everything = self.window(), spanning(self._guide)
        if self.rescale.unit == "HU":
            stored = [self.rescale.stored(value) for value in (AIR, METAL)]
            return Window(stored[0], max(min(everything.high, stored[1]), shown.high))
        return Window(shown.low, max(shown.high, min(everything.high, shown.low + STORED * (shown.high - shown.low))))

    @property
    def fits(self) -> bool:
        """Whether the last picture explains the data, as far as that is known."""
        misfit = self.pictures[-1].misfit
        return misfit is None or misfit.explained

    @property
    def _guide(self) -> Tensor:
        return self.shown()[0 if self.reference is not None else -1].pixels

    def compared(self) -> tuple[Picture, ...]:
        """The pictures that differ from what they are compared with: the reference, or else the first picture."""
        return self.shown()[1:]

    def errors(self) -> Iterator[tuple[Picture, Tensor]]:
        """Each compared picture with the modulus of its difference."""
        target = self.shown()[0].pixels.double()
        return ((picture, (picture.pixels.double() - target).abs()) for picture in self.compared())

    def quality(self, picture: Picture) -> tuple[float, float] | None:
        """PSNR in dB and SSIM, with the maximum of the reference as 1; None without one, or if too small for SSIM."""
        if self.reference is None or min(picture.pixels.shape) < SMALLEST:
            return None
        truth = magnitude(self.reference).double()
        peak = truth.max().clamp_min(torch.finfo(truth.dtype).tiny)
        pair = (picture.pixels.double()[None, None] / peak, truth[None, None] / peak)
        with torch.no_grad():
            return float(psnr(*pair, self.profile)), float(ssim(*pair, self.profile))


def case_section(case: Case, number: int) -> Html:
    """The section of a case; `number` tells cases of one page apart."""
    names = [picture.name for picture in case.shown()]
    return fill(
        asset("case.html"),
        id=f"case-{number}",
        title=case.title,
        summary=case.summary,
        verdict=_verdict(case),
        numbers=numbers_table({escape(p.name): picture_numbers(case, p) for p in case.pictures}),
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
    """What a hurried reader needs: is it proven, has it settled, how stable is it."""
    certificate = case.pictures[-1].certificate
    if certificate is None:
        return Html()
    holds = None if case.stability is None else case.stability.holds
    return join(tag("li", text, class_=kind) for text, kind in headline(certificate, case.fits, holds))


COLUMNS = {
    "psnr": "PSNR",
    "ssim": "SSIM",
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
    found = {
        "psnr": None if quality is None else (f"{quality[0]:.2f}", "dB"),
        "ssim": None if quality is None else (f"{quality[1]:.3f}", ""),
        "misfit": None if picture.misfit is None else (percent(picture.misfit.value).removesuffix(" %"), "%"),
        "held_out": None if picture.held_out is None else (f"{100 * picture.held_out.value:.4g}", "%"),
        "steps": None if run is None else (str(run.steps), ""),
        "seconds": None if picture.seconds is None else (f"{picture.seconds:.1f}", "s"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _cell(name: str, cells: Mapping[str, tuple[str, str]]) -> Html:
    if name not in cells:
        return tag("td")
    number, unit = cells[name]
    return tag("td", number, tag("small", f" {unit}"), data_number=name)


def _gallery(case: Case, name: str) -> Html:
    """All pictures in one window, and below each the error in one scale of colours."""
    window = case.stored_window()
    first = [
        _figure(picture, data_uri(window.bytes(picture.pixels)), "grey", "", f"filter: url(#window-{name})")
        for picture in case.shown()
    ]
    errors = list(case.errors())
    if not errors:
        return tag("div", *first, class_="gallery", style="--columns: 1")
    largest = max(float(error.max()) for _, error in errors) or 1.0
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
    text = tag("p", f"Distance from the {against}, pixel by pixel. The colours mean the same in every map.")
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
