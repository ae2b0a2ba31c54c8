import base64
import gzip
import hashlib
import json
import re

import numpy as np
import pytest
from example_pages import HOSTILE, example_page
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.reporting.document import Banner
from tinytorch.reporting.html import page as pages
from tinytorch.reporting.html.markup import element
from tinytorch.reporting.html.page import Page, Section, packed, render_page


def unpacked(markup):
    letters = re.search(r">([^<]*)</script>", markup)[1]
    return json.loads(gzip.decompress(base64.b64decode(letters)))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(json_values)
def test_packed_values_come_back(value):
    assert unpacked(packed(value, "x")) == value


def test_what_json_does_not_know_becomes_null():
    value = {"a": [float("nan"), np.float32(0.5)], "b": (float("-inf"),), "c": np.arange(2)}
    assert unpacked(packed(value, "x")) == {"a": [None, 0.5], "b": [None], "c": [0, 1]}


def test_the_same_page_is_the_same_file():
    assert render_page(example_page()) == render_page(example_page())


def test_scripts_are_allowed_by_what_they_say_and_nothing_else_is():
    html = render_page(example_page())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    policy = policy.replace("&#x27;", "'")
    assert re.findall(r"'sha256-([^']*)'", policy) == digests
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert not re.search(r"script-src[^;]*unsafe", policy)


def test_no_address_of_another_place_is_in_the_file():
    addresses = re.findall(r"""(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import""", example_html())
    assert all(link.startswith("#") for link, _ in addresses)
    assert addresses


def example_html():
    return render_page(example_page())


def test_a_hostile_name_is_text_everywhere():
    html = render_page(example_page(HOSTILE))
    assert html.count("<script>") == 1  # ours
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_half_of_a_pair_of_letters_can_be_written():
    assert "file-?" in render_page(example_page("file-\ud800"))


def test_a_script_is_there_once_however_many_sections_need_it():
    one = Section("a", "A", element("p", "a"), scripts=("sorting.js",))
    other = Section("b", "B", element("p", "b"), scripts=("sorting.js",))
    html = render_page(Page("x", Banner("y", ""), (one, other)))
    assert html.count("async function unpack") == 1


def test_contents_lead_to_every_section():
    html = example_html()
    anchors = re.findall(r'<section id="([^"]*)"', html)
    assert anchors == ["layers", "picture", "wide", "appendix"]
    for anchor in anchors:
        assert f'<a href="#{anchor}">' in html


def test_a_page_without_raw_values_has_none():
    html = render_page(Page("x", Banner("y", "z"), ()))
    assert 'id="raw"' not in html
    assert "<h1>y</h1>" in html


def test_an_asset_that_ends_its_element_is_refused(monkeypatch, tmp_path):
    (tmp_path / "bad.js").write_text("'</script>'", "utf-8")
    monkeypatch.setattr(pages, "files", lambda package: tmp_path)
    with pytest.raises(AssertionError, match=r"bad\.js would end"):
        pages._asset("bad.js")
