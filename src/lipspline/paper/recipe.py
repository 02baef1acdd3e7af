"""Recipes: one TOML a table or figure of the paper, at three scales, with the published numbers."""

import os
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from lipspline._infra import checks
from lipspline.paper import config
from lipspline.paper.catalog import EXPERIMENTS
from lipspline.paper.config import Place
from lipspline.paper.experiment import Expectation, Experiment

Scale = Literal["smoke", "laptop", "paper"]
SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Minutes:
    """How long each scale takes, on two cores."""

    smoke: float
    laptop: float
    paper: float


@dataclass(frozen=True)
class _File:
    """A recipe as it is written: settings that all scales share, and what each scale changes."""

    experiment: str
    title: str
    minutes: Minutes
    base: dict[str, Any]
    smoke: dict[str, Any]
    laptop: dict[str, Any]
    paper: dict[str, Any]
    expect: Expectation = field(default_factory=Expectation)


@dataclass(frozen=True)
class Recipe:
    """A recipe at one scale.

    Args:
        minutes: how long it takes at this scale, on two cores.
        differs: what is not as published, by name: (here, published).
    """

    name: str
    title: str
    scale: str
    experiment: Experiment
    settings: Any
    expect: Expectation
    minutes: float
    differs: dict[str, tuple[Any, Any]]


def shipped() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(str(resources.files("lipspline.paper") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(recipe: str | os.PathLike[str], scale: str = "paper") -> Recipe:
    """Read a recipe at a scale, strictly.

    Args:
        recipe: the name of a shipped recipe, or a TOML file of your own.
        scale: "smoke" (seconds), "laptop", or "paper" (exactly the published protocol).
    """
    checks.one_of("scale", scale, SCALES)
    path = _find(recipe)
    file = config.build(_File, config.read_toml(path), Place(path.name))
    _known("experiment", file.experiment, EXPERIMENTS, Place(path.name, ("experiment",)))
    experiment = EXPERIMENTS[file.experiment]
    for claim in file.expect.claims:
        _known("claim", claim, experiment.claims, Place(path.name, ("expect", "claims")))
    settings = {each: _settings(experiment, file, each, path.name) for each in dict.fromkeys((scale, "paper"))}
    return Recipe(
        name=path.stem,
        title=file.title,
        scale=scale,
        experiment=experiment,
        settings=settings[scale],
        expect=file.expect,
        minutes=getattr(file.minutes, scale),
        differs=config.differences(config.to_json(settings[scale]), config.to_json(settings["paper"])),
    )


def listing() -> dict[str, Any]:
    """The shipped recipes: what each is, and how many minutes each scale takes on two cores."""
    found = {}
    for name in shipped():
        scales = {scale: load(name, scale) for scale in SCALES}
        minutes = {scale: recipe.minutes for scale, recipe in scales.items()}
        found[name] = {"title": scales["paper"].title, "minutes": minutes}
    return found


def listing_text() -> str:
    """The listing as a table."""
    rows = [["recipe", *SCALES, "what"]]
    for name, entry in listing().items():
        rows.append([name, *(_duration(entry["minutes"][scale]) for scale in SCALES), entry["title"]])
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows]
    return "\n".join([*lines, "", "Times are for two cores without a GPU."])


def _duration(minutes: float) -> str:
    """A rough time in the unit that suits it.

    Example:
        >>> _duration(0.1), _duration(45), _duration(600), _duration(14400)
        ('6 s', '45 min', '10 h', '10 days')
    """
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} days"


def _find(recipe: str | os.PathLike[str]) -> Path:
    """The file of a recipe: a path, or the name of a shipped one."""
    path = Path(recipe)
    if path.suffix == ".toml":
        return path
    known = shipped()
    if str(recipe) not in known:
        raise ValueError(
            f"There is no recipe {str(recipe)!r}; {config.nearest(str(recipe), known)} "
            f"A recipe of your own is named with its ending .toml."
        )
    return known[str(recipe)]


def _settings(experiment: Experiment, file: _File, scale: str, name: str) -> Any:
    changes = getattr(file, scale)
    config.check(experiment.settings, file.base, Place(name, ("base",)))
    config.check(experiment.settings, changes, Place(name, (scale,)))
    return config.build(experiment.settings, config.merged(file.base, changes), Place(name, (scale,)))


def _known(what: str, name: str, known: Any, place: Place) -> None:
    if name not in known:
        raise ValueError(f"{place} names the unknown {what} {name!r}; {config.nearest(name, known)}")
