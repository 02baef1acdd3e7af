"""One reconstruction, or all slices of a volume, as one self-contained HTML page: the images and the proof."""

import base64
import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import lipspline
from lipspline import kernels
from lipspline._infra.files import write_whole
from lipspline.certification import certify
from lipspline.networks.curves import activation_curves
from lipspline.report.case import Case
from lipspline.report.drawing import Html, activation_tile, asset, escape, fill, join, tag
from lipspline.report.plain_words import TO_CHECK, at_most
from lipspline.report.section import case_section, numbers_table, picture_numbers

PER_LAYER = 12  # activations of each layer that are drawn
DRAWN = 32  # slices of a volume whose images are on the page; the numbers of all are


NO_TRUTH = (
    "It is about the answer of this calculation, which exists and moves with the data within the bounds below; it does "
    "not say that the answer is what was in the scanner."
)


def reconstruction_page(
    cases: Sequence[Case], *, denoiser: nn.Module | None = None, command: str = "", title: str = "Reconstruction"
) -> str:
    """A page that needs no network: images to compare, errors, residuals, certificates, activations, versions.

    Args:
        cases: at least one; each is a section. Those with a `number` are slices of a volume: they share one place, with
            a table and a slider. Of more than 32 slices the images of 32 are shown, and the numbers of all.
        denoiser: the network whose activations and layers are shown.
        command: what was typed to make it.
        title: the heading of the page.

    Example:
        >>> from lipspline.report import Picture
        >>> page = reconstruction_page([Case("A square", (Picture("Blurred", torch.eye(8)),))])
        >>> page[:15], "http://" in page
        ('<!doctype html>', False)
    """
    if not cases:
        raise ValueError("A page needs at least one case, but got none.")
    script = asset("page.js")
    return fill(
        asset("page.html"),
        title=title,
        policy=_policy(script),
        style=asset("page.css"),
        script=script,
        lead=_lead(cases),
        contents=_contents(cases, denoiser is not None),
        cases=_sections(cases),
        denoiser=Html() if denoiser is None else denoiser_section(denoiser),
        provenance=_provenance(command),
    )


def write_page(path: str | os.PathLike[str], page: str) -> Path:
    """Write a page; the file appears whole or not at all."""
    write_whole(Path(path), page.encode())
    return Path(path)


def denoiser_section(denoiser: nn.Module) -> Html:
    """The learned activations as small multiples, and the bound of each layer."""
    certificate = certify(denoiser)
    head = tag("tr", *(tag("th", text, scope="col") for text in ("Layer", "Kind", "Lipschitz bound", "Rule")))
    rows = [
        tag("tr", *(tag("td", text) for text in (layer.name, layer.kind, f"≤ {at_most(layer.upper, 6)}", layer.rule)))
        for layer in certificate.layers
    ]
    return fill(
        asset("denoiser.html"),
        bound=at_most(certificate.upper, 6),
        activations=_activations(denoiser),
        layers=tag("table", tag("thead", head), tag("tbody", *rows), class_="layers"),
    )


def _activations(denoiser: nn.Module) -> Html:
    layers = activation_curves(denoiser, per_layer=PER_LAYER)
    if not layers:
        return tag("p", "None of its activations is learned: every channel uses the same fixed function.")
    rows = [
        tag(
            "div", tag("h4", f"Layer {name}"), tag("div", *map(activation_tile, curves), class_="tiles"), class_="layer"
        )
        for name, curves in layers.items()
    ]
    text = (
        "Each curve was learned from images. It may bend at any dot, but never leaves the shaded cone: its slope stays "
        "between −1 and 1, which is what makes the proof possible."
    )
    return join([tag("p", text), *rows])


def _sections(cases: Sequence[Case]) -> Html:
    slices = [number for number, case in enumerate(cases) if case.number is not None]
    single = [case_section(case, number) for number, case in enumerate(cases) if case.number is None]
    return join([_volume(cases, slices), *single] if len(slices) > 1 else map(case_section, cases, range(len(cases))))


def _volume(cases: Sequence[Case], slices: Sequence[int]) -> Html:
    """The slices of a volume: a table of all of them, a slider, and their sections, of which a script shows one."""
    drawn = evenly(slices, DRAWN)
    rows = {}
    for number in slices:
        case = cases[number]
        name = f"Slice {case.number}"
        rows[tag("a", name, href=f"#case-{number}") if number in drawn else escape(name)] = {
            **picture_numbers(case, replace(case.pictures[-1], held_out=None)),  # it is that of one slice
        }
    shown = "" if len(drawn) == len(slices) else f" Images of {len(drawn)} of them are on this page, evenly spread."
    first = cases[slices[0]]
    return fill(
        asset("volume.html"),
        count=f"{len(slices)} slices.{shown} The numbers are those of {first.pictures[-1].name}.",
        table=numbers_table(rows, "", "numbers slices"),
        last=len(drawn) - 1,
        middle=len(drawn) // 2,
        sections=join(case_section(cases[number], number) for number in drawn),
    )


def evenly(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many of the numbers, evenly spread, with the first and the last.

    Example:
        >>> evenly(range(10), 4), evenly(range(3), 4)
        ([0, 3, 6, 9], [0, 1, 2])
    """
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(k * (len(numbers) - 1) / (most - 1))] for k in range(most)]


def _lead(cases: Sequence[Case]) -> str:
    """The first sentence of the page."""
    strange = sum(not case.fits for case in cases)
    if strange:
        which = "This reconstruction is" if len(cases) == 1 else f"{strange} of {len(cases)} reconstructions are"
        return (
            f"{which} farther from the measurements than noise explains. {TO_CHECK} Do so before you trust the image: "
            "what is proven is proven for the scanner as it was described."
        )
    certificates = [p.certificate for case in cases for p in case.pictures if p.certificate is not None]
    proven = sum(certificate.guaranteed for certificate in certificates)
    if not certificates:
        return "These images come without a certificate."
    if proven == len(certificates):
        if any(getattr(certificate.setting, "vouched", "") for certificate in certificates):
            return (
                "What is promised here rests on a bound of the denoiser that somebody vouches for, and that was not "
                "proven."
            )
        every = "This reconstruction is" if proven == 1 else f"All {proven} reconstructions on this page are"
        return f"{every} covered by a theorem whose every hypothesis was checked on the operator that ran. {NO_TRUTH}"
    return (
        f"{proven} of {len(certificates)} reconstructions on this page are covered by the theorem; the others are not."
    )


def _contents(cases: Sequence[Case], denoiser: bool) -> Html:
    volume = sum(case.number is not None for case in cases) > 1
    entries = [("#volume", "All slices")] if volume else []
    entries += [(f"#case-{k}", case.title) for k, case in enumerate(cases) if case.number is None or not volume]
    entries += [("#denoiser", "The denoiser")] if denoiser else []
    entries.append(("#provenance", "How it was made"))
    return join(tag("li", tag("a", text, href=target)) for target, text in entries)


def _provenance(command: str) -> Html:
    facts = {
        "Command": tag("code", command) if command else "–",
        "lipspline": lipspline.__version__,
        "Kernels": kernels.active(),
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}, threads: {torch.get_num_threads()}",
    }
    return join(join([tag("dt", name), tag("dd", value)]) for name, value in facts.items())


def _policy(script: str) -> str:
    """A content security policy: nothing may be loaded, and only this script may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )
