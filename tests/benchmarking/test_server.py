import numpy as np
import pytest

from tinytorch.benchmarking import scenarios as module
from tinytorch.benchmarking.scenarios import (
    MEETS,
    VIOLATES,
    Query,
    RealTime,
    measure_server,
    try_rate,
    verdict_limits,
)
from tinytorch.benchmarking.suite_file import Server
from tinytorch.measure.estimate import INCONCLUSIVE


class ImaginaryTime:
    """A clock that only waiting and answering move, so that every latency is known."""

    def __init__(self, service_s, late_s=0.0):
        self.seconds = 0.0
        self.service_s, self.late_s = service_s, late_s

    def now(self):
        return self.seconds

    def wait_until(self, moment):
        self.seconds = max(self.seconds, moment + self.late_s)

    def answer(self):
        self.seconds += self.service_s


def trial(timeline, arrivals, *, rate=0.1, bound_s=10.0, percentile=99.0, answer=None):
    return try_rate(
        answer or timeline.answer,
        np.asarray(arrivals, dtype=float),
        rate=rate,
        bound_s=bound_s,
        percentile=percentile,
        timeline=timeline,
    )


def test_latency_counts_from_the_scheduled_arrival():
    found = trial(ImaginaryTime(service_s=1.0), [0.0, 0.5, 5.0])
    # The second waits half a second for the first, the third finds nobody before it.
    assert found.latency.values == pytest.approx((1.0, 1.5, 1.0))
    assert found.lateness.values == pytest.approx((0.0, 0.0), abs=1e-9)


def test_a_stall_is_felt_by_everybody_who_arrives_meanwhile():
    timeline, calls = ImaginaryTime(service_s=0.001), []

    def stalling():
        calls.append(None)
        timeline.seconds += 1.0 if len(calls) == 1 else 0.001

    found = trial(timeline, np.arange(200) / 100, answer=stalling)
    # Whoever measures only the time of each call sees one slow query; a hundred had to wait.
    assert sum(value > 0.05 for value in found.latency.values) > 90


def test_waiting_times_are_those_of_queueing_theory(rng):
    service_s, busy = 1.0, 0.7
    arrivals = np.cumsum(rng.exponential(service_s / busy, 200_000))
    found = trial(ImaginaryTime(service_s), arrivals, rate=busy / service_s, bound_s=1e9)
    # Pollaczek and Khinchine, constant service; the error is about 1% for so many queries.
    expected = busy * service_s / (2 * (1 - busy))
    assert np.mean(found.latency.values) - service_s == pytest.approx(expected, rel=0.05)
    assert found.load == pytest.approx(busy)


def test_our_own_lateness_is_measured_and_part_of_the_latency():
    found = trial(ImaginaryTime(service_s=1.0, late_s=0.25), [0.0, 10.0])
    assert found.lateness.values == pytest.approx((0.25, 0.25))
    assert found.latency.values == pytest.approx((1.25, 1.25))


def test_a_trial_meets_violates_or_shows_nothing():
    apart = np.arange(400) * 10.0
    assert trial(ImaginaryTime(1.0), apart, bound_s=2.0).verdict == MEETS
    assert trial(ImaginaryTime(3.0), apart, bound_s=2.0).verdict == VIOLATES
    assert trial(ImaginaryTime(1.0), apart[:200], bound_s=2.0).verdict == INCONCLUSIVE


def test_a_hopeless_trial_ends_early_with_the_same_verdict():
    found = trial(ImaginaryTime(3.0), np.arange(400) * 10.0, bound_s=2.0)
    assert found.latency.count == found.late == verdict_limits(400, 99.0)[1]
    assert found.planned == 400


def imaginary_server(monkeypatch, timeline, settings, **changes):
    """Search a rate on an imaginary clock; single queries take what they take there."""
    from tinytorch.measure.samples import Samples

    alone = Samples("latency", (timeline.service_s,) * 20)
    monkeypatch.setattr(module, "measure_single_stream", lambda *_, **__: alone)
    query = Query(timeline.answer, lambda: None)
    return measure_server(query, settings, timeline=timeline, **({"budget_s": 1e9} | changes))


def test_the_rate_found_lies_below_what_the_worker_can_do(monkeypatch):
    timeline = ImaginaryTime(service_s=0.01)
    found = imaginary_server(monkeypatch, timeline, Server())
    assert found.is_complete
    assert found.is_confirmed
    assert 0.2 < found.rate * timeline.service_s < 1.0
    assert found.rate < found.too_high <= 1.11 * found.rate
    assert found.trial.verdict == MEETS
    assert found.bound_s == pytest.approx(0.05)
    assert any("5 times the median" in note for note in found.notes)


def test_a_burst_that_fits_into_the_bound_is_not_sustained(monkeypatch):
    # All of 736 queries would be answered within the bound, at any rate whatever.
    timeline = ImaginaryTime(service_s=0.005)
    found = imaginary_server(monkeypatch, timeline, Server(latency_bound_ms=4000))
    assert 0.8 < found.rate * timeline.service_s < 1.0
    assert found.trial.planned / found.rate >= 20 * found.bound_s


def test_a_rate_that_the_worker_cannot_keep_up_with_violates_any_bound():
    found = trial(ImaginaryTime(1.0), np.arange(400) * 0.99, rate=1 / 0.99, bound_s=1e6)
    assert found.late == 0
    assert found.verdict == VIOLATES


def test_a_trial_that_is_short_for_its_bound_says_so(monkeypatch):
    monkeypatch.setattr(module, "MOST_QUERIES", 1000)
    found = imaginary_server(
        monkeypatch, ImaginaryTime(service_s=0.001), Server(latency_bound_ms=2000)
    )
    assert found.rate * 0.001 < 1.0
    assert any("longer queues were not seen" in note for note in found.notes)


def test_a_tighter_bound_gives_a_lower_rate(monkeypatch):
    rates = [
        imaginary_server(
            monkeypatch, ImaginaryTime(service_s=0.01), Server(latency_bound_ms=bound)
        ).rate
        for bound in (20, 50, 200)
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_a_bound_below_the_service_time_has_no_rate(monkeypatch):
    found = imaginary_server(monkeypatch, ImaginaryTime(0.01), Server(latency_bound_ms=5))
    assert (found.rate, found.trial, found.is_confirmed) == (None, None, False)
    assert {each.verdict for each in found.trials} == {VIOLATES}


def test_too_few_queries_are_named_and_show_nothing(monkeypatch):
    settings = Server(latency_bound_ms=100, queries=200)
    found = imaginary_server(monkeypatch, ImaginaryTime(0.01), settings)
    assert found.rate is None
    assert any("200 queries per rate cannot show" in note for note in found.notes)
    assert any("it takes 368" in note for note in found.notes)


def test_the_budget_ends_the_search(monkeypatch):
    found = imaginary_server(monkeypatch, ImaginaryTime(0.01), Server(), budget_s=1e-9)
    assert len(found.trials) == 1
    assert not found.is_complete
    assert not found.is_confirmed
    assert any("stopped by the time budget" in note for note in found.notes)


def test_late_arrivals_are_a_doubt(monkeypatch):
    timeline = ImaginaryTime(service_s=0.01, late_s=0.02)
    found = imaginary_server(monkeypatch, timeline, Server(latency_bound_ms=100))
    assert any("arrivals were up to 20 ms late" in note for note in found.notes)


def test_the_same_seed_gives_the_same_search(monkeypatch):
    searches = [
        imaginary_server(monkeypatch, ImaginaryTime(0.01), Server(), seed=seed).to_dict()
        for seed in (1, 1, 2)
    ]
    assert searches[0] == searches[1]
    assert searches[0] != searches[2]


def test_every_rate_that_was_tried_is_kept(monkeypatch):
    found = imaginary_server(monkeypatch, ImaginaryTime(0.01), Server())
    kept = found.to_dict()
    assert len(kept["trials"]) == len(found.trials) > 3
    assert {each["planned"] for each in kept["trials"]} == {736}
    assert {each["verdict"] for each in kept["trials"]} <= {MEETS, VIOLATES, INCONCLUSIVE}


def test_real_time_never_returns_too_early():
    clock = RealTime()
    for wait_s in (0.0, 1e-4, 5e-3):
        moment = clock.now() + wait_s
        clock.wait_until(moment)
        assert clock.now() >= moment


def test_a_real_server_can_be_searched():
    query = Query(lambda: sum(range(1000)), lambda: None)
    settings = Server(latency_bound_ms=10_000, percentile=50, queries=200)
    found = measure_server(query, settings, budget_s=0.05)
    assert found.trials[0].latency.count == found.trials[0].planned
    assert min(found.trials[0].latency.values) > 0
