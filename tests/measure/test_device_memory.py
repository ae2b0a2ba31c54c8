import sys
from types import SimpleNamespace

import pytest

from tinytorch.errors import ModelError
from tinytorch.measure.memory import (
    DeviceMemory,
    device_memory,
    free_unused,
    peak_during,
    private_pool_bytes,
    shortage_text,
)
from tinytorch.measure.worker import is_out_of_memory

GIB = 1 << 30


class Cuda:
    """One device of 80 GiB, on which somebody else has 20."""

    def __init__(self):
        self.allocated, self.reserved, self.peak = 10 * GIB, 15 * GIB, 0
        self.segments, self.log = [], []

    def is_initialized(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def synchronize(self, device):
        self.log.append("wait")

    def mem_get_info(self, device):
        return 80 * GIB - 20 * GIB - self.reserved, 80 * GIB

    def memory_allocated(self, device):
        return self.allocated

    def memory_reserved(self, device):
        return self.reserved

    def reset_peak_memory_stats(self, device):
        self.peak = self.allocated

    def max_memory_allocated(self, device):
        return self.peak

    def memory_snapshot(self):
        return self.segments

    def empty_cache(self):
        self.log.append("emptied")


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    return found


class OutOfMemoryError(RuntimeError):
    pass


FULL = OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total ...")


def test_memory_that_is_kept_for_later_is_free(cuda):
    assert device_memory("cuda:0") == DeviceMemory(50 * GIB, 80 * GIB, 10 * GIB)


def test_a_processor_has_no_device_memory(cuda):
    assert device_memory("cpu") is None
    assert peak_during("cpu", lambda: None) is None
    assert private_pool_bytes("cpu") is None


def test_where_cuda_is_not_in_use_nothing_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert device_memory("cuda:0") is None
    free_unused()
    assert shortage_text(FULL, "cuda:0") == "it asked for 2.50 GiB more"


def test_a_peak_is_what_comes_on_top_of_what_was_there(cuda):
    def call():
        cuda.peak = 13 * GIB
        return "kept"

    assert peak_during("cuda:0", call) == 3 * GIB
    assert cuda.log == ["wait", "wait"]


def test_private_pools_are_those_with_a_number(cuda):
    cuda.segments = [
        {"device": 0, "total_size": 7, "segment_pool_id": (0, 0)},
        {"device": 0, "total_size": 20, "segment_pool_id": (0, 1)},
        {"device": 0, "total_size": 30, "segment_pool_id": [2, 0]},
        {"device": 1, "total_size": 100, "segment_pool_id": (0, 1)},
    ]
    assert private_pool_bytes("cuda:0") == 50
    assert private_pool_bytes("cuda") == 50
    del cuda.segments[1]["segment_pool_id"]
    assert private_pool_bytes("cuda:0") is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("sizes do not match"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_a_full_device_is_told_from_other_failures(error, expected):
    assert is_out_of_memory(error) is expected
    outer = ModelError("candidate raised")
    outer.__cause__ = error
    assert is_out_of_memory(outer) is expected


def test_a_shortage_has_its_numbers(cuda):
    outer = ModelError("candidate raised")
    outer.__cause__ = FULL
    assert shortage_text(outer, "cuda:0") == (
        "it asked for 2.50 GiB more; 50 of 80 GiB are free and 10 GiB are held by this program"
    )


def test_a_shortage_without_numbers_claims_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert "does not say" in shortage_text(RuntimeError("out of memory"), "cuda:0")


def test_unused_memory_is_given_back(cuda):
    free_unused()
    assert cuda.log == ["emptied"]
