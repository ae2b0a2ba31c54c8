import re

from example_tours import faster, no_faster, smaller, tour_of

from tinytorch.reporting.html.page import render_page
from tinytorch.reporting.html.tour_page import tour_page
from tinytorch.reporting.tour import FAST


def test_both_models_have_their_sections_under_their_own_names():
    page = tour_page(tour_of(faster(), smaller()))
    anchors = [each.anchor for each in page.sections]
    assert len(set(anchors)) == len(anchors)
    assert anchors[0] == "models"
    assert anchors[-2:] == ["next", "appendix"]
    assert {"gpt", "cnn", "gpt-why"} <= set(anchors)
    assert all(each.title.startswith("gpt: ") for each in page.sections if "gpt" in each.anchor)


def test_no_identifier_is_given_twice():
    html = render_page(tour_page(tour_of(faster(), faster())))
    found = re.findall(r'\sid="([^"]+)"', html)
    assert sorted(set(found)) == sorted(found)
    assert "flame" in found


def test_the_banner_names_what_helped_and_is_honest_when_nothing_did():
    banner = tour_page(tour_of(faster(), smaller())).banner
    assert banner.verdict == "gpt 2.00x faster, cnn 5.00x smaller on disk"
    assert banner.tone == "good"
    nothing = tour_page(tour_of(no_faster())).banner
    assert (nothing.verdict, nothing.tone) == ("Nothing that was tried helps", "neutral")
    assert nothing.facts == (("gpt", "nothing that was tried is shown to make it faster"),)


def test_an_interrupted_tour_says_so():
    assert "interrupted" in tour_page(tour_of(faster(), was_interrupted=True)).banner.sentence
    assert "interrupted" not in tour_page(tour_of(faster())).banner.sentence


def test_what_the_model_writes_stays_text():
    html = render_page(tour_page(tour_of(faster())))
    assert "[bold]&lt;b&gt;universally" in html
    assert "<b>universally" not in html


def test_bright_pixels_are_drawn_and_mistakes_are_marked():
    (body,) = [x.body for x in tour_page(tour_of()).sections if x.anchor == "models"]
    first, second = re.findall(r'<path d="([^"]+)"', body)
    assert first.count("M") == 26  # a stroke of 26 rows, one run in each
    assert first.startswith("M48 4h8v4h-8z")
    assert second.count("M") == 28
    assert "a 9 (61%), is a 4" in body
    assert "label bad" in body


def test_what_installs_compiled_kernels_is_named_where_there_are_none():
    text = render_page(tour_page(tour_of(backend="numpy"))).replace("&quot;", '"')
    assert FAST in text
    assert FAST not in render_page(tour_page(tour_of())).replace("&quot;", '"')


def test_a_browser_shows_it_without_complaint(browser_page):
    page = browser_page(render_page(tour_page(tour_of(faster(), smaller()))), width=390)
    assert page.locator("h1").inner_text() == "gpt 2.00x faster, cnn 5.00x smaller on disk"
    assert page.locator("main > section").count() > 8
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
