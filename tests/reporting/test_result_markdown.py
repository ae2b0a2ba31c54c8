import pytest
from example_comparisons import comparison
from example_outcomes import single_stream
from example_pages import HOSTILE
from example_records import record, series

from tinytorch.errors import SettingError
from tinytorch.records.history import trends
from tinytorch.reporting.comparison import comparison_document
from tinytorch.reporting.history import history_document
from tinytorch.reporting.markdown import report_markdown, write
from tinytorch.reporting.suite import suite_document


def test_a_history_has_pictures_and_changes():
    values = [0.002 + 1e-6 * (index % 5) for index in range(20)]
    text = report_markdown(trends(series([*values, *(2 * x for x in values)])), name="gpt")
    assert text.startswith("### ⚪ 1 change of level\n\nHistory of gpt: ")
    assert "```text\n" in text
    assert "\nChange on 2026-03-01 20:00" in text


def test_several_series_have_a_table():
    found = trends([*series([0.002, 0.003]), record(name=HOSTILE, hours=9)])
    text = report_markdown(found)
    assert "| `gpt` | measurement | latency | 2 | 3.00 ms | +50.0% |" in text
    assert "2 series of unlike machines" in text
    assert all("`" in line for line in text.splitlines() if "<script" in line)


def test_a_result_finds_its_writer():
    found = trends(series([0.002]))
    assert report_markdown(comparison()) == write(comparison_document(comparison()))
    assert report_markdown(found, name="x") == write(history_document(found, name="x"))
    assert report_markdown([single_stream()]) == write(suite_document([single_stream()]))


@pytest.mark.parametrize(("result", "words"), [(3, "a int has no report"), ((), "no results")])
def test_what_has_no_markdown_is_an_error(result, words):
    with pytest.raises(SettingError, match=words):
        report_markdown(result)
