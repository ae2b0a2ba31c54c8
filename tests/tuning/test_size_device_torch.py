import pytest
from parts import require_part

torch = require_part("torch")
from torch_workloads import mlp, workload

from tinytorch import Workload
from tinytorch.tuning.size_device_torch import (
    allocated_peak,
    forget_peak,
    free_bytes,
    give_memory_back,
    settings_in_force,
    take_settings,
)
from tinytorch.tuning.sizes import advise_batch_size

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_settings_go_over_to_another_process():
    before = settings_in_force()
    try:
        take_settings({"threads": 1, "matmul_precision": "high", "default_dtype": "float64"})
        assert settings_in_force() == {
            "threads": 1,
            "matmul_precision": "high",
            "default_dtype": "float64",
        }
    finally:
        take_settings(before)
    assert settings_in_force() == before


def test_giving_memory_back_starts_no_device():
    was_started = torch.cuda.is_initialized()
    give_memory_back()
    assert torch.cuda.is_initialized() is was_started


@on_cuda
def test_the_peak_is_what_was_allocated_at_most():
    forget_peak("cuda:0")
    before = torch.cuda.memory_allocated(0)
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda:0")
    del x
    assert allocated_peak("cuda:0") >= before + (1 << 20)
    assert free_bytes("cuda:0") > 0


@on_cuda
@pytest.mark.slow
def test_a_device_runs_out_of_memory_in_another_process():
    case = workload(mlp(1024), 1, 1024)
    there = Workload("there", case.model.cuda(), (case.inputs[0].cuda(),))
    advice = advise_batch_size(there, memory_limit_bytes=1 << 30, budget_s=10.0)
    assert advice.is_isolated
    assert advice.device == "cuda:0"
    assert advice.ceiling.limit.kind == "memory"
    assert advice.ceiling.failed < 1 << 18
    assert all(point.peak_bytes for point in advice.points)
    assert there.run().device.type == "cuda"
