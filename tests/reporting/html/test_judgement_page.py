import json

import pytest
from example_boards import accuracy, judgement, refused
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.competition.judgement import Ablation
from tinytorch.competition.rules import RULES, Finding
from tinytorch.reporting.html.board_page import judgement_page
from tinytorch.reporting.html.page import render_page, report_html


def whole():
    return judgement(2.0, contributions={"int8-dynamic": 1.5})


@pytest.mark.parametrize(
    ("found", "tone"),
    [
        (judgement(2.0), "good"),
        (judgement(1.0), "unknown"),
        (judgement(accuracy=accuracy(lost=100)), "bad"),
        (refused().judgement, "bad"),
        (judgement(n=0), "unknown"),
    ],
)
def test_the_banner_has_the_verdict_and_its_tone(found, tone):
    banner = judgement_page(found).banner
    assert banner.verdict.startswith("MLP Sprint, closed, 99%: ")
    assert banner.tone == tone


def test_sections_are_there_where_they_have_something_to_say():
    anchors = [each.anchor for each in judgement_page(whole()).sections]
    assert anchors == ["measures", "techniques", "run", "appendix"]
    assert judgement_page(refused().judgement).sections[0].anchor == "findings"


def test_findings_say_what_to_do():
    rows = Reading(report_html(refused().judgement)).rows()
    assert [
        "T3",
        "fatal",
        "a question that came again took 0.1 of its time",
        RULES["T3"].fix,
    ] in rows


def test_raw_values_are_every_heat():
    raw = judgement_page(whole()).raw
    assert len(raw["heats"]) == 10
    assert raw["ablations"][0]["technique"] == "int8-dynamic"
    assert json.loads(json.dumps(raw)) == raw


def test_names_are_text():
    found = judgement(
        description=HOSTILE,
        round_name=HOSTILE,
        notes=(HOSTILE,),
        protection={HOSTILE: HOSTILE},
        ablations=(Ablation(HOSTILE, reason=HOSTILE),),
        findings=(Finding(HOSTILE, HOSTILE, HOSTILE, "warning"),),
    )
    assert HOSTILE not in render_page(judgement_page(found))


@pytest.mark.parametrize("found", [whole(), refused().judgement])
def test_a_browser_shows_it_without_complaint(browser_page, found):
    shown = browser_page(report_html(found), width=390)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
