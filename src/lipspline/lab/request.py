"""What a visitor of the lab asks for, checked field by field: an error is one sentence."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from lipspline._infra import checks

LabModality = Literal["mri", "ct"]
MODALITIES = ("mri", "ct")
LIMITS = {
    "acceleration": (1.0, 16.0),
    "angles": (4.0, 720.0),
    "noise": (0.0, 20.0),
    "strength": (0.25, 4.0),
    "level": (1.0, 75.0),
    "beta": (0.01, 0.99),
    "contraction": (0.5, 1.0),
    "seed": (0.0, 2.0**31),
    "slice": (0.0, 9999.0),
}
WHOLE = {"angles", "seed", "slice"}
AUTOMATIC = {"level", "beta"}
"""Numbers that may be left to the program: null."""


@dataclass(frozen=True)
class Measurement:
    """Which image is measured, and how.

    Args:
        image: a name in the catalogue.
        slice: its number, from 0.
        kind: of the scan that is simulated from images.
        acceleration: of MRI; 1 leaves k-space of a file as it was measured.
        angles: of simulated CT.
        noise: standard deviation, of simulated data; for MRI of k-space, for CT of line integrals through an image 256
            wide.
    """

    image: str
    slice: int
    kind: LabModality
    acceleration: float
    angles: int
    noise: float
    seed: int


@dataclass(frozen=True)
class LabRequest:
    """A measurement and how it is to be solved.

    Args:
        model: the name of a prior.
        strength: of the regularisation, relative to the automatic one.
        level: noise level of the prior, in units of 1/255; automatic if None.
        beta: weight of a denoiser; automatic if None.
        contraction: K, of a denoiser; below 1 the image is stable too [eq:EstCont].
    """

    measurement: Measurement
    model: str
    strength: float
    level: float | None
    beta: float | None
    contraction: float

    def document(self) -> dict[str, Any]:
        """As JSON values, from which `parse` makes it again."""
        others = {key: value for key, value in vars(self).items() if key != "measurement"}
        return {**vars(self.measurement), **others}


def parse(document: object) -> LabRequest:
    """A request from JSON values; unknown, missing and impossible fields are refused."""
    if not isinstance(document, dict):
        raise ValueError(f"A request is a JSON object, but got {type(document).__name__}.")
    names = [field.name for kind in (Measurement, LabRequest) for field in fields(kind) if field.name != "measurement"]
    if unknown := sorted(set(document) ^ set(names)):
        raise ValueError(f"A request has the fields {', '.join(names)}; unknown or missing: {', '.join(unknown)}.")
    numbers = {name: _number(name, document[name]) for name in LIMITS if name not in AUTOMATIC}
    chosen = {name: None if document[name] is None else _number(name, document[name]) for name in AUTOMATIC}
    measurement = Measurement(
        image=_text("image", document),
        slice=int(numbers["slice"]),
        kind=_kind(document["kind"]),
        acceleration=numbers["acceleration"],
        angles=int(numbers["angles"]),
        noise=numbers["noise"],
        seed=int(numbers["seed"]),
    )
    model = _text("model", document)
    return LabRequest(
        measurement,
        model,
        numbers["strength"],
        contraction=numbers["contraction"],
        level=chosen["level"],
        beta=chosen["beta"],
    )


OPTION = re.compile(r"\b[a-z_]+=\w")


def in_words(error: BaseException) -> str:
    """What an error says; where it advises an option of the library, which the lab does not have, that is said too.

    Example:
        >>> in_words(ValueError("It seems to be turned: give transpose=True."))
        'It seems to be turned: give transpose=True. The lab has no such option: lipspline reconstruct has it.'
    """
    text = str(error) or type(error).__name__
    return f"{text} The lab has no such option: lipspline reconstruct has it." if OPTION.search(text) else text


def _kind(value: object) -> LabModality:
    return "mri" if checks.one_of("kind", value, MODALITIES) == "mri" else "ct"


def _text(name: str, document: Mapping[str, Any]) -> str:
    if not isinstance(document[name], str):
        raise ValueError(f"{name} must be a name, but is {document[name]!r}.")
    return document[name]


def _number(name: str, value: object) -> float:
    low, high = LIMITS[name]
    whole = name in WHOLE
    if not isinstance(value, int if whole else (int, float)) or isinstance(value, bool) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {kind} from {low:g} to {high:g}, but is {value!r}.")
    return value
