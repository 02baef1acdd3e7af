"""What a page is made of: HTML that is safe by type, the window of grey values, the colours of errors, charts as SVG.

Text is escaped, and only `Html` is taken as it is. A page is made with `fill` and `tag`; neither has a way to pass text
through unescaped. That is all a page needs, so no template library is.
"""

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline.networks.curves import Curve

Bytes = NDArray[np.uint8]
BRIGHTEST = 200  # one pixel in so many is brighter than the window that is shown first
# From black over violet and orange to pale yellow, even in lightness: also readable in grey and by the colour-blind.
ANCHORS = ("#03040c", "#2b0b57", "#65156e", "#9f2a63", "#d44842", "#f57d15", "#fac228", "#fcffa4")
PLACE = re.compile(r"\{\{(\w+)\}\}")


class Html(str):
    """Text that is HTML already; everything else is escaped on its way into a page."""

    __slots__ = ()


def escape(value: object) -> Html:
    """A value as HTML: escaped, unless it is `Html`.

    Example:
        >>> escape("</script>"), escape(Html("<b>"))
        ('&lt;/script&gt;', '<b>')
    """
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other, each escaped as it needs."""
    return Html(between.join(escape(part) for part in parts))


def tag(name: str, /, *content: object, **attributes: object) -> Html:
    """An element: attributes are quoted and escaped, `class_` is class, `data_x` is data-x; None leaves one out.

    Example:
        >>> tag("p", "1 < 2", class_="note", hidden=None)
        '<p class="note">1 &lt; 2</p>'
    """
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    opening = "".join(f' {key}="{escape(value)}"' for key, value in named)
    return Html(f"<{name}{opening}>{join(content)}</{name}>")


def void(name: str, /, **attributes: object) -> Html:
    """An element without content, such as `img` and `input`."""
    return Html(tag(name, **attributes).removesuffix(f"</{name}>"))


def fill(template: str, **values: object) -> Html:
    """Put values into the places `{{name}}` of a template; a place without value, or the reverse, is an error.

    Example:
        >>> fill("<h1>{{title}}</h1>", title="a & b")
        '<h1>a &amp; b</h1>'
    """
    places = set(PLACE.findall(template))
    if places != set(values):
        raise KeyError(f"The template has the places {sorted(places)}, but got values for {sorted(values)}.")
    return Html(PLACE.sub(lambda place: escape(values[place[1]]), template))


def asset(name: str) -> Html:
    """A file of the page that ships with the package: its HTML frame, its style or its script."""
    return Html((resources.files("lipspline.report") / name).read_text("utf-8"))


# Images and charts


@dataclass(frozen=True)
class Rescale:
    """How values of images are shown: `slope x + intercept`, in a unit. As in DICOM.

    Example:
        >>> Rescale(1000.0, -1000.0, "HU").shown(1.04)
        40.0
    """

    slope: float = 1.0
    intercept: float = 0.0
    unit: str = ""

    def shown(self, value: float) -> float:
        """A value of the image in the unit."""
        return self.slope * value + self.intercept

    def stored(self, shown: float) -> float:
        """The value of the image that is shown as this."""
        return (shown - self.intercept) / self.slope


AS_STORED = Rescale()


@dataclass(frozen=True)
class Window:
    """The range of values shown, from black to white."""

    low: float
    high: float

    def bytes(self, pixels: Tensor) -> Bytes:
        """Pixels `(H, W)` as shades 0 to 255; what lies outside the window is clipped.

        Example:
            >>> Window(0.0, 2.0).bytes(torch.tensor([[-1.0, 1.0, 3.0]]))
            array([[  0, 128, 255]], dtype=uint8)
        """
        share = (pixels.double() - self.low) / (self.high - self.low)
        return (255 * share.clamp(0, 1)).round().to(torch.uint8).cpu().numpy()


def spanning(pixels: Tensor) -> Window:
    """The window from 0, or the least value if that is negative, to the greatest value.

    Example:
        >>> spanning(torch.tensor([0.5, 2.0])), spanning(torch.zeros(2))
        (Window(low=0.0, high=2.0), Window(low=0.0, high=1.0))
    """
    low, high = min(0.0, float(pixels.min())), float(pixels.max())
    return Window(low, high if high > low else low + 1.0)


def robust_window(pixels: Tensor) -> Window:
    """The window that all but the brightest pixels fill: a few bright ones do not turn the rest black.

    It ends at the value that one pixel in 200 exceeds, and begins at 0, or where one in 200 lies below if that is less.

    Example:
        >>> robust_window(torch.cat([torch.full((600,), 0.5), torch.tensor([50.0])]))
        Window(low=0.0, high=0.5)
    """
    values = pixels.double().flatten()
    count = max(1, len(values) // BRIGHTEST)
    high, low = float(values.topk(count).values[-1]), float(values.topk(count, largest=False).values[-1])
    low = min(0.0, low)
    return Window(low, high) if high > low else spanning(pixels)


def magnitude(image: Tensor) -> Tensor:
    """What is shown of an image `(..., H, W)` of which all but the last sizes are 1: itself, or its modulus.

    Example:
        >>> magnitude(torch.tensor([[[3 + 4j]]]))
        tensor([[5.]])
    """
    if image.ndim < 2 or image.numel() != image.shape[-1] * image.shape[-2]:
        raise ValueError(
            f"A page shows one image (H, W), but got shape {tuple(image.shape)}. Pick one of the batch or the volume."
        )
    plane = image.detach().reshape(image.shape[-2:])
    return plane.abs() if plane.is_complex() else plane


def palette() -> Bytes:
    """256 colours `(256, 3)` from the anchors, from no error to the largest."""
    anchors = np.array([[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in ANCHORS])
    where, places = np.linspace(0, len(anchors) - 1, 256), np.arange(len(anchors))
    return np.stack([np.interp(where, places, column) for column in anchors.T], axis=1).round().astype(np.uint8)


WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 34  # room for the labels of the axes
TILE = 100  # side of the picture of one activation

PointMap = Callable[[float, float], tuple[float, float]]


def residual_chart(curves: Mapping[str, Sequence[float]], *tol: float) -> Html:
    """Relative residuals against calls of the prior, on a logarithmic scale, with tolerances as lines [eq:pnp_fbs]."""
    values = [*tol, 10 * max(tol), *(value for curve in curves.values() for value in curve if 0 < value < math.inf)]
    bottom, top = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    calls = max((len(curve) for curve in curves.values()), default=1)

    def place(call: float, value: float) -> tuple[float, float]:
        share = (math.log10(min(max(value, 10.0**bottom), 10.0**top)) - bottom) / (top - bottom)
        x = LEFT + (WIDTH - LEFT - RIGHT) * (call - 1) / max(calls - 1, 1)
        return x, HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    lines = [
        _line(f"series series-{k}", map(place, _from_one(curve), curve)) for k, curve in enumerate(curves.values())
    ]
    tolerances = []
    for one in tol:
        limit = place(1, one)[1]
        text = "tolerance" if len(tol) == 1 else f"tolerance {one:.0e}"
        tolerances += [
            _line("limit", [(LEFT, limit), (WIDTH - RIGHT, limit)]),
            _text(text, LEFT + 4, limit - 5, "start"),
        ]
    described = ", ".join(f"{name} {curve[-1]:.1e} after {len(curve)}" for name, curve in curves.items() if curve)
    return _svg(
        f"Relative change of the image by a plain step after each call of the prior: {described}.",
        (WIDTH, HEIGHT),
        [*_decades(bottom, top, place), *_call_axis(calls, place), *tolerances, *lines],
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
    name = _text("calls of the prior", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, "middle")
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
