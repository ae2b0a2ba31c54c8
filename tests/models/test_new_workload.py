"""New workload files run as they stand, whatever they are made from."""

import subprocess
import sys

import pytest
from parts import require_part

from tinytorch.cli.main import main
from tinytorch.errors import TargetError
from tinytorch.models import new_workload as starting
from tinytorch.models.new_workload import FACTORY, new_workload
from tinytorch.models.targets import load_workload


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Give a function that writes a file and loads its workload."""
    monkeypatch.chdir(tmp_path)

    def make(source=""):
        file = tmp_path / "yours.py"
        file.write_text(new_workload(file, source), "utf-8")
        return load_workload(f"{file}:{FACTORY}")

    return make


def accuracy(workload):
    return float(workload.evaluate(workload.model).mean())


def test_the_example_of_pytorch_is_trained_and_evaluated(made):
    require_part("torch")
    workload = made()
    assert tuple(workload.run().shape) == (32, 10)
    assert len(workload.calibration) == 3
    assert accuracy(workload) > 0.5


def test_without_pytorch_the_example_is_one_of_tinytorch(made, monkeypatch):
    monkeypatch.setattr(starting, "find_spec", lambda name: None)
    workload = made()
    assert type(workload.model).__module__ == "tinytorch.core.layers"
    assert accuracy(workload) > 0.5


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ("torch.nn:Linear", (8, 16)),
        ("torch.nn:TransformerEncoderLayer", (8, 16)),
        ("torch.nn:Embedding", (8, 16)),
        ("tinytorch.core.layers:Linear", (8, 16)),
        ("tinytorch.core.transformers:GPT", (8, 16)),
        ("small:Images", (8, 3, 224, 224)),
        ("small:Sounds", (8, 1024)),
        ("small:Two", (8, 5)),
    ],
)
def test_the_file_of_a_class_runs(made, tmp_path, source, shape):
    require_part("torch")
    (tmp_path / "small.py").write_text(SMALL)
    workload = made(source)
    assert tuple(workload.inputs[0].shape) == shape
    workload.run()
    assert len(workload.calibration) == 3


@pytest.mark.parametrize("place", ["package.inner", "package"])
def test_the_file_of_a_class_runs_from_any_folder(tmp_path, monkeypatch, capsys, place):
    require_part("torch")
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project / "package" / "inner", project / "work", elsewhere):
        folder.mkdir(parents=True)
    for folder in (project / "package", project / "package" / "inner"):
        (folder / "__init__.py").write_text(SMALL)
    monkeypatch.chdir(project)
    assert main(["new", "work/yours.py", "--from", f"{place}:Two"]) == 0
    program = (
        "from tinytorch.models.targets import load_workload\n"
        f"load_workload({str(project / 'work' / 'yours.py')!r} + ':make').run()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=elsewhere, check=True)
    subprocess.run([sys.executable, str(project / "work" / "yours.py")], cwd=elsewhere, check=True)


SMALL = """
from torch import nn

class Images(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
        import torch
        self(torch.ones(1, 3, 224, 224))

class Sounds(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (1024, 1))

    def forward(self, x, mean=False):
        return self.conv(x[:, None, :, None])

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x, y):
        return self.layer(x) + self.layer(y)

class Picky(nn.Module):
    def forward(self, x):
        raise ValueError("never")

class Unmade(nn.Module):
    def __init__(self, path):
        raise OSError(path)
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("small", "pass --from hf:PATH or"),
        ("small:Missing", "has no class or function 'Missing'"),
        ("small:Picky", "no inputs are found"),
        ("small:Unmade", r"Unmade\(path=16\) raised OSError"),
        ("hf:nowhere", r"there is no nowhere.config\.json"),
    ],
)
def test_what_makes_no_file_says_why(made, tmp_path, source, words):
    require_part("torch")
    (tmp_path / "small.py").write_text(SMALL)
    with pytest.raises(TargetError, match=words):
        made(source)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_the_file_of_a_folder_of_transformers_runs(made, tmp_path, name):
    require_part("torch")
    require_part("transformers")
    import tiny_transformers

    getattr(tiny_transformers, name)().save_pretrained(tmp_path / "folder")
    workload = made("hf:folder")
    assert workload.name == "folder"
    assert {key: tuple(value.shape) for key, value in workload.keywords.items()} == {
        key: tuple(value.shape) for key, value in load_workload("hf:folder").keywords.items()
    }
    workload.run()


def test_the_command_never_overwrites_unless_told(tmp_path, capsys, monkeypatch):
    require_part("torch")
    file = tmp_path / "yours.py"
    assert main(["new", str(file)]) == 0
    assert f"tinytorch optimize {file}:make" in capsys.readouterr().out
    file.write_text("mine")
    assert main(["new", str(file)]) == 2
    assert file.read_text() == "mine"
    assert main(["new", str(file), "--force"]) == 0
    assert file.read_text() != "mine"


@pytest.mark.parametrize("name", ["yours", "my-model.py", "nowhere/yours.py"])
def test_what_is_no_file_of_python_is_wrong_usage(tmp_path, name):
    assert main(["new", str(tmp_path / name)]) == 2
    assert not list(tmp_path.iterdir())
