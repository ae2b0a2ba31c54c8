import pytest
from parts import require_part

torch = require_part("torch")
require_part("triton")

from triton_cases import CASES, worst, worst_in_interpreter

has_cuda = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not has_cuda, reason="needs a CUDA device")
DTYPES = [torch.float32, torch.bfloat16]


@needs_cuda
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("name", ["joint", "fused", "gated"])
def test_on_a_device_it_is_right_to_rounding(name, is_early):
    share, case = worst(CASES[name], DTYPES, "cuda", is_early=is_early)
    assert share <= 1, case


@pytest.mark.slow
@pytest.mark.skipif(has_cuda, reason="a device computes it")
@pytest.mark.parametrize("name", ["joint", "fused", "gated"])
def test_without_one_the_interpreter_finds_it_right(name):
    share, case = worst_in_interpreter(name)
    assert share <= 1, case
