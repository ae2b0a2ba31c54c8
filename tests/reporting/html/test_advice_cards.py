from reported_optimizations import ADVICE, HARMLESS, UNUSABLE, harmful_names, timed

from tinytorch.reporting.advice import NO_ADVICE
from tinytorch.reporting.html.advice_cards import advice_cards, advice_section

TRIED = {"int8-dynamic": timed("int8-dynamic", ratio=0.625), "low-rank": UNUSABLE[0]}


def cards(html):
    return html.split("<article")[1:]


def test_every_suggestion_has_a_card():
    first, second, third = cards(advice_cards(ADVICE))
    assert "Hold weights in fewer bits" in first
    assert "<li>It reads 400 B of weights.</li>" in first
    assert "Write weights as products" in second
    assert "it is up to you" in third


def test_the_measurement_stands_beside_the_prediction():
    first = cards(advice_cards(ADVICE, TRIED))[0]
    assert "<dt>predicted speedup</dt><dd>1.80x (1.20x to 2.40x)</dd>" in first
    assert "<dt>measured speedup</dt><dd>1.60x (1.59x to 1.61x), as predicted</dd>" in first
    assert first.startswith(' class="card good"')


def test_what_was_never_timed_says_why():
    second = cards(advice_cards(ADVICE, TRIED))[1]
    assert "Tried: inaccurate: accuracy 0.75 became 0.61." in second
    assert "Not predicted: nobody knows the rank yet." in second
    assert second.startswith(' class="card bad"')


def test_what_a_prediction_rests_on_can_be_opened():
    first, second, _ = cards(advice_cards(ADVICE))
    assert "Amdahl&#x27;s law for 40.0% of the time." in first.partition("<details>")[2]
    assert "<details>" not in second


def test_before_anything_is_tried_cards_have_no_outcome():
    assert "badge" not in advice_cards(ADVICE)
    assert "Tried" not in advice_cards(ADVICE)


def test_a_suggestion_that_nobody_tried_says_so():
    assert "not tried" in cards(advice_cards(ADVICE, {}))[0]
    assert "not tried" not in cards(advice_cards(ADVICE, {}))[2]


def test_no_advice_is_said():
    assert NO_ADVICE in advice_section(()).body


def test_names_stay_text():
    found = harmful_names()
    html = advice_section(found.advice, {}).body
    assert HARMLESS not in html
    assert "&lt;script&gt;" in html
