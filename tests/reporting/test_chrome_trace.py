import json
from itertools import pairwise

import pytest
from example_profiles import example_profile, training_profile

from tinytorch.reporting.profile_export import chrome_trace


@pytest.fixture(params=[example_profile, training_profile], ids=["inference", "training"])
def profile(request):
    return request.param()


def events(trace, kind):
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def rounded(event):
    """Begin and end in whole nanoseconds, which is what the trace is made from."""
    return round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)


def test_it_is_json(profile):
    trace = chrome_trace(profile)
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace


def test_no_two_events_of_a_thread_overlap_in_part(profile):
    threads = {}
    for event in events(chrome_trace(profile), "X"):
        threads.setdefault((event["pid"], event["tid"]), []).append(rounded(event))
    assert len(threads) >= 2
    for spans in threads.values():
        opened = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while opened and opened[-1] <= begin:
                opened.pop()
            assert not opened or end <= opened[-1]
            opened.append(end)


def test_counters_go_forward_in_time_and_are_never_negative(profile):
    counters = events(chrome_trace(profile), "C")
    assert all(before["ts"] <= after["ts"] for before, after in pairwise(counters))
    assert all(size >= 0 for event in counters for size in event["args"].values())
    assert max(sum(event["args"].values()) for event in counters) == profile.memory.peak_bytes


def test_every_counter_has_every_category(profile):
    counters = events(chrome_trace(profile), "C")
    assert {frozenset(event["args"]) for event in counters} == {
        frozenset({"parameters", "inputs", "activations"})
    }


def test_processes_and_threads_have_names():
    names = [event["args"]["name"] for event in events(chrome_trace(training_profile()), "M")]
    assert names == [
        "layers, in a watched call",
        "layers",
        "operations and memory, in the recorded call",
        "forward",
        "backward",
        "update",
    ]


def test_times_are_microseconds():
    layers = {event["name"]: event for event in events(chrome_trace(example_profile()), "X")}
    assert layers["example"]["dur"] == pytest.approx(10_000)
    head = next(
        event
        for event in events(chrome_trace(example_profile()), "X")
        if event["name"] == "head" and event["cat"] == "layer"
    )
    assert (head["ts"], head["dur"]) == (7000, 2000)
    assert head["args"]["macs per model call"] == 500


def test_operations_carry_shapes_and_costs():
    found = [e for e in events(chrome_trace(example_profile()), "X") if e["name"] == "linear"]
    assert [event["args"]["macs"] for event in found] == [1000, 1000, 500]
    assert found[0]["args"]["outputs"] == ["float32 (4, 10)"]
