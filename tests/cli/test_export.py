"""``tinytorch export``: what it prints, and its exit codes."""

import json

import pytest
from parts import require_part

for part in ("onnx", "onnxscript", "onnxruntime"):
    require_part(part)

from tinytorch.cli.export import FORMATS
from tinytorch.cli.main import main
from tinytorch.tuning import export as exporting


def test_formats_are_those_of_the_function():
    assert set(FORMATS) == set(exporting.FORMATS)


def test_a_folder_is_written_and_described(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "mlp"]) == 0
    assert "model.onnx" in capsys.readouterr().out
    assert (tmp_path / "mlp-onnx" / "run.py").is_file()


def test_json_has_the_inputs(tmp_path, capsys):
    assert main(["export", "mlp", "--output", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["exported"]
    assert found["inputs"][0]["shape"] == [None, 784]
    assert found["files"]["model.onnx"] == (tmp_path / "out" / "model.onnx").stat().st_size


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["mlp", "--to", "tensorrt"], 2),
        (["mlp", "--to", "aoti"], 2),
        (["nothing"], 2),
        (["broken.py:make"], 4),
    ],
)
def test_exit_codes(words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(
        "import numpy as np\nfrom tinytorch.core.layers import Linear\n"
        "from tinytorch import Tensor\n"
        "def make():\n    return Linear(3, 3).train(), Tensor(np.zeros((1, 3), np.float32))\n",
        "utf-8",
    )
    assert main(["export", *words]) == code
    assert capsys.readouterr().err
