"""Certificates as text and JSON, and their arithmetic, rounded outward."""

import json
import math
import re

from torch import nn

from lipspline.certification import certify
from lipspline.certification.certificate import (
    Certificate,
    LayerBound,
    add_up,
    multiply_up,
    root_sum_of_squares_up,
    root_up,
)
from lipspline.nn import (
    Scaled,
)


def test_products_and_sums_are_rounded_upward():
    """Never below the exact value, and within a few units in the last place."""
    from fractions import Fraction

    factors = [0.1, 1.0, 3.3, 0.7, 1.0000001, 5e-3]
    exact = math.prod(map(Fraction, factors))
    assert exact <= Fraction(multiply_up(*factors)) <= exact * (1 + Fraction(1, 10**14))
    exact = sum(map(Fraction, factors))
    assert exact <= Fraction(add_up(*factors)) <= exact * (1 + Fraction(1, 10**14))


def test_roots_are_rounded_upward():
    """Squares in exact arithmetic are never above those of the roots; roots that are integers stay so."""
    from fractions import Fraction

    for square in (2.0, 3.0, 0.1, 1e-300, 1e300, 7.5):
        assert Fraction(square) <= Fraction(root_up(square)) ** 2 <= Fraction(square) * (1 + Fraction(1, 10**14))
    assert [root_up(n) for n in (0, 1, 4, 9)] == [0, 1, 2, 3]
    for sides in ([0.1, 0.7, 3.3], [1e-200, 1e-200], [1e200, 1e200], [1.0, 1.0]):
        exact = sum(Fraction(side) ** 2 for side in sides)
        assert exact <= Fraction(root_sum_of_squares_up(*sides)) ** 2 <= exact * (1 + Fraction(1, 10**13))
    assert root_sum_of_squares_up() == root_sum_of_squares_up(0.0) == 0.0
    assert root_sum_of_squares_up(0.0, 0.3, 0.0) == 0.3


def test_ones_and_single_factors_are_exact():
    """A network of 1-Lipschitz layers is certified 1, not 1 + 1e-16."""
    assert multiply_up() == multiply_up(1.0, 1.0, 1.0) == 1.0
    assert multiply_up(1.0, 0.3, 1.0) == 0.3
    assert add_up() == add_up(0.0) == 0.0
    assert add_up(0.0, 0.3) == 0.3
    assert add_up(1.0, 1.0, 0.5) == 2.5
    assert add_up(1.0, 2.0**-60) > 1.0
    assert add_up(1.0, math.inf) == math.inf


def test_json_holds_everything():
    """Read back by any program."""
    certificate = certify(nn.Sequential(Scaled(2.0), nn.ReLU()), input_shape=(2,))
    document = json.loads(certificate.to_json())
    assert document == {
        "upper": 2.0,
        "layers": [
            {"name": "0", "kind": "Scaled", "rule": "absolute factor", "upper": 2.0},
            {"name": "1", "kind": "ReLU", "rule": "slopes between 0 and 1", "upper": 1.0},
        ],
        "lower": certificate.lower,
        "valid_for": "inputs of every size",
        "rounding": None,
    }


def test_the_table_says_which_rule_gave_each_factor():
    """What print(certificate) shows, line by line."""
    text = str(Certificate(2.0, (LayerBound("0", "Scaled", "absolute factor", 2.0),), 1.5))
    assert text.splitlines() == [
        "layer  kind    bound        rule",
        "-" * len("0      Scaled  2.000000000  absolute factor"),
        "0      Scaled  2.000000000  absolute factor",
        "",
        "Lipschitz constant <= 2.000000000   (largest ratio seen: 1.500000000)",
    ]
    assert str(Certificate(2.0, ())).endswith("(largest ratio seen: not measured)")


def test_the_table_never_prints_less_than_the_bound():
    """A printed bound is read as a bound: 1 + 4e-10 is not 1.000000000."""
    value = 1 + 4e-10
    text = str(Certificate(value, (LayerBound("0", "Linear", "largest singular value", value),)))
    printed = [float(number) for number in re.findall(r"\d\.\d+", text)]
    assert len(printed) == 2
    assert min(printed) >= value
