import pytest
from example_pages import HOSTILE
from example_records import record, series
from html_reading import Reading

from tinytorch.records.history import trends
from tinytorch.reporting.history import history_document
from tinytorch.reporting.html.page import report_html
from tinytorch.reporting.quantities import value_text

STEPPED = [0.002 + 1e-6 * (index % 5) for index in range(20)] + [
    0.003 + 1e-6 * (index % 5) for index in range(20)
]


def page(records, **context):
    return Reading(report_html(trends(records), **context))


def test_a_change_of_level_is_the_verdict():
    found = trends(series(STEPPED))
    shown = history_document(found)
    assert shown.banner.verdict == "1 change of level"
    assert "2.00 ms to 3.00 ms (1.50x)" in shown.banner.sentence
    assert dict(shown.banner.facts)["records"] == "40"


def test_the_change_is_marked_in_picture_and_table():
    shown = page(series(STEPPED))
    assert len(shown.all("circle", class_="series-2")) == 1
    changed = [row for row in shown.rows() if "changed" in row]
    assert len(changed) == 1
    assert changed[0][0] == "2026-03-01 20:00"


def test_a_steady_series_says_that_nothing_is_shown():
    shown = history_document(trends(series([0.002, 0.0021] * 10)))
    assert shown.banner.verdict == "No change of level is shown"
    assert "more than chance" in shown.banner.sentence


def test_few_records_cannot_show_anything():
    shown = history_document(trends(series([0.002, 0.003])))
    assert shown.banner.verdict == "No change of level is shown"
    assert shown.banner.sentence.startswith("It takes about 12 records")


def test_every_record_is_a_row_the_newest_first():
    records = series([0.002, 0.0025, 0.003])
    rows = [row for row in page(records).rows() if row[0].startswith("2026-")]
    assert [row[1] for row in rows] == [value_text(x, "s") for x in (0.003, 0.0025, 0.002)]
    assert rows[0][5] == records[-1].hash[:12]


def test_of_many_records_the_newest_are_listed_and_that_is_said():
    shown = page(series([0.002] * 250))
    assert shown.texts("caption") == ["the newest 200 of 250 records"]
    assert len([row for row in shown.rows() if row[0].startswith("2026-")]) == 200
    assert len(shown.all("circle", class_="mark")) == 250


def test_a_single_value_has_no_picture():
    assert page([record()]).all("svg") == []


def test_several_series_have_an_overview_that_leads_to_them():
    shown = page([*series([0.002, 0.003]), *series([5.0, 6.0], name="mlp", unit="J")])
    sections = [each["id"] for each in shown.all("section")]
    assert sections == ["overview", "trend-1", "trend-2", "appendix"]
    links = {each["href"] for each in shown.all("a")}
    assert {"#trend-1", "#trend-2"} <= links
    assert "never merged, never compared" in shown.texts("p", class_="about")[0]


def test_names_are_text():
    records = [record(name=HOSTILE, notes=(HOSTILE,)), record(name=HOSTILE, hours=1)]
    assert HOSTILE not in report_html(trends(records), name=HOSTILE)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_sorts_the_overview(browser_page, width):
    records = [*series([0.002, 0.003]), *series([5.0, 6.0, 7.0], name="mlp", unit="J")]
    shown = browser_page(report_html(trends(records)), width=width)
    names = shown.locator("#overview tbody th")
    head = shown.locator("#overview thead button", has_text="name")
    head.click()
    assert names.all_inner_texts() == ["gpt", "mlp"]
    head.click()
    assert names.all_inner_texts() == ["mlp", "gpt"]
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
