import pytest
from example_boards import accuracy, judgement, refused, run

from tinytorch.competition.judgement import Ablation, Heat, Score
from tinytorch.reporting.competition import (
    ablation_rows,
    contest_text,
    headline,
    measure_plot,
    measure_rows,
    missing_lines,
    plain,
    run_facts,
    run_score_text,
    score_text,
    value_text,
)


def test_the_headline_has_contest_score_interval_verdict_and_accuracy():
    words, style = headline(judgement(2.0))
    assert words == "MLP Sprint, closed, 99%: 1.98x (1.95x to 2.01x): faster; accuracy kept"
    assert style == "bold green"


@pytest.mark.parametrize(
    ("found", "ending", "style"),
    [
        (judgement(1.0, techniques=()), "inconclusive; accuracy kept", "bold yellow"),
        (judgement(0.5), "slower; accuracy kept", "bold red"),
        (judgement(accuracy=accuracy(lost=100)), "faster; accuracy lost", "bold red"),
        (judgement(accuracy=accuracy(margin=1e-3)), "accuracy inconclusive", "bold yellow"),
        (judgement(accuracy=None), "faster; accuracy not measured", "bold green"),
        (judgement(n=3), "no score: 3 heats, at least 6 are needed", "bold yellow"),
        (refused().judgement, "not valid: it breaks T3", "bold red"),
    ],
)
def test_what_is_lost_or_doubtful_decides_the_style(found, ending, style):
    words, found_style = headline(found)
    assert words.endswith(ending)
    assert found_style == style


def test_other_metrics_are_called_by_their_name():
    found = accuracy(metric="log-likelihood per character")
    assert headline(judgement(accuracy=found))[0].endswith("log-likelihood per character kept")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\x1b[31mb", "a\ufffd[31mb"), ("a\nb", "a b"), ("a\u202eb", "a\ufffdb"), (3, "3")],
)
def test_words_of_others_neither_move_the_cursor_nor_hide(text, expected):
    assert plain(text) == expected


def test_a_contest_is_named_by_its_title():
    assert contest_text("cnn_marathon", "open", 0.999) == "CNN Marathon, open, 99.9%"


def test_scores_have_their_interval():
    assert score_text(Score(1.84, 1.79, 1.9, n=10)) == "1.84x (1.79x to 1.90x)"
    assert score_text(None) == "-"


def test_every_measure_has_a_row_and_what_does_not_count_says_so():
    found = judgement(event="cnn_marathon")
    assert [row[0] for row in measure_rows(found)] == ["time per image", "peak memory"]
    texts = {row.label: row.text for row in measure_plot(found).rows}
    assert texts["peak memory"].endswith("not scored")
    assert "not scored" not in texts["time per image"]


def test_values_are_written_in_their_unit():
    assert value_text(2e-3, "s") == "2.00 ms"
    assert value_text(1 << 20, "byte") == "1 MiB"
    assert value_text(4.5, "ratio") == "4.5"
    assert value_text(None, "s") == "-"


def test_a_measure_that_no_heat_has_is_missing_and_breaks_nothing():
    found = judgement()
    heats = tuple(
        Heat(
            {"p90 latency": heat.reference["p90 latency"]},
            {"p90 latency": heat.entry["p90 latency"]},
        )
        for heat in found.heats
    )
    shown = judgement(heats=heats, techniques=())
    assert missing_lines(shown) == ["peak memory: no heat has it"]
    assert measure_rows(shown)[1][1:4] == ("-", "-", "-")


def test_without_heats_there_is_no_picture_and_a_reason():
    assert measure_plot(judgement(n=0)) is None
    assert missing_lines(judgement(n=0))[0] == "0 heats, at least 6 are needed"


def test_techniques_that_were_not_switched_off_are_missing():
    lines = missing_lines(judgement(techniques=("int8-dynamic",), accuracy=None))
    assert lines == ["accuracy", "what int8-dynamic contributes: it was not switched off"]


@pytest.mark.parametrize(
    ("ablation", "said"),
    [
        (run(contributions={"x": 1.5}).judgement.ablations[0], "helps"),
        (run(contributions={"x": 1.0}).judgement.ablations[0], "no help is shown"),
        (run(contributions={"x": 0.5}).judgement.ablations[0], "hurts"),
        (Ablation("x", reason="it cannot be built"), "it cannot be built"),
        (Ablation("x"), "0 heats, too few for an interval"),
    ],
)
def test_every_technique_is_said_to_help_or_not(ablation, said):
    ((_, _, words),) = ablation_rows(judgement(ablations=(ablation,)))
    assert words == said


def test_the_facts_say_how_the_entry_was_kept_apart():
    facts = dict(run_facts(judgement()))
    assert facts["kept apart: network"] == "own namespace"
    assert facts["team"] == "Ada"


def test_a_run_without_enough_heats_has_no_score():
    assert run_score_text(judgement(2.0, n=3)) == "-"
    assert run_score_text(judgement(2.0)) == score_text(judgement(2.0).score)
