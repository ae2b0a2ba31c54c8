import pytest
from example_boards import judgement, refused
from terminal import shown

from tinytorch.competition.rules import RULES, finding
from tinytorch.reporting.competition import show_findings, show_judgement


def test_the_verdict_comes_first_then_measures_accuracy_and_techniques():
    found = judgement(2.0, contributions={"int8-dynamic": 1.5}, notes=("a long night",))
    text = shown(show_judgement(found))
    parts = [
        "MLP Sprint, closed, 99%: ",
        "Against the reference",
        "worse < 1x < better",
        "median of the heats",
        "accuracy: not worse",
        "What each technique contributes",
        "The run",
        "- a long night",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "Not measured" not in text


def test_findings_stand_before_the_numbers_with_rule_and_fix():
    text = shown(show_judgement(refused().judgement))
    assert text.index("T3  a question that came again") < text.index("Against the reference")
    assert f"to do: {RULES['T3'].fix}" in text


def test_nothing_found_is_said():
    assert shown(show_findings([])).strip() == "Nothing was found against the rules."


def test_findings_that_count_come_before_warnings():
    text = shown(show_findings([finding("W1", "no walls"), finding("E1", "torn")]))
    assert text.splitlines()[0] == "1 finding that counts, 1 warning"
    assert text.index("E1  torn") < text.index("W1  no walls")


def test_warnings_alone_are_counted_as_such():
    found = [finding("W1", "no walls"), finding("W2", "busy")]
    assert shown(show_findings(found)).splitlines()[0] == "2 warnings"


def test_words_of_an_entry_do_not_steer_the_terminal():
    found = judgement(findings=(finding("E8", "\x1b[2J\x1b]0;title\x07"),), notes=("\x1b[1m",))
    text = shown(show_judgement(found)) + shown(show_findings(found.findings))
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    found = judgement(2.0, event="transformer_decathlon", contributions={"int8-dynamic": 1.5})
    assert max(map(len, shown(show_judgement(found), width).splitlines())) <= width
