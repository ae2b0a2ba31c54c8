import pytest
from terminal import shown

from tinytorch.competition.events import DIVISIONS, EVENTS, TIERS
from tinytorch.competition.rules import RULES
from tinytorch.reporting.competition import (
    CHAPTERS,
    DIVISION_WORDS,
    render_divisions,
    render_events,
    render_rules,
)


def test_every_rule_stands_in_a_chapter():
    assert {each[0] for each in RULES} == set(CHAPTERS)
    text = shown(render_rules(list(RULES.values())), width=120)
    assert [line.split()[0] for line in text.splitlines() if line[3:5].strip() in RULES] == list(
        RULES
    )


def test_a_chapter_without_rules_is_left_out():
    text = shown(render_rules([RULES["T3"]]), width=120)
    assert CHAPTERS["T"] in text
    assert CHAPTERS["E"] not in text


def test_measures_that_do_not_count_are_marked():
    text = shown(render_events(EVENTS), width=120)
    assert text.count("not scored") == 2
    assert "ten disciplines" in text


def test_every_division_and_tier_is_named():
    assert tuple(DIVISION_WORDS) == DIVISIONS
    text = shown(render_divisions(TIERS), width=120)
    assert all(f"{division}  " in text for division in DIVISIONS)
    assert "99% or 99.9% of the reference's accuracy" in text


@pytest.mark.parametrize("width", [60, 80])
def test_no_line_is_wider_than_the_terminal(width):
    text = shown(render_rules(list(RULES.values())), width=width)
    text += shown(render_events(EVENTS), width=width)
    text += shown(render_divisions(TIERS), width=width)
    assert max(map(len, text.splitlines())) <= width
