"""Recipes: one TOML a table or figure of the paper, at three scales, with the published numbers.

A recipe may say `extends = "NAME"`: then it is the recipe or template of that name, with its own values merged into it
table by table. Templates are parts of recipes that several share.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from lipspline._infra import checks
from lipspline.paper import certified_digits, config, denoising, fitting, priors, scans, w1_mixtures, w1_mnist, wgan
from lipspline.paper.config import Place
from lipspline.paper.experiment import Expectation, Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "certified": certified_digits.EXPERIMENT,
    "ct": scans.CT_EXPERIMENT,
    "denoising": denoising.DENOISING,
    "fitting": fitting.EXPERIMENT,
    "mri": scans.MRI_EXPERIMENT,
    "priors": priors.PRIORS_EXPERIMENT,
    "multicoil": scans.MULTICOIL_EXPERIMENT,
    "regions": denoising.REGIONS,
    "w1-mixtures": w1_mixtures.EXPERIMENT,
    "w1-mnist": w1_mnist.EXPERIMENT,
    "wgan": wgan.EXPERIMENT,
}
"""The experiments a recipe can name."""
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
    labels: tuple[str, ...] = ()
    expect: Expectation = field(default_factory=Expectation)


@dataclass(frozen=True)
class Recipe:
    """A recipe at one scale.

    Args:
        minutes: how long it takes at this scale, on two cores.
        differs: what is not as published, by name: (here, published).
        labels: those of the tables and figures of the paper that it makes.
    """

    name: str
    title: str
    scale: str
    experiment: Experiment
    settings: Any
    expect: Expectation
    minutes: float
    differs: dict[str, tuple[Any, Any]]
    labels: tuple[str, ...] = ()


def shipped() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    return _toml_files("recipes")


def templates() -> dict[str, Path]:
    """The parts that shipped recipes share, by name: for `extends`, not to be run."""
    return _toml_files("recipes/templates")


def load(recipe: str | os.PathLike[str], scale: str = "paper") -> Recipe:
    """Read a recipe at a scale, strictly.

    Args:
        recipe: the name of a shipped recipe, or a TOML file of your own.
        scale: "smoke" (seconds), "laptop", or "paper" (exactly the published protocol).
    """
    checks.one_of("scale", scale, SCALES)
    path = _find(recipe)
    layers = _layers(path)
    for layer in layers:
        config.check(_File, layer.tables, layer.place)
    whole = config.build(_File, _merged(layers), Place(path.name))
    _known("experiment", whole.experiment, EXPERIMENTS, Place(path.name, ("experiment",)))
    experiment = EXPERIMENTS[whole.experiment]
    for claim in whole.expect.claims:
        _known("claim", claim, experiment.claims, Place(path.name, ("expect", "claims")))
    for layer in layers:
        for part in ("base", *SCALES):
            config.check(experiment.settings, layer.tables.get(part, {}), layer.place / part)
    settings = {each: _settings(experiment, whole, each, path.name) for each in dict.fromkeys((scale, "paper"))}
    return Recipe(
        name=path.stem,
        title=whole.title,
        scale=scale,
        experiment=experiment,
        settings=settings[scale],
        expect=whole.expect,
        minutes=getattr(whole.minutes, scale),
        differs=config.differences(config.to_json(settings[scale]), config.to_json(settings["paper"])),
        labels=whole.labels,
    )


def whole_text(recipe: str | os.PathLike[str]) -> str:
    """A recipe as one TOML document, with all that it extends merged into it."""
    layers = _layers(_find(recipe))
    chain = " extends ".join(layer.path.stem for layer in reversed(layers))
    return f"# {chain}\n{config.to_toml(_merged(layers))}"


@dataclass(frozen=True)
class _Layer:
    """One file of a chain of recipes that extend each other, without the key `extends`."""

    path: Path
    tables: dict[str, Any]

    @property
    def place(self) -> Place:
        return Place(self.path.name)


def _layers(path: Path) -> list[_Layer]:
    """The files that a recipe is made of, from the one that extends nothing to the recipe itself."""
    layers: list[_Layer] = []
    while True:
        tables = config.read_toml(path)
        parent = tables.pop("extends", None)
        layers.insert(0, _Layer(path, tables))
        if parent is None:
            return layers
        place = Place(path.name, ("extends",))
        if not isinstance(parent, str):
            raise ValueError(f"{place} must be the name of a recipe, a template or a TOML file, but is {parent!r}.")
        path = _parent(parent, path, place)
        if path.resolve() in [layer.path.resolve() for layer in layers]:
            names = [layer.path.name for layer in reversed(layers)]
            raise ValueError(f"{place} closes a circle: {' extends '.join([*names, path.name])}.")


def _parent(name: str, child: Path, place: Place) -> Path:
    """The file that `extends` names: a TOML file beside the recipe, or a shipped recipe or template."""
    if name.endswith(".toml"):
        return child.parent / name
    known = shipped() | templates()
    _known("recipe", name, known, place)
    return known[name]


def _merged(layers: Sequence[_Layer]) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for layer in layers:
        tables = config.merged(tables, layer.tables)
    return tables


def _toml_files(folder: str) -> dict[str, Path]:
    root = Path(str(resources.files("lipspline.paper"))) / folder
    return {path.stem: path for path in sorted(root.glob("*.toml"))}


def listing() -> dict[str, Any]:
    """The shipped recipes: what each is, how many minutes each scale takes on two cores, and its labels in the paper.

    Those that make tables or figures of the paper come first.
    """
    found = {}
    for name in shipped():
        scales = {scale: load(name, scale) for scale in SCALES}
        minutes = {scale: recipe.minutes for scale, recipe in scales.items()}
        labels = list(scales["paper"].labels)
        found[name] = {"title": scales["paper"].title, "minutes": minutes, "labels": labels}
    return dict(sorted(found.items(), key=lambda item: not item[1]["labels"]))


def listing_text() -> str:
    """The listing as a table."""
    entries = listing()
    rows = [["recipe", *SCALES, "what"]]
    for name, entry in entries.items():
        labels = f" [{', '.join(entry['labels'])}]" if entry["labels"] else ""
        rows.append([name, *(duration_text(entry["minutes"][scale]) for scale in SCALES), entry["title"] + labels])
    every = [sum(entry["minutes"][scale] for entry in entries.values() if entry["labels"]) for scale in SCALES]
    rows.append(
        ["all", *map(duration_text, every), f"the whole paper: {2 * every[1] / 60:.0f} core-hours at laptop scale"]
    )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows]
    return "\n".join(
        [
            *lines,
            "",
            "Times are for two cores without a GPU: measured, but those of the paper scale estimated. Recipes without "
            "a label train what others use, or go beyond the paper.",
        ]
    )


def duration_text(minutes: float) -> str:
    """A rough time in the unit that suits it.

    Example:
        >>> duration_text(0.1), duration_text(45), duration_text(600), duration_text(14400)
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
    return config.build(experiment.settings, config.merged(file.base, getattr(file, scale)), Place(name, (scale,)))


def _known(what: str, name: str, known: Any, place: Place) -> None:
    if name not in known:
        raise ValueError(f"{place} names the unknown {what} {name!r}; {config.nearest(name, known)}")
