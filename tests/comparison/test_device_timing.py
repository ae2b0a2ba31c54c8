"""Latency is one synchronised call, throughput calls in a row, on a device that is scripted."""

import json
from functools import partial
from itertools import groupby

import pytest
from scripted_device import use_scripted_device

from tinytorch import compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import FASTER, SAME
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT

# Host and device seconds of a call. The eager model waits for Python all the time; the captured
# one needs as long to start as to run, which calls in a row hide.
EAGER, CAPTURED = (7.8e-3, 1e-6), (0.5e-3, 0.5e-3)


@pytest.fixture
def device(monkeypatch):
    return use_scripted_device(monkeypatch)


def compared(device, first=EAGER, second=CAPTURED, **settings):
    one, other = (
        partial(device.call, name, *seconds)
        for name, seconds in (("baseline", first), ("candidate", second))
    )
    return compare(one, other, **{"budget_s": 2.0, **settings})


def test_the_speedup_is_what_a_plain_synchronised_loop_shows(device):
    plain = device.plain_loop("baseline", *EAGER) / device.plain_loop("candidate", *CAPTURED)
    found = compared(device)
    assert plain == pytest.approx(7.8, rel=0.01)
    assert found.verdict == FASTER
    assert found.speedup == pytest.approx(plain, rel=0.01)
    assert found.speedup_interval.low <= plain <= found.speedup_interval.high
    assert (found.timing, found.is_on_device) == (LATENCY, True)


def test_sustained_calls_stand_beside_it(device):
    found = compared(device)
    # The first of some calls in a row is not hidden: a little less than 15.6.
    assert 13 < found.throughput_ratio < 15.7
    assert found.throughput_ratio_low <= found.throughput_ratio <= found.throughput_ratio_high
    assert found.latency_ratio == found.time_ratio


def test_with_throughput_sustained_calls_decide_and_single_ones_stand_beside(device):
    found = compared(device, timing=THROUGHPUT)
    assert found.speedup == pytest.approx(found.throughput_ratio)
    assert 13 < found.speedup < 15.7
    assert 1 / found.latency_ratio == pytest.approx(7.8, rel=0.01)


def test_what_overlaps_only_in_a_row_is_the_same_as_latency_and_faster_as_throughput(device):
    alike, overlapping = (1.0e-3, 1e-6), (0.5e-3, 0.501e-3)
    assert compared(device, alike, overlapping).verdict == SAME
    assert compared(device, alike, overlapping, timing=THROUGHPUT).verdict == FASTER


def test_every_single_call_is_waited_for_and_both_sides_make_as_many(device):
    found = compared(device, evidence=False)
    assert found.pace.loops[0] == found.pace.loops[1] > 1
    assert found.pace.calls_before == 2
    in_a_row = [len(list(group)) for each, group in groupby(device.log) if each != "wait"]
    assert max(in_a_row) == found.pace.calls_before, "which are not timed"
    sustained = compared(device, evidence=False, timing=THROUGHPUT)
    in_a_row = [len(list(group)) for each, group in groupby(device.log) if each != "wait"]
    assert max(in_a_row) >= max(sustained.pace.loops) > found.pace.loops[0]


def test_without_evidence_the_other_timing_is_measured_only_where_asked(device):
    assert compared(device, evidence=False).throughput_ratio is None
    assert compared(device, evidence=False, both_timings=True).throughput_ratio > 13


def test_very_slow_calls_are_not_made_again_for_the_other_timing(device):
    found = compared(device, (0.3, 0.01), (0.1, 0.01))
    assert found.beside is None
    assert THROUGHPUT in found.not_measured


def test_a_side_that_is_slow_at_first_is_warm_before_it_counts(device):
    calls = []

    def warming():
        calls.append(None)
        device.call("candidate", 1e-3 * (1 + 2 * 0.9 ** len(calls)), 1e-4)

    found = compare(
        partial(device.call, "baseline", 1e-3, 1e-4), warming, budget_s=5.0, evidence=False
    )
    assert found.candidate.values[0] == pytest.approx(found.candidate.values[-1], rel=0.2)


def test_it_is_kept_and_read_back(device):
    found = compared(device)
    fields = json.loads(json.dumps(found.to_dict()))
    again = Comparison.from_dict(fields)
    assert again.to_dict() == found.to_dict()
    assert fields["throughput_ratio"] == found.throughput_ratio
    assert fields["timing"] == LATENCY


def test_a_record_from_before_tells_neither_latency_nor_throughput(device):
    fields = compared(device, evidence=False).to_dict()
    for name in ("timing", "is_on_device", "beside", "device_times", "throughput_ratio"):
        del fields[name]
    old = Comparison.from_dict({**fields, "clock": "cuda events"})
    assert (old.latency_ratio, old.throughput_ratio, old.is_on_device) == (None, None, True)
    assert old.time_ratio == pytest.approx(fields["time_ratio"])


def test_a_processor_has_one_time_of_a_call():
    found = compare(lambda: sum(range(100)), lambda: sum(range(100)), budget_s=0.1)
    assert not found.is_on_device
    assert (found.latency_ratio, found.throughput_ratio, found.device_time_ratio) == (None,) * 3
    assert not {LATENCY, THROUGHPUT, "device_times"} & set(found.not_measured)


def test_another_timing_is_refused():
    with pytest.raises(SettingError, match="timing='speed'"):
        compare(lambda: 1, lambda: 1, timing="speed")
