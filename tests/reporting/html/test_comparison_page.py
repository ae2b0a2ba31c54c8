import pytest
from example_comparisons import comparison, with_evidence
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.reporting.comparison import comparison_document, measured_rows
from tinytorch.reporting.html.page import report_html


def page(found, **context):
    return Reading(report_html(found, **context))


def test_the_table_has_the_numbers_of_the_terminal():
    found = with_evidence()
    rows = page(found).rows()
    for row in measured_rows(found):
        assert list(row) in rows
    assert ["per call", "baseline", "candidate", "ratio"] in rows


def test_every_part_has_a_section_that_the_contents_name():
    shown = page(with_evidence())
    anchors = [
        each["href"].removeprefix("#") for each in shown.all("a") if each["href"] != "#content"
    ]
    sections = [each["id"] for each in shown.all("section")]
    assert anchors == sections
    assert sections == [
        "speedup",
        "numbers",
        "times",
        "calls",
        "accuracy",
        "outputs",
        "missing",
        "appendix",
    ]


def test_notes_and_what_is_missing_are_listed():
    items = page(with_evidence()).texts("li")
    assert "the machine is busy" in items
    assert "counters: perf is not installed" in items
    assert "file on disk of candidate: OSError: no room" in items


def test_the_sides_are_described_in_the_subtitle():
    shown = page(comparison(), about=["baseline: a.py:f", "candidate: b.py:g"])
    assert shown.texts("p", class_="subtitle") == ["baseline: a.py:f; candidate: b.py:g"]


def test_names_and_notes_are_text():
    found = with_evidence(notes=(HOSTILE,)).named(HOSTILE, f"{HOSTILE}2")
    html = report_html(found, about=[HOSTILE])
    assert HOSTILE not in html


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it_without_complaint(browser_page, width, dark):
    found = with_evidence(notes=(HOSTILE,)).named(HOSTILE, "candidate")
    shown = browser_page(report_html(found), width=width, dark=dark)
    assert shown.locator("h1").inner_text() == comparison_document(found).banner.verdict
    assert shown.locator(".forest .track circle").first.is_visible()
    # Nothing but tables and pictures inside of their own frames may be wider than the screen.
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_the_colours_of_pictures_follow_the_page(browser_page):
    html = report_html(with_evidence())
    colours = []
    for dark in (False, True):
        shown = browser_page(html, dark=dark)
        mark = shown.locator(".forest .track circle").first
        dots = shown.locator("svg.run-order path.series-2").first
        colours.append(
            (
                mark.evaluate("e => getComputedStyle(e).fill"),
                dots.evaluate("e => getComputedStyle(e).stroke"),
            )
        )
    (light, light_dots), (night, night_dots) = colours
    assert light != night
    assert light_dots != night_dots
    assert "none" not in (light, night, light_dots, night_dots)
