import os
import subprocess
import sys

import pytest
from parts import require_part
from project_files import ROOT

torch = require_part("torch")
require_part("triton")

from triton_cases import CASES, worst

has_cuda = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not has_cuda, reason="needs a CUDA device")
DTYPES = [torch.float32, torch.bfloat16]


@needs_cuda
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("name", ["joint", "gated"])
def test_on_a_device_it_is_right_to_rounding(name, is_early):
    share, case = worst(CASES[name], DTYPES, "cuda", is_early=is_early)
    assert share <= 1, case


@pytest.mark.slow
@pytest.mark.skipif(has_cuda, reason="a device computes it")
@pytest.mark.parametrize("name", ["joint", "gated"])
def test_without_one_the_interpreter_finds_it_right(name):
    command = [sys.executable, str(ROOT / "tests" / "triton_cases.py"), name]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert ran.returncode == 0, ran.stderr
    share, _, case = ran.stdout.strip().rpartition("\n")[-1].partition(" ")
    assert float(share) <= 1, case
