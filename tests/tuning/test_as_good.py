import numpy as np
import pytest

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.tuning.as_good import by_outputs, by_scores


def differing(before, after):
    return compare_outputs((np.asarray(before),), (np.asarray(after),))


def unasked():
    raise AssertionError("nobody asks where numbers have fractions or stay the same")


@pytest.mark.parametrize(
    ("before", "after", "doubt"),
    [
        ([1.0, 2.0], [1.0, 2.01], ""),
        ([1.0, 2.0], [1.0, 2.5], "outputs are off by 0.25 of the largest, allowed is 0.02"),
        ([1, 2], [1, 2], ""),
    ],
)
def test_outputs_may_be_off_by_a_share_of_the_largest(before, after, doubt):
    found = by_outputs(differing(before, after), most=0.02, explain=unasked)
    assert found.doubt.startswith(doubt)
    assert bool(found.doubt) == bool(doubt)
    assert found.notes == ()


def test_nothing_to_compare_is_a_doubt():
    assert "no numbers" in by_outputs(None, most=0.02, explain=unasked).doubt


def test_other_whole_numbers_need_an_explanation():
    outputs = differing([1, 2, 3, 4], [1, 2, 3, 5])
    found = by_outputs(outputs, most=0.02, explain=lambda: ("that is rounding",))
    assert (found.doubt, found.notes) == ("", ("that is rounding",))
    found = by_outputs(outputs, most=0.02, explain=lambda: ())
    assert found.doubt.startswith("25.00% of the whole numbers in its outputs are others")


@pytest.mark.parametrize(("lost", "is_kept"), [(0.0, True), (0.5, False)])
def test_scores_decide_by_the_margin(lost, is_kept):
    scores = np.linspace(0.0, 1.0, 50)
    accuracy = compare_accuracy(scores, scores - lost, margin=0.1)
    found = by_scores(accuracy, None)
    assert found.accuracy is accuracy
    assert bool(found.doubt) != is_kept
    if not is_kept:
        assert "that it drops by at most 0.1 is not shown" in found.doubt


def test_the_same_scores_and_outputs_are_as_good_however_few_they_are():
    scores = np.array([0.3, 0.7])
    accuracy = compare_accuracy(scores, scores, margin=0.0)
    assert by_scores(accuracy, differing([1.0], [1.0])).doubt == ""


def test_scores_that_are_no_numbers_are_counted():
    scores = np.ones(20)
    accuracy = compare_accuracy(scores, np.where(np.arange(20) < 3, np.nan, 1.0), margin=0.1)
    assert by_scores(accuracy, None).doubt == "3 of 20 scores are no finite numbers"
