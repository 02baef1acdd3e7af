"""What a page shows of one reconstruction problem, and its section of the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipspline.formats.png import data_uri
from lipspline.functional.quality import Profile, psnr, ssim
from lipspline.pnp.certificate import ReconstructionCertificate
from lipspline.pnp.fbs import Solution
from lipspline.pnp.iterate import ImageRun
from lipspline.pnp.stability import Evidence
from lipspline.report.charts import ratio_bar, residual_chart
from lipspline.report.images import ANCHORS, Window, magnitude, palette, spanning
from lipspline.report.plain_words import ESTIMATES, Line, at_most, certificate_lines
from lipspline.report.template import Html, asset, fill, join, tag, void

SMALLEST = 7  # pixels: the window of SSIM
MARKS = {"proven": "●", "measured": "◐", "chosen": "◇", "not claimed": "○", "violated": "✕"}


@dataclass(frozen=True)
class Picture:
    """One image of the page, and the evidence for it if it was reconstructed by plug-and-play.

    Args:
        name: what it is called on the page.
        image: `(H, W)`, or with further dimensions of size 1; of complex images the modulus is shown.
        solution: what `pnp.fbs` returned, for a certificate and a curve of residuals.
        row: which image of the solution's batch this is.
        seconds: how long it took.
    """

    name: str
    image: Tensor
    solution: Solution | None = None
    row: int = 0
    seconds: float | None = None

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
    """

    title: str
    pictures: tuple[Picture, ...]
    reference: Tensor | None = None
    summary: str = ""
    stability: Evidence | None = None
    profile: Profile = "paper"

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
        """The grey values that all pictures are shown with: those of the reference, or of the last picture."""
        return spanning(self.shown()[0 if self.reference is not None else -1].pixels)

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
        numbers=_numbers(case),
        left=_options(names, 1 if case.reference is not None and len(names) > 2 else 0),
        right=_options(names, len(names) - 1),
        pictures=_gallery(case),
        residuals=_residuals(case),
        stability=_stability(case.stability),
        certificates=_certificates(case),
        ratio=_aspect(case),
        **_window_attributes(case.window()),
    )


def _aspect(case: Case) -> str:
    height, width = case.shown()[0].pixels.shape
    return f"{width} / {height}"


def _window_attributes(window: Window) -> dict[str, str]:
    return {"low": f"{window.low:.6g}", "high": f"{window.high:.6g}"}


def _options(names: list[str], chosen: int) -> Html:
    return join(tag("option", name, value=i, selected="" if i == chosen else None) for i, name in enumerate(names))


def _verdict(case: Case) -> Html:
    """What a hurried reader needs: is it proven, has it settled, how stable is it."""
    certificate = case.pictures[-1].certificate
    if certificate is None:
        return Html()
    forward = certificate.estimates[0].constant
    chips = [
        ("Convergence proven", True) if certificate.guaranteed else ("Convergence not proven", False),
        ("Settled", True) if certificate.converged else ("Not settled", False),
        ("No stability bound", False) if forward is None else (f"Data stability ≤ {at_most(forward)}", True),
    ]
    if case.stability is not None:
        chips.append(("Stability confirmed", True) if case.stability.holds else ("Stability bound broken", False))
    return join(tag("li", text, class_="good" if good else "bad") for text, good in chips)


def _numbers(case: Case) -> Html:
    """The table of all pictures: PSNR, SSIM, calls of the denoiser, seconds."""
    head = tag("tr", *(tag("th", text, scope="col") for text in ("", "PSNR", "SSIM", "Steps", "Time")))
    rows = [tag("tr", tag("th", p.name, scope="row"), *_cells(case, p)) for p in case.pictures]
    return tag("table", tag("thead", head), tag("tbody", *rows), class_="numbers")


def _cells(case: Case, picture: Picture) -> list[Html]:
    quality = case.quality(picture)
    texts = {
        "psnr": None if quality is None else (f"{quality[0]:.2f}", "dB"),
        "ssim": None if quality is None else (f"{quality[1]:.3f}", ""),
        "steps": None if picture.run is None else (str(picture.run.steps), ""),
        "seconds": None if picture.seconds is None else (f"{picture.seconds:.1f}", "s"),
    }
    return [
        tag("td", "–") if text is None else tag("td", text[0], tag("small", f" {text[1]}"), data_number=name)
        for name, text in texts.items()
    ]


def _gallery(case: Case) -> Html:
    """All pictures in one window, and below each the error in one scale of colours."""
    window = case.window()
    first = [_figure(picture, data_uri(window.bytes(picture.pixels)), "grey", "") for picture in case.shown()]
    errors = list(case.errors())
    if not errors:
        return tag("div", *first, class_="gallery", style="--columns: 1")
    largest = max(float(error.max()) for _, error in errors) or 1.0
    scale, colours = Window(0.0, largest), palette()
    word = "Error: " if case.reference is not None else "Difference: "
    maps = [_figure(p, data_uri(scale.bytes(error), colours), "error", word) for p, error in errors]
    return tag("div", *first, _colour_bar(case, largest), *maps, class_="gallery", style=f"--columns: {len(first)}")


def _figure(picture: Picture, source: str, kind: str, prefix: str) -> Html:
    name = f"{prefix}{picture.name}"
    image = void("img", src=source, alt=name, class_=kind, draggable="false", decoding="async")
    return tag("figure", tag("div", image, class_="frame"), tag("figcaption", name), class_=kind)


def _colour_bar(case: Case, largest: float) -> Html:
    """Explains the colours of the error maps; it takes the place below the picture they are compared with."""
    against = case.shown()[0].name.lower()
    colours = f"background: linear-gradient(90deg, {', '.join(ANCHORS)})"
    bar = tag("div", class_="bar", role="img", aria_label=f"Colours from 0 to {largest:.3g}", style=colours)
    ends = tag("div", tag("span", "0"), tag("span", f"{largest:.3g}"), class_="ends")
    title = tag("h3", "Errors" if case.reference is not None else "Differences")
    text = tag("p", f"Distance from the {against}, pixel by pixel. The colours mean the same in every map.")
    return tag("div", title, bar, ends, text, class_="scale")


def _residuals(case: Case) -> Html:
    solved = {p.name: p.run.residuals for p in case.pictures if p.run is not None}
    if not solved:
        return Html()
    tol = max(p.certificate.tol for p in case.pictures if p.certificate is not None)
    keys = [tag("li", name, class_=f"key-{k}") for k, name in enumerate(solved)]
    text = "Relative change of the image from one step to the next. Only below the dashed line may it stop."
    return tag(
        "section",
        tag("h3", "How it settled"),
        tag("p", text),
        tag("ul", *keys, class_="keys"),
        residual_chart(solved, tol),
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
            tag("dd", ratio_bar(worst.measured, limit), tag("span", text, class_="figure" if holds else "figure bad")),
        ]
    )


def _certificates(case: Case) -> Html:
    """The certificate of the last picture, and those of the others folded up."""
    solved = [(p.name, p.certificate) for p in case.pictures if p.certificate is not None]
    parts = []
    for k, (name, certificate) in enumerate(reversed(solved)):
        summary = tag("summary", f"Certificate of {name}")
        parts.append(tag("details", summary, certificate_table(certificate), open="" if k == 0 else None))
    return join(parts)


def certificate_table(certificate: ReconstructionCertificate) -> Html:
    """The certificate line by line: name, value, a plain sentence, and how we know."""
    return lines_table(certificate_lines(certificate))


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
