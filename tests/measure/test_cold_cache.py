import sys

import numpy as np
import pytest

from tinytorch.errors import BackendError
from tinytorch.measure import timing as cold_cache
from tinytorch.measure.environment import Cache
from tinytorch.measure.timing import cache_flush, flushed_bytes, processor_flush

LEVELS = {"L1d": Cache(1 << 10, 2 << 10), "L2": Cache(8 << 10, 16 << 10)}


@pytest.fixture(autouse=True)
def _small_caches(monkeypatch):
    monkeypatch.setattr(cold_cache, "cache_levels", lambda cpus: LEVELS)


def test_more_is_read_than_all_caches_hold():
    assert flushed_bytes() == 2 * (18 << 10)


def test_a_processor_whose_caches_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setattr(cold_cache, "cache_levels", lambda cpus: {})
    with pytest.raises(BackendError, match=r'does not say how large its caches are.*cache="warm"'):
        processor_flush()


def test_the_buffer_is_memory_that_was_written(monkeypatch):
    made = []
    ones = np.ones
    monkeypatch.setattr(np, "ones", lambda *args: made.append(ones(*args)) or made[-1])
    flush = processor_flush()
    assert flush() is None
    assert made[0].nbytes == flushed_bytes()
    assert made[0].all()


def test_without_torch_this_thread_reads(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert cache_flush("cpu").__qualname__.startswith("processor_flush")
