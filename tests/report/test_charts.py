"""Charts say what the numbers say."""

import re

import pytest
import torch

from lipspline.networks.curves import activation_curves
from lipspline.nn import LinearSpline
from lipspline.report import drawing


def points(svg: str, kind: str) -> list[list[tuple[float, float]]]:
    """The corners of all lines of a class."""
    lines = re.findall(rf'class="{kind}" points="([^"]*)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]


def test_a_decade_is_as_high_everywhere_and_the_tolerance_is_on_the_scale():
    """[eq:pnp_fbs]: residuals on a logarithmic scale; equal factors are equal distances."""
    svg = drawing.residual_chart({"one": [1.0, 0.1, 0.01, 0.001]}, 0.001)
    ((_, a), (_, b), (_, c), (_, d)) = points(svg, "series series-0")[0]
    assert b - a == pytest.approx(c - b, abs=0.03) == pytest.approx(d - c, abs=0.03)
    assert b > a
    ((left, y), (right, _)) = points(svg, "limit")[0]
    assert y == pytest.approx(d)
    assert (left, right) == (drawing.LEFT, drawing.WIDTH - drawing.RIGHT)
    assert len(points(svg, "grid")) == 4


def test_calls_are_spread_over_the_width_by_the_longest_curve():
    svg = drawing.residual_chart({"short": [1.0, 0.1], "long": [1.0, 0.5, 0.2, 0.1, 0.05]}, 1e-2)
    short, long = points(svg, "series series-0")[0], points(svg, "series series-1")[0]
    assert [x for x, _ in short] == [x for x, _ in long[:2]]
    assert (long[0][0], long[-1][0]) == (drawing.LEFT, drawing.WIDTH - drawing.RIGHT)


@pytest.mark.parametrize("curve", [[], [0.5], [0.5, 0.0], [float("inf"), 0.1], [1e-9] * 3])
def test_odd_curves_are_drawn_inside_the_chart(curve):
    for line in points(drawing.residual_chart({"odd": curve}, 1e-4), "series series-0"):
        assert all(drawing.TOP - 1 <= y <= drawing.HEIGHT - drawing.BOTTOM + 1 for _, y in line)
        assert all(drawing.LEFT <= x <= drawing.WIDTH for x, _ in line)


def test_a_name_cannot_break_out_of_the_chart():
    assert "<script>" not in drawing.residual_chart({"<script>": [0.5, 0.1]}, 0.1)


def test_an_activation_is_drawn_where_it_runs():
    """[sec:methods]: ReLU is flat to the left of the middle and rises by one to the right, a dot at the bend."""
    (curve,) = activation_curves(LinearSpline(1, regions=4, radius=1.0, init="relu"))[""]
    svg = drawing.activation_tile(curve)
    line = points(svg, "series series-0")[0]
    middle = drawing.TILE / 2
    assert line[0] == (0, middle)
    assert line[-1] == (drawing.TILE, 0)
    assert re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg) == [(f"{middle:g}", f"{middle:g}")]


def test_activations_stay_in_the_cone():
    spline = LinearSpline(6, regions=20, radius=0.5)
    torch.nn.init.normal_(spline.coefficients)
    for curve in activation_curves(spline)[""]:
        for x, y in points(drawing.activation_tile(curve), "series series-0")[0]:
            assert abs(y - drawing.TILE / 2) <= abs(x - drawing.TILE / 2) + 0.02


@pytest.mark.parametrize(("measured", "width"), [(0.5, 80), (1.0, 160), (7.0, 200)])
def test_a_bar_reaches_its_mark_at_the_bound(measured, width):
    svg = drawing.ratio_bar(measured, 1.0)
    assert float(re.search(r'class="bar".*?width="([\d.]+)"', svg)[1]) == width
    assert "M160 0" in svg
