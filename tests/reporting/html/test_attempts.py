import re
from dataclasses import replace

import pytest
from example_optimizations import inconclusive, optimization
from reported_optimizations import (
    EVERY_KIND,
    HARMLESS,
    best_is_a_stack,
    harmful_names,
    nothing_tried,
    nothing_worked,
    only_time,
)

from tinytorch.reporting.html.optimization_page import attempts_section, forest_section
from tinytorch.tuning.attempt import OUTCOMES


def rows(html):
    body = re.search(r"<tbody>(.*?)</tbody>", html, re.S)[1]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("<tr>")[1:]]


def test_every_attempt_has_a_row_with_the_numbers_of_the_terminal():
    found = rows(attempts_section(best_is_a_stack()).body)
    assert len(found) == 11
    assert found[0][0] == "★ int8-dynamic + compiled-kernels"
    assert found[1] == [
        "int8-dynamic",
        "better",
        "1.80x",
        "1.60x (1.59x to 1.61x)",
        "50.0%",
        "25.0%",
        "74.90%",
        "1.50 s",
        "2.50 s",
    ]


def test_numbers_are_sorted_by_what_they_are():
    body = attempts_section(best_is_a_stack()).body
    speedup = best_is_a_stack().attempts[0].comparison.speedup
    assert f'data-sort="{speedup}"' in body


def test_what_is_not_known_is_a_dash():
    found = rows(attempts_section(only_time()).body)
    assert found[0][4:7] == ["-", "-", "-"]


def test_what_an_attempt_did_can_be_opened():
    body = attempts_section(best_is_a_stack()).body
    details = body.split("<details>")[1:]
    assert len(details) == 11
    assert "Quantize(mode=&#x27;dynamic&#x27;, bits=8" in details[0]
    assert "8-bit weights" in details[0]
    assert "head: left alone, the last layer is kept" in details[0]
    assert "setup time (compiled 1.50 s" in details[0]
    assert "RuntimeError: no threads" in body


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_is_explained(outcome):
    found = best_is_a_stack()
    found = replace(found, attempts=(*found.attempts, inconclusive("int8-static")))
    body = attempts_section(found).body
    assert f'title="{OUTCOMES[outcome]}"' in body.replace("&#x27;", "'")


def test_without_attempts_there_is_no_table():
    assert attempts_section(nothing_tried()).body == '<p class="muted">Nothing was tried.</p>'


def test_only_what_was_timed_has_a_picture():
    assert "2.50x (2.49x to 2.51x)" in forest_section(best_is_a_stack()).body
    assert forest_section(nothing_worked()) is None


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
def test_what_is_opened_is_closed(make):
    body = attempts_section(make()).body
    for tag in ("details", "table", "tr", "div", "p"):
        assert len(re.findall(rf"<{tag}[ >]", body)) == body.count(f"</{tag}>")


def test_names_stay_text():
    found = harmful_names()
    for section in (forest_section(found), attempts_section(found)):
        assert HARMLESS not in section.body
        assert "&lt;script&gt;" in section.body


def test_an_inconclusive_accuracy_has_its_speedup_and_its_reason():
    tried = inconclusive("int8-static")
    body = attempts_section(optimization(tried)).body
    assert tried.reason in body
    assert "2.50x" in body
