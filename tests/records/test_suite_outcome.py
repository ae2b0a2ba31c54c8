import json

import pytest
from example_records import record

from tinytorch.benchmarking.suite_run import ENTRY_KIND, EntryOutcome
from tinytorch.measure.samples import Samples


def entry_record(scenario="single-stream", *, samples=None, **details):
    settings = {"target": "mlp", "scenario": {"name": scenario}}
    return record(
        kind=ENTRY_KIND,
        name=f"mlp/batch 4/numpy/none/{scenario}",
        samples=samples or {},
        settings=settings,
        details={"examples": 4, **details},
    )


def samples(metric, *values, unit="s"):
    return {metric: Samples(metric, values, unit)}


def test_an_outcome_shows_what_its_scenario_is_about():
    found = {
        scenario: EntryOutcome(entry_record(scenario, samples=samples(metric, 2.0))).main.name
        for scenario, metric in (
            ("single-stream", "latency"),
            ("offline", "throughput"),
            ("server", "rate"),
        )
    }
    assert found == {"single-stream": "latency", "offline": "throughput", "server": "rate"}


def test_the_label_is_the_name_without_the_scenario():
    outcome = EntryOutcome(entry_record("offline"))
    assert outcome.label == "mlp/batch 4/numpy/none"
    assert outcome.target == "mlp"


@pytest.mark.parametrize(
    ("scenario", "metric", "now", "before", "ratio"),
    [
        ("single-stream", "latency", 3.0, 2.0, 1.5),
        ("offline", "throughput", 3.0, 2.0, 2 / 3),
        ("server", "rate", 1.0, 2.0, 2.0),
    ],
)
def test_above_one_is_slower_whatever_was_measured(scenario, metric, now, before, ratio):
    outcome = EntryOutcome(
        entry_record(scenario, samples=samples(metric, now)),
        previous=entry_record(scenario, samples=samples(metric, before)),
    )
    assert outcome.time_ratio == pytest.approx(ratio)


def test_without_both_numbers_there_is_no_ratio():
    one = entry_record(samples=samples("latency", 1.0))
    assert EntryOutcome(one).time_ratio is None
    assert EntryOutcome(one, previous=entry_record()).time_ratio is None
    assert EntryOutcome(entry_record(), previous=one).time_ratio is None


@pytest.mark.parametrize(
    ("scenario", "metric", "value", "expected"),
    [("single-stream", "latency", 8.0, 2.0), ("offline", "throughput", 8.0, 0.125)],
)
def test_the_time_of_an_example_comes_from_either(scenario, metric, value, expected):
    outcome = EntryOutcome(entry_record(scenario, samples=samples(metric, value)))
    assert outcome.seconds_per_example == expected


@pytest.mark.parametrize(
    ("scenario", "metric", "ends"),
    [("single-stream", "latency", (0.25, 2.5)), ("offline", "throughput", (0.1, 1.0))],
)
def test_the_time_of_an_example_lies_in_its_interval(scenario, metric, ends):
    values = samples(metric, *range(1, 11))
    outcome = EntryOutcome(entry_record(scenario, samples=values))
    found = outcome.seconds_per_example_interval
    assert ends[0] <= found.low <= outcome.seconds_per_example <= found.high <= ends[1]


def test_a_single_value_or_a_standstill_has_no_interval():
    one = EntryOutcome(entry_record(samples=samples("latency", 1.0)))
    still = EntryOutcome(entry_record("offline", samples=samples("throughput", 0.0, 0.0, 1.0, 1.0)))
    assert one.seconds_per_example_interval is None
    assert still.seconds_per_example_interval is None
    assert EntryOutcome(entry_record()).seconds_per_example_interval is None


def test_a_failure_has_no_number():
    outcome = EntryOutcome(entry_record(failure="it broke"))
    assert outcome.failure == "it broke"
    assert outcome.main is None
    assert outcome.peak_bytes is None
    assert outcome.file_bytes is None
    assert outcome.accuracy is None
    assert outcome.seconds_per_example is None


def test_json_has_the_statistics_and_the_hash_of_the_record():
    made = entry_record(
        samples=samples("latency", *range(1, 11)),
        accuracy={"metric": "accuracy", "mean": 0.5, "scores": [0, 1]},
    )
    fields = json.loads(json.dumps(EntryOutcome(made, not_compared="no reason").to_dict()))
    assert fields["record"] == made.hash
    assert fields["latency"]["p50"]["value_s"] == 5.5
    assert fields["latency"]["count"] == 10
    assert fields["accuracy"] == {"metric": "accuracy", "mean": 0.5}
    assert fields["not_compared"] == "no reason"


def test_json_has_the_throughput_with_its_interval():
    made = entry_record("offline", samples=samples("throughput", *range(1, 11), unit="examples/s"))
    found = EntryOutcome(made).to_dict()["throughput"]
    assert found["low"] < found["median"] == 5.5 < found["high"]
    assert (found["unit"], found["rounds"]) == ("examples/s", 10)
