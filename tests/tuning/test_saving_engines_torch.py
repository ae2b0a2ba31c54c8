"""What an engine computes is saved as its own files, and loaded without the float model."""

import subprocess
import sys

import pytest
from parts import require_part

torch = require_part("torch")
for part in ("onnx", "onnxscript", "onnxruntime"):
    require_part(part)

from tinytorch.errors import CheckpointError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.engines import OnnxRuntime
from tinytorch.tuning.loading import load_optimized
from tinytorch.tuning.optimize import optimize
from tinytorch.tuning.saving import write_stack


@pytest.fixture(scope="module")
def workload():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    return Workload("small", model.eval(), (torch.randn(2, 16),))


@pytest.fixture(scope="module")
def found(workload):
    result = optimize(workload, only=["onnxruntime"], budget_s=6.0, combinations=False)
    (attempt,) = [each for each in result.attempts if each.name == "onnxruntime"]
    assert attempt.comparison is not None, attempt
    return result


def test_a_result_comes_back_from_its_files_alone(workload, tmp_path):
    transform = OnnxRuntime()
    plan = transform.plan(workload)
    path = write_stack(tmp_path, workload, name="small", stack=["onnxruntime"], plans=[plan])
    again = load_optimized(path)
    assert type(again).__name__ == "EngineModel"
    torch.testing.assert_close(again(*workload.inputs), workload.model(*workload.inputs))


def test_a_saved_folder_loads_and_runs_in_a_fresh_process(found, workload, tmp_path):
    if found.recommended is None:  # whether it pays depends on the machine
        pytest.skip("ONNX Runtime is not faster here, so there is nothing to save")
    found.save(tmp_path / "best", workload=workload)
    names = {each.name for each in (tmp_path / "best").iterdir()}
    assert {
        "model.onnx",
        "signature.json",
        "recipe.json",
        "run.py",
        "load.py",
        "README.md",
    } == names
    code = (
        "import runpy, sys, torch\n"
        "model = runpy.run_path(sys.argv[1])['load']()\n"
        "print(tuple(model(torch.zeros(5, 16)).shape))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "best" / "load.py")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "(5, 4)"
    (tmp_path / "best" / "model.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"model\.onnx is missing"):
        load_optimized(tmp_path / "best")


def test_a_single_file_cannot_hold_it(found, workload, tmp_path):
    if found.recommended is None:
        pytest.skip("ONNX Runtime is not faster here, so there is nothing to save")
    with pytest.raises(SettingError, match="give a folder"):
        found.save(tmp_path / "best.safetensors", workload=workload)
