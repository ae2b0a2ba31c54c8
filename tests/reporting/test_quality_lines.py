import pytest
from example_comparisons import comparison, with_evidence
from terminal import shown

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.reporting.comparison import (
    accuracy_and_outputs,
    accuracy_line,
    difference_text,
    outputs_line,
    render_comparison,
    score_text,
)


def test_what_is_not_known_has_no_line():
    assert list(accuracy_and_outputs(comparison())) == []


def test_shares_of_right_answers_differ_by_points():
    found = compare_accuracy([1, 0] * 50, [1, 1] * 50)
    assert score_text(found)(0.5) == "50.00%"
    assert difference_text(found, 0.01, sign=False) == "1 point"
    assert difference_text(found, 0.025, sign=False) == "2.5 points"
    assert difference_text(compare_accuracy([1.5, 2.5], [1.0, 2.0]), -0.5) == "-0.5"


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (OutputDifference((ArrayDifference((2,)),)), "outputs: identical"),
        (OutputDifference(mismatch="1 outputs, 3 outputs"), "cannot be compared: 1 outputs, 3"),
        (
            OutputDifference((ArrayDifference((4,), equal_share=0.5, is_identical=False),)),
            "equal whole numbers 50.0%",
        ),
    ],
)
def test_outputs_are_described(outputs, words):
    assert words in shown(render_comparison(comparison(outputs=outputs)))


def test_scores_that_are_no_shares_are_shown_as_they_are():
    scores = [-2.0 - 0.01 * index for index in range(100)]
    found = compare_accuracy(scores, [each + 0.001 * (i % 3) for i, each in enumerate(scores)])
    text = shown(render_comparison(comparison(accuracy=found)))
    assert "accuracy: not worse, -2.495 to -2.494 (difference +0.00099" in text


def test_a_candidate_without_a_score_is_worse_and_has_no_mean():
    found = compare_accuracy([1.0] * 50, [float("nan")] * 50)
    text = shown(render_comparison(comparison(accuracy=found)))
    assert "less accurate: - against 1" in text.splitlines()[0]


def test_the_lines_are_there_as_plain_text():
    found = with_evidence()
    assert accuracy_line(found.accuracy).startswith("accuracy: not worse, 75.00% to 75.12% (")
    assert outputs_line(found.outputs).startswith("outputs: largest error 0.001")
