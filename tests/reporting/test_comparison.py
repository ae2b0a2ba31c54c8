import pytest
from example_comparisons import comparison, contradictory, unevaluated, with_evidence
from terminal import shown

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.measure.samples import Samples
from tinytorch.models.workload import Preparation
from tinytorch.reporting.comparison import (
    render_comparison,
    render_comparisons,
    verdict_text,
)
from tinytorch.reporting.forest_plot import ratio_text

WORSE = compare_accuracy([1] * 400, [1, 0] * 200)


def first_line(found):
    return shown(render_comparison(found)).splitlines()[0]


@pytest.mark.parametrize(
    ("ratio", "spread", "words"),
    [
        (1 / 1.31, 0.01, "candidate is faster: 1.31x ({fast} to {faster}), n=13 rounds, 410 ms"),
        (1.2, 0.01, "candidate is slower: 1.20x the time ({low} to {high}), n=13 rounds, 410 ms"),
        (1.0, 0.002, "same: within 1% ({low} to {high} the time), n=13 rounds, 410 ms"),
        (
            1.0,
            0.1,
            "inconclusive (interval {fast} to {faster}); a larger budget may decide (n=13, 410 ms)",
        ),
    ],
)
def test_the_first_line_is_the_verdict(ratio, spread, words):
    found = comparison(ratio, spread=spread)
    ends = {
        "low": found.time_ratio_low,
        "high": found.time_ratio_high,
        "fast": found.speedup_low,
        "faster": found.speedup_high,
    }
    expected = words.format(**{name: ratio_text(end) for name, end in ends.items()})
    assert first_line(found) == expected


def test_names_of_ones_own_are_both_said():
    found = comparison(0.5).named("torch", "ours")
    assert verdict_text(found).startswith("ours is faster than torch: 2.00x (")
    assert "  torch    ours  ratio" in shown(render_comparison(found))


def test_a_loss_of_accuracy_comes_before_the_speed():
    lines = shown(render_comparison(comparison(0.5, accuracy=WORSE))).splitlines()
    assert lines[0] == (
        "candidate is less accurate: 50.00% against 100.00%, beyond the margin of 1 point; "
        "its speed does not count"
    )
    assert lines[1].startswith("candidate is faster: 2.00x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
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
        (
            {"accuracy": compare_accuracy([1, 0] * 3, [0, 1] * 3)},
            "accuracy is inconclusive: 3 lost, 3 gained of 6 ",
        ),
    ],
)
def test_what_is_not_as_good_comes_before_the_speed(changes, words):
    lines = shown(render_comparison(comparison(0.5, **changes)), 200).splitlines()
    assert lines[0].startswith(words)
    assert lines[1].startswith("candidate is faster: 2.00x")


def test_a_row_of_many_says_what_stands_against_it():
    mute = unevaluated("candidate", "raised X", name="mute")
    unknown = unevaluated("baseline", "raised X", name="old")
    found = [
        comparison(0.5, outputs=OutputDifference(mismatch="other shapes")).named("old", "wrong"),
        comparison(0.5, not_measured=mute).named("old", "mute"),
        comparison(0.5, not_measured=unknown).named("old", "open"),
    ]
    text = shown(render_comparisons(found), 120)
    lines = text.splitlines()
    assert "broken outputs" in lines[1]
    assert "not evaluated" in lines[2]
    assert "faster" in lines[3]
    assert lines[-3:] == [
        "- wrong gives broken outputs: other shapes",
        "- mute raised X",
        "- open: accuracy could not be compared: old raised X",
    ]


def test_where_mean_and_typical_calls_disagree_no_budget_is_asked_for():
    line = first_line(contradictory())
    assert line.startswith("inconclusive: typical calls and the mean disagree")
    assert "budget" not in line


def test_what_the_sides_are_stands_below_the_verdict():
    text = shown(render_comparison(comparison(), about=["baseline: mlp", "candidate: cnn"]))
    assert text.splitlines()[1:3] == ["baseline: mlp", "candidate: cnn"]


@pytest.mark.parametrize("width", [80, 120])
def test_everything_that_is_known_is_shown(width):
    found = with_evidence()
    ends = f"{ratio_text(found.time_ratio_low)} to {ratio_text(found.time_ratio_high)}"
    text = shown(render_comparison(found), width)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert f"time per call 1.00 ms 800 us 0.80x ({ends})" in rows
    assert "examples per second 8.00k 10.0k 1.25x" in rows
    assert "peak memory 8 KiB 4 KiB 0.50x" in rows
    assert "parameters 4 KiB 1 KiB 0.25x" in rows
    assert "file on disk 4.88 KiB - -" in rows
    assert "energy per call 0.500 J 0.250 J 0.50x" in rows
    assert "- file on disk of candidate: OSError: no room" in rows
    assert "- counters: perf is not installed" in rows
    assert "- the machine is busy" in rows
    assert "accuracy: not worse, 75.00% to 75.12%" in text
    words = " ".join(rows)
    assert "0 lost and 1 gained" in words
    assert "largest error 0.001 (0.0001 of the largest value), SQNR 61.5 dB" in words
    assert "top-1 agreement 99.0%" in words


def test_a_memory_that_neither_side_has_is_not_missed():
    assert "on a processor" not in shown(render_comparison(with_evidence()))


def test_percentiles_of_single_calls_say_how_many_calls_an_end_needs():
    text = shown(render_comparison(with_evidence()))
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("p")}
    assert "1.02 ms" in rows["p50"]
    assert "needs" not in rows["p90"]
    assert rows["p99"].count("to -, needs 368 calls") == 2
    assert "\n40 single calls" in text


def test_doubts_about_single_calls_are_said_once():
    baseline = Samples("baseline", (1e-3,), notes=("few", "the machine is busy"))
    candidate = Samples("candidate", (1e-3,), notes=("few", "odd", "the machine is busy"))
    found = comparison(calls=(baseline, candidate), notes=("the machine is busy",))
    notes = [line for line in shown(render_comparison(found)).splitlines() if line[:2] == "- "]
    assert notes == [
        "- the machine is busy",
        "- single calls: few",
        "- single calls of candidate: odd",
    ]


def test_several_comparisons_share_one_plot():
    found = [
        comparison(0.5).named("torch", "fast"),
        comparison(1.5).named("torch", "slow"),
        comparison(0.2, accuracy=WORSE).named("torch", "wrong"),
    ]
    lines = shown(render_comparisons(found)).splitlines()
    assert lines[0] == "speedup against torch"
    assert [line.split()[0] for line in lines[1:4]] == ["fast", "slow", "wrong"]
    assert "faster" in lines[1]
    assert "2.00x (" in lines[1]
    assert "slower" in lines[2]
    assert "less accurate" in lines[3]
    assert len({line.index("│") for line in lines[1:4]}) == 1


def test_unlike_baselines_are_named_in_every_row():
    found = [comparison().named("a", "b"), comparison().named("c", "d")]
    text = shown(render_comparisons(found))
    assert "b : a" in text
    assert "d : c" in text


def test_no_comparisons_are_no_error():
    assert shown(render_comparisons([])) == "no comparisons\n"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_terminal(width):
    long = with_evidence().named("a/very/long/path/to/old.py:make", "another/path/to/new.py:make")
    for picture in (render_comparison(long), render_comparisons([long, long])):
        assert max(map(len, shown(picture, width).splitlines())) <= width


def test_a_comparison_shows_itself():
    assert shown(comparison()) == shown(render_comparison(comparison()))


def test_what_is_no_part_of_the_times_stands_below_them():
    once = ((), (Preparation("compiled", 12.0, 3 << 20),))
    lines = shown(render_comparison(comparison(0.5, preparations=once, cache="cold"))).splitlines()
    at = lines.index("cold caches: emptied before every call, outside of its time")
    assert lines[at + 1].startswith("candidate: compiled once in 12.0 s, 3 MiB stay taken: not")
    assert lines[at + 2].startswith("candidate has made up for that after 24.0k calls (")


def test_a_notebook_shows_what_a_terminal_does():
    assert "candidate is faster" in comparison(0.5)._repr_html_()
