import pytest
from example_comparisons import comparison, with_evidence
from example_outcomes import offline, outcome, single_stream
from example_pages import HOSTILE
from example_records import record, series

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.errors import SettingError
from tinytorch.records.history import trends
from tinytorch.reporting.comparison import verdict_text
from tinytorch.reporting.history import history_document
from tinytorch.reporting.markdown import (
    comparison_markdown,
    report_markdown,
    suite_markdown,
    write,
)

WORSE = compare_accuracy([1] * 400, [1, 0] * 200)
DOUBTFUL = compare_accuracy([1, 0] * 3, [0, 1] * 3)


@pytest.mark.parametrize(
    ("found", "mark"),
    [
        (comparison(0.5), "✅"),
        (comparison(1.2), "❌"),
        (comparison(1.0, spread=0.002), "⚪"),
        (comparison(1.0, spread=0.1), "❔"),
        (comparison(0.5, accuracy=WORSE), "❌"),
        (comparison(0.5, accuracy=DOUBTFUL), "❔"),
    ],
)
def test_the_first_line_is_the_verdict(found, mark):
    first = comparison_markdown(found).splitlines()[0]
    assert first.startswith(f"### {mark} ")


def test_a_loss_comes_before_the_speed():
    lines = comparison_markdown(comparison(0.5, accuracy=WORSE)).splitlines()
    assert lines[0].startswith("### ❌ candidate is less accurate")
    assert lines[2].startswith("candidate is faster: 2.00x")


def test_a_comparison_has_picture_numbers_and_folded_details():
    found = with_evidence()
    text = comparison_markdown(found, about=["baseline: a"])
    assert verdict_text(found) in text
    assert "```text\nspeedup" in text
    assert "| peak memory | 8 KiB | 4 KiB | 0.50x |" in text
    assert "| | `baseline` | `candidate` | ratio |" in text
    assert "<summary>40 single calls</summary>" in text
    assert "- the machine is busy" in text
    assert "baseline: a" in text
    assert text.count("<details>") == text.count("</details>") == 3


def test_time_alone_folds_nothing():
    assert "<details>" not in comparison_markdown(comparison())


@pytest.mark.parametrize("name", [HOSTILE, "a|b", "```", "`x`"])
def test_a_name_breaks_nothing(name):
    text = comparison_markdown(with_evidence(notes=(name,)).named(name, f"{name}2"), about=[name])
    rows = [line for line in text.splitlines() if line.startswith("| peak memory")]
    assert len(rows) == 1
    table = [line for line in text.splitlines() if line.startswith("|")]
    outside = [line for line in text.splitlines() if "`" not in line]
    assert all("<script" not in line for line in outside)
    bars = {line.replace("\\|", "").count("|") for line in table}
    assert bars == {5, 6}  # the numbers, and the single calls


def test_a_suite_has_a_table_per_scenario():
    text = suite_markdown([single_stream(), offline()], name="zoo", run="r1", notes=["a note"])
    assert text.startswith("### zoo\n\nrun r1, 2 entries.\n")
    assert "**single-stream**" in text
    assert "| mlp/batch 1/numpy/none | 1.50 ms |" in text
    assert "**offline**" in text
    assert "- a note" in text


def test_what_failed_is_said_first_and_why():
    text = suite_markdown([outcome(details={"failure": "a | b <c>"})], planned=3)
    assert text.startswith("### ❌ suite\n\n1 of 3 entries.\n")
    assert r": a \| b &lt;c&gt;" in text


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
    assert report_markdown(comparison()) == comparison_markdown(comparison())
    assert report_markdown(found, name="x") == write(history_document(found, name="x"))
    assert report_markdown([single_stream()]) == suite_markdown([single_stream()])


@pytest.mark.parametrize(("result", "words"), [(3, "a int has no Markdown"), ((), "no results")])
def test_what_has_no_markdown_is_an_error(result, words):
    with pytest.raises(SettingError, match=words):
        report_markdown(result)
