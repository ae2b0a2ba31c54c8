import sys
from types import SimpleNamespace

import pytest

from tinytorch.measure.timing import (
    WALL,
    DeviceClock,
    calibrate_loops,
    fitting_clock,
    has_unseen_work,
    measure_time,
    running_cuda,
    times_single_calls,
    used_devices,
    wait_for_devices,
)


class Cuda:
    """Two devices, of which the second holds memory; the log says what happens."""

    def __init__(self, *, initialized=True):
        self.log = []
        self.initialized = initialized

    def is_initialized(self):
        return self.initialized

    def device_count(self):
        return 2

    def memory_reserved(self, device):
        return (0, 1024)[device]

    def synchronize(self, device):
        self.log.append(f"wait for {device}")


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    return found


def test_only_devices_that_hold_memory_are_waited_for(cuda):
    assert used_devices() == (1,)
    wait_for_devices(used_devices())
    assert cuda.log == ["wait for 1"]


@pytest.mark.parametrize(
    ("is_sustained", "happened"),
    [
        (False, ["wait for 1", "call", "wait for 1", "call", "wait for 1"]),
        (True, ["wait for 1", "call", "call", "wait for 1"]),
    ],
)
def test_every_call_is_waited_for_unless_calls_are_sustained(cuda, is_sustained, happened):
    seconds = DeviceClock(is_sustained).time(lambda: cuda.log.append("call"), 2)
    assert cuda.log == happened
    assert seconds > 0


def test_latency_on_a_device_is_one_call_however_short(cuda):
    assert times_single_calls(DeviceClock())
    assert calibrate_loops(lambda: None, DeviceClock()) == 1
    found = measure_time(lambda: None, clock=DeviceClock(), max_runs=5)
    assert (found.loops, found.count) == (1, 5)
    assert not times_single_calls(DeviceClock(is_sustained=True))


def test_without_a_device_short_calls_are_still_looped(cuda):
    cuda.initialized = False
    assert not times_single_calls(DeviceClock())
    assert calibrate_loops(lambda: None, DeviceClock()) > 1


def test_a_call_that_starts_cuda_is_waited_for(cuda):
    cuda.initialized = False

    def first_call():
        cuda.initialized = True

    DeviceClock().time(first_call, 1)
    assert cuda.log == ["wait for 1"]


def test_cuda_that_is_not_running_is_left_alone(cuda):
    cuda.initialized = False
    DeviceClock().time(lambda: None, 1)
    assert (used_devices(), cuda.log) == ((), [])


def test_without_torch_it_is_the_wall_clock(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert fitting_clock() is WALL
    assert used_devices() == ()


def test_with_torch_it_is_the_clock_that_waits(cuda):
    assert isinstance(fitting_clock(), DeviceClock)
    assert fitting_clock().resolution_s == WALL.resolution_s


@pytest.mark.parametrize(
    ("in_stream_s", "elsewhere_s", "is_unseen"),
    [(1e-3, 0.0, False), (1e-3, 5e-5, False), (1e-3, 5e-3, True), (0.1, 5e-3, False)],
)
def test_work_beside_the_current_stream_is_unseen(
    monkeypatch, cuda, in_stream_s, elsewhere_s, is_unseen
):
    now, left = [0.0], [0.0]

    def synchronize(device):
        now[0] += left[0]
        left[0] = 0.0

    def wait_for_stream():
        now[0] += in_stream_s

    def call():
        left[0] = elsewhere_s

    monkeypatch.setattr("tinytorch.measure.timing.perf_counter", lambda: now[0])
    cuda.synchronize = synchronize
    cuda.current_stream = lambda device: SimpleNamespace(synchronize=wait_for_stream)
    assert has_unseen_work(call, "cuda:0") is is_unseen


def test_without_a_device_nothing_is_unseen(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert running_cuda() is None
    assert not has_unseen_work(lambda: None, "cuda:0")
