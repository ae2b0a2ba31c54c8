import pytest

from tinytorch import Tensor, Workload
from tinytorch.core.layers import Linear, Sequential
from tinytorch.models.core import CoreAdapter
from tinytorch.profiling import model_profile as turns
from tinytorch.profiling.layers import BACKWARD, UPDATE
from tinytorch.profiling.model_profile import (
    FEWEST_CALLS,
    MAX_CALLS,
    MIN_CALLS,
    MOST_TRACED,
    TURNS,
    Task,
    time_in_turns,
)

X = Tensor([[1.0, 2.0]])


def task(**settings):
    model = Sequential(Linear(2, 2, rng=0), Linear(2, 1, rng=1))
    return Task(CoreAdapter(), Workload("tiny", model, (X,)), "cpu", **settings)


@pytest.mark.parametrize("runs", [1, 3, TURNS, 21])
def test_so_many_runs_are_made_both_ways(runs):
    timing = time_in_turns(task(), runs, 1.0, None)
    assert timing.latency.count == timing.watched.count == len(timing.runs) == runs
    assert sum(timing.turns) == runs
    assert len(timing.turns) == min(TURNS, runs)


def test_a_budget_decides_when_no_number_is_given():
    timing = time_in_turns(task(), None, 1e-6, None)
    assert timing.latency.count == FEWEST_CALLS
    assert time_in_turns(task(), None, 10.0, None).latency.count == MAX_CALLS


@pytest.mark.parametrize(("budget_s", "calls"), [(1.0, FEWEST_CALLS), (6.0, MIN_CALLS), (40.0, 20)])
def test_a_call_that_takes_a_second_is_made_no_more_often_than_needed(monkeypatch, budget_s, calls):
    monkeypatch.setattr(turns, "_call_once", lambda task: 1.0)
    assert sum(turns._calls_per_turn(task(), None, budget_s)) == calls


def test_every_layer_of_every_watched_call_is_there():
    timing = time_in_turns(task(), 3, 1.0, None)
    for run in timing.runs:
        assert sorted(call.path for call in run) == ["", "layers.0", "layers.1"]
        (whole,) = (call for call in run if call.path == "")
        assert all(whole.start <= call.start <= call.end <= whole.end for call in run)


def test_a_training_step_has_its_phases_after_the_layers():
    step = task(is_training=True)
    step.optimizer = step.adapter.make_optimizer(step.workload.model, "sgd")
    for run in time_in_turns(step, 2, 1.0, None).runs:
        moments = {call.path: call for call in run}
        assert moments[""].end <= moments[BACKWARD].start
        assert moments[BACKWARD].end <= moments[UPDATE].start


def test_a_cpu_does_not_run_behind_the_program():
    assert time_in_turns(task(), 2, 1.0, None).busy is None


def test_progress_is_told_of_every_turn():
    class Listener:
        def __init__(self):
            self.heard = []

        def describe(self, text):
            self.heard.append(text)

        def advance(self, steps=1):
            raise AssertionError("nobody knows how many steps a profile has")

    listener = Listener()
    time_in_turns(task(), 2, 1.0, listener)
    assert listener.heard == ["tiny: timing, turn 1 of 2", "tiny: timing, turn 2 of 2"]


# ---------------------------------------------------------------- calls that wait for their device


class FakeTrace:
    """A trace in which one second passes from mark to mark."""

    def __init__(self, has_kernels):
        self.has_kernels, self.marks = has_kernels, 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def mark(self):
        self.marks += 1
        return self.marks

    def seconds(self, begin, end):
        return float(end - begin)


class WaitingAdapter(CoreAdapter):
    """Calls on a device that never still waits when all of a call is queued up."""

    def __init__(self, trace):
        self.trace = trace

    def hold_back(self, device, seconds):
        return lambda: False

    def kernel_trace(self, device):
        return self.trace


class QueueingAdapter(CoreAdapter):
    """A device that has done its work 3 s after a call returned; its events see 2 s of it."""

    def __init__(self, now):
        self.now, self.left = now, 0.0

    def hold_back(self, device, seconds):
        return lambda: True

    def stamp(self, device):
        return lambda: 0.0

    def seconds(self, begin, end):
        return 2.0

    def synchronize(self, device):
        self.now[0] += self.left
        self.left = 0.0


def test_latency_is_one_synchronised_call_and_device_time_is_by_events(monkeypatch):
    now = [0.0]
    adapter = QueueingAdapter(now)

    def model(x):
        now[0] += 1.0
        adapter.left = 3.0
        return x

    monkeypatch.setattr(turns, "perf_counter", lambda: now[0])
    queueing = Task(adapter, Workload("w", model, (1,)), "cuda:0")
    timing = time_in_turns(queueing, 6, 1.0, None)
    assert timing.latency.values == (4.0,) * 6
    assert timing.device_time.values == (2.0,) * 6


def test_a_processor_has_no_device_time():
    assert time_in_turns(task(), 3, 1.0, None).device_time is None


def waiting_task(trace):
    found = task()
    return Task(WaitingAdapter(trace), found.workload, "cpu")


@pytest.mark.parametrize("runs", [3, 40])
def test_a_trace_tells_about_calls_that_wait_for_their_device(runs):
    timing = time_in_turns(waiting_task(FakeTrace(has_kernels=True)), runs, 1.0, None)
    assert timing.is_traced
    assert timing.latency.count == timing.device_time.count == runs
    count = min(runs, MOST_TRACED)
    assert timing.turns == (count,)
    assert timing.busy.values == timing.watched.values == (7.0,) * count
    moments = {call.path: (call.start, call.end) for call in timing.runs[-1]}
    assert moments == {"": (1, 6), "layers.0": (2, 3), "layers.1": (4, 5)}
    assert any("the times of layers are those of kernels in a trace" in x for x in timing.notes)


def test_of_long_calls_fewer_are_traced(monkeypatch):
    monkeypatch.setattr(turns, "TRACED_S", 0.0)
    timing = time_in_turns(waiting_task(FakeTrace(has_kernels=True)), 20, 1.0, None)
    assert timing.turns == (turns.LEAST_TRACED,)
    assert timing.latency.count == 20


@pytest.mark.parametrize("trace", [None, FakeTrace(has_kernels=False)])
def test_without_a_trace_their_times_have_gaps(trace):
    timing = time_in_turns(waiting_task(trace), 12, 1.0, None)
    assert not timing.is_traced
    assert timing.busy.count == timing.watched.count == 12
    assert any("its times have gaps" in each for each in timing.notes)


def test_marks_are_made_as_before_after_a_trace():
    waiting = waiting_task(FakeTrace(has_kernels=True))
    before = waiting.stamp
    time_in_turns(waiting, 2, 1.0, None)
    assert waiting.stamp is before
