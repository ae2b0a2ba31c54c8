import sys
import threading
import tracemalloc

import numpy as np
import pytest

from tinytorch.measure import memory
from tinytorch.measure.memory import process_memory, traced_memory

pytestmark = pytest.mark.no_cover
"""What coverage keeps of the lines it has seen would be in the numbers."""

MB = 1_000_000
BOOKKEEPING = 20_000
"""What the meters, pytest and the interpreter allocate beside the arrays, in bytes."""


def block(megabytes):
    return np.ones(megabytes * MB, dtype=np.uint8)


@pytest.fixture
def foreign_tracer():
    """A tracer that somebody else has started."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def about(megabytes):
    return pytest.approx(megabytes * MB, abs=BOOKKEEPING)


def test_arrays_of_numpy_are_seen_to_the_byte():
    with traced_memory() as seen:
        kept = block(3)
        del_me = block(5)
        del del_me
    assert seen.allocated_bytes == about(3)
    assert seen.peak_above_baseline_bytes == about(8)
    assert kept.size == 3 * MB


def test_the_meter_can_be_read_inside_the_block():
    with traced_memory() as seen:
        kept = block(2)
        assert seen.allocated_bytes == about(2)
        del kept
        assert seen.allocated_bytes == about(0)
        assert seen.peak_above_baseline_bytes == about(2)


def test_after_the_block_the_numbers_stand_still():
    with traced_memory() as seen:
        block(1)
    before = seen.current_bytes, seen.peak_bytes
    with traced_memory():
        block(9)
    assert (seen.current_bytes, seen.peak_bytes) == before


def test_the_tracer_is_stopped_when_it_was_ours():
    assert not tracemalloc.is_tracing()
    with traced_memory(), traced_memory():
        assert tracemalloc.is_tracing()
    assert not tracemalloc.is_tracing()


def test_the_tracer_is_stopped_when_the_block_fails():
    with pytest.raises(ZeroDivisionError), traced_memory():
        1 / 0  # noqa: B018
    assert not tracemalloc.is_tracing()


def test_an_inner_block_reports_its_own_peak():
    with traced_memory() as outer:
        block(6)
        with traced_memory() as inner:
            block(2)
    assert inner.peak_above_baseline_bytes == about(2)
    assert outer.peak_above_baseline_bytes == about(6)


def test_an_inner_peak_belongs_to_the_outer_block_too():
    with traced_memory() as outer:
        kept = block(1)
        with traced_memory() as inner:
            block(7)
        block(2)
    assert inner.baseline_bytes == about(1)
    assert inner.peak_above_baseline_bytes == about(7)
    assert outer.peak_above_baseline_bytes == about(8)
    assert kept.size == MB


def test_blocks_that_follow_each_other_do_not_mix():
    with traced_memory() as outer:
        for megabytes in (4, 1, 2):
            with traced_memory() as inner:
                block(megabytes)
            assert inner.peak_above_baseline_bytes == about(megabytes)
    assert outer.peak_above_baseline_bytes == about(4)


def test_a_block_may_free_more_than_it_allocates():
    with traced_memory():
        kept = block(2)
        with traced_memory() as seen:
            del kept
    assert seen.allocated_bytes == about(-2)


def test_a_foreign_tracer_keeps_running(foreign_tracer):
    with traced_memory():
        block(1)
    assert tracemalloc.is_tracing()


def test_a_foreign_tracer_keeps_its_peak(foreign_tracer):
    before = tracemalloc.get_traced_memory()[0]  # what pytest did since the tracer began
    block(9)
    with traced_memory() as seen:
        block(2)
    assert seen.peak_above_baseline_bytes == about(2)
    assert tracemalloc.get_traced_memory()[1] - before == about(9)


def test_a_foreign_tracer_sees_the_peak_of_our_block(foreign_tracer):
    before = tracemalloc.get_traced_memory()[0]
    with traced_memory(), traced_memory():
        block(9)
    assert tracemalloc.get_traced_memory()[1] - before == about(9)


def test_a_tracer_stopped_by_others_is_no_error():
    with traced_memory() as seen:
        tracemalloc.stop()
    assert seen.current_bytes == 0


def test_blocks_overlap_in_threads():
    begun, leave = threading.Event(), threading.Event()
    seen = []

    def measure():
        with traced_memory() as meter:
            begun.set()
            leave.wait(10)
        seen.append(meter)

    with traced_memory() as outer:
        thread = threading.Thread(target=measure)
        thread.start()
        assert begun.wait(10)
    still_tracing = tracemalloc.is_tracing()
    block(3)
    leave.set()
    thread.join()
    assert still_tracing
    assert not tracemalloc.is_tracing()
    assert seen[0].peak_above_baseline_bytes == about(3)
    assert outer.peak_above_baseline_bytes == about(0)


def test_the_process_holds_what_was_touched():
    before = process_memory()
    kept = block(50)
    after = process_memory()
    assert kept.size == 50 * MB
    assert after.rss_bytes >= before.rss_bytes + 40 * MB  # other memory may have been given back
    assert after.peak_rss_bytes >= after.rss_bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads a file of Linux")
def test_a_mark_that_cannot_be_read_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "STATUS_FILE", tmp_path / "missing")
    assert process_memory().peak_rss_bytes is None


def test_windows_brings_its_own_mark():
    assert memory._high_water_mark(12345) == 12345


@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("freebsd14", 1024)])
def test_other_systems_are_asked_for_their_usage(monkeypatch, platform, unit):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(sys, "platform", platform)
    expected = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert memory._high_water_mark(None) == pytest.approx(expected, rel=0.1)  # it may still grow
