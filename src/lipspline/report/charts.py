"""Charts as SVG: residuals, activations, and measured ratios beside their bounds. Colours come from the style sheet."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from lipspline.networks.curves import Curve
from lipspline.report.template import Html, join, tag

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 34  # room for the labels of the axes
TILE = 100  # side of the picture of one activation

PointMap = Callable[[float, float], tuple[float, float]]


def residual_chart(curves: Mapping[str, Sequence[float]], tol: float) -> Html:
    """Relative residuals against denoiser calls, on a logarithmic scale, with the tolerance as a line [eq:pnp_fbs]."""
    values = [value for curve in curves.values() for value in curve if 0 < value < math.inf] or [tol]
    bottom, top = math.floor(math.log10(min(*values, tol))), math.ceil(math.log10(max(*values, 10 * tol)))
    calls = max((len(curve) for curve in curves.values()), default=1)

    def place(call: float, value: float) -> tuple[float, float]:
        share = (math.log10(min(max(value, 10.0**bottom), 10.0**top)) - bottom) / (top - bottom)
        x = LEFT + (WIDTH - LEFT - RIGHT) * (call - 1) / max(calls - 1, 1)
        return x, HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    lines = [
        _line(f"series series-{k}", map(place, _from_one(curve), curve)) for k, curve in enumerate(curves.values())
    ]
    limit = place(1, tol)[1]
    tolerance = [
        _line("limit", [(LEFT, limit), (WIDTH - RIGHT, limit)]),
        _text("tolerance", WIDTH - RIGHT, limit - 5, "end"),
    ]
    described = ", ".join(f"{name} {curve[-1]:.1e} after {len(curve)}" for name, curve in curves.items() if curve)
    return _svg(
        f"Relative change of the image after each call of the denoiser: {described}.",
        (WIDTH, HEIGHT),
        [*_decades(bottom, top, place), *_call_axis(calls, place), *tolerance, *lines],
        "chart",
    )


def activation_tile(curve: Curve) -> Html:
    """One activation: the curve, a dot at each knot, and the cone that a 1-Lipschitz function cannot leave."""

    def place(x: float, y: float) -> tuple[float, float]:
        return TILE / 2 * (1 + x / curve.reach), TILE / 2 * (1 - (y - curve.middle) / curve.reach)

    cone = Html(f'<path class="cone" d="M0 0L{TILE} {TILE}V0L0 {TILE}Z"/>')
    knots = zip(curve.knots.tolist(), curve.heights.tolist(), strict=True)
    dots = [tag("circle", class_="knot", cx=_number(x), cy=_number(y), r=1.7) for x, y in (place(*k) for k in knots)]
    line = _line("series series-0", (place(x, y) for x, y in zip(curve.x.tolist(), curve.y.tolist(), strict=True)))
    title = f"Channel {curve.channel}, {len(dots)} knots, shown on [{-curve.reach:.2g}, {curve.reach:.2g}]"
    return _svg(title, (TILE, TILE), [cone, line, *dots], "tile")


def ratio_bar(measured: float, bound: float) -> Html:
    """A measured ratio as a bar against its bound, which is the mark at four fifths of the width."""
    share = min(measured / bound, 1.25) if bound > 0 else 1.25
    bar = Html(f'<rect class="bar" x="0" y="3" height="8" rx="4" width="{_number(160 * share)}"/>')
    mark = Html('<path class="mark" d="M160 0V14"/>')
    track = Html('<rect class="track" x="0" y="3" height="8" rx="4" width="200"/>')
    return _svg(f"measured {measured:.3g}, bound {bound:.3g}", (200, 14), [track, bar, mark], "ratio")


def _from_one(curve: Sequence[float]) -> range:
    return range(1, len(curve) + 1)


def _decades(bottom: int, top: int, place: PointMap) -> list[Html]:
    every = max(1, math.ceil((top - bottom) / 6))
    parts = []
    for exponent in range(bottom, top + 1, every):
        y = place(1, 10.0**exponent)[1]
        power = Html(f'10<tspan dy="-4" font-size="8">{exponent}</tspan>')
        parts += [_line("grid", [(LEFT, y), (WIDTH - RIGHT, y)]), _text(power, LEFT - 7, y + 4, "end")]
    return parts


def _call_axis(calls: int, place: PointMap) -> list[Html]:
    step = _round_step(calls / 5)
    ticks = [1, *range(step, calls + 1, step)] if step > 1 else list(range(1, calls + 1))
    baseline = HEIGHT - BOTTOM
    labels = [_text(str(call), place(call, 1.0)[0], baseline + 15, "middle") for call in ticks]
    name = _text("denoiser calls", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, "middle")
    return [*labels, name]


def _round_step(rough: float) -> int:
    """The next 1, 2 or 5 times a power of ten.

    Example:
        >>> [_round_step(rough) for rough in (0.4, 3, 17, 60)]
        [1, 5, 20, 100]
    """
    power = 10 ** math.floor(math.log10(max(rough, 1)))
    return next(int(m * power) for m in (1, 2, 5, 10) if m * power >= rough)


def _line(kind: str, points: Iterable[tuple[float, float]]) -> Html:
    return Html(f'<polyline class="{kind}" points="{" ".join(f"{_number(x)},{_number(y)}" for x, y in points)}"/>')


def _text(text: object, x: float, y: float, anchor: str) -> Html:
    return tag("text", text, x=_number(x), y=_number(y), text_anchor=anchor)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _svg(title: str, size: tuple[int, int], parts: Sequence[Html], kind: str) -> Html:
    content = join([tag("title", title), *parts])
    return tag("svg", content, class_=kind, viewBox=f"0 0 {size[0]} {size[1]}", role="img", aria_label=title)
