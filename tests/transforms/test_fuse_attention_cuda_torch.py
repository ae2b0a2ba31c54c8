"""Attention is fused on a CUDA device; elsewhere there is nothing to test."""

import pytest
from parts import require_part

torch = require_part("torch")

from attention_checks_torch import BOUNDS, case_of, counted, drawn, fused, is_same
from attention_models_torch import SPELLINGS, WIDTH, CausalSelfAttention, Written
from torch_workloads import seeded

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "late einsum", "lower buffer", "learned scale"])
def test_spellings_are_fused_on_cuda(name, dtype):
    if name == "lower buffer" and dtype is torch.float16:
        pytest.skip("its -1e9 is no number of float16: the model does not run")
    core, layout = SPELLINGS[name]
    model = seeded(Written, core, layout).to("cuda", dtype)
    case = case_of(model, drawn(2, 5, WIDTH, dtype=dtype).cuda())
    _, twin = fused(case)
    assert len(counted(twin, *case.inputs)) == 1
    assert is_same(case.model, twin, *case.inputs, bound=BOUNDS[dtype])


@needs_cuda
def test_fused_attention_needs_less_memory_on_cuda():
    attention = CausalSelfAttention(width=64, heads=4, longest=1024)
    case = case_of(seeded(lambda: attention).cuda(), drawn(2, 1024, 64).cuda())
    _, twin = fused(case)
    peaks = []
    for each in (case.model, twin):
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            each(*case.inputs)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] - peaks[1] > 2 * 4 * 1024 * 1024 * 4
