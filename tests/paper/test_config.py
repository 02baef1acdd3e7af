"""Strict TOML: what is accepted, and the sentence for everything that is not."""

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from lipspline.paper import config
from lipspline.paper.config import (
    Amount,
    Count,
    Natural,
    Place,
    Positive,
    Several,
    build,
    check,
    differences,
    merged,
    read_toml,
    to_json,
)

HERE = Place("mine.toml", ("base",))


@dataclass(frozen=True)
class Inner:
    width: int
    scale: float = 1.0


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float
    sizes: tuple[int, ...]
    inner: Inner
    kind: Literal["plain", "fancy"] = "plain"
    nets: dict[str, Inner] = field(default_factory=dict)
    fast: bool = False
    note: str | None = None
    free: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.rate <= 0:
            raise ValueError(f"rate must be positive, but is {self.rate}.")


GOOD = {"name": "a", "rate": 1, "sizes": [3, 4], "inner": {"width": 5}}


def test_a_complete_table_becomes_the_dataclass_with_its_defaults():
    table = GOOD | {"nets": {"x": {"width": 2, "scale": 3}}, "note": "hi", "free": {"z": [1, "b"]}}
    wanted = Outer("a", 1.0, (3, 4), Inner(5), nets={"x": Inner(2, 3.0)}, note="hi", free={"z": [1, "b"]})
    built = build(Outer, table, HERE)
    assert built == wanted
    assert isinstance(built.rate, float)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nam": "b"}, "mine.toml: base has the unknown key 'nam'; did you mean 'name'?"),
        ({"qqq": 1}, "mine.toml: base has the unknown key 'qqq'; known keys: name, rate, sizes"),
        (
            {"inner": {"width": 5, "widht": 6}},
            "mine.toml: base.inner has the unknown key 'widht'; did you mean 'width'?",
        ),
        ({"inner": {}}, "mine.toml: base.inner.width is missing; give a whole number."),
        ({"rate": "fast"}, "mine.toml: base.rate must be a number, but is 'fast'."),
        ({"rate": True}, "mine.toml: base.rate must be a number, but is True."),
        ({"inner": {"width": True}}, "mine.toml: base.inner.width must be a whole number, but is True."),
        ({"sizes": [1, 2.5]}, "mine.toml: base.sizes.1 must be a whole number, but is 2.5."),
        ({"sizes": 3}, "mine.toml: base.sizes must be a list, but is 3."),
        ({"inner": 3}, "mine.toml: base.inner must be a table, but is 3."),
        ({"nets": {"x": {"width": "wide"}}}, "mine.toml: base.nets.x.width must be a whole number, but is 'wide'."),
        ({"kind": "odd"}, "mine.toml: base.kind must be one of 'plain', 'fancy', but is 'odd'."),
        ({"fast": 1}, "mine.toml: base.fast must be true or false, but is 1."),
        ({"rate": -1}, "mine.toml: base: rate must be positive, but is -1.0."),
    ],
)
def test_every_mistake_is_one_sentence_with_file_and_key(change, sentence):
    with pytest.raises(ValueError) as error:
        build(Outer, GOOD | change, HERE)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_a_partial_table_may_miss_values_but_not_invent_them():
    check(Outer, {"inner": {}}, HERE)
    with pytest.raises(ValueError, match="unknown key 'size'; did you mean 'sizes'"):
        check(Outer, {"size": 3}, HERE)
    with pytest.raises(ValueError, match="must be a number"):
        check(Outer, {"rate": "x"}, HERE)


def test_merging_replaces_values_and_keeps_the_rest_of_each_table():
    base = {"a": {"x": 1, "y": [1]}, "b": 2}
    assert merged(base, {"a": {"y": [2, 3]}, "c": 4}) == {"a": {"x": 1, "y": [2, 3]}, "b": 2, "c": 4}
    assert base == {"a": {"x": 1, "y": [1]}, "b": 2}


def test_differences_name_both_values_also_where_one_is_missing():
    assert differences({"a": {"x": 1}, "b": 2}, {"a": {"x": 1, "y": 3}}) == {"b": (2, None), "a.y": (None, 3)}
    assert differences({"a": [1]}, {"a": [1]}) == {}


def test_dataclasses_become_json_values():
    assert to_json(Outer("a", 1.0, (3,), Inner(5)))["inner"] == {"width": 5, "scale": 1.0}
    assert to_json({1: (2, 3)}) == {"1": [2, 3]}


def test_a_missing_file_and_a_broken_one_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*gone\.toml"):
        read_toml(tmp_path / "gone.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = \n")
    with pytest.raises(ValueError, match=r"broken\.toml is not a TOML file: .*line 1"):
        read_toml(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not a TOML file"):
        config.read_toml(broken)


@dataclass(frozen=True)
class Limited:
    epochs: Count
    seed: Natural
    lr: Positive
    weight: Amount
    noises: Several[Count]
    steps: Count | None = None


WITHIN = {"epochs": 1, "seed": 0, "lr": 1e-3, "weight": 0, "noises": [5, 15]}


def test_values_within_their_rules_are_taken():
    assert build(Limited, WITHIN, Place("mine.toml")) == Limited(1, 0, 1e-3, 0.0, (5, 15))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epochs", 0, "epochs must be at least 1, but is 0"),
        ("seed", -1, "seed must be at least 0, but is -1"),
        ("lr", 0.0, "lr must be above 0, but is 0.0"),
        ("lr", math.inf, "lr must be above 0, but is inf"),
        ("weight", -1.0, "weight must be at least 0, but is -1.0"),
        ("weight", math.nan, "weight must be at least 0, but is nan"),
        ("noises", [], "noises must be a list of one or more, each once, but is []"),
        ("noises", [15, 15], "noises must be a list of one or more, each once, but is [15, 15]"),
        ("noises", [0], "noises.0 must be at least 1, but is 0"),
        ("steps", 0, "steps must be at least 1, but is 0"),
        ("epochs", "many", "epochs must be a whole number, but is 'many'"),
    ],
)
def test_values_outside_their_rules_are_refused(key, value, words):
    with pytest.raises(ValueError, match=re.escape(f"mine.toml: {words}.")):
        build(Limited, WITHIN | {key: value}, Place("mine.toml"))
