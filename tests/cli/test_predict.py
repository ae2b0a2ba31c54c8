import json

import pytest

from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main
from tinytorch.profiling import size_scaling
from tinytorch.profiling.size_laws import Trend


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch):
    monkeypatch.setattr(size_scaling, "MAX_ROUNDS", size_scaling.MIN_ROUNDS)


def test_a_prediction_is_shown(capsys):
    assert main(["predict", "mlp", "--at", "16", "--sizes", "2,4,8", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "predicted at 16\n" in shown
    assert "\nmlp\ncore on cpu, by batch; example inputs have 1\n" in shown
    assert "FLOPs follow 218,368 n exactly at all 3 sizes" in shown


def test_a_prediction_speaks_json(capsys):
    arguments = ["--axis", "sequence", "--at", "16", "--sizes", "2 4 8", "--json", "--quiet"]
    assert main(["predict", "gpt", *arguments]) == 0
    captured = capsys.readouterr()
    scaling = json.loads(captured.out)["scaling"]
    assert captured.err == ""
    assert [point["size"] for point in scaling["points"]] == [2, 4, 8]
    assert scaling["axis"] == "sequence"
    assert (scaling["check"], scaling["holds"]) == (None, None)
    assert any(note.startswith("FLOPs follow") for note in scaling["notes"])


@pytest.mark.parametrize(
    ("holds", "code"),
    [(True, ExitCode.FINE), (False, ExitCode.FAILED), (None, ExitCode.INCONCLUSIVE)],
)
def test_the_check_decides_about_the_exit_code(capsys, monkeypatch, holds, code):
    monkeypatch.setattr(Trend, "holds", property(lambda trend: holds))
    arguments = ["--at", "16", "--sizes", "2,4,8", "--check", "--verbose"]
    assert main(["predict", "mlp", *arguments]) == code
    assert "16 (check)" in capsys.readouterr().out


def test_without_a_check_nothing_is_decided(monkeypatch):
    monkeypatch.setattr(Trend, "holds", property(lambda trend: False))
    assert main(["predict", "mlp", "--at", "16", "--sizes", "2,4,8"]) == ExitCode.FINE


def test_two_sizes_have_no_interval_in_json(capsys):
    arguments = ["--at", "16", "--sizes", "2,4", "--check", "--json"]
    assert main(["predict", "mlp", *arguments]) == ExitCode.INCONCLUSIVE
    scaling = json.loads(capsys.readouterr().out)["scaling"]
    assert scaling["time"]["interval"] is None
    assert scaling["holds"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp", "--at", "4", "--sizes", "8,16"], "at=4 is not above the sizes to measure"),
        (["mlp", "--at", "1"], "a trend needs two sizes below at=1"),
        (["mlp", "--at", "8", "--sizes", "a,b"], "--sizes 'a,b'"),
        (["mlp", "--at", "8", "--sizes", ","], "--sizes ','"),
        (["mlp", "--at", "8", "--axis", "width"], "axis 'width'; it is batch, sequence"),
        (["mlp", "--at", "8", "--axis", "7"], "no input has an axis 7"),
        (["mlp", "--at", "8", "--budget", "0"], "budget_s=0.0; it must be a number above 0"),
        (["nowhere.py:model", "--at", "8"], "there is no file nowhere.py"),
        (
            ["gpt", "--axis", "sequence", "--at", "100", "--sizes", "8,65"],
            "gpt refuses size 65 on axis 1: GPT sees at most 64 tokens",
        ),
    ],
)
def test_what_cannot_work_is_one_line(capsys, arguments, message):
    assert main(["predict", *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_the_size_to_predict_is_required(capsys):
    assert main(["predict", "mlp"]) == ExitCode.USAGE
    assert "--at" in capsys.readouterr().err
