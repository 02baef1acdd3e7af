"""Orders are checked field by field; an error is one sentence."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipspline.lab.request import AUTOMATIC, LIMITS, LabRequest, parse
from live_lab import ORDER


def test_every_field_arrives():
    order = parse(ORDER)
    measurement = vars(order.measurement)
    assert {**measurement, **{k: v for k, v in vars(order).items() if k != "measurement"}} == ORDER


@pytest.mark.parametrize("name", LIMITS)
def test_numbers_out_of_range_are_refused_and_the_limits_are_not(name):
    low, high = LIMITS[name]
    for value in (low, high):
        parse({**ORDER, name: int(value) if value == int(value) else value})
    for value in (
        low - 1,
        high + 1,
        float("nan"),
        float("inf"),
        "4",
        True,
        [4],
        *([] if name in AUTOMATIC else [None]),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be a (whole )?number from .* but is .*\.$"):
            parse({**ORDER, name: value})


@pytest.mark.parametrize("name", ["level", "beta"])
def test_noise_level_and_weight_may_be_left_to_the_program(name):
    assert getattr(parse({**ORDER, name: None}), name) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "pet"}, r"kind must be one of 'mri', 'ct', but is 'pet'\."),
        ({"image": 3}, r"image must be a name, but is 3\."),
        ({"angles": 10.5}, r"angles must be a whole number from 4 to 720, but is 10\.5\."),
        ({"extra": 1}, r"unknown or missing: extra\."),
    ],
)
def test_odd_fields_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        parse({**ORDER, **changes})


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="unknown or missing: beta"):
        parse({key: value for key, value in ORDER.items() if key != "beta"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ORDER, "x"]), inner, max_size=10),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_an_order_or_refused(document):
    if isinstance(document, dict):
        document = {**ORDER, **document}
    with suppress(ValueError):
        assert isinstance(parse(document), LabRequest)
