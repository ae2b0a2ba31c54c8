import pytest
from example_outcomes import outcome, single_stream
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.reporting.html.page import report_html


def page(*outcomes, **context):
    return Reading(report_html(outcomes, **context))


def two_entries():
    return single_stream(), single_stream(factor=2.0, name="mlp/batch 1/reference/none")


def test_the_table_has_the_numbers_of_the_terminal_and_what_to_sort_by():
    shown = page(*two_entries(), name="zoo", run="r1")
    rows = {row[0]: row for row in shown.rows() if row[0].startswith("mlp/")}
    for part in ("1.50 ms", "1.99 ms", "400", "1 MiB", "2 KiB", "97.6%", "97.1% to 98.0%"):
        assert part in rows["mlp/batch 1/numpy/none"]
    sorts = [float(each["data-sort"]) for each in shown.all("td", class_="bars")]
    assert sorts == pytest.approx([1.5e-3, 3e-3], rel=1e-2)
    assert shown.texts("p", class_="subtitle") == ["run r1, 2 entries"]


def test_fronts_show_the_entries_of_a_target():
    shown = page(*two_entries())
    assert "fronts" in [each["id"] for each in shown.all("section")]
    assert len(shown.all("svg", class_="pareto")) == 2  # accuracy and memory
    assert "batch 1/reference/none" in " ".join(shown.texts("title"))


def test_the_values_of_an_entry_are_there_folded_away():
    shown = page(single_stream())
    assert shown.texts("summary") == ["mlp/batch 1/numpy/none/single-stream"]
    assert len(shown.all("svg", class_="run-order")) == 1


def test_names_are_text():
    outcomes = [single_stream(name=HOSTILE), outcome(details={"failure": HOSTILE})]
    html = report_html(outcomes, name=HOSTILE, run=HOSTILE, notes=[HOSTILE])
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
