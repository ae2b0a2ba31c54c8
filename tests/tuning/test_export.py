"""``export``: files that a process without TinyTorch runs, checked before they stay."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parts import hide_package, require_part

for part in ("onnx", "onnxscript", "onnxruntime", "openvino"):
    require_part(part)

import tinytorch
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import MissingPartError, ModelError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import load_zoo
from tinytorch.transforms.engines import files
from tinytorch.tuning.export import TOLERANCE, ExportedModel, export


def run_program(folder):
    """Run the program of a folder where TinyTorch cannot be imported."""
    code = (
        "import sys, runpy; sys.modules['tinytorch'] = None\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    words = [sys.executable, "-c", code, str(folder / "run.py")]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=folder)
    return done.stdout.split()


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 10)), ("cnn", (1, 10))])
def test_a_model_of_the_zoo_runs_without_tinytorch(name, shape, tmp_path):
    found = tinytorch.export(name, to="onnx", output=tmp_path / "out")
    assert set(found.files) == {"model.onnx", "run.py", "signature.json"}
    assert found.largest_error <= TOLERANCE
    assert found.inputs[0].shape[0] is None
    assert found.checked == ("the example", "batch 4")
    assert run_program(tmp_path / "out") == ["output", f"({shape[0]},", f"{shape[1]})", "float32"]


def test_openvino_gets_its_own_files(tmp_path):
    found = export("mlp", to="openvino", output=tmp_path / "out")
    assert set(found.files) == {"model.xml", "model.bin", "run.py", "signature.json"}
    assert run_program(tmp_path / "out")[0] == "output"


def test_tokens_are_checked_at_another_length(tmp_path):
    found = export("gpt", output=tmp_path / "out")
    assert found.inputs[0].shape == (None, None)
    assert found.checked[-1].startswith("sequence")
    assert ExportedModel.from_dict(found.to_dict()) == found


def test_a_pytorch_model_keeps_names(tmp_path):
    torch = require_part("torch")

    class Two(torch.nn.Module):
        def forward(self, x, mask):
            return {"masked": x * mask, "sum": x.sum(1)}

    given = (torch.randn(2, 3), torch.ones(2, 3))
    found = export(Workload("two", Two().eval(), given), output=tmp_path / "out")
    assert [each.name for each in found.inputs] == ["x", "mask"]
    assert found.outputs == ("masked", "sum")


@pytest.mark.slow
def test_a_package_is_compiled_for_a_pytorch_model(tmp_path):
    torch = require_part("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    found = export(Workload("it", model, (torch.randn(2, 4),)), to="aoti", output=tmp_path / "out")
    assert "model.pt2" in found.files


def test_what_was_optimized_is_exported_from_its_folder(tmp_path):
    torch = require_part("torch")
    from tinytorch.transforms.engines import OnnxRuntime
    from tinytorch.tuning.recipe import Recipe
    from tinytorch.tuning.saving import _write_files

    torch.manual_seed(0)
    workload = Workload("it", torch.nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    transform = OnnxRuntime()
    plan = transform.plan(workload)
    recipe = Recipe("it", "pytorch", "cpu", "Linear", ("onnxruntime",), (plan,), 1, "", {}, {})
    _write_files(tmp_path / "saved", transform.apply(workload, plan), recipe)
    for to in ("onnx", "openvino"):
        assert export(workload, to=to, output=tmp_path / to, optimized=tmp_path / "saved").files
    with pytest.raises(ModelError, match="ONNX Runtime"):
        export(workload, to="aoti", output=tmp_path / "aoti", optimized=tmp_path / "saved")
    assert not (tmp_path / "aoti").exists()


def test_int8_that_no_engine_takes_is_answered_with_one_that_does(tmp_path):
    torch = require_part("torch")
    require_part("torchao")
    from optimized_stacks import recommending

    from tinytorch.tuning.saving import save_optimized

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
    x = torch.randn(2, 4, 16, 16)
    workload = Workload("it", model.eval(), (x,), calibration=[(x,)])
    save_optimized(recommending(workload, "int8-static"), tmp_path / "best", workload=workload)
    with pytest.raises(ModelError, match="--only onnxruntime-int8-static") as caught:
        export(workload, to="aoti", output=tmp_path / "out", optimized=tmp_path / "best")
    assert "int8-static" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.onnx", b"cut off"),
        ("signature.json", b"{}"),
        ("recipe.json", b"not JSON"),
        ("signature.json", b"avx4096"),
    ],
)
def test_a_saved_engine_that_cannot_run_here_ends_with_4_and_loses_nothing(
    name, damage, tmp_path, monkeypatch, capsys
):
    torch = require_part("torch")
    from tinytorch.cli.main import main
    from tinytorch.transforms.engines import OnnxRuntime
    from tinytorch.tuning.recipe import Recipe
    from tinytorch.tuning.saving import _write_files

    monkeypatch.chdir(tmp_path)
    Path("it.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)\n"
    )
    workload = Workload("it", torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),))
    plan = OnnxRuntime().plan(workload)
    recipe = Recipe("it", "pytorch", "cpu", "Linear", ("onnxruntime",), (plan,), 1, "", {}, {})
    _write_files(tmp_path / "saved", OnnxRuntime().apply(workload, plan), recipe)
    place = tmp_path / "saved" / name
    if damage == b"avx4096":  # compiled on a machine with other instructions
        fields = json.loads(place.read_text("utf-8")) | {"compiled_for": ["avx4096"]}
        damage = json.dumps(fields).encode()
    place.write_bytes(damage)
    before = {each.name: each.read_bytes() for each in (tmp_path / "saved").iterdir()}
    assert main(["export", "it.py:make", "--optimized", "saved", "--output", "out"]) == 4
    assert name in capsys.readouterr().err or b"avx4096" in damage
    assert {each.name: each.read_bytes() for each in (tmp_path / "saved").iterdir()} == before
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_where_outputs_differ(tmp_path, monkeypatch):
    workload = load_zoo("mlp")
    true = files.run_files

    def wrong(folder, calls):
        return [[array + 1 for array in each] for each in true(folder, calls)]

    monkeypatch.setattr("tinytorch.tuning.export.run_files", wrong)
    with pytest.raises(ModelError, match="nothing was written"):
        export(workload, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_does_not_open_is_an_error_with_its_words(tmp_path):
    found = export("mlp", output=tmp_path / "out")
    (tmp_path / "out" / "model.onnx").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="fresh process"):
        files.run_files(tmp_path / "out", [{found.inputs[0].name: np.zeros((1, 784), np.float32)}])


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("return x if x.sum() > 0 else -x", "values of its inputs"),
        ("return torch.linalg.svd(x)[1]", "linalg_svd"),
    ],
)
def test_what_torch_cannot_export_is_named_with_its_line(code, place, tmp_path):
    torch = require_part("torch")
    source = tmp_path / "odd.py"
    source.write_text(
        "import torch\nclass Odd(torch.nn.Module):\n    def forward(self, x):\n"
        f"        {code}\ndef make():\n    return Odd().eval(), torch.randn(2, 3)\n",
        "utf-8",
    )
    assert torch is not None
    with pytest.raises(ModelError, match=place) as caught:
        export(f"{source}:make", output=tmp_path / "out")
    assert "odd.py:4" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_tinytorch_model_is_not_compiled_by_torch(tmp_path):
    with pytest.raises(SettingError, match="onnx"):
        export("mlp", to="aoti", output=tmp_path / "out")


def test_settings_are_checked_before_anything_is_made(tmp_path):
    with pytest.raises(SettingError, match="openvino"):
        export("mlp", to="tensorrt", output=tmp_path)
    (tmp_path / "there").write_text("", "utf-8")
    with pytest.raises(SettingError, match="exists"):
        export("mlp", output=tmp_path)


def test_an_engine_that_is_missing_names_the_extra(monkeypatch, tmp_path):
    hide_package(monkeypatch, "openvino")
    with pytest.raises(MissingPartError, match="engines"):
        export("mlp", to="openvino", output=tmp_path / "out")


def test_a_layer_with_state_of_its_own_is_not_changed(tmp_path):
    model = Linear(3, 3).eval()
    before = model.weight.data.copy()
    export(Workload("it", model, (Tensor(np.ones((2, 3), np.float32)),)), output=tmp_path / "out")
    assert np.array_equal(model.weight.data, before)
    assert model.weight.grad is None
