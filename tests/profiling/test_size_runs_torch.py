import pytest
from parts import require_part

torch = require_part("torch")
from torch_workloads import mlp, workload

from tinytorch import Workload
from tinytorch.measure.memory import free_unused
from tinytorch.profiling.size_runs import SizeTrial, take_torch_settings, torch_settings
from tinytorch.tuning.sizes import advise_batch_size

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_settings_go_over_to_another_process():
    before = torch_settings()
    try:
        take_torch_settings({"threads": 1, "matmul_precision": "high", "default_dtype": "float64"})
        assert torch_settings() == {
            "threads": 1,
            "matmul_precision": "high",
            "default_dtype": "float64",
        }
    finally:
        take_torch_settings(before)
    assert torch_settings() == before


def test_giving_memory_back_starts_no_device():
    was_started = torch.cuda.is_initialized()
    free_unused()
    assert torch.cuda.is_initialized() is was_started


@on_cuda
def test_the_peak_is_what_was_allocated_at_most():
    case = workload(mlp(64), 1, 64)
    trial = SizeTrial(Workload("there", case.model.cuda(), (case.inputs[0].cuda(),)), "batch")
    with trial.environment():
        small, large = trial.attempt(1), trial.attempt(1 << 14)
    assert large.peak_bytes >= small.peak_bytes + (1 << 14) * 64 * 4
    assert trial.free_bytes() > 0


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
