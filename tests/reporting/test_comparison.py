from dataclasses import replace

import pytest
from document_reading import anchors, blocks, heads, rows, section, words
from example_comparisons import comparison, contradictory, unevaluated, with_evidence
from example_pages import HOSTILE
from terminal import shown

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.comparison import NOT_STATED
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.comparison.sequential import TimedRounds
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT, Round
from tinytorch.measure.samples import Samples
from tinytorch.models.workload import FIRST_CALL, Preparation
from tinytorch.reporting.comparison import (
    BY_EVENTS,
    CALLS,
    SINGLE,
    SUSTAINED,
    accuracy_line,
    comparison_document,
    comparisons_document,
    difference_text,
    measured_rows,
    missing_lines,
    note_lines,
    preparation_lines,
    score_text,
    speedup_text,
    verdict_text,
)
from tinytorch.reporting.document import MarginPlot, Paragraph, RunOrder
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.markdown import report_markdown
from tinytorch.reporting.quantities import ratio_text
from tinytorch.reporting.terminal import render

WORSE = compare_accuracy([1] * 400, [1, 0] * 200)
DOUBTFUL = compare_accuracy([1, 0] * 3, [0, 1] * 3)


# ---------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    ("found", "verdict", "tone"),
    [
        (comparison(0.5), "2.00x faster", "good"),
        (comparison(1.2), "1.20x slower", "bad"),
        (comparison(1.0, spread=0.002), "Same speed", "neutral"),
        (comparison(1.0, spread=0.1), INCONCLUSIVE.capitalize(), "unknown"),
        (contradictory(), INCONCLUSIVE.capitalize(), "unknown"),
        (comparison(0.5, accuracy=WORSE), "Less accurate", "bad"),
        (comparison(0.5, accuracy=DOUBTFUL), "2.00x faster, accuracy inconclusive", "unknown"),
        (comparison(1.2, accuracy=DOUBTFUL), "1.20x slower, accuracy inconclusive", "bad"),
        (comparison(0.5, outputs=OutputDifference(mismatch="x")), "Broken outputs", "bad"),
        (comparison(0.5, not_measured=unevaluated()), "Not evaluated", "bad"),
    ],
)
def test_the_banner_says_what_is_shown(found, verdict, tone):
    banner = comparison_document(found).banner
    assert (banner.verdict, banner.tone) == (verdict, tone)
    assert verdict_text(found) in banner.sentence


@pytest.mark.parametrize(
    ("ratio", "spread", "sentence"),
    [
        (1 / 1.31, 0.01, "candidate is faster: 1.31x ({fast} to {faster})"),
        (1.2, 0.01, "candidate is slower: 1.20x the time ({low} to {high})"),
        (1.0, 0.002, "same: within 1% ({low} to {high} the time)"),
        (
            1.0,
            0.1,
            INCONCLUSIVE + " (interval {fast} to {faster}): a time budget of 12 s may decide",
        ),
    ],
)
def test_the_verdict_has_its_interval_and_n(ratio, spread, sentence):
    found = comparison(ratio, spread=spread)
    ends = {
        "low": found.time_ratio_low,
        "high": found.time_ratio_high,
        "fast": found.speedup_low,
        "faster": found.speedup_high,
    }
    expected = sentence.format(**{name: ratio_text(end) for name, end in ends.items()})
    assert verdict_text(found) == f"{expected}, n=13 rounds, 410 ms"


def test_where_mean_and_typical_calls_disagree_no_budget_is_asked_for():
    assert "disagree" in verdict_text(contradictory())
    assert "budget" not in verdict_text(contradictory())


def test_names_of_ones_own_are_both_said():
    found = comparison(0.5).named("torch", "ours")
    assert verdict_text(found).startswith("ours is faster than torch: 2.00x (")
    assert heads(section(comparison_document(found), "numbers"))[1:3] == ["torch", "ours"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"accuracy": WORSE},
            "candidate is less accurate: 50.00% against 100.00%, beyond the margin of 1 point; "
            "its speed does not count",
        ),
        (
            {"outputs": OutputDifference(mismatch="1 outputs, 3 outputs"), "accuracy": WORSE},
            "candidate gives broken outputs: 1 outputs, 3 outputs; its speed does not count",
        ),
        (
            {"not_measured": unevaluated()},
            "candidate could not be evaluated: X; its speed does not count",
        ),
        (
            {"not_measured": unevaluated("baseline")},
            "accuracy could not be compared: baseline could not be evaluated: X",
        ),
        ({"accuracy": DOUBTFUL}, "accuracy is inconclusive: 3 lost, 3 gained of 6 "),
        (
            {"accuracy": compare_accuracy([1.0] * 50, [float("nan")] * 50)},
            "candidate is less accurate: - against 1,",
        ),
    ],
)
def test_what_is_not_as_good_comes_before_the_speed(changes, said):
    sentence = comparison_document(comparison(0.5, **changes)).banner.sentence
    assert sentence.startswith(said)
    assert sentence.index(said) < sentence.index("candidate is faster: 2.00x")


def test_the_banner_has_the_numbers_that_matter():
    found = with_evidence()
    facts = dict(comparison_document(found).banner.facts)
    assert facts["speedup"] == speedup_text(found)
    assert facts["accuracy"].startswith("75.00% → 75.12% (")
    assert facts["peak memory"] == "8 KiB → 4 KiB (0.50x)"
    assert facts["file on disk"] == "4.88 KiB → -"


# ---------------------------------------------------------------- sections


def test_every_part_that_is_known_has_a_section():
    everything = ["speedup", "numbers", "times", "calls", "accuracy", "outputs", "missing"]
    assert anchors(comparison_document(with_evidence())) == everything
    assert anchors(comparison_document(comparison())) == ["speedup", "numbers", "times"]


def test_the_picture_has_all_rounds():
    (plot,) = blocks(section(comparison_document(comparison(0.5)), "speedup"), ForestPlot)
    assert len(plot.points) == 13
    assert plot.rows[0].value == pytest.approx(2.0)
    assert plot.rows[0].tone == "good"
    low, high = plot.ends
    assert low < 1 < 2 < high


def test_the_numbers_of_both_sides_stand_beside_each_other():
    found = with_evidence()
    table = {row[0]: tuple(row[1:]) for row in rows(section(comparison_document(found), "numbers"))}
    ends = f"{ratio_text(found.time_ratio_low)} to {ratio_text(found.time_ratio_high)}"
    assert table == {
        "time per call": ("1.00 ms", "800 us", f"0.80x ({ends})"),
        "examples per second": ("8.00k", "10.0k", "1.25x"),
        "peak memory": ("8 KiB", "4 KiB", "0.50x"),
        "parameters": ("4 KiB", "1 KiB", "0.25x"),
        "file on disk": ("4.88 KiB", "-", "-"),
        "energy per call": ("0.500 J", "0.250 J", "0.50x"),
    }
    assert [row[0] for row in measured_rows(comparison())] == ["time per call"]


def test_both_sides_are_drawn_in_the_order_of_measuring():
    (order,) = blocks(section(comparison_document(comparison(0.5)), "times"), RunOrder)
    assert [run.name for run in order.runs] == ["baseline", "candidate"]
    assert [len(run.values) for run in order.runs] == [39, 39]
    assert list(order.breaks) == [3 * place for place in range(1, 13)]


def test_percentiles_of_single_calls_say_how_many_calls_an_end_needs():
    part = section(comparison_document(with_evidence()), "calls")
    p50, p90, p99 = rows(part)
    assert [p50[0], p50[1], p90[0], p99[0]] == ["p50", "1.02 ms", "p90", "p99"]
    assert "needs" not in p90[2]
    assert p99[2].endswith("to -, needs 368 calls")
    assert part.about.startswith("40 calls")


def test_scores_are_shown_with_what_was_gained_and_lost():
    found = with_evidence()
    part = section(comparison_document(found), "accuracy")
    table = dict(rows(part))
    assert table["baseline"] == "75.00%"
    assert table["gained: only the candidate is right"] == str(found.accuracy.gained) == "1"
    assert table["lost: only the baseline is right"] == str(found.accuracy.lost) == "0"
    assert table["examples"] == "800"
    assert accuracy_line(found.accuracy).startswith("accuracy: not worse, 75.00% to 75.12% (")
    assert blocks(part, Paragraph)[0].words == accuracy_line(found.accuracy)


@pytest.mark.parametrize(
    ("candidate", "tone"),
    [([1, 1] * 400, "good"), ([1, 0] * 400, "bad"), ([1, 1] * 395 + [0, 1] * 5, "unknown")],
)
def test_the_tone_of_accuracy_follows_its_verdict(candidate, tone):
    found = comparison(accuracy=compare_accuracy([1, 1] * 400, candidate))
    part = section(comparison_document(found), "accuracy")
    assert [each.tone for each in blocks(part, Paragraph | MarginPlot)] == [tone, tone]


def test_scores_that_are_no_numbers_have_no_picture():
    scores = compare_accuracy([1.0, 2.0, 3.0], [1.0, float("nan"), 3.0])
    part = section(comparison_document(comparison(accuracy=scores)), "accuracy")
    assert blocks(part, MarginPlot) == []
    assert dict(rows(part))["scores of the candidate that are no number"] == "1"


def test_shares_of_right_answers_differ_by_points():
    found = compare_accuracy([1, 0] * 50, [1, 1] * 50)
    assert score_text(found)(0.5) == "50.00%"
    assert difference_text(found, 0.01, sign=False) == "1 point"
    assert difference_text(found, 0.025, sign=False) == "2.5 points"
    (plot,) = blocks(comparison_document(comparison(accuracy=found)), MarginPlot)
    assert (plot.value, plot.margin, plot.unit) == (50.0, -1.0, "points")


def test_scores_that_are_no_shares_are_written_as_they_are():
    scores = [-2.0 - 0.001 * index for index in range(1000)]
    found = compare_accuracy(scores, [each + 0.001 * (i % 3) for i, each in enumerate(scores)])
    assert "accuracy: not worse, -2.499 to -2.499 (difference +0.000999" in accuracy_line(found)
    assert difference_text(compare_accuracy([1.5, 2.5], [1.0, 2.0]), -0.5) == "-0.5"
    part = section(comparison_document(comparison(accuracy=found)), "accuracy")
    assert "gained: only the candidate is right" not in dict(rows(part))


@pytest.mark.parametrize(
    ("outputs", "said", "tone"),
    [
        (OutputDifference((ArrayDifference((2,)),)), "outputs: identical", ""),
        (OutputDifference(mismatch="1, 3"), "outputs: cannot be compared: 1, 3", "bad"),
        (
            OutputDifference((ArrayDifference((4,), equal_share=0.5, is_identical=False),)),
            "outputs: equal whole numbers 50.0%",
            "",
        ),
        (
            OutputDifference((ArrayDifference((4,), 0.5, 0.25, 12.0, is_identical=False),)),
            "outputs: largest error 0.5 (0.25 of the largest value), SQNR 12.0 dB",
            "unknown",
        ),
    ],
)
def test_outputs_are_described(outputs, said, tone):
    part = section(comparison_document(comparison(outputs=outputs)), "outputs")
    assert part.blocks[0] == Paragraph(said, tone)


def test_outputs_have_a_row_each_and_no_empty_columns():
    arrays = (
        ArrayDifference((8, 10), 1e-3, 1e-4, 61.5, 0.99, is_identical=False),
        ArrayDifference((), 0.5, 0.25, 12.0, is_identical=False, note="odd"),
    )
    part = section(comparison_document(comparison(outputs=OutputDifference(arrays))), "outputs")
    assert heads(part)[:2] == ["output", "shape"]
    assert "equal whole numbers" not in heads(part)
    first, second = rows(part)
    assert first[:6] == ["0", "8x10", "0.001", "0.0001", "61.5 dB", "99.0%"]
    assert second[1] == "scalar"
    assert second[-1] == "odd"


# ---------------------------------------------------------------- setup, doubts, what is missing

COMPILED = Preparation("compiled", 12.0, 3 << 20)
CAPTURED = Preparation("captured", 0.5)
FIRST = Preparation(FIRST_CALL, 7.8)


def setup(ratio, *sides):
    return list(preparation_lines(comparison(ratio, preparations=sides)))


def test_nothing_done_is_nothing_said():
    assert setup(0.5, (), ()) == []


def test_each_side_has_its_setup_time_and_the_candidate_its_break_even():
    first, second, pays = setup(0.5, (FIRST,), (COMPILED, CAPTURED))
    assert first == (
        "baseline: setup time (first call 7.80 s longer than others), not part of the times"
    )
    assert second == (
        "candidate: setup time (compiled 12.0 s, 3 MiB stay allocated, captured 500 ms), "
        "not part of the times"
    )
    assert pays.startswith("candidate breaks even after 25.0k calls (24.")


@pytest.mark.parametrize(("ratio", "sides"), [(0.5, ((COMPILED,), ())), (1.5, ((), (COMPILED,)))])
def test_what_does_not_pay_has_no_break_even(ratio, sides):
    (only,) = setup(ratio, *sides)
    assert "not part of the times" in only


def test_cold_caches_and_setup_stand_below_the_numbers():
    found = comparison(0.5, preparations=((), (COMPILED,)), cache="cold")
    said = words(section(comparison_document(found), "numbers"))
    assert said.index("cold caches") < said.index("setup time") < said.index("breaks even")
    assert "cold caches" not in words(comparison_document(comparison()))


def test_what_is_missing_has_its_reason():
    found = with_evidence()
    assert missing_lines(found) == [
        "counters: perf is not installed",
        "file on disk of candidate: OSError: no room",
    ]
    (bullets,) = section(comparison_document(found), "missing").blocks
    assert bullets.items == missing_lines(found)


def test_doubts_are_said_once():
    baseline = Samples("baseline", (1e-3,), notes=("few", "the machine is busy"))
    candidate = Samples("candidate", (1e-3,), notes=("few", "odd", "the machine is busy"))
    found = comparison(calls=(baseline, candidate), notes=("the machine is busy",) * 2)
    assert list(comparison_document(found).notes) == [
        "the machine is busy",
        "single calls: few",
        "single calls of candidate: odd",
    ]
    assert note_lines(with_evidence(notes=("busy", "busy"))).count("busy") == 1


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
    table = {row[0]: row for row in measured_rows(on_device())}
    assert list(table)[:3] == [SINGLE, SUSTAINED, BY_EVENTS]
    assert table[SUSTAINED][1:3] == ("250/s", "1.00k/s")
    assert table[SUSTAINED][3].startswith("4.00x (")
    assert table[BY_EVENTS][3] == "0.50x"


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


# ---------------------------------------------------------------- several comparisons


def test_several_comparisons_share_one_plot():
    found = [
        comparison(0.5).named("torch", "fast"),
        comparison(1.5).named("torch", "slow"),
        comparison(0.2, accuracy=WORSE).named("torch", "wrong"),
    ]
    (plot,) = blocks(comparisons_document(found), ForestPlot)
    assert plot.title == "speedup against torch"
    assert [row.label for row in plot.rows] == ["fast", "slow", "wrong"]
    assert [row.tone for row in plot.rows] == ["good", "bad", "bad"]
    outcomes = ["faster", "slower", "less accurate"]
    for row, each, outcome in zip(plot.rows, found, outcomes, strict=True):
        assert row.text.split("  ")[0].strip() == outcome
        assert row.text.endswith(speedup_text(each))
    lines = shown(render(comparisons_document(found))).splitlines()
    assert len({line.index("│") for line in lines[1:4]}) == 1


def test_a_row_of_many_says_what_stands_against_it():
    mute = unevaluated("candidate", "raised X", name="mute")
    unknown = unevaluated("baseline", "raised X", name="old")
    found = [
        comparison(0.5, outputs=OutputDifference(mismatch="other shapes")).named("old", "wrong"),
        comparison(0.5, not_measured=mute).named("old", "mute"),
        comparison(0.5, not_measured=unknown).named("old", "open"),
        comparison(0.2, accuracy=WORSE).named("old", "worse"),
    ]
    plot, notes = comparisons_document(found).blocks
    assert [row.text.split("  ")[0] for row in plot.rows[:2]] == ["broken outputs", "not evaluated"]
    assert notes.items == [
        "wrong gives broken outputs: other shapes",
        "mute raised X",
        "open: accuracy could not be compared: old raised X",
    ]


def test_unlike_baselines_are_named_in_every_row():
    found = [comparison().named("a", "b"), comparison().named("c", "d")]
    (plot,) = blocks(comparisons_document(found), ForestPlot)
    assert [row.label for row in plot.rows] == ["b : a", "d : c"]


def test_no_comparisons_are_no_error():
    assert shown(render(comparisons_document([]))) == "no comparisons\n"


# ---------------------------------------------------------------- as text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_terminal(width):
    long = with_evidence().named("a/very/long/path/to/old.py:make", "another/path/to/new.py:make")
    for document in (comparison_document(long), comparisons_document([long, long])):
        assert max(map(len, shown(render(document), width).splitlines())) <= width


def test_the_sides_are_described_below_the_verdict():
    about = ["baseline: mlp", "candidate: cnn"]
    lines = shown(render(comparison_document(comparison(), about=about))).splitlines()
    assert lines[2:4] == ["candidate against baseline", "baseline: mlp; candidate: cnn"]


def test_a_comparison_shows_itself_in_terminals_and_notebooks():
    found = comparison(0.5)
    assert shown(found) == shown(render(comparison_document(found)))
    assert "candidate is faster" in found._repr_html_()


def test_markdown_has_picture_numbers_and_folded_details():
    text = report_markdown(with_evidence(), about=["baseline: a"])
    assert text.startswith("### ✅ 1.25x faster\n")
    assert "```text\nspeedup" in text
    assert "| peak memory | 8 KiB | 4 KiB | 0.50x |" in text
    assert "| per call | baseline | candidate | ratio |" in text
    assert "- the machine is busy" in text
    assert "baseline: a" in text
    assert text.count("<details>") == text.count("</details>") == 3
    assert "<details>" not in report_markdown(comparison())


@pytest.mark.parametrize("name", [HOSTILE, "a|b", "```", "`x`"])
def test_a_name_breaks_no_markdown(name):
    text = report_markdown(with_evidence(notes=(name,)).named(name, f"{name}2"), about=[name])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert sum(line.startswith("| peak memory") for line in lines) == 1
    outside = [line for line in text.splitlines() if "`" not in line]
    assert all("<script" not in line for line in outside)
    bars = {line.replace("\\|", "").count("|") for line in lines}
    assert bars == {3, 5, 6, 7}  # scores, numbers, single calls, outputs
