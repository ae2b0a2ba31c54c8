import pytest
from example_comparisons import comparison, contradictory, unevaluated, with_evidence
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.models.workload import Preparation
from tinytorch.reporting.comparison import measured_rows, speedup_text, verdict_text
from tinytorch.reporting.html.comparison_page import comparison_banner, comparison_page
from tinytorch.reporting.html.page import render_page, report_html

WORSE = compare_accuracy([1] * 400, [1, 0] * 200)
DOUBTFUL = compare_accuracy([1, 0] * 3, [0, 1] * 3)


def page(found, **context):
    return Reading(report_html(found, **context))


@pytest.mark.parametrize(
    ("found", "verdict", "tone"),
    [
        (comparison(0.5), "2.00x as fast", "good"),
        (comparison(1.2), "Slower: 1.20x the time", "bad"),
        (comparison(1.0, spread=0.002), "The same speed", "neutral"),
        (comparison(1.0, spread=0.1), "Inconclusive", "unknown"),
        (contradictory(), "Inconclusive", "unknown"),
        (comparison(0.5, accuracy=WORSE), "Less accurate", "bad"),
        (comparison(0.5, accuracy=DOUBTFUL), "2.00x as fast, accuracy inconclusive", "unknown"),
        (
            comparison(1.2, accuracy=DOUBTFUL),
            "Slower: 1.20x the time, accuracy inconclusive",
            "bad",
        ),
        (comparison(0.5, outputs=OutputDifference(mismatch="x")), "Broken outputs", "bad"),
        (
            comparison(0.5, not_measured=unevaluated()),
            "Not evaluated",
            "bad",
        ),
    ],
)
def test_the_banner_says_what_is_shown(found, verdict, tone):
    banner = comparison_banner(found)
    assert banner.verdict == verdict
    assert banner.tone == tone
    assert verdict_text(found) in banner.sentence


def test_a_loss_is_said_before_the_speed():
    sentence = comparison_banner(comparison(0.5, accuracy=WORSE)).sentence
    assert sentence.startswith("candidate is less accurate")
    assert sentence.index("its speed does not count") < sentence.index("is faster")


def test_the_banner_has_the_numbers_that_matter():
    found = with_evidence()
    facts = dict(comparison_banner(found).facts)
    assert facts["speedup"] == speedup_text(found)
    assert facts["accuracy"].startswith("75.00% → 75.12% (")
    assert facts["peak memory"] == "8 KiB → 4 KiB (0.50x)"
    assert facts["file on disk"] == "4.88 KiB → -"


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
        "notes",
        "appendix",
    ]


def test_time_alone_leaves_the_other_sections_out():
    sections = [each["id"] for each in page(comparison()).all("section")]
    assert sections == ["speedup", "numbers", "times", "appendix"]


def test_preparations_and_break_even_are_said():
    done = ((), (Preparation("compiling", 2.0),))
    said = " ".join(page(comparison(0.5, preparations=done)).texts("li"))
    assert "candidate: compiling once in 2.00 s: not part of the times" in said
    assert "has made up for that after" in said


def test_notes_and_what_is_missing_are_listed():
    items = page(with_evidence()).texts("li")
    assert "the machine is busy" in items
    assert "counters: perf is not installed" in items
    assert "file on disk of candidate: OSError: no room" in items


def test_percentiles_of_single_calls_are_shown():
    rows = page(with_evidence()).rows()
    (median,) = [row for row in rows if row[0] == "p50"]
    assert median[1] == "1.02 ms"


def test_the_sides_are_described_in_the_subtitle():
    shown = page(comparison(), about=["baseline: a.py:f", "candidate: b.py:g"])
    assert shown.texts("p", class_="subtitle") == ["baseline: a.py:f; candidate: b.py:g"]


def test_names_and_notes_are_text():
    found = with_evidence(notes=(HOSTILE,)).named(HOSTILE, f"{HOSTILE}2")
    html = render_page(comparison_page(found, about=[HOSTILE]))
    assert HOSTILE not in html


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it_without_complaint(browser_page, width, dark):
    found = with_evidence(notes=(HOSTILE,)).named(HOSTILE, "candidate")
    shown = browser_page(report_html(found), width=width, dark=dark)
    assert shown.locator("h1").inner_text() == comparison_banner(found).verdict
    assert shown.locator("svg.forest circle").first.is_visible()
    # Nothing but tables and pictures inside of their own frames may be wider than the screen.
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_the_colours_of_pictures_follow_the_page(browser_page):
    html = report_html(with_evidence())
    colours = []
    for dark in (False, True):
        shown = browser_page(html, dark=dark)
        mark = shown.locator("svg.forest circle").first
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
