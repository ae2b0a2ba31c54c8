from dataclasses import replace

import pytest
from document_reading import anchors, blocks, heads, lines, rows, section, tables, words
from example_optimizations import attempt, inconclusive, optimization
from reported_optimizations import (
    EVERY_KIND,
    best_is_a_stack,
    harmful_names,
    limits_broken,
    nothing_helps,
    nothing_tried,
    nothing_worked,
    only_time,
    plan,
    timed,
)
from terminal import shown

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.reporting.document import (
    Bullets,
    Folded,
    Paragraph,
    ParetoPlot,
    Preformatted,
    Section,
    Table,
    plain_text,
)
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.markdown import report_markdown, write
from tinytorch.reporting.optimization import optimization_document
from tinytorch.reporting.optimization_words import confirmation_lines, headline, reason_lines
from tinytorch.reporting.terminal import render
from tinytorch.tuning.attempt import BASELINE, DROPPED, OUTCOMES
from tinytorch.tuning.optimization import Optimization

STACK = ("int8-dynamic", "compiled-kernels")


def part(found, anchor):
    return section(optimization_document(found), anchor)


def terminal(found, width=100):
    return shown(render(optimization_document(found)), width)


# ---------------------------------------------------------------- the verdict


def test_the_banner_is_the_verdict():
    found = best_is_a_stack()
    banner = optimization_document(found).banner
    assert (banner.verdict, banner.tone) == ("2.50x faster", "good")
    assert f"gpt: {banner.sentence}" == headline(found)
    facts = dict(banner.facts)
    assert facts["time per call"] == "1.00 ms → 400 us"
    assert facts["accuracy"] == "75.00% → 74.85%"
    assert facts["better"] == "3 of 11 attempts"
    assert facts["took"] == "1 min 2 s"


@pytest.mark.parametrize(
    ("make", "tone"),
    [(nothing_helps, "neutral"), (nothing_tried, "unknown"), (limits_broken, "bad")],
)
def test_the_tone_does_not_promise_what_is_not_there(make, tone):
    assert optimization_document(make()).banner.tone == tone


def test_an_interrupt_is_said_in_the_banner():
    assert "Interrupted" in optimization_document(nothing_tried()).banner.sentence
    assert "Interrupted" not in optimization_document(best_is_a_stack()).banner.sentence


def test_the_numbers_are_those_of_the_fresh_comparison():
    again, worse = (
        optimization_document(best_is_a_stack(confirmations=(timed(*STACK, ratio=ratio),))).banner
        for ratio in (0.5, 1.2)
    )
    assert again.verdict == "2.00x faster"
    assert dict(again.facts)["time per call"] == "1.00 ms → 500 us"
    assert (worse.verdict, worse.tone) == ("Not confirmed", "unknown")


def test_whether_it_is_confirmed_is_said_below_the_verdict():
    again = best_is_a_stack(confirmations=(timed(*STACK, ratio=0.5),))
    for found, tone in ((best_is_a_stack(), "unknown"), (again, "")):
        (line,) = confirmation_lines(found)
        assert list(part(found, "confirmation").blocks) == [Paragraph(line, tone)]
    assert "confirmation" not in anchors(optimization_document(nothing_helps()))


# ---------------------------------------------------------------- sections


def test_every_part_has_its_section():
    found = anchors(optimization_document(best_is_a_stack()))
    assert found == [
        "attempts",
        "confirmation",
        "snippet",
        "why",
        "unused",
        "parts",
        "trade-offs",
        "advice",
        "next",
        "time",
        "layers",
        "roofline",
    ]
    kept = Optimization.from_dict(best_is_a_stack().to_dict())
    assert anchors(optimization_document(kept)) == found[:-3]


def test_what_has_nothing_to_say_has_no_section():
    found = anchors(optimization_document(nothing_worked()))
    assert not {"limits", "parts", "trade-offs", "snippet"} & set(found)


def test_broken_limits_stand_out():
    limits = part(limits_broken(), "limits")
    assert limits.about == "Of the baseline."
    assert [(plain_text(each.words), each.tone) for each in limits.blocks] == [
        ("time of a call: 1.00 ms, at most 100 us: broken", "bad"),
        ("peak memory: 8.00 kB, at most 6.00 kB: broken", "bad"),
        ("file on disk: 5.00 kB, at most 1.00 MB: kept", "good"),
    ]


def test_an_attempt_has_its_numbers():
    attempts = part(best_is_a_stack(), "attempts")
    found = {row[0]: row[1:] for row in rows(attempts)}
    assert len(found) == 11
    assert found["int8-dynamic"] == [
        "better",
        "1.80x",
        "1.60x",
        "1.59x to 1.61x",
        "50.0%",
        "25.0%",
        "74.90%",
        "1.50 s",
        "2.50 s",
    ]


def test_the_best_comes_first_and_is_marked_and_what_was_never_ranked_comes_last():
    for found in (best_is_a_stack(), best_is_a_stack(confirmations=(timed(*STACK, ratio=0.5),))):
        names = [row[0] for row in rows(part(found, "attempts"))]
        assert names[0] == "★ int8-dynamic + compiled-kernels"
        assert names[-1] == "fewer-channels"


def test_numbers_are_sorted_by_what_they_are():
    found = best_is_a_stack()
    table = blocks(part(found, "attempts"), Table)[0]
    assert [row.cells[3].sort for row in table.rows][:2] == [
        each.comparison.speedup for each in found.ranked[:2]
    ]
    assert table.rows[0].cells[0].sort == found.ranked[0].name


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_is_explained(outcome):
    found = best_is_a_stack()
    slow = attempt("streams", outcome=DROPPED)
    found = replace(found, attempts=(*found.attempts, inconclusive("int8-static"), slow))
    table = blocks(part(found, "attempts"), Table)[0]
    titles = {row.cells[1].text.replace("\u00a0", " "): row.cells[1].title for row in table.rows}
    assert titles[outcome] == OUTCOMES[outcome]


def test_what_no_attempt_has_is_no_column():
    assert "setup" in heads(part(best_is_a_stack(), "attempts"))
    found = heads(part(only_time(), "attempts"))
    assert not {"setup", "memory", "size", "accuracy", "predicted"} & set(found)
    assert "speedup" in found


def test_scores_that_are_no_accuracy_have_another_title():
    kept = compare_accuracy([2.0, 3.0] * 50, [2.0, 3.0] * 50, metric="reward", margin=1.0)
    (attempt,) = best_is_a_stack().attempts[:1]
    attempt = replace(attempt, comparison=replace(attempt.comparison, accuracy=kept))
    found = best_is_a_stack(attempts=(attempt,))
    assert "score" in heads(part(found, "attempts"))
    assert "score" in [each.title for each in blocks(part(found, "trade-offs"), Table)[0].columns]


def test_without_attempts_there_is_no_table():
    assert blocks(part(nothing_tried(), "attempts"), Table) == []
    assert "Nothing was tried." in words(part(nothing_tried(), "attempts"))


def test_what_an_attempt_did_can_be_opened():
    found = {
        each.title: words(each) for each in blocks(part(best_is_a_stack(), "attempts"), Folded)
    }
    assert len(found) == 1 + 11  # folded once more as a whole
    first = found["int8-dynamic + compiled-kernels (better)"]
    assert "Quantize(mode='dynamic', bits=8" in first
    assert "8-bit weights" in first
    assert "head: left alone, the last layer is kept" in first
    assert "setup time (compiled 1.50 s" in first
    assert "RuntimeError: no threads" in found["threads (failed)"]


def test_an_inconclusive_accuracy_has_its_speedup_and_its_reason():
    tried = inconclusive("int8-static")
    attempts = part(optimization(tried), "attempts")
    assert rows(attempts)[0][3] == "2.50x"
    _, details = blocks(attempts, Folded)
    assert Paragraph(tried.reason, "unknown") in details.blocks


def test_everything_that_was_not_timed_has_its_reason():
    found = best_is_a_stack()
    (bullets,) = blocks(part(found, "unused"), Bullets)
    expected = [f"{each.name}: {said}" for each, said in reason_lines(found)]
    assert [plain_text(each) for each in bullets.items] == expected


def test_only_what_was_timed_has_a_picture():
    (plot,) = blocks(part(best_is_a_stack(), "attempts"), ForestPlot)
    assert plot.rows[0].text.endswith("2.50x (2.49x to 2.51x)")


def test_the_parts_say_what_they_bring():
    parts = part(best_is_a_stack(), "parts")
    (bullets,) = blocks(parts, Bullets)
    assert [plain_text(each) for each in bullets.items] == [
        "int8-dynamic: 2.00x (1.99x to 2.01x): faster",
        "compiled-kernels: not measured: the budget is spent",
    ]
    (plot,) = blocks(parts, ForestPlot)
    assert [row.label for row in plot.rows] == ["int8-dynamic"]


# ---------------------------------------------------------------- trade-offs


def test_time_is_shown_against_accuracy_memory_and_size():
    plots = blocks(part(best_is_a_stack(), "trade-offs"), ParetoPlot)
    assert [each.titles[1] for each in plots] == [
        "change of the accuracy",
        "peak memory",
        "size of the file",
    ]
    assert [each.units[1] for each in plots] == ["points", "fraction", "fraction"]
    assert [each.lower_is_better[1] for each in plots] == [False, True, True]


def test_points_have_the_numbers_of_the_attempts():
    found = best_is_a_stack()
    for plot in blocks(part(found, "trade-offs"), ParetoPlot):
        points = {each.name: each for each in plot.points}
        assert "low-rank" not in points  # never ranked
        assert points["baseline"].x.value == 1
        best = points["int8-dynamic + compiled-kernels"]
        assert (best.x.value, best.x.low) == pytest.approx((0.4, 0.398), abs=1e-3)
        assert {each.name for each in plot.points if each.is_on_front} == set(found.front)
    accuracy = blocks(part(found, "trade-offs"), ParetoPlot)[0]
    changes = {each.name: each.y.value for each in accuracy.points}
    assert changes["int8-dynamic + compiled-kernels"] == pytest.approx(-0.15)


def test_what_was_not_measured_has_no_picture():
    trade_offs = part(only_time(), "trade-offs")
    assert blocks(trade_offs, ParetoPlot) == []
    assert "No picture of the peak memory" in words(trade_offs)


def test_the_front_has_shares_of_the_baseline():
    found = {row[0]: row[1:] for row in rows(part(best_is_a_stack(), "trade-offs"), 1)}
    assert list(found) == list(best_is_a_stack().front)
    assert found["int8-dynamic + compiled-kernels"] == ["40.0%", "50.0%", "25.0%", "-0.15 points"]


def test_the_baseline_may_be_on_the_front():
    slower = best_is_a_stack(attempts=best_is_a_stack().attempts[3:4])
    found = {row[0]: row[1:] for row in rows(part(slower, "trade-offs"), 1)}
    assert found["baseline"] == ["100.0%", "100.0%", "100.0%", "-"]
    assert BASELINE.time.value == 1


def test_the_key_has_the_letters_of_the_pictures():
    trade_offs = part(best_is_a_stack(), "trade-offs")
    key = [row[0] for row in rows(trade_offs)]
    for plot in blocks(trade_offs, ParetoPlot):
        assert [f"{each.letter} {each.name}" for each in plot.points] == key
    assert key[0] == "A baseline"


# ---------------------------------------------------------------- suggestions, programs


def test_a_suggestion_has_its_prediction_beside_the_measurement():
    advice = part(best_is_a_stack(), "advice")
    found = {row[0]: row[1:] for row in rows(advice)}
    assert found["Hold weights in fewer bits"] == [
        "int8-dynamic",
        "1.80x (1.20x to 2.40x)",
        "1.60x",
        "better",
        "as predicted",
    ]
    left = found["Write weights as products of smaller ones"]
    assert left == ["low-rank", "-", "-", "inaccurate", ""]
    assert "Work on more examples at once" not in found  # nothing here does it


def test_a_suggestion_has_its_evidence_risk_and_cost():
    (evidence,) = blocks(part(best_is_a_stack(), "advice"), Folded)
    card = blocks(evidence, Section)[0]
    assert card.title == "1. Hold weights in fewer bits"
    said = dict(line.split(": ", 1) for line in lines(card)[-5:])
    assert list(said) == ["done by", "predicted", "risk", "cost", "tried"]
    assert said["done by"] == "int8-dynamic"
    assert "predicted 1.80x, measured 1.60x" in said["tried"]


def test_a_suggestion_that_was_not_tried_says_so():
    found = rows(part(best_is_a_stack(attempts=()), "advice"))
    assert found[0][4] == "not tried"


def test_what_nothing_carries_out_is_a_manual_step():
    _, card = blocks(part(best_is_a_stack(), "next"), Section)
    assert card.title == "1. Work on more examples at once"
    assert "done by: a manual step" in lines(card)


def test_the_program_is_there_where_something_helps():
    (program,) = blocks(part(best_is_a_stack(), "snippet"), Preformatted)
    assert "Quantize(" in program.text
    assert "snippet" not in anchors(optimization_document(nothing_helps()))


def test_the_program_loads_the_target():
    found = best_is_a_stack(name="own", target="own.py:make")
    for each in (found, Optimization.from_dict(found.to_dict())):
        (program,) = blocks(part(each, "snippet"), Preformatted)
        assert 'load_workload("own.py:make")' in program.text


def test_plans_of_another_version_give_no_program():
    odd = timed("a", plans=(plan("Vanished"),))
    assert "There is no program" in words(part(best_is_a_stack(attempts=(odd,)), "snippet"))


# ---------------------------------------------------------------- as text


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
@pytest.mark.parametrize("width", [60, 100, 140])
def test_no_line_is_wider_than_the_terminal(make, width):
    assert max(map(len, terminal(make(), width).splitlines())) <= width


OF_THE_PROFILE = ("why", "time", "layers", "roofline")


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
def test_what_was_read_back_shows_the_same_numbers(make):
    found = make()
    kept = Optimization.from_dict(found.to_dict())
    before, after = (
        [each for each in optimization_document(x).blocks if each.anchor not in OF_THE_PROFILE]
        for x in (found, kept)
    )
    assert list(map(lines, before)) == list(map(lines, after)) != []
    assert list(map(tables, before)) == list(map(tables, after))


def test_an_optimization_shows_itself():
    found = best_is_a_stack()
    assert shown(found, 100) == terminal(found)
    assert "makes it 2.50x faster" in found._repr_html_()
    assert "<script>" not in harmful_names()._repr_html_()


def test_markdown_has_the_verdict_the_picture_and_the_table():
    found = best_is_a_stack()
    text = report_markdown(found)
    assert text == write(optimization_document(found))
    assert text.startswith("### ✅ 2.50x faster\n\nOptimization of gpt: int8-dynamic + ")
    assert "●" in text.split("```")[1]
    assert "\n| int8-dynamic | better | 1.80x | 1.60x |" in text
    assert text.count("<details>") == text.count("</details>") == 5


def test_names_break_no_markdown():
    text = report_markdown(harmful_names())
    outside = "".join(text.split("```")[::2])
    for line in outside.splitlines():
        if "<script>" in line:  # only as code, where it is text
            assert "`<script>" in line
    assert "&lt;script&gt;" in outside
