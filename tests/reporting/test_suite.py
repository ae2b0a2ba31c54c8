import pytest
from example_outcomes import ACCURACY, SERVER, outcome, single_stream
from terminal import shown

from tinytorch.benchmarking.suite_file import Suite, SuiteWorkload
from tinytorch.measure.samples import Samples
from tinytorch.reporting.suite import render_entries, render_suite


def suite_text(*outcomes, planned=None, width=200, **changes):
    return shown(render_suite("zoo", outcomes, planned=planned or len(outcomes), **changes), width)


def test_a_single_stream_shows_percentiles_with_intervals():
    text = suite_text(single_stream(), run="r1")
    assert text.startswith("zoo  run r1, 1 entry\n")
    row = next(line for line in text.splitlines() if line.startswith("mlp/batch 1"))
    for part in ("1.50 ms", "1.99 ms", "400", "1 MiB", "2 KiB", "97.6%", "97.1% to 98.0%"):
        assert part in row


def test_an_end_that_nobody_knows_is_a_dash():
    assert "to -" in suite_text(single_stream(count=20))


def test_offline_shows_throughput():
    values = tuple(1000.0 + position for position in range(20))
    text = suite_text(
        outcome("offline", {"throughput": Samples("throughput", values, "examples/s")})
    )
    assert "1.01k examples/s" in text
    assert "1.00k to 1.01k" in text or "1.01k to 1.01k" in text


def test_a_server_shows_its_rate_and_how_sure_it_is():
    latency = Samples("latency", (0.01,) * 400)
    rate = Samples("rate", (120.0,), "queries/s")
    text = suite_text(
        outcome("server", {"latency": latency, "rate": rate}, details={"server": SERVER})
    )
    for part in ("120", "shown twice", "130", "p99 <= 20.0 ms", "10.0 ms", "400"):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_confirmed": False}, "shown once"),
        ({"rate": None}, "none shown"),
        ({"bound_is_given": False}, "20.0 ms (own)"),
    ],
)
def test_a_rate_that_is_less_sure_says_so(changes, words):
    text = suite_text(outcome("server", details={"server": SERVER | changes}))
    assert words in text


def test_a_failure_has_its_reason_and_no_row():
    text = suite_text(outcome(details={"failure": "the wires are crossed", "accuracy": None}))
    assert "Failed: 1" in text
    assert "mlp/batch 1/numpy/none/single-stream: the wires are crossed" in text
    assert "p50" not in text


def test_the_last_run_is_a_ratio_or_a_reason():
    before = single_stream(factor=2.0).record
    assert "0.50x" in suite_text(single_stream(previous=before))
    reason = suite_text(single_stream(not_compared="machine: CPU a against b"))
    assert "not compared with the last run: machine: CPU a against b" in reason


def test_it_says_that_ratios_between_entries_are_no_comparisons():
    text = " ".join(suite_text(single_stream()).split())
    assert "one after the other" in text
    assert "`tinytorch compare` and `tinytorch gate` compare" in text


def test_an_unfinished_suite_says_how_far_it_came():
    assert "1 of 3 entries" in suite_text(single_stream(), planned=3)


def test_notes_that_are_alike_are_said_once():
    names = ("a", "b", "c")
    same = [single_stream(name=name, notes=("the same",)) for name in names]
    assert "- all entries: the same" in suite_text(*same)
    numbers = [
        single_stream(name=name, notes=(f"displaced {count} times",))
        for count, name in enumerate(names, start=5)
    ]
    text = suite_text(*numbers)
    assert text.count("displaced") == 1
    assert "- a/single-stream: displaced 5 times; the like of 2 more" in text
    some = suite_text(single_stream(name="x"), *same[:2])
    assert "- a/single-stream and 1 more: the same" in some


def test_what_is_missing_or_unusual_is_a_note():
    text = suite_text(
        single_stream(
            details={
                "accuracy": ACCURACY | {"metric": "log-likelihood", "mean": -1.2},
                "resources": {"not_measured": {"file_bytes": "no parameters"}},
            },
            kept_note="the result was not stored: disk full",
        )
    )
    assert "the score is log-likelihood" in text
    assert "no size: no parameters" in text
    assert "disk full" in text
    assert "-1.2 " in text


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(width):
    text = suite_text(single_stream(), single_stream(name="other"), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "p50" in text
    assert "mlp/batch 1/numpy/none" in text


def test_entries_can_be_listed():
    entries = Suite("zoo", [SuiteWorkload("mlp", batch_sizes=[1, 2])]).entries()
    text = shown(render_entries(entries))
    assert "mlp/batch 2/default/none/single-stream" in text
    assert entries[0].key in text
    assert "2 entries, none run" in text
