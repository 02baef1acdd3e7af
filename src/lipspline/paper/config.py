"""Strict TOML to frozen dataclasses: an unknown key, a wrong type or a missing value is one sentence."""

import dataclasses
import difflib
import json
import math
import os
import re
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Built = TypeVar("Built")
TomlTable = Mapping[str, Any]


@dataclass(frozen=True)
class Requirement:
    """What a value must be besides its type, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


Count = Annotated[int, Requirement("at least 1", lambda n: n >= 1)]
Natural = Annotated[int, Requirement("at least 0", lambda n: n >= 0)]
Positive = Annotated[float, Requirement("above 0", lambda value: 0 < value < math.inf)]
Amount = Annotated[float, Requirement("at least 0", lambda value: 0 <= value < math.inf)]
Several = Annotated[
    tuple[Built, ...], Requirement("a list of one or more, each once", lambda items: 0 < len(items) == len(set(items)))
]


@dataclass(frozen=True)
class Place:
    """A key of a file, as errors name it."""

    file: str
    keys: tuple[str, ...] = ()

    def __truediv__(self, key: str) -> "Place":
        return Place(self.file, (*self.keys, key))

    def __str__(self) -> str:
        return f"{self.file}: {'.'.join(self.keys) or 'the file'}"


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not TOML; the message says in which line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from error


def build(kind: type[Built], table: TomlTable, place: Place) -> Built:
    """Make a dataclass of a table, strictly: every key must be a field, every field without default must be there.

    Fields may be bool, int, float (a whole number will do), str, `Literal` words, `tuple[X, ...]`, `dict[str, X]`,
    other dataclasses, `X | None`, one of these with a `Requirement`, such as `Count`, or `Any` for what is checked
    later.

    Example:
        >>> @dataclass(frozen=True)
        ... class Training:
        ...     epochs: int
        ...     lr: float = 1e-3
        >>> build(Training, {"epochs": 3}, Place("mine.toml"))
        Training(epochs=3, lr=0.001)
        >>> build(Training, {"epoch": 3}, Place("mine.toml", ("base",)))
        Traceback (most recent call last):
        ValueError: mine.toml: base has the unknown key 'epoch'; did you mean 'epochs'?
    """
    return _read(kind, table, place, partial=False)


def check(kind: type, table: TomlTable, place: Place) -> None:
    """Check the keys and types of a table that gives some of the fields of a dataclass."""
    _read(kind, table, place, partial=True)


def merged(base: TomlTable, override: TomlTable) -> dict[str, Any]:
    """The base with the values of `override` in place of its own, table by table.

    Example:
        >>> merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 5}})
        {'a': {'x': 1, 'y': 5}, 'b': 3}
    """
    result = dict(base)
    for key, value in override.items():
        inner = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if inner else value
    return result


def differences(ours: Any, theirs: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """The values in which two JSON trees differ, by dotted name: `(ours, theirs)`, None where there is none.

    Example:
        >>> differences({"a": {"x": 1}, "b": 2}, {"a": {"x": 3}, "b": 2})
        {'a.x': (1, 3)}
    """
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        found = {}
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            found |= differences(ours.get(key), theirs.get(key), f"{name}.{key}".lstrip("."))
        return found
    return {} if ours == theirs else {name: (ours, theirs)}


def added_later(default: Any) -> Any:
    """A field that settings did not have from the start: JSON names it only where it is not its default.

    So what was trained before the field was there is still found to be of the same configuration.
    """
    return dataclasses.field(default=default, metadata={"added_later": True})


def to_json(value: Any) -> Any:
    """Dataclasses, mappings and tuples as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: (field, getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {
            name: to_json(item)
            for name, (field, item) in found.items()
            if not (field.metadata.get("added_later") and item == field.default)
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def to_toml(tables: TomlTable) -> str:
    """Tables of strings, numbers, truth values, lists and tables as a TOML document.

    Example:
        >>> print(to_toml({"title": "a", "base": {"steps": 3, "rates": [1.0, 2.5]}, "paper": {}}))
        title = "a"
        <BLANKLINE>
        [base]
        steps = 3
        rates = [1.0, 2.5]
        <BLANKLINE>
        [paper]
    """
    return "\n".join(_toml_lines(tables, ())).strip("\n")


def _toml_lines(tables: TomlTable, path: tuple[str, ...]) -> list[str]:
    """A table's own values, then its tables with their headers."""
    values = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    inner = {key: value for key, value in tables.items() if isinstance(value, Mapping)}
    header = ["", f"[{'.'.join(map(_toml_key, path))}]"] if path and (values or not inner) else []
    lines = [*header, *(f"{_toml_key(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())]
    for key, value in inner.items():
        lines += _toml_lines(value, (*path, key))
    return lines


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _read(hint: Any, value: Any, place: Place, *, partial: bool) -> Any:
    """`value` as an instance of the type `hint`; with `partial`, fields of dataclasses may be missing."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        inner, rule = get_args(hint)
        result = _read(inner, value, place, partial=partial)
        if not rule.holds(result):
            raise ValueError(_wrong(place, rule.words, value))
        return result
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, _typed(value, Mapping, "a table", place), place, partial=partial)
    if origin in (types.UnionType, Union):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        return _read(inner, value, place, partial=partial)
    if origin is dict:
        items = _typed(value, Mapping, "a table", place)
        return {key: _read(get_args(hint)[1], item, place / key, partial=partial) for key, item in items.items()}
    if origin is tuple:
        items = _typed(value, list, "a list", place)
        return tuple(_read(get_args(hint)[0], item, place / str(i), partial=partial) for i, item in enumerate(items))
    if origin is Literal:
        return _word(value, get_args(hint), place)
    return _scalar(hint, value, place)


def _read_dataclass(kind: Any, table: TomlTable, place: Place, *, partial: bool) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in table:
        if key not in fields:
            raise ValueError(f"{place} has the unknown key {key!r}; {nearest(key, fields)}")
    values = {key: _read(hints[key], item, place / key, partial=partial) for key, item in table.items()}
    if partial:
        return values
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{place / name} is missing; give {_wanted(hints[name])}.")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def nearest(key: str, known: Any) -> str:
    """What to write instead of an unknown key."""
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known) or 'none'}."


def _scalar(hint: type, value: Any, place: Place) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) and hint is not bool:
        raise ValueError(_wrong(place, _wanted(hint), value))
    return _typed(value, hint, _wanted(hint), place)


def _word(value: Any, words: tuple[str, ...], place: Place) -> str:
    if value not in words:
        raise ValueError(f"{place} must be one of {', '.join(map(repr, words))}, but is {value!r}.")
    return value


def _typed(value: Any, kind: type, wanted: str, place: Place) -> Any:
    if not isinstance(value, kind):
        raise ValueError(_wrong(place, wanted, value))
    return value


def _wrong(place: Place, wanted: str, value: Any) -> str:
    return f"{place} must be {wanted}, but is {value!r}."


def _wanted(hint: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if get_origin(hint) is Annotated:
        return _wanted(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if hint in words:
        return words[hint]
    return "a list" if get_origin(hint) is tuple else "a table"
