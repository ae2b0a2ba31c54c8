import pytest
from reported_optimizations import ADVICE, HARMLESS, UNUSABLE, timed
from terminal import shown

from tinytorch.reporting.advice import (
    NO_ADVICE,
    RISKS,
    agreement_words,
    outcome_words,
    predicted_words,
    render_advice,
)
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.catalog import CATALOG

INT8, LOW_RANK, BATCH = ADVICE


def test_a_card_has_evidence_prediction_risk_and_cost():
    text = shown(render_advice(ADVICE))
    assert "1. Hold weights in fewer bits  about 40.0% of the time" in text
    assert "blocks.*.fc takes 40.0% of the time and is memory-bound." in text
    assert "1.80x (1.20x to 2.40x): Amdahl's law for 40.0% of the time" in text
    assert RISKS["rounding"] in text
    assert "calibration takes seconds" in text
    assert "3. Work on more examples at once" in text


def test_before_anything_is_tried_nothing_is_said_about_it():
    assert "tried" not in shown(render_advice(ADVICE))


def test_what_was_tried_stands_beside_the_prediction():
    text = shown(render_advice(ADVICE, {"int8-dynamic": timed("int8-dynamic", ratio=0.625)}))
    words = "predicted 1.80x, measured 1.60x (1.59x to 1.61x): better, as predicted"
    assert words in text
    assert "not tried" in text  # low-rank


def test_what_was_never_timed_says_why():
    assert outcome_words(LOW_RANK, UNUSABLE[0]) == "inaccurate: accuracy 0.75 became 0.61"


def test_without_a_prediction_the_measurement_stands_alone():
    words = outcome_words(LOW_RANK, timed("low-rank", ratio=0.5))
    assert words == "measured 2.00x (1.99x to 2.01x): better"


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(0.625, "as predicted"), (1.0, "less than predicted"), (0.25, "more than predicted")],
)
def test_a_prediction_is_held_against_the_measurement(ratio, words):
    assert agreement_words(INT8, timed("int8-dynamic", ratio=ratio)) == words
    assert agreement_words(BATCH, timed("int8-dynamic", ratio=ratio)) == ""
    assert agreement_words(INT8, UNUSABLE[0]) == ""


def test_without_a_prediction_the_reason_is_given():
    assert predicted_words(LOW_RANK) == "not predicted: nobody knows the rank yet"
    assert predicted_words(Advice("rule", "title", ())) == "not predicted"


def test_what_nothing_does_is_left_to_the_user():
    assert "nothing here does it: it is up to you" in shown(render_advice([BATCH], {}))


def test_no_advice_is_said():
    assert shown(render_advice(())).strip() == NO_ADVICE


def test_every_risk_of_the_catalog_is_explained():
    assert {each.risk for each in CATALOG} <= RISKS.keys()


def test_markup_in_a_title_is_text():
    text = shown(render_advice([Advice("rule", f"[bold]{HARMLESS}", ("[red]x",))]))
    assert f"[bold]{HARMLESS}" in text
    assert "[red]x" in text
