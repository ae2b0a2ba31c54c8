from dataclasses import replace

import pytest
from example_comparisons import comparison, contradictory, unevaluated, with_evidence

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.comparison import NOT_STATED
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.comparison.sequential import TimedRounds
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT, Round
from tinytorch.measure.samples import Samples
from tinytorch.models.workload import Preparation
from tinytorch.reporting.comparison import (
    BY_EVENTS,
    CALLS,
    SINGLE,
    SUSTAINED,
    beside_the_times,
    call_count_text,
    call_rows,
    forest_plot_of,
    measured_rows,
    missing_lines,
    note_lines,
    outcome_text,
    quality_headline,
    quality_note_lines,
    ratio_style,
    speedup_text,
    verdict_text,
)

WORSE = compare_accuracy([1] * 400, [1, 0] * 200)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (comparison(0.5), "candidate is faster: 2.00x ("),
        (comparison(1.2), "candidate is slower: 1.20x the time ("),
        (comparison(1.0, spread=0.002), "same: within 1% ("),
        (comparison(1.0, spread=0.1), "inconclusive (interval "),
        (contradictory(), "inconclusive: typical calls and the mean disagree"),
    ],
)
def test_the_verdict_is_in_words(found, words):
    assert verdict_text(found).startswith(words)


def test_a_speedup_has_its_interval():
    found = comparison(0.5)
    assert speedup_text(found).startswith("2.00x (")
    assert speedup_text(found) in verdict_text(found)


@pytest.mark.parametrize(
    ("changes", "headline", "outcome", "style"),
    [
        ({}, "", "faster", "green"),
        ({"accuracy": WORSE}, "candidate is less accurate: 50.00%", "less accurate", "red"),
        (
            {"outputs": OutputDifference(mismatch="x")},
            "candidate gives broken outputs",
            "broken outputs",
            "red",
        ),
        (
            {"not_measured": unevaluated("candidate", "raised X")},
            "candidate raised X; its speed does not count",
            "not evaluated",
            "red",
        ),
        (
            {"not_measured": unevaluated("baseline", "raised X")},
            "accuracy could not be compared: baseline raised X",
            "faster",
            "green",
        ),
    ],
)
def test_quality_comes_before_time(changes, headline, outcome, style):
    found = comparison(0.5, **changes)
    assert quality_headline(found).startswith(headline)
    assert bool(quality_headline(found)) == bool(headline)
    assert outcome_text(found) == outcome
    assert ratio_style(found) == style


def test_notes_on_quality_name_the_candidate_once():
    found = [
        comparison(0.5, not_measured=unevaluated(side, "raised X", name=name))
        for side, name in (("baseline", "old"), ("candidate", "new"))
    ]
    named = [each.named("old", "new") for each in found]
    assert list(quality_note_lines(named)) == [
        "new: accuracy could not be compared: old raised X",
        "new raised X",
    ]


def test_the_numbers_of_both_sides_stand_beside_each_other():
    rows = {row[0]: row[1:] for row in measured_rows(with_evidence())}
    assert rows["time per call"][:2] == ("1.00 ms", "800 us")
    assert rows["examples per second"] == ("8.00k", "10.0k", "1.25x")
    assert rows["peak memory"] == ("8 KiB", "4 KiB", "0.50x")
    assert rows["file on disk"] == ("4.88 KiB", "-", "-")
    assert rows["energy per call"] == ("0.500 J", "0.250 J", "0.50x")
    assert [row[0] for row in measured_rows(comparison())] == ["time per call"]


def test_percentiles_say_how_many_calls_an_end_takes():
    found = with_evidence()
    rows = call_rows(found)
    assert [row[0] for row in rows] == ["p50", "p90", "p99"]
    assert rows[2][2].endswith("to -, needs 368 calls")
    assert call_count_text(found) == "40"
    assert call_rows(comparison()) == []


def test_the_picture_has_all_rounds():
    plot = forest_plot_of(comparison(0.5))
    assert len(plot.points) == 13
    assert plot.rows[0].value == pytest.approx(2.0)
    low, high = plot.ends
    assert low < 1 < 2 < high


def test_what_the_times_do_not_hold_is_said():
    done = ((), (Preparation("compiling", 2.0),))
    lines = beside_the_times(comparison(0.5, preparations=done, cache="cold"))
    assert [line.partition(":")[0] for line in lines[:2]] == ["cold caches", "candidate"]
    assert beside_the_times(comparison()) == []


def test_what_is_missing_has_its_reason():
    lines = missing_lines(with_evidence())
    assert "counters: perf is not installed" in lines
    assert "file on disk of candidate: OSError: no room" in lines
    assert not any("device" in line for line in lines)


def test_a_doubt_is_said_once():
    found = with_evidence(notes=("busy", "busy"))
    assert note_lines(found).count("busy") == 1


# ---------------------------------------------------------------- on a device


def on_device(**settings):
    single = comparison(is_on_device=True, **settings)
    sustained = tuple(Round((4e-3,) * 4, (1e-3,) * 4) for _ in single.rounds)
    beside = TimedRounds(sustained, single.alpha, single.pace, 0.1, ())
    times = (Samples("baseline", (3e-3,)), Samples("candidate", (1.5e-3,)))
    return replace(single, beside=beside, device_times=times)


def labels(found):
    return [row[0] for row in measured_rows(found)]


def test_a_device_has_latency_throughput_and_device_time():
    rows = {row[0]: row for row in measured_rows(on_device())}
    assert list(rows)[:3] == [SINGLE, SUSTAINED, BY_EVENTS]
    assert rows[SUSTAINED][1:3] == ("250/s", "1.00k/s")
    assert rows[SUSTAINED][3].startswith("4.00x (")
    assert rows[BY_EVENTS][3] == "0.50x"


def test_a_processor_has_one_time_per_call():
    assert labels(comparison())[0] == "time per call"
    assert not {SINGLE, SUSTAINED, BY_EVENTS} & set(labels(comparison()))


def test_what_was_not_timed_on_a_device_has_no_row():
    assert SUSTAINED not in labels(comparison(is_on_device=True))


@pytest.mark.parametrize("timing", [LATENCY, THROUGHPUT])
def test_a_verdict_on_a_device_says_what_calls_it_is_about(timing):
    assert CALLS[timing] in verdict_text(on_device(timing=timing))
    assert CALLS[timing] not in verdict_text(comparison())


def test_old_records_of_a_device_say_neither():
    assert labels(comparison(is_on_device=True, timing=NOT_STATED))[0] == "time per call"
