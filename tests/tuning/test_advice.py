import json

import pytest

from tinytorch.measure.estimate import Estimate
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice


def test_json_gives_it_back():
    one = Advice(
        "memory-bound", "Hold less", ("70% of the time",), "int8-weights", Gain(2, 1, 3, basis="x")
    )
    other = Advice("python", "Do more per call", ("31% outside",), not_predicted="nobody knows")
    for each in (one, other):
        assert Advice.from_dict(json.loads(json.dumps(each.to_dict()))) == each


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (Estimate(1.7, 1.69, 1.71), "as predicted"),
        (Estimate(1.01, 1.0, 1.02), "less than predicted"),
        (Estimate(0.9, 0.8, 1.2), "less than predicted, within what is possible"),
        (Estimate(1.4, 1.2, 1.9), "as predicted"),
        (Estimate(1.4, 1.3, 1.5), "less than predicted, within what is possible"),
        (Estimate(2.3, 2.2, 2.4), "more than predicted, within what is possible"),
        (Estimate(1.1, 1.05, 1.15), "less than predicted"),
        (Estimate(3.0, 2.9, 3.1), "more than predicted"),
    ],
)
def test_a_prediction_is_held_against_what_was_measured(measured, words):
    advice = Advice("rule", "title", (), "a", Gain(1.8, 1.2, 2.4, basis="x"))
    assert advice.agreement(measured) == words
    assert Advice("rule", "title", (), "a").agreement(measured) == ""


@pytest.mark.parametrize(("low", "words"), [(4.3, "as predicted"), (5.0, "more than predicted")])
def test_what_was_held_impossible_is_not_as_predicted_however_near(low, words):
    """Of a captured and compiled GPT-2: 3.73 times were predicted, 4.44 at most, 5.17 measured."""
    advice = Advice("rule", "title", (), "a", Gain(3.73, 1.0, 4.44, basis="x"))
    assert advice.agreement(Estimate(5.17, low, 5.4)) == words
