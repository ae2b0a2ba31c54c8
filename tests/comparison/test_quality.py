import math

import numpy as np
import pytest
from example_comparisons import comparison, unevaluated, with_evidence

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.comparison import (
    Comparison,
    failed_evaluation,
    quality_doubt,
    quality_loss,
)
from tinytorch.comparison.evidence import EVALUATE_FAILED, NO_EVALUATE, NO_EVALUATE_ANY_MORE
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.errors import Failure

WORSE = compare_accuracy([1] * 400, [1, 0] * 200)
UNDECIDED = compare_accuracy([1, 1, 0, 1] * 3, [1, 0, 0, 1] * 3)
FEW = compare_accuracy([1, 1, 0, 1] * 3, [1, 1, 0, 1] * 3)
IDENTICAL = compare_outputs([np.ones(3)], [np.ones(3)])
BROKEN = compare_outputs([np.ones(3)], [np.full(3, math.nan)])


def without_accuracy(reason, **changes):
    return comparison(not_measured={"accuracy": reason}, **changes)


@pytest.mark.parametrize(
    "found",
    [
        comparison(),
        with_evidence(),
        comparison(outputs=IDENTICAL),
        without_accuracy(NO_EVALUATE),
        comparison(accuracy=FEW, outputs=IDENTICAL),
    ],
)
def test_nothing_is_lost_or_doubted_where_nothing_speaks_against_it(found):
    assert (quality_loss(found), quality_doubt(found)) == ("", "")


def test_a_loss_of_accuracy_is_a_loss():
    found = comparison(accuracy=WORSE)
    assert quality_loss(found) == "candidate is less accurate than baseline: 0.5 against 1"
    assert quality_doubt(found) == ""


def test_broken_outputs_are_a_loss_whatever_the_accuracy():
    found = with_evidence(outputs=BROKEN)
    assert quality_loss(found).startswith("candidate gives broken outputs: 3 of 3 values are not")


def test_a_candidate_that_cannot_be_evaluated_is_a_loss():
    found = comparison(not_measured=unevaluated())
    assert quality_loss(found) == "candidate could not be evaluated: X"
    assert quality_doubt(found) == ""


@pytest.mark.parametrize(
    "reason",
    [
        unevaluated("baseline")["accuracy"],
        Failure("300 scores of the baseline but 299 of the candidate", EVALUATE_FAILED),
        NO_EVALUATE_ANY_MORE,
    ],
)
def test_an_accuracy_that_could_not_be_compared_is_a_doubt(reason):
    found = without_accuracy(reason)
    assert quality_loss(found) == ""
    assert quality_doubt(found).endswith(str(reason))


@pytest.mark.parametrize(
    ("baseline", "candidate", "failed", "is_loss"),
    [
        ("gpt", "gpt small", "gpt", False),
        ("gpt", "gpt small", "gpt small", True),
        ("gpt small", "gpt", "gpt small", False),
        ("gpt small", "gpt", "gpt", True),
    ],
)
def test_names_that_begin_alike_are_told_apart(baseline, candidate, failed, is_loss):
    """Records from before there were codes have sentences that begin with the name of the side."""
    fields = comparison().named(baseline, candidate).to_dict()
    fields["not_measured"] = {"accuracy": f"{failed} could not be evaluated: X"}
    assert bool(failed_evaluation(Comparison.from_dict(fields))) is is_loss


def test_records_from_before_there_were_codes_know_what_was_expected():
    fields = comparison().to_dict() | {"not_measured": {"accuracy": NO_EVALUATE.words}}
    assert Comparison.from_dict(fields).not_measured == {"accuracy": NO_EVALUATE}


@pytest.mark.parametrize("accuracy", [UNDECIDED, FEW])
def test_an_inconclusive_accuracy_is_a_doubt(accuracy):
    found = comparison(accuracy=accuracy)
    assert found.is_accurate is None
    assert quality_loss(found) == ""
    assert quality_doubt(found).startswith("accuracy is inconclusive: ")
    assert accuracy.evidence in quality_doubt(found)
