import json

import pytest
import sized_targets
from example_advice import advice_of, curve

from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main
from tinytorch.tuning import sizes as size_advisor

QUICK = ["--budget", "0.3"]


@pytest.fixture
def asked(monkeypatch):
    """Give advice without measuring, and keep what was asked for."""
    found = {}

    def give(verb, **changes):
        def advise(target, **settings):
            found.update(settings, target=target, verb=verb)
            return advice_of(curve(), **changes)

        monkeypatch.setattr(size_advisor, verb, advise)
        return found

    return give


@pytest.mark.slow
def test_advice_is_shown(capsys):
    assert main(["advise", "mlp", "--sizes", "1,4", *QUICK]) == ExitCode.FINE
    shown = capsys.readouterr().out
    assert "batch size" in shown.splitlines()[0]
    assert "core on cpu, by batch size; example inputs have 1" in shown


def test_advice_speaks_json(asked, capsys):
    found = asked("advise_sequence_length", axis="sequence", unit="tokens")
    arguments = ["--sequence", "--sizes", "16 32", "--json", "--quiet", *QUICK]
    assert main(["advise", "gpt", *arguments]) == ExitCode.FINE
    assert found["sizes"] == (16, 32)
    captured = capsys.readouterr()
    advice = json.loads(captured.out)["advice"]
    assert captured.err == ""
    assert advice["points"][0]["latency"]["values"]
    assert (advice["axis"], advice["unit"], advice["recommended"]) == ("sequence", "tokens", 128)


def test_options_reach_the_advisor(asked):
    found = asked("advise_batch_size")
    limits = ["--latency", "12.5", "--memory", "64", "--tolerance", "5", "--axis", "0"]
    assert main(["advise", "mlp", "--batch", *limits, "--budget", "7"]) == ExitCode.FINE
    assert found["target"] == "mlp"
    assert found["latency_limit_s"] == pytest.approx(0.0125)
    assert found["memory_limit_bytes"] == 64 << 20
    assert (found["tolerance"], found["axis"], found["budget_s"]) == (0.05, 0, 7.0)
    assert found["sizes"] is None


@pytest.mark.parametrize(
    ("limit_s", "code"),
    [(3e-3, ExitCode.FINE), (1e-4, ExitCode.FAILED), (1.1e-3, ExitCode.INCONCLUSIVE)],
)
def test_the_limits_decide_about_the_exit_code(asked, capsys, limit_s, code):
    asked("advise_sequence_length", latency_limit_s=limit_s)
    assert main(["advise", "mlp", "--sequence"]) == code
    assert "batch size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp", "--sizes", "a"], "--sizes 'a'"),
        (["mlp", "--latency", "0"], "--latency 0; give a number above 0"),
        (["mlp", "--memory", "nan"], "--memory nan; give a number above 0"),
        (["mlp", "--tolerance", "200"], "--tolerance 200; give a number between 0 and 100"),
        (["mlp", "--budget", "inf"], "--budget inf; give a number above 0"),
        (["nowhere.py:model"], "there is no file nowhere.py"),
    ],
)
def test_what_cannot_work_is_one_line(capsys, arguments, message):
    assert main(["advise", *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.slow
def test_a_model_that_fails_gives_no_measurement(capsys):
    assert main(["advise", f"{sized_targets.FILE}:failing"]) == ExitCode.INVALID
    assert "fails on its own inputs" in capsys.readouterr().err


def test_batch_and_sequence_exclude_each_other(capsys):
    assert main(["advise", "mlp", "--batch", "--sequence"]) == ExitCode.USAGE
    assert "not allowed with" in capsys.readouterr().err
