"""What a terminal shows by default: little, whole, and with the way to the rest."""

from dataclasses import replace

import pytest
from example_advice import advice_of, curve
from example_comparisons import comparison, contradictory, with_evidence
from example_gates import every_verdict
from example_profiles import example_profile
from example_work import machine
from reported_optimizations import (
    ADVICE,
    best_is_a_stack,
    limits_broken,
    nothing_helps,
    nothing_tried,
    nothing_worked,
)
from terminal import shown

from tinytorch.measure.environment import describe_environment
from tinytorch.reporting.document import document_of
from tinytorch.reporting.machine import machine_document
from tinytorch.reporting.optimization_words import next_steps
from tinytorch.reporting.profile import profile_document
from tinytorch.reporting.terminal import render

RESULTS = {
    "comparison": with_evidence(),
    "close": comparison(1.0, spread=0.1),
    "contradiction": contradictory(),
    "stack": best_is_a_stack(),
    "nothing": nothing_helps(),
    "failed": nothing_worked(),
    "untried": nothing_tried(),
    "limits": limits_broken(),
    "sizes": advice_of(curve()),
}
DOCUMENTS = {name: document_of(each) for name, each in RESULTS.items()} | {
    "profile": profile_document(example_profile(), advice=ADVICE),
    "gate": document_of(every_verdict()),
    "machine": machine_document(describe_environment(), machine()),
}
MORE = [("more", "--verbose")]
MOST_LINES = 26
"""Fifteen, and what example results with long sentences and every verdict need."""


def brief(document, width=80):
    return shown(render(document, is_brief=True, more=MORE), width).splitlines()


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_is_short_fits_and_names_the_way_to_the_rest(name, width):
    lines = brief(DOCUMENTS[name], width)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert lines[-1].split() == ["more", "--verbose"]
    assert width < 80 or len(lines) <= MOST_LINES


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_verdict_comes_first_and_no_sentence_twice(name):
    document = DOCUMENTS[name]
    lines = brief(document, 400)
    assert lines[0].strip() == document.banner.verdict
    said = [line.strip() for line in lines if len(line.strip()) > 40]
    assert len(said) == len(set(said))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_picture_of_a_comparison_stays(width):
    assert any("●" in line for line in brief(DOCUMENTS["comparison"], width))


def test_one_note_is_shown_and_the_others_are_counted():
    document = replace(DOCUMENTS["comparison"], notes=("one thing", "another", "a third"))
    text = "\n".join(brief(document))
    assert "one thing (and 2 more notes)" in text
    assert "another" not in text


def test_everything_is_there_without_brevity():
    document = DOCUMENTS["stack"]
    assert len(shown(render(document), 80).splitlines()) > 2 * len(brief(document))


def test_print_shows_what_a_command_shows():
    text = str(best_is_a_stack())
    assert text.splitlines()[0] == DOCUMENTS["stack"].banner.verdict
    assert max(map(len, text.splitlines())) <= 80


def test_next_steps_are_amounts_in_the_terms_of_who_asked():
    found = best_is_a_stack(target="yours.py:make")
    late = [each for each in found.attempts if each.lacked_time]
    steps = " ".join(next_steps(found))
    assert ("--budget " in steps) == bool(late)
    in_python = " ".join(next_steps(replace(found, target="", name="mine")))
    assert "--" not in in_python
