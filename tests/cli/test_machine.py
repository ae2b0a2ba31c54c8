import json

import pytest
from measure.imaginary import ceilings

from tinytorch.cli import machine as command
from tinytorch.cli.main import main
from tinytorch.measure.ceilings import Ceilings


@pytest.fixture
def asked(monkeypatch):
    """Replace measuring, and give the list of what it was asked for."""
    calls = []

    def give(device, *, refresh, progress):
        calls.append((device, refresh))
        progress.describe("L1 bandwidth")
        progress.advance()
        return ceilings(device=device)

    monkeypatch.setattr(command, "machine_ceilings", give)
    monkeypatch.setattr(command, "measuring_steps", lambda device: 2)
    return calls


def test_the_machine_is_shown(capsys, asked):
    assert main(["machine", "--verbose"]) == 0
    shown = capsys.readouterr()
    assert asked == [("cpu", False)]
    for words in ("Machine", "Matrix products", "Memory", "Roofline", "Not measured"):
        assert words in shown.out
    assert "about ten seconds" in shown.err


def test_nothing_is_announced_when_everything_is_known(capsys, monkeypatch):
    monkeypatch.setattr(command, "machine_ceilings", lambda device, **_: ceilings())
    assert main(["machine"]) == 0
    assert capsys.readouterr().err == ""


def test_machines_get_everything_as_json(capsys, asked):
    assert main(["machine", "--json", "--quiet"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert shown.err == ""
    assert result["command"] == "machine"
    assert Ceilings.from_dict(result["ceilings"]) == ceilings()
    assert result["environment"]["fingerprint"]
    assert result["bandwidth"]["DRAM"] == 40e9
    assert result["ridge"]["float32"] == pytest.approx(ceilings().ridge("float32"))
    assert set(result["peak_flops"]) == {"float32", "float64"}


def test_options_reach_the_measurement(asked, capsys):
    assert main(["machine", "--refresh", "--device", "cuda:1", "--quiet"]) == 0
    assert asked == [("cuda:1", True)]


def test_the_roofline_is_drawn(capsys, asked):
    assert main(["machine", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "⠉" in shown
    assert "FLOP per byte" in shown


def test_an_unknown_device_is_wrong_usage(capsys):
    assert main(["machine", "--device", "gpu"]) == 2
    assert "it must be cpu, cuda or cuda:N" in capsys.readouterr().err


def test_torch_is_imported_only_on_request(asked, monkeypatch, capsys):
    imported = []
    monkeypatch.setattr(command, "import_module", imported.append)
    assert main(["machine", "--quiet"]) == 0
    assert imported == []
    assert main(["machine", "--torch", "--quiet"]) == 0
    assert imported == ["tinytorch.measure.ceilings_torch"]


def test_a_missing_torch_names_the_extra(asked, monkeypatch, capsys):
    def fail(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(command, "import_module", fail)
    assert main(["machine", "--torch"]) == 2
    assert ".[torch]" in capsys.readouterr().err


def test_a_torch_that_is_broken_is_not_called_missing(asked, monkeypatch, capsys):
    def fail(name):
        raise ModuleNotFoundError("No module named 'sympy'", name="sympy")

    monkeypatch.setattr(command, "import_module", fail)
    assert main(["machine", "--torch"]) == 70
    assert "sympy" in capsys.readouterr().err


@pytest.mark.slow
def test_this_machine_can_be_measured(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))
    assert main(["machine", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["machine", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ceilings"] == first["ceilings"]
    assert shown.err == ""


# ---------------------------------------------------------------- kernels


@pytest.mark.slow
@pytest.mark.parametrize("refresh", [False, True])
def test_it_shows_which_kernels_win(capsys, refresh):
    assert main(["machine", "--kernels", "mlp", *(["--refresh"] if refresh else []), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "linear" in {row["op"] for row in shown["rows"]}
    assert main(["machine", "--kernels", "mlp"]) == 0
    assert "linear" in capsys.readouterr().out


def test_kernels_of_another_framework_are_an_error(capsys, tmp_path):
    (tmp_path / "other.py").write_text(
        "class Model:\n    def forward(self, x): return x\ndef make(): return Model(), 1.0\n"
    )
    assert main(["machine", "--kernels", f"{tmp_path}/other.py:make"]) == 2
    assert "--kernels needs a TinyTorch model" in capsys.readouterr().err
