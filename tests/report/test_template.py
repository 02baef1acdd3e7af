"""Nothing but `Html` enters a page unescaped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipspline.report.drawing import Html, asset, escape, fill, join, tag, void
from markup import HOSTILE, Reader


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text):
    """In the content of an element, in an attribute, and in a place of a template."""
    reader = Reader(tag("p", text, title=text))
    assert reader.elements == [("p", {"title": text})]
    assert reader.text == text
    assert Reader(fill("<b>{{name}}</b>", name=text)).text == text


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")))
def test_any_text_comes_back_from_a_page(text):
    assert Reader(tag("p", text)).text == text


def test_only_html_passes_as_it_is():
    assert escape(Html("<b>")) == "<b>"
    assert join([Html("<i>"), "<", 2]) == "<i>&lt;2"
    assert void("input", type="range", max=3) == '<input type="range" max="3">'


def test_values_are_not_templates():
    """A value that looks like a place is left alone."""
    assert fill("{{a}}{{b}}", a="{{b}}", b=1) == "{{b}}1"


@pytest.mark.parametrize("values", [{}, {"a": 1, "b": 2}])
def test_places_and_values_must_match(values):
    with pytest.raises(KeyError, match=r"places \['a'\]"):
        fill("{{a}}", **values)


@pytest.mark.parametrize("name", ["page.html", "case.html", "volume.html", "denoiser.html", "page.css", "page.js"])
def test_the_files_of_the_page_ship_with_the_package(name):
    assert asset(name)
    assert "http" not in asset(name).replace("http-equiv", "")
