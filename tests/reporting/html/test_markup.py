from html.parser import HTMLParser

import pytest
from example_pages import HOSTILE
from html_reading import Reading
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.reporting.html.markup import Markup, element, joined, listed

# A parser turns CR into LF and drops NUL; what names can hold beside these comes back as it was.
texts = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]))


class Reader(HTMLParser):
    """Read what a browser would make of markup: tags with attributes, and the text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@given(texts)
def test_text_comes_back_as_it_was_and_opens_nothing(text):
    read = Reader(element("p", text))
    assert read.tags == [("p", {})]
    assert read.text == text


@given(texts)
def test_an_attribute_comes_back_as_it_was(text):
    read = Reader(element("td", title=text))
    assert read.tags == [("td", {"title": text})]


@given(st.lists(texts, max_size=4), texts)
def test_joining_escapes_the_parts_and_what_stands_between(parts, between):
    assert Reader(joined(parts, between)).tags == []
    assert Reader(joined(parts, between)).text == between.join(parts)


def test_markup_is_not_escaped_again():
    inner = element("b", "a & b")
    assert element("p", inner, " < c") == "<p><b>a &amp; b</b> &lt; c</p>"


def test_what_is_put_together_as_text_is_text_again():
    assert element("p", element("b", "x") + "y") == "<p>&lt;b&gt;x&lt;/b&gt;y</p>"
    assert element("p", f"{element('b', 'x')}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"


def test_markup_in_an_attribute_is_escaped_all_the_same():
    assert element("p", title=Markup('">')) == '<p title="&quot;&gt;"></p>'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "<a></a>"),
        (False, "<a></a>"),
        (True, "<a data-x></a>"),
        (0, '<a data-x="0"></a>'),
        ("", '<a data-x=""></a>'),
        (0.1 + 0.2, '<a data-x="0.3"></a>'),
    ],
)
def test_values_of_attributes(value, expected):
    assert element("a", data_x=value) == expected


def test_void_elements_keep_their_attributes_and_close_themselves():
    assert element("hr", class_="thin") == '<hr class="thin"/>'
    assert element("rect", element("title", "t"), x=1) == '<rect x="1"><title>t</title></rect>'


def test_lines_are_text():
    shown = listed([HOSTILE, "b"])
    assert "<script" not in shown
    assert Reading(shown).texts("li") == [HOSTILE, "b"]
