from dataclasses import replace

import pytest
from document_reading import blocks, lines
from reported_optimizations import ADVICE, HARMLESS, UNUSABLE, harmful_names, timed
from terminal import shown

from tinytorch.reporting.advice import (
    NO_ADVICE,
    RISKS,
    advice_section,
    agreement_words,
    outcome_words,
    predicted_words,
    suggestion_lines,
)
from tinytorch.reporting.document import Document, Section
from tinytorch.reporting.html.page import section_from
from tinytorch.reporting.quantities import UNKNOWN
from tinytorch.reporting.terminal import render
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.catalog import CATALOG

INT8, LOW_RANK, BATCH = ADVICE


TRIED = {"int8-dynamic": timed("int8-dynamic", ratio=0.625), "low-rank": UNUSABLE[0]}


def cards(advice, outcomes=None):
    section = advice_section(advice, outcomes)
    return [each for each in blocks(section, Section) if each is not section]


def render_advice(advice):
    return render(Document("", None, (advice_section(advice),)))


def test_a_card_has_evidence_prediction_risk_and_cost():
    first, _, third = cards(ADVICE)
    assert first.title == "1. Hold weights in fewer bits"
    assert first.about == "about 40.0% of the time"
    assert lines(first) == [
        *INT8.evidence,
        "done by: int8-dynamic",
        "predicted: 1.80x (1.20x to 2.40x): Amdahl's law for 40.0% of the time",
        f"risk: {RISKS['rounding']}",
        "cost: calibration takes seconds",
    ]
    assert third.title == "3. Work on more examples at once"
    assert "done by: a manual step" in lines(third)


def test_before_anything_is_tried_nothing_is_said_about_it():
    assert not any("tried" in line for card in cards(ADVICE) for line in lines(card))
    assert {card.tone for card in cards(ADVICE)} == {"neutral"}


def test_what_was_tried_stands_beside_the_prediction():
    first, second, third = cards(ADVICE, TRIED)
    assert lines(first)[-1] == (
        "tried: predicted 1.80x, measured 1.60x (1.59x to 1.61x): better, as predicted"
    )
    assert lines(second)[-1] == "tried: inaccurate: accuracy 0.75 became 0.61"
    assert [each.tone for each in (first, second, third)] == ["good", "bad", "neutral"]


def test_what_was_not_tried_says_so():
    first, _, third = cards(ADVICE, {})
    assert lines(first)[-1] == "tried: not tried"
    assert first.tone == "unknown"
    assert not any("not tried" in line for line in lines(third))


def test_a_card_opens_and_names_stay_text():
    assert section_from(advice_section(ADVICE, TRIED)).body.count('<details class="card ') == 3
    html = section_from(advice_section(harmful_names().advice, {})).body
    assert HARMLESS not in html
    assert "&lt;script&gt;" in html


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
    assert predicted_words(LOW_RANK) == "nobody knows the rank yet"
    assert predicted_words(Advice("rule", "title", ())) == UNKNOWN


def test_suggestions_with_the_same_evidence_share_a_card():
    other = replace(INT8, title="Calibrate first", entry="int8-static")
    first, second = cards([INT8, LOW_RANK, other])
    assert first.title == "1. Hold weights in fewer bits or Calibrate first"
    said = lines(first)
    assert [said.count(each) for each in INT8.evidence] == [1] * len(INT8.evidence)
    assert [each for each in said if each.startswith("int8")] == ["int8-dynamic", "int8-static"]
    assert second.title.startswith("2. ")


def test_a_line_names_what_can_be_tried():
    steps = dict(suggestion_lines(ADVICE))
    assert f"{INT8.entry} (predicted 1.80x)" in steps["next"]


def test_no_advice_is_said():
    assert lines(advice_section(())) == [NO_ADVICE]


def test_every_risk_of_the_catalog_is_explained():
    assert {each.risk for each in CATALOG} <= RISKS.keys()


def test_markup_in_a_title_is_text():
    text = shown(render_advice([Advice("rule", f"[bold]{HARMLESS}", ("[red]x",))]))
    assert f"[bold]{HARMLESS}" in text
    assert "[red]x" in text
