import math

import pytest

from tinytorch.benchmarking.scenarios import Query, measure_offline, measure_single_stream
from tinytorch.benchmarking.suite_file import Offline, SingleStream


class Counting:
    """Count what is sent and what is waited for."""

    def __init__(self):
        self.sent = self.finished = 0

    def query(self):
        return Query(self.send, self.finish)

    def send(self):
        self.sent += 1

    def finish(self):
        self.finished += 1


def test_every_query_of_a_single_stream_is_waited_for():
    counting = Counting()
    latency = measure_single_stream(counting.query(), SingleStream(queries=50), budget_s=10)
    assert latency.count == 50
    assert counting.sent == counting.finished > 50
    assert all(value > 0 for value in latency.values)


def test_a_budget_that_is_used_up_still_gives_some_queries():
    latency = measure_single_stream(Counting().query(), SingleStream(), budget_s=1e-9)
    assert latency.count == 5
    assert any("p99 (368)" in note for note in latency.notes)


def test_enough_queries_leave_nothing_unknown():
    latency = measure_single_stream(Counting().query(), SingleStream(queries=400), budget_s=60)
    assert not any("too few" in note for note in latency.notes)
    assert math.isfinite(latency.percentile_interval(99).high)


def test_offline_waits_once_per_round():
    counting = Counting()
    throughput = measure_offline(counting.query(), Offline(), budget_s=0.02, examples=8)
    assert throughput.unit == "examples/s"
    assert throughput.count >= 6
    assert counting.finished < counting.sent
    assert throughput.loops > 1


@pytest.mark.parametrize(("examples", "unit"), [(None, "queries/s"), (1, "examples/s")])
def test_without_known_examples_queries_are_counted(examples, unit):
    throughput = measure_offline(Counting().query(), Offline(), budget_s=0.01, examples=examples)
    assert throughput.unit == unit


def test_throughput_counts_the_examples_of_a_query(monkeypatch):
    # A clock that advances by one second per reading makes every round one second long.
    from tinytorch.benchmarking import scenarios

    ticks = iter(range(10**6))
    monkeypatch.setattr(scenarios, "perf_counter", lambda: float(next(ticks)))
    throughput = measure_offline(Counting().query(), Offline(), budget_s=40.0, examples=8)
    assert set(throughput.values) == {8.0 * throughput.loops}
