import numpy as np
import pytest

from tinytorch.comparison.accuracy import WORSE, compare_accuracy
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.tuning.trying import by_outputs, by_scores


def differing(before, after):
    return compare_outputs((np.asarray(before),), (np.asarray(after),))


def unasked():
    raise AssertionError("nobody asks where numbers have fractions or stay the same")


@pytest.mark.parametrize(
    ("before", "after", "doubt"),
    [
        ([1.0, 2.0], [1.0, 2.01], ""),
        ([1.0, 2.0], [1.0, 2.5], "output error 0.25 exceeds 0.02"),
        ([1, 2], [1, 2], ""),
    ],
)
def test_outputs_may_be_off_by_a_share_of_the_largest(before, after, doubt):
    found = by_outputs(differing(before, after), most=0.02, explain=unasked)
    assert found.doubt.startswith(doubt)
    assert bool(found.doubt) == bool(doubt)
    assert found.notes == ()


def test_nothing_to_compare_is_a_doubt():
    assert "not numbers" in by_outputs(None, most=0.02, explain=unasked).doubt


def test_other_whole_numbers_need_an_explanation():
    outputs = differing([1, 2, 3, 4], [1, 2, 3, 5])
    found = by_outputs(outputs, most=0.02, explain=lambda: ("that is rounding",))
    assert (found.doubt, found.notes) == ("", ("that is rounding",))
    found = by_outputs(outputs, most=0.02, explain=lambda: ())
    assert found.doubt.startswith("25.00% of the integers")


@pytest.mark.parametrize(("lost", "is_kept"), [(0.0, True), (0.5, False)])
def test_scores_decide_by_the_margin(lost, is_kept):
    scores = np.linspace(0.0, 1.0, 50)
    accuracy = compare_accuracy(scores, scores - lost, margin=0.1)
    found = by_scores(accuracy, None)
    assert found.accuracy is accuracy
    assert bool(found.doubt) != is_kept
    if not is_kept:
        assert accuracy.evidence in found.doubt
        assert not found.is_inconclusive


def test_the_same_scores_and_outputs_are_as_good_however_few_they_are():
    scores = np.array([0.3, 0.7])
    accuracy = compare_accuracy(scores, scores, margin=0.0)
    assert by_scores(accuracy, differing([1.0], [1.0])).doubt == ""


def test_scores_that_are_no_numbers_are_counted():
    scores = np.ones(20)
    accuracy = compare_accuracy(scores, np.where(np.arange(20) < 3, np.nan, 1.0), margin=0.1)
    assert by_scores(accuracy, None).doubt == "3 of 20 scores are no finite numbers"


# ---------------------------------------------------------------- too few examples


def scored(lost, gained, count):
    baseline, candidate = np.ones(count), np.ones(count)
    candidate[:lost], baseline[lost : lost + gained] = 0, 0
    return compare_accuracy(baseline, candidate)


def close_by(error):
    outputs = differing([1.0, 2.0], [1.0, 2.0 + 2.0 * error])
    return outputs, lambda: by_outputs(outputs, most=0.02, explain=unasked)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (0, 1), (1, 0)])
def test_close_outputs_pass_where_the_examples_are_too_few(lost, gained):
    accuracy = scored(lost, gained, 168)
    assert accuracy.verdict == INCONCLUSIVE
    outputs, closeness = close_by(0.001)
    found = by_scores(accuracy, outputs, closeness=closeness)
    assert (found.doubt, found.is_inconclusive, found.accuracy) == ("", False, accuracy)
    assert accuracy.evidence in found.notes[0]


def test_far_outputs_and_too_few_examples_are_inconclusive():
    accuracy = scored(0, 1, 168)
    outputs, closeness = close_by(0.1)
    found = by_scores(accuracy, outputs, closeness=closeness)
    assert found.is_inconclusive
    assert str(accuracy.examples_needed) in found.doubt


def test_another_function_is_inconclusive_however_close_its_outputs_are():
    outputs, _ = close_by(0.001)
    assert by_scores(scored(0, 1, 168), outputs).is_inconclusive


def test_an_established_loss_outranks_close_outputs():
    accuracy = scored(100, 0, 168)
    assert accuracy.verdict == WORSE
    outputs, closeness = close_by(0.0)
    found = by_scores(accuracy, outputs, closeness=closeness)
    assert found.doubt
    assert not found.is_inconclusive
