"""HTML from parts that are safe by type: text is escaped, and only `Html` is taken as it is.

A page is made with `fill` and `tag`; neither has a way to pass text through unescaped. That is all a page needs, so no
template library is.
"""

import html
import re
from collections.abc import Iterable
from importlib import resources

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
