import pytest
from example_outcomes import offline, outcome, server, single_stream
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.reporting.html.page import render_page, report_html
from tinytorch.reporting.html.suite_page import suite_page
from tinytorch.reporting.suite import NO_COMPARISON


def page(*outcomes, **context):
    return Reading(report_html(outcomes, **context))


def failed(reason="no memory"):
    return outcome(name="gpt/batch 1/numpy/none", details={"failure": reason})


def two_entries():
    return single_stream(), single_stream(factor=2.0, name="mlp/batch 1/reference/none")


@pytest.mark.parametrize(
    ("outcomes", "planned", "verdict", "tone"),
    [
        (two_entries(), 2, "2 entries measured", "neutral"),
        (two_entries()[:1], 1, "1 entry measured", "neutral"),
        (two_entries(), 5, "Not finished: 3 of 5 entries are missing", "unknown"),
        ((*two_entries(), failed()), 5, "1 entry failed", "bad"),
    ],
)
def test_the_banner_says_how_far_it_came(outcomes, planned, verdict, tone):
    banner = suite_page(outcomes, planned=planned).banner
    assert banner.verdict == verdict
    assert banner.tone == tone
    assert banner.sentence == NO_COMPARISON


def test_the_table_has_the_numbers_of_the_terminal_and_what_to_sort_by():
    shown = page(*two_entries(), name="zoo", run="r1")
    rows = {row[0]: row for row in shown.rows() if row[0].startswith("mlp/")}
    for part in ("1.50 ms", "1.99 ms", "400", "1 MiB", "2 KiB", "97.6%", "97.1% to 98.0%"):
        assert part in rows["mlp/batch 1/numpy/none"]
    sorts = [float(each["data-sort"]) for each in shown.all("td", class_="bars")]
    assert sorts == pytest.approx([1.5e-3, 3e-3], rel=1e-2)
    assert shown.texts("p", class_="subtitle") == ["run r1, 2 entries"]


def test_every_scenario_has_its_section():
    shown = page(single_stream(), offline(), server(), failed("the wires are crossed"))
    sections = [each["id"] for each in shown.all("section")]
    assert sections[:4] == ["failed", "single-stream", "offline", "server"]
    assert ["gpt/batch 1/numpy/none/single-stream", "the wires are crossed"] in shown.rows()


def test_fronts_show_the_entries_of_a_target():
    shown = page(*two_entries())
    assert "fronts" in [each["id"] for each in shown.all("section")]
    assert len(shown.all("svg", class_="pareto")) == 2  # accuracy and memory
    assert "batch 1/reference/none" in " ".join(shown.texts("title"))


def test_a_single_entry_has_no_front():
    assert page(single_stream()).all("svg", class_="pareto") == []


def test_the_values_of_an_entry_are_there_folded_away():
    shown = page(single_stream())
    assert shown.texts("summary") == ["mlp/batch 1/numpy/none/single-stream"]
    assert len(shown.all("svg", class_="run-order")) == 1


def test_notes_are_in_the_appendix():
    shown = page(single_stream(), notes=["a run goes on"])
    assert "a run goes on" in shown.texts("li")


def test_names_are_text():
    outcomes = [single_stream(name=HOSTILE), outcome(details={"failure": HOSTILE})]
    html = render_page(suite_page(outcomes, name=HOSTILE, run=HOSTILE, notes=[HOSTILE]))
    assert HOSTILE not in html


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_sorts_by_time_and_not_by_letters(browser_page, width):
    fast, slow = single_stream(factor=0.5, name="b"), single_stream(factor=100.0, name="a")
    shown = browser_page(report_html([slow, fast]), width=width)
    names = shown.locator("#single-stream tbody th")
    head = shown.locator("#single-stream thead button", has_text="p50")
    head.click()
    first = names.all_inner_texts()
    head.click()
    assert {tuple(first), tuple(names.all_inner_texts())} == {("a", "b"), ("b", "a")}
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
