import pytest
from example_comparisons import comparison, with_evidence
from html_reading import Reading

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.reporting.comparison import accuracy_line, outputs_line
from tinytorch.reporting.html.comparison_page import accuracy_section, outputs_section


def accuracy(baseline, candidate, **changes):
    return Reading(
        accuracy_section(comparison(accuracy=compare_accuracy(baseline, candidate, **changes))).body
    )


def test_without_evidence_there_is_no_section():
    assert accuracy_section(comparison()) is None
    assert outputs_section(comparison()) is None


def test_scores_are_shown_with_what_was_gained_and_lost():
    found = with_evidence()
    shown = Reading(accuracy_section(found).body)
    rows = dict(shown.rows())
    assert rows["baseline"] == "75.00%"
    assert rows["gained: only the candidate is right"] == str(found.accuracy.gained) == "1"
    assert rows["lost: only the baseline is right"] == str(found.accuracy.lost) == "0"
    assert rows["examples"] == "800"
    assert accuracy_line(found.accuracy) in shown.texts("p")


@pytest.mark.parametrize(
    ("candidate", "tone"),
    [([1, 1] * 400, "good"), ([1, 0] * 400, "bad"), ([1, 1] * 395 + [0, 1] * 5, "unknown")],
)
def test_the_tone_follows_the_verdict(candidate, tone):
    shown = accuracy([1, 1] * 400, candidate)
    assert len(shown.all("circle", class_=tone)) == 1
    assert len(shown.all("p", class_=tone)) == 1


def test_scores_that_are_no_numbers_have_no_picture():
    shown = accuracy([1.0, 2.0, 3.0], [1.0, float("nan"), 3.0])
    assert shown.all("svg") == []
    assert dict(shown.rows())["scores of the candidate that are no number"] == "1"


def test_scores_that_are_not_shares_are_written_as_they_are():
    rows = dict(accuracy([1.5, 2.5] * 20, [1.6, 2.6] * 20).rows())
    assert rows["baseline"] == "2"
    assert "gained: only the candidate is right" not in rows


def test_outputs_have_a_row_each_and_no_empty_columns():
    arrays = (
        ArrayDifference((8, 10), 1e-3, 1e-4, 61.5, 0.99, is_identical=False),
        ArrayDifference((), 0.5, 0.25, 12.0, is_identical=False, note="odd"),
    )
    found = with_evidence(outputs=OutputDifference(arrays))
    shown = Reading(outputs_section(found).body)
    head, *rows = shown.rows()
    assert head[:2] == ["output", "shape"]
    assert "equal whole numbers" not in head
    assert rows[0][:5] == ["0", "8x10", "0.001", "0.0001", "61.5 dB"]
    assert rows[1][-1] == "odd"
    assert outputs_line(found.outputs) in shown.texts("p")


def test_identical_outputs_need_no_table():
    found = with_evidence(outputs=OutputDifference((ArrayDifference((2,)),)))
    shown = Reading(outputs_section(found).body)
    assert shown.rows() == []
    assert shown.texts("p") == ["outputs: identical"]


def test_broken_outputs_are_bad():
    found = with_evidence(outputs=OutputDifference(mismatch="1 output, 3 outputs"))
    assert len(Reading(outputs_section(found).body).all("p", class_="bad")) == 1
