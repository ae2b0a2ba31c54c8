import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from example_records import ENVIRONMENT, record, series

from tinytorch.measure.samples import Samples
from tinytorch.records.history import comparable, trends


def machine(fingerprint="0000000000000000", **changes):
    return {**ENVIRONMENT, "fingerprint": fingerprint, **changes}


def only(records, metric):
    """Return the one trend of records of one series."""
    (found,) = trends(records, metric)
    return found


def test_a_trend_is_one_median_per_record_in_the_order_of_dates():
    records = series([3.0, 1.0, 2.0])
    found = only(records[::-1], "latency")
    assert found.values == (3.0, 1.0, 2.0)
    assert found.key == records[0].series
    assert (found.metric, found.unit) == ("latency", "s")
    assert [point.hash for point in found.points] == [each.hash for each in records]
    assert found.points[0].commit == ENVIRONMENT["commit"]["hash"]
    assert found.last_change == pytest.approx(1.0)


def test_a_point_has_the_interval_of_its_median():
    (point,) = only([record(1.0)], "latency").points
    assert (point.interval.low, point.interval.high) == (0.99, 1.01)
    single = record(samples={"latency": Samples("latency", (1.0,))})
    assert only([single], "latency").points[0].interval is None


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": machine()},
        {"settings": {"batch": 1}},
        {"kind": "test"},
        {"name": "mlp"},
        {"unit": "ms"},
    ],
)
def test_unlike_records_are_never_merged(changes):
    mine, others = series([1.0, 2.0]), series([5.0, 6.0, 7.0], **changes)
    found = trends([*mine, *others], "latency")
    assert sorted(each.values for each in found) == [(1.0, 2.0), (5.0, 6.0, 7.0)]


def test_every_metric_has_its_own_trend():
    both = {"latency": Samples("latency", (1.0,)), "peak memory": Samples("m", (8.0,), "B")}
    found = trends([record(samples=both)])
    assert [(each.metric, each.unit) for each in found] == [("latency", "s"), ("peak memory", "B")]
    assert [each.metric for each in trends([record(samples=both)], "peak memory")] == [
        "peak memory"
    ]


def test_the_newest_trend_comes_first():
    records = [*series([1.0, 2.0], name="old"), record(name="new", hours=9)]
    assert [each.key.name for each in trends(records)] == ["new", "old"]


def test_records_without_the_metric_are_left_out():
    records = [record(), record(samples={})]
    assert len(only(records, "latency").points) == 1
    assert trends(records, "accuracy") == ()


def test_changes_are_found_in_a_trend(rng):
    values = np.repeat([1.0, 1.2], 12) + 0.01 * rng.standard_normal(24)
    found = only(series(values), "latency")
    assert [change.index for change in found.change_points] == [12]
    assert found.notes == ()


def test_a_drift_is_called_one(rng):
    values = np.linspace(1, 1.5, 50) + 0.005 * rng.standard_normal(50)
    (note,) = only(series(values), "latency").notes
    assert "slow drift" in note


def test_dates_in_the_future_are_noted():
    later = datetime.now(UTC) + timedelta(days=3)
    found = only([record(), record(created_at=later)], "latency")
    assert len(found.notes) == 1
    assert found.notes[0].startswith("1 of the dates")


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0], None), ([0.0, 1.0], None), ([2.0, 1.0], -0.5)]
)
def test_the_last_change_needs_something_before(values, expected):
    records = [
        record(samples={"x": Samples("x", (value,))}, hours=hours)
        for hours, value in enumerate(values)
    ]
    assert only(records, "x").last_change == expected


def test_a_trend_is_ready_for_json():
    fields = only(series([1.0] * 10 + [2.0] * 10), "latency").to_dict()
    read = json.loads(json.dumps(fields, allow_nan=False))
    assert read == fields
    assert read["name"] == "gpt"
    assert read["points"][0]["value"] == 1.0
    assert read["change_points"][0]["index"] == 10
    assert read["change_points"][0]["ratio"] == 2.0


def test_equal_circumstances_are_comparable():
    busy = {**ENVIRONMENT, "load_average": 9.0, "commit": None}
    assert comparable(record(), record(2.0, hours=5, environment=busy)) is None
    assert comparable(record(), record(), "latency") is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "test"}, "kind: measurement against test"),
        ({"name": "mlp"}, "name: gpt against mlp"),
        ({"settings": {"batch": 1, "device": "cpu"}}, "settings: batch 8 against 1"),
        ({"settings": {"batch": 8}}, "settings: device cpu against none"),
        (
            {"environment": machine(libraries={"numpy": "2.3.0"})},
            "machine: numpy 2.4.6 against 2.3.0",
        ),
        ({"environment": machine(usable_cores=4)}, "machine: usable cores 2 against 4"),
        ({"environment": machine(python="3.12.1")}, "machine: Python 3.11 against 3.12"),
        (
            {"environment": machine(memory_bytes=16 << 30)},
            "machine: memory (GiB) none against 16",
        ),
        (
            {"environment": machine()},
            "machine: c0ffee5eed15600d against 0000000000000000",
        ),
        ({"metric": "accuracy"}, "metrics: latency against accuracy"),
    ],
)
def test_the_reason_names_what_differs(changes, reason):
    assert comparable(record(), record(**changes)) == reason


def test_all_reasons_are_given():
    other = record(kind="test", settings={"batch": 1, "device": "cpu"}, environment=machine())
    reason = comparable(record(), other)
    assert [part.split(":")[0] for part in reason.split("; ")] == ["kind", "settings", "machine"]


def test_many_differences_are_cut():
    one = record(settings={str(n): 0 for n in range(9)})
    other = record(settings={str(n): 1.5 for n in range(9)})
    assert comparable(one, other).endswith("3 0 against 1.5 and 5 more")


@pytest.mark.parametrize(
    ("changes", "metric", "reason"),
    [
        ({"unit": "ms"}, "latency", "unit: s against ms"),
        ({}, "accuracy", "metric: accuracy is not in both"),
    ],
)
def test_a_metric_can_be_asked_for(changes, metric, reason):
    assert comparable(record(), record(**changes), metric) == reason
