import threading

import numpy as np
import pytest
from parts import require_part

from tinytorch.errors import SettingError
from tinytorch.measure import ceilings_cpu as bandwidth
from tinytorch.measure.ceilings_cpu import Crew, compiled_kernels, numpy_kernels

KIB = 1 << 10


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(bandwidth, "BLOCK_S", 1e-4)


class Watcher:
    """A kernel that remembers what it was given."""

    def __init__(self):
        self.seen, self.lock = [], threading.Lock()

    def __call__(self, source, target, repeats):
        with self.lock:
            self.seen.append((threading.get_ident(), source, target, repeats))
        np.sort(np.resize(source, 4096))  # takes a moment


def test_every_thread_works_on_memory_of_its_own():
    kernel = Watcher()
    with Crew(3) as crew:
        rates = crew.rates(kernel, 48 * KIB, values=2, is_copy=False)
    assert len(rates) == 2
    assert min(rates) > 0
    places = {(thread, source.ctypes.data) for thread, source, _, _ in kernel.seen}
    assert len({thread for thread, _ in places}) == 3
    assert len({place for _, place in places}) == 3


@pytest.mark.parametrize(("is_copy", "part"), [(False, 1), (True, 2)])
def test_the_working_set_is_divided_among_threads_and_in_a_copy_between_its_sides(is_copy, part):
    kernel = Watcher()
    with Crew(2) as crew:
        crew.rates(kernel, 64 * KIB, values=1, is_copy=is_copy)
    for _, source, target, _ in kernel.seen:
        assert source.nbytes == 64 * KIB // 2 // part
        assert target.nbytes == (source.nbytes if is_copy else 0)
        assert not np.shares_memory(source, target)


def test_no_more_memory_is_taken_than_the_working_set_and_it_is_filled_once(monkeypatch):
    taken, aligned = [], bandwidth._aligned
    monkeypatch.setattr(bandwidth, "_aligned", lambda words: taken.append(words) or aligned(words))
    with Crew(1) as crew:
        for is_copy in (False, True):
            crew.rates(Watcher(), 1024 * KIB, values=2, is_copy=is_copy)
    assert taken == [1024 * KIB // 8]


def test_memory_is_never_zeros_and_begins_with_a_cache_line():
    kernel = Watcher()
    with Crew(1) as crew:
        crew.rates(kernel, 1024 * KIB, values=1, is_copy=True)
    for _, source, target, _ in kernel.seen:
        assert np.count_nonzero(source) > 0.99 * source.size
        assert np.count_nonzero(target) > 0.99 * target.size
        assert source.ctypes.data % 64 == target.ctypes.data % 64 == 0


def test_calibration_ends_for_a_kernel_that_takes_no_time(monkeypatch):
    monkeypatch.setattr(Crew, "_run", lambda self, task, repeats: 1e-12)
    with Crew(1) as crew:
        assert crew.rates(Watcher(), 64 * KIB, values=1, is_copy=False)[0] > 0


def test_rates_count_the_bytes_of_all_threads(monkeypatch):
    monkeypatch.setattr(Crew, "_run", lambda self, task, repeats: 0.5 * repeats)
    with Crew(2) as crew:
        read = crew.rates(Watcher(), 64 * KIB, values=1, is_copy=False)
        copy = crew.rates(Watcher(), 64 * KIB, values=1, is_copy=True)
    assert read == copy == [2 * 64 * KIB]


def test_a_kernel_that_fails_does_not_hang_the_others():
    def fail(source, target, repeats):
        raise ZeroDivisionError

    with Crew(2) as crew, pytest.raises(ZeroDivisionError):
        crew.rates(fail, 64 * KIB, values=1, is_copy=False)


def test_memory_that_cannot_be_had_does_not_hang_the_others(monkeypatch):
    monkeypatch.setattr(bandwidth, "_aligned", lambda words: 1 / 0)
    with Crew(2) as crew, pytest.raises((ZeroDivisionError, threading.BrokenBarrierError)):
        crew.rates(Watcher(), 64 * KIB, values=1, is_copy=False)


def test_a_crew_has_members():
    with pytest.raises(SettingError, match="threads=0"):
        Crew(0)


@pytest.mark.parametrize("kernels", [numpy_kernels, compiled_kernels])
def test_kernels_read_and_copy(kernels, rng):
    if kernels is compiled_kernels:
        require_part("numba")
    found = kernels()
    source = rng.integers(-1000, 1000, 64)
    before, target = source.copy(), np.zeros_like(source)
    found.read(source, target, 3)
    assert not target.any()
    found.copy(source, target, 3)
    np.testing.assert_array_equal(source, before)
    np.testing.assert_array_equal(target, before)
