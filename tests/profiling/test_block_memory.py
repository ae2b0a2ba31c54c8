import gc
import tracemalloc

import numpy as np
import pytest
from parts import require_part

from tinytorch.profiling.memory_profiler import MB, metering

MEGABYTE = 2**20
# What Python itself allocates beside the arrays: names, frames, the meters' own objects.
LITTLE = 64 * 1024


def test_numpy_is_measured_to_the_byte_but_for_python_objects():
    with metering() as memory:
        kept = np.ones(MEGABYTE, np.uint8)
        np.ones(3 * MEGABYTE, np.uint8)
    assert memory.allocated_bytes == pytest.approx(kept.nbytes, abs=LITTLE)
    assert memory.peak_above_baseline_bytes == pytest.approx(4 * MEGABYTE, abs=LITTLE)


def test_tensors_of_torch_are_measured_too():
    torch = require_part("torch")
    with metering() as memory:
        kept = torch.ones(MEGABYTE, dtype=torch.uint8)
        torch.ones(3 * MEGABYTE, dtype=torch.uint8)
    assert memory.tensors.peak_bytes == 4 * MEGABYTE
    assert memory.allocated_bytes == pytest.approx(kept.nbytes, abs=LITTLE)
    assert memory.peak_above_baseline_bytes == pytest.approx(4 * MEGABYTE, abs=LITTLE)


def test_the_numbers_can_be_read_inside_and_stay_afterwards():
    with metering() as memory:
        kept = bytearray(MEGABYTE)
        inside = memory.allocated_bytes
    del kept
    gc.collect()
    assert memory.allocated_bytes == pytest.approx(inside, abs=LITTLE)
    assert memory.allocated_bytes >= MEGABYTE


def test_stats_fit_together():
    with metering() as memory:
        kept = bytearray(2 * MEGABYTE)
    stats = memory.stats()
    assert stats["final_mb"] - stats["baseline_mb"] == pytest.approx(stats["allocated_mb"])
    assert stats["peak_mb"] >= stats["final_mb"] >= 2
    assert stats["process_after_mb"] * MB > len(kept)
    assert (stats["device_peak_mb"], stats["device_allocated_mb"]) == (None, None)


def test_blocks_may_be_nested():
    with metering() as outer:
        with metering() as inner:
            bytearray(2 * MEGABYTE)
        bytearray(5 * MEGABYTE)
    assert inner.peak_above_baseline_bytes == pytest.approx(2 * MEGABYTE, abs=LITTLE)
    assert outer.peak_above_baseline_bytes == pytest.approx(5 * MEGABYTE, abs=LITTLE)


def test_a_tracer_of_somebody_else_keeps_running():
    tracemalloc.start()
    try:
        with metering():
            pass
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    with metering():
        pass
    assert not tracemalloc.is_tracing()


def test_an_exception_ends_the_meters():
    kept = []

    def allocate_and_fail():
        kept.append(bytearray(MEGABYTE))
        raise KeyError

    with pytest.raises(KeyError), metering() as memory:
        allocate_and_fail()
    assert not tracemalloc.is_tracing()
    assert memory.stats()["allocated_mb"] >= len(kept[0]) / MB
