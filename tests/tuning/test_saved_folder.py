"""A saved folder says how it is loaded and what was measured, and is loaded in a fresh process."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from example_optimizations import measured
from optimized_stacks import recommended, recommending
from project_files import ROOT

from tinytorch.errors import SettingError
from tinytorch.measure.memory import ProcessUse
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Preparation, Workload
from tinytorch.models.zoo import build_mlp, load_zoo
from tinytorch.tuning.fresh_process import ProcessMemory, measure_process_memory
from tinytorch.tuning.loading import load_optimized
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.saving import save_optimized

MINE = """
import numpy as np
from tinytorch import Tensor, Workload
from tinytorch.models.zoo import build_mlp

def workload():
    inputs = np.ones((4, 784), dtype=np.float32)
    return Workload("mine", build_mlp(rng=0), (Tensor(inputs),))
"""


def compared(workload, *stack, target="", **changes):
    """Give the optimization that recommends a stack, with an imaginary comparison."""
    found = recommending(workload, *stack)
    setup = ((), (Preparation("compiled", 12.5),))
    comparison = replace(measured(0.5, memory=0.25), preparations=setup)
    attempts = (replace(found.attempts[0], comparison=comparison),)
    fresh = Optimization(
        **{
            name: getattr(found, name)
            for name in ("name", "framework", "device", "settings", "advice", "model")
        },
        attempts=attempts,
        target=target,
        **changes,
    )
    return recommended(fresh)


def run_in(folder, code):
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


LOADED = """
import sys
from load import load
model = load()
print(type(model).__name__)
print(any(name == "tinytorch.tuning.search" for name in sys.modules))
"""


def test_a_fresh_process_loads_what_the_folder_holds_without_the_search(tmp_path):
    workload = load_zoo("mlp")
    optimization = compared(workload, "int8-dynamic", target="mlp")
    saved = save_optimized(optimization, tmp_path / "best", workload=workload)
    assert run_in(saved.path, LOADED).split() == ["Sequential", "False"]
    assert len((saved.path / "load.py").read_text("utf-8").splitlines()) < 20
    files = [each for each in saved.path.iterdir() if each.is_file()]
    assert saved.nbytes == sum(each.stat().st_size for each in files)
    assert type(load_optimized(saved.path)) is type(workload.model)


def test_a_target_in_a_file_is_found_from_the_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    workload = load_workload("mine.py:workload")
    optimization = compared(workload, "int8-dynamic", target="mine.py:workload")
    saved = save_optimized(optimization, "best", workload=workload)
    assert str(tmp_path) not in (saved.path / "load.py").read_text("utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'best')!r})\n{LOADED}"
    assert run_in(tmp_path / "elsewhere", code).split() == ["Sequential", "False"]


def test_without_a_target_the_loader_asks_for_a_function(tmp_path):
    workload = replace(load_zoo("mlp"), name='a "name"\nof two lines')
    saved = save_optimized(compared(workload, "int8-dynamic"), tmp_path / "best", workload=workload)
    code = (
        "from load import load\nfrom tinytorch.models.zoo import build_mlp\n"
        "print(type(load(lambda: build_mlp(rng=3))).__name__)"
    )
    assert run_in(saved.path, code).split() == ["Sequential"]


def test_the_readme_has_what_was_measured(tmp_path):
    workload = load_zoo("mlp")
    use = ProcessUse(400 << 20, 500 << 20, 600 << 20, 510 << 20, 1.5)
    process = ProcessMemory(use, None, {"saved": "it took too long"})
    optimization = compared(workload, "int8-dynamic", process=process)
    saved = save_optimized(optimization, tmp_path / "best", workload=workload)
    text = (saved.path / "README.md").read_text("utf-8")
    for part in (
        "2.00x",
        "n=",
        "margin 0.01",
        "parameters and live tensors",
        "compiled 12.5 s",
        "500 MiB",
        "it took too long",
        str(tuple(workload.inputs[0].shape)),
        "numpy",
    ):
        assert part in text, part


def test_bytes_of_tensors_are_not_called_memory(tmp_path):
    from tinytorch.reporting.optimization_words import headline

    optimization = compared(load_zoo("mlp"), "int8-dynamic")
    assert "4.00x smaller in parameters and live tensors" in headline(optimization)
    assert "smaller in memory" not in headline(optimization)


def test_what_a_result_knows_of_processes_is_in_its_json():
    use = ProcessUse(1, 2, None, None, 0.5)
    optimization = compared(load_zoo("mlp"), "int8-dynamic", process=ProcessMemory(use))
    read = Optimization.from_dict(json.loads(json.dumps(optimization.to_dict())))
    assert read.process == ProcessMemory(use)
    assert read.workload is None


def test_a_result_saves_itself_and_measures_processes(tmp_path):
    workload = load_zoo("mlp")
    optimization = replace(compared(workload, "int8-dynamic", target="mlp"), workload=workload)
    saved = recommended(optimization).save(tmp_path / "best")
    assert saved.process.not_measured == {}
    for side in (saved.process.baseline, saved.process.saved):
        assert 0 < side.before_bytes <= side.loaded_bytes
    assert "Memory of the process" in (saved.path / "README.md").read_text("utf-8")


def test_a_result_that_was_read_back_needs_the_workload(tmp_path):
    with pytest.raises(SettingError, match="has no model"):
        compared(load_zoo("mlp"), "int8-dynamic").save(tmp_path / "best")


def test_without_a_target_both_sides_are_measured_as_far_as_they_can(tmp_path):
    workload = Workload("mine", build_mlp(rng=0), load_zoo("mlp").inputs)
    saved = save_optimized(compared(workload, "int8-dynamic"), tmp_path / "best", workload=workload)
    process = measure_process_memory(Path(saved.path), workload)
    assert process.baseline is not None
    assert set(process.not_measured) == {"saved"}


ODD = """
import sys

if "prepared" not in sys.modules:
    raise RuntimeError("it imports only once something else was prepared")
from tinytorch.core.layers import Linear, Sequential

class Odd(Sequential):
    pass
"""
PREPARING = """
import sys, types

sys.modules["prepared"] = types.ModuleType("prepared")
import numpy as np
from odd import Linear, Odd
from tinytorch import Tensor, Workload

def make():
    model = Odd(Linear(64, 32, rng=0), Linear(32, 4, rng=1))
    return Workload("mine", model, (Tensor(np.ones((2, 64), np.float32)),))
"""


def test_a_module_that_does_not_import_alone_is_left_to_the_target(tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(ODD)
    (tmp_path / "mine.py").write_text(PREPARING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    workload = load_workload("mine.py:make")
    optimization = compared(workload, "int8-dynamic", target="mine.py:make")
    saved = save_optimized(optimization, tmp_path / "best", workload=workload)
    found = measure_process_memory(Path(saved.path), workload, target="mine.py:make")
    for name in ("prepared", "odd"):
        monkeypatch.delitem(sys.modules, name)
    assert found.not_measured == {}
    assert "model = load()" in (saved.path / "README.md").read_text("utf-8")


def test_where_no_process_was_measured_there_is_a_reason_and_no_table(tmp_path):
    workload = load_zoo("mlp")
    process = ProcessMemory(None, None, {"baseline": "no room", "saved": "no room"})
    optimization = compared(workload, "int8-dynamic", target="mlp", process=process)
    saved = save_optimized(optimization, tmp_path / "best", workload=workload)
    text = (saved.path / "README.md").read_text("utf-8")
    assert "| after loading |" not in text
    assert "saved: not measured: no room" in text
