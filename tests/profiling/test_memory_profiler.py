import tracemalloc

import numpy as np
import pytest
from classic_models import KINDS, call, leaving_no_trace, make_input, make_model

from tinytorch.errors import SettingError
from tinytorch.profiling.memory_profiler import MemoryProfiler, MemoryTracker, profile_memory

CONTRACT = {"baseline_mb", "final_mb", "peak_mb", "allocated_mb", "result"}
MEGABYTE = 2**20


def allocate(megabytes, *, scratch=0):
    bytearray(scratch * MEGABYTE)
    return np.ones(megabytes * MEGABYTE, np.uint8)


def test_profile_gives_the_keys_of_the_contract_and_the_result():
    stats = MemoryProfiler().profile(allocate, args=(2,), kwargs={"scratch": 5})
    assert stats.keys() >= CONTRACT
    assert stats["result"].nbytes == 2 * MEGABYTE


def test_memory_is_what_was_really_allocated():
    profiler = MemoryProfiler()
    stats = profiler.profile(allocate, args=(2,), kwargs={"scratch": 5})
    # A tenth of a megabyte is far more than Python's own objects need.
    assert stats["allocated_mb"] == pytest.approx(2, abs=0.1)
    assert stats["peak_mb"] - stats["baseline_mb"] == pytest.approx(5, abs=0.1)
    assert profiler.peak_memory == pytest.approx(5, abs=0.1)


def test_the_process_s_own_memory_is_given_beside_it():
    stats = MemoryProfiler().profile(allocate, args=(1,))
    assert stats["process_before_mb"] > 1
    assert stats["process_after_mb"] > 1
    assert stats["device_peak_mb"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_s_memory_covers_its_output_and_leaves_no_trace(kind):
    model, x = make_model(kind), make_input(kind, 4096, 8)
    getattr(model, "inner", model).eval()
    with leaving_no_trace(model):
        stats = MemoryProfiler().profile(model, args=(x,))
    hidden, output = 4096 * 16 * 4 / MEGABYTE, 4096 * 4 * 4 / MEGABYTE
    assert stats["peak_mb"] >= hidden + output
    assert tuple(stats["result"].shape) == (4096, 4)


def test_an_exception_leaves_tracing_as_it_was():
    with pytest.raises(ZeroDivisionError):
        MemoryProfiler().profile(lambda: 1 / 0)
    assert not tracemalloc.is_tracing()


def test_use_inside_use_is_safe():
    profiler = MemoryProfiler()

    def outer():
        inner = profiler.profile(allocate, args=(1,))
        return inner["result"], allocate(3)

    stats = profiler.profile(outer)
    assert stats["allocated_mb"] == pytest.approx(4, abs=0.1)
    assert not tracemalloc.is_tracing()


def test_a_tracer_that_somebody_started_keeps_running():
    tracemalloc.start()
    try:
        kept = bytearray(3 * MEGABYTE)
        stats = MemoryProfiler().profile(allocate, args=(1,))
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert stats["baseline_mb"] >= len(kept) / MEGABYTE
    assert stats["allocated_mb"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("tool", [MemoryTracker, MemoryProfiler])
def test_a_block_has_a_peak_in_megabytes(tool):
    with tool() as tracker:
        kept = allocate(1, scratch=4)
    assert tracker.peak_usage == pytest.approx(4, abs=0.1)
    assert tracker.current_usage == pytest.approx(kept.nbytes / MEGABYTE, abs=0.1)


def test_the_profiler_s_block_has_peak_memory():
    with MemoryProfiler() as profiler:
        allocate(2)
    assert profiler.peak_memory == pytest.approx(2, abs=0.1)


def test_one_tracker_may_be_entered_again_inside_its_block():
    tracker = MemoryTracker()
    with tracker:
        allocate(4)
        with tracker:
            allocate(2)
            assert tracker.peak_usage == pytest.approx(2, abs=0.1)
    assert tracker.peak_usage == pytest.approx(4, abs=0.1)
    assert not tracemalloc.is_tracing()


def test_a_tracker_without_a_block_says_so():
    with pytest.raises(SettingError, match="no block was measured yet"):
        _ = MemoryTracker().peak_usage


def test_profile_memory_passes_everything_on():
    stats = profile_memory(allocate, 1, scratch=2)
    assert stats.keys() >= CONTRACT
    assert stats["peak_mb"] == pytest.approx(2, abs=0.1)


def test_leaks_are_found_through_the_profiler():
    kept = []
    report = MemoryProfiler().detect_leak(kept.append, 8, args=(1,))
    assert len(report.readings) == 8
    assert kept == [1] * len(kept)


def test_arguments_that_are_no_tuple_are_refused():
    with pytest.raises(SettingError, match=r"args=\(x,\)"):
        MemoryProfiler().profile(call, args="ab")


def test_the_report_shows_what_was_measured(capsys):
    profiler = MemoryProfiler()
    profiler.print_report(profiler.profile(allocate, args=(3,)), "allocate")
    shown = capsys.readouterr().out
    assert "allocate: memory" in shown
    assert "3.00 MB" in shown
