import json

import numpy as np
import pytest
from example_comparisons import comparison, contradictory, unevaluated

from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main
from tinytorch.comparison import compare as comparer
from tinytorch.comparison import self_check as checker
from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.evidence import NO_EVALUATE
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.comparison.processes import Isolated
from tinytorch.comparison.self_check import SelfCheck, Trial
from tinytorch.measure.estimate import Estimate
from tinytorch.records.store import open_store

WORSE = compare_accuracy([1] * 400, [1, 0] * 200)
FACTORIES = """
def much():
    return (lambda n: sum(range(n))), 20_000

def little():
    return (lambda n: sum(range(n))), 200

def broken():
    def call(n):
        raise RuntimeError("no more")
    return call, 1

def endless():
    import time
    return time.sleep, 30
"""
QUICK = ["--budget", "0.1", "--no-evidence"]


@pytest.fixture
def compared(monkeypatch):
    """Let the comparer give what the test says, and remember what it was asked."""
    asked = {}

    def arrange(found):
        def compare(*sides, **settings):
            asked.update(settings, sides=sides)
            return found

        monkeypatch.setattr(comparer, "compare", compare)
        return asked

    return arrange


def test_a_hundredfold_slowdown_is_a_regression(capsys, factory):
    assert main(["compare", factory("little"), factory("much"), *QUICK]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "candidate is slower: " in shown.splitlines()[1]
    assert "(baseline:" in shown
    assert "factories.py:little" in shown.replace("\n", "")


def test_json_has_sides_verdict_and_every_round(capsys, factory):
    assert main(["compare", factory("much"), factory("little"), *QUICK, "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == ""
    assert result["candidate"] == {"target": factory("little")}
    assert result["exit_code"] == 0
    assert result["comparison"]["verdict"] == "faster"
    assert len(result["comparison"]["rounds"]) == result["comparison"]["n"]
    assert result["record"] is None


def without_accuracy(reason):
    return comparison(0.8, not_measured={"accuracy": reason})


INCONCLUSIVE = comparison(1.0, spread=0.2)
UNDECIDED = compare_accuracy([1, 1, 0, 1] * 3, [1, 0, 0, 1] * 3)
KEPT = compare_accuracy([1, 1, 0, 1] * 200, [1, 1, 0, 1] * 200)
BROKEN = compare_outputs([np.ones(3)], [np.full(3, np.nan)])
OTHER_SHAPE = compare_outputs([np.ones(3)], [np.ones(4)])
NEARLY = comparison(0.99, spread=0.02)  # faster or the same, who knows


@pytest.mark.parametrize(
    ("found", "expected", "code"),
    [
        (comparison(0.8), None, ExitCode.FINE),
        (comparison(1.0, spread=0.001), None, ExitCode.FINE),
        (comparison(1.2), None, ExitCode.FAILED),
        (INCONCLUSIVE, None, ExitCode.INCONCLUSIVE),
        (contradictory(), None, ExitCode.INCONCLUSIVE),
        (comparison(0.8, accuracy=WORSE), None, ExitCode.ACCURACY),
        (comparison(1.2, accuracy=WORSE), None, ExitCode.ACCURACY),
        (comparison(0.8), "faster", ExitCode.FINE),
        (comparison(1.0, spread=0.001), "faster", ExitCode.FAILED),
        (INCONCLUSIVE, "faster", ExitCode.INCONCLUSIVE),
        (comparison(0.8), "same", ExitCode.FAILED),
        (comparison(1.0, spread=0.001), "same", ExitCode.FINE),
        (NEARLY, None, ExitCode.INCONCLUSIVE),
        (NEARLY, "not-slower", ExitCode.FINE),
        (comparison(1.2), "not-slower", ExitCode.FAILED),
        (comparison(0.8, accuracy=WORSE), "faster", ExitCode.ACCURACY),
        (comparison(0.8, accuracy=UNDECIDED), None, ExitCode.INCONCLUSIVE),
        (comparison(0.8, accuracy=UNDECIDED), "faster", ExitCode.INCONCLUSIVE),
        (comparison(1.2, accuracy=UNDECIDED), None, ExitCode.FAILED),
        (comparison(1.2, accuracy=UNDECIDED), "faster", ExitCode.FAILED),
        (comparison(0.8, accuracy=KEPT), None, ExitCode.FINE),
        (comparison(0.8, not_measured=unevaluated()), None, ExitCode.ACCURACY),
        (comparison(0.8, not_measured=unevaluated()), "faster", ExitCode.ACCURACY),
        (comparison(0.8, not_measured=unevaluated("baseline")), None, ExitCode.INCONCLUSIVE),
        (comparison(0.8, not_measured=unevaluated("baseline")), "faster", ExitCode.INCONCLUSIVE),
        (without_accuracy(NO_EVALUATE), None, ExitCode.FINE),
        (comparison(0.8, outputs=BROKEN), None, ExitCode.ACCURACY),
        (comparison(1.2, outputs=OTHER_SHAPE), "faster", ExitCode.ACCURACY),
    ],
)
def test_the_exit_code_is_the_verdict(compared, found, expected, code):
    compared(found)
    expect = ["--expect", expected] if expected else []
    assert main(["compare", "mlp", "cnn", *expect]) == code


EVALUATED = """
import numpy as np
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload

X = Tensor(np.ones((2, 4), np.float32))

def workload(model, evaluate=None):
    return Workload("w", model, (X,), evaluate=evaluate)

def fine():
    return workload(Linear(4, 3, rng=0), lambda model: np.ones(300))

def failing():
    return workload(Linear(4, 3, rng=0), lambda model: 1 / 0)

def broken():
    return workload(lambda x: np.full((2, 3), np.nan))
"""


@pytest.mark.parametrize(
    ("baseline", "candidate", "code", "words"),
    [
        (
            "fine",
            "failing",
            ExitCode.ACCURACY,
            "candidate could not be evaluated: ZeroDivisionError: division by zero",
        ),
        (
            "failing",
            "fine",
            ExitCode.INCONCLUSIVE,
            "accuracy could not be compared: baseline could not be evaluated: ZeroDivisionError",
        ),
        (
            "fine",
            "broken",
            ExitCode.ACCURACY,
            "candidate gives broken outputs: 6 of 6 values are not finite in output 0",
        ),
    ],
)
def test_a_candidate_that_is_not_as_good_is_named_before_the_numbers(
    capsys, tmp_path, baseline, candidate, code, words
):
    file = tmp_path / "evaluated.py"
    file.write_text(EVALUATED, "utf-8")
    targets = [f"{file}:{baseline}", f"{file}:{candidate}"]
    assert main(["compare", *targets, "--budget", "0.05", "--expect", "not-slower"]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert words in shown.partition(" candidate against baseline ")[0]


def test_settings_reach_the_comparer(compared):
    asked = compared(comparison())
    words = "--budget 3 --floor 2% --band 3% --confidence 99% --precision 0.5% --margin 2"
    assert main(["compare", "mlp", "cnn", *words.split(), "--timeout", "7", "--seed", "5"]) == 0
    assert asked["sides"] == ("mlp", "cnn")
    del asked["sides"], asked["progress"]
    assert asked == {
        "budget_s": 3.0,
        "floor": 0.02,
        "band": 0.03,
        "confidence": 0.99,
        "precision": 0.005,
        "margin": 2.0,
        "evidence": True,
        "timeout_s": 7.0,
        "cache": "warm",
        "timing": "latency",
        "is_known": None,
        "seed": 5,
    }


@pytest.mark.parametrize(("text", "margin"), [("5%", 0.05), ("0.05", 0.05), ("5", 5.0)])
def test_a_margin_is_a_share_or_a_number(compared, text, margin):
    asked = compared(comparison())
    assert main(["compare", "mlp", "cnn", "--margin", text]) == 0
    assert asked["margin"] == margin


def test_not_slower_stops_as_soon_as_that_is_known(compared):
    asked = compared(comparison())
    assert main(["compare", "mlp", "cnn", "--expect", "not-slower"]) == 0
    assert asked["is_known"](Estimate(0.95, 0.9, 1.005))
    assert not asked["is_known"](Estimate(1.0, 0.9, 1.1))


def test_one_target_may_run_in_two_environments(compared, tmp_path):
    asked = compared(comparison())
    (tmp_path / "bench.py").write_text(FACTORIES, "utf-8")
    words = ["--baseline-folder", str(tmp_path), "--candidate-env", "X=1", "--timeout", "9"]
    assert main(["compare", "mlp", *words]) == 0
    assert asked["sides"] == (
        Isolated("mlp", folder=str(tmp_path), timeout_s=9),
        Isolated("mlp", variables={"X": "1"}, timeout_s=9),
    )


def test_isolated_sides_keep_the_usual_patience(compared):
    asked = compared(comparison())
    assert main(["compare", "mlp", "cnn", "--isolate"]) == 0
    assert asked["sides"] == (Isolated("mlp"), Isolated("cnn"))


def test_the_same_target_twice_is_said_to_be_the_same(compared, capsys):
    compared(comparison(1.0, spread=0.001))
    assert main(["compare", "mlp", "mlp"]) == 0
    assert "(A/A)" in capsys.readouterr().out


def test_a_comparison_is_kept_as_a_record(compared, capsys, tmp_path):
    compared(comparison())
    file = tmp_path / "records.sqlite"
    assert main(["compare", "mlp", "cnn", "--save", "--store", str(file)]) == 0
    with open_store(file) as store:
        (record,) = store.find(kind="comparison")
    assert record.name == "cnn against mlp"
    assert record.settings["baseline"] == {"target": "mlp"}
    assert f"{record.hash[:12]} in {file}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mlp", "one target, mlp"),
        ("", "0 targets"),
        ("mlp cnn gpt", "3 targets"),
        ("mpl mlp", "did you mean 'mlp'?"),
        ("mpl mlp --isolate", "did you mean 'mlp'?"),
        ("no.py:x mlp", "there is no file no.py"),
        ("no.py:x mlp --isolate", "there is no file no.py in "),
        ("mlp --baseline-folder no-such-folder", "there is no folder no-such-folder"),
        ("mlp mlp --band 1", "1 percent is '1%'"),
        ("mlp mlp --precision 5", "5 percent is '5%'"),
        ("mlp mlp --band 0", "argument --band: '0'"),
        ("mlp mlp --floor=-1%", "is no share"),
        ("mlp mlp --floor nan", "'nan' is no share"),
        ("mlp mlp --margin nan", "'nan'"),
        ("mlp mlp --margin=-1%", "'-1%' is no share"),
        ("mlp mlp --confidence 5%", "'5%'"),
        ("mlp mlp --margin=-1", "'-1'"),
        ("mlp mlp --budget 0", "'0'"),
        ("mlp mlp --budget 5%", "'5%'"),
        ("mlp mlp --baseline-env X", "'X' is not NAME=VALUE"),
        ("mlp mlp --expect wonders", "invalid choice: 'wonders'"),
        ("mlp mlp --cache tepid", "invalid choice: 'tepid'"),
        ("mlp mlp --cache cold --isolate", "--cache cold"),
        ("mlp mlp --store x", "--store needs --save"),
        ("mlp mlp --trials 3", "--trials needs --selfcheck"),
        ("mlp cnn --selfcheck", "--selfcheck compares one target with itself"),
        ("--selfcheck --isolate", "--selfcheck runs in this process"),
        ("--selfcheck --cache cold", "--selfcheck runs in this process, with warm caches"),
        ("--selfcheck --trials 0", "is not a positive integer"),
    ],
)
def test_bad_input_is_wrong_usage(capsys, words, message):
    assert main(["compare", *words.split()]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_a_side_that_raises_is_named_and_not_called_slower(capsys, factory):
    assert main(["compare", factory("little"), factory("broken"), *QUICK]) == ExitCode.INVALID
    assert "candidate" in capsys.readouterr().err


def test_a_side_that_hangs_makes_the_measurement_invalid(capsys, factory):
    words = ["compare", factory("endless"), factory("little"), *QUICK, "--timeout", "0.2"]
    assert main(words) == ExitCode.INVALID
    assert "baseline did not return within 0.2 s" in capsys.readouterr().err


def test_the_self_check_is_shown(monkeypatch, capsys):
    asked = {}

    def self_check(target, **settings):
        asked.update(settings, target=target)
        return SelfCheck("cnn", (Trial("same", Estimate(1.001, 0.996, 1.006), 0.4),), "abc")

    monkeypatch.setattr(checker, "self_check", self_check)
    assert main(["compare", "--selfcheck", "cnn", "--trials", "3", "--budget", "0.5"]) == 0
    assert capsys.readouterr().out.startswith("No false alarm")
    assert (asked["target"], asked["trials"], asked["budget_s"]) == ("cnn", 3, 0.5)
    assert main(["compare", "--selfcheck", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["selfcheck"]["false_alarms"] == 0
    assert (asked["target"], asked["trials"]) == (None, 20)


def test_help_explains_exit_codes_and_expectations(capsys):
    assert main(["compare", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "5  accuracy is worse" in shown
    assert "also when the candidate cannot be" in shown
    assert "not-slower  at most --band slower" in shown


def test_a_report_is_written(compared, capsys, tmp_path):
    compared(comparison())
    file = tmp_path / "report.html"
    assert main(["compare", "mlp", "cnn", "--html", str(file)]) == ExitCode.FINE
    assert f"wrote {file}" in capsys.readouterr().err
    assert "baseline: mlp" in file.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp", "mlp", "--open"], "--open shows the report that --html FILE writes"),
        (["mlp", "mlp", "--html", "no/such/folder/x.html"], "there is no folder"),
        (["--selfcheck", "--html", "x.html"], "--html cannot be combined"),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_measuring(compared, capsys, arguments, message):
    asked = compared(comparison())
    assert main(["compare", *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert asked == {}
