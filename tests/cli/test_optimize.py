import errno
import json
import os
from dataclasses import replace
from functools import partial

import pytest
from example_optimizations import inconclusive
from kept_attempts import UNUSABLE, optimization, timed, undecided

from tinytorch.cli import optimize as command
from tinytorch.cli import options as written_files
from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main
from tinytorch.models.targets import load_workload
from tinytorch.profiling.model_profile import profile_workload
from tinytorch.records.store import RecordStore, open_store
from tinytorch.transforms import plan
from tinytorch.tuning import attempt as limits
from tinytorch.tuning import catalog, optimize, saving
from tinytorch.tuning.attempt import NOT_TRIED, OUT_OF_TIME, Attempt, Settings
from tinytorch.tuning.records import add_record, optimization_record, origin_of

FACTORIES = """
import numpy as np
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload

X = Tensor(np.ones((2, 64), np.float32))

def fine():
    return Workload("fine", Linear(64, 48, rng=0), (X,))

def alone():
    return Linear(64, 48, rng=0)

def without_inputs():
    return Workload("without inputs", Linear(64, 48, rng=0), ())

def failing():
    return Workload("failing", Linear(64, 48, rng=0), (X,), evaluate=lambda model: 1 / 0)

def picky():
    model = Linear(64, 48, rng=0)

    def evaluate(candidate):
        if candidate is not model:
            raise KeyError("labels")
        return np.ones(168)

    return Workload("picky", model, (X,), evaluate=evaluate)

CALLS = []

class Dice:
    def __init__(self):
        self.inner = Linear(64, 48, rng=0)

    def forward(self, x):
        CALLS.append(x)
        return self.inner(x) * float(len(CALLS))

def dice():
    return Workload("dice", Dice(), (X,))
"""
LINEAR_QUICKLY = ["--budget", "0.3", "--only", "int8-weights", "--quiet"]


@pytest.fixture
def factory(tmp_path):
    file = tmp_path / "factories.py"
    file.write_text(FACTORIES, "utf-8")
    return lambda name: f"{file}:{name}"


@pytest.fixture
def optimized(monkeypatch):
    """Let the loop give what the test says, and remember what it was asked."""
    asked = {}

    def arrange(found, attempts=()):
        def fake(workload, *, on_attempt, **settings):
            asked.update(settings, workload=workload)
            for each in attempts:
                settings["progress"].describe(each.name)
                on_attempt(each)
                settings["progress"].advance()
            return found

        monkeypatch.setattr(optimize, "optimize", fake)
        return asked

    return arrange


def one_line(text):
    return " ".join(text.split())


# ---------------------------------------------------------------- asking


def test_settings_reach_the_loop(optimized):
    asked = optimized(optimization())
    words = (
        "--goal size --max-accuracy-drop 2% --max-output-error 0.5 --limit latency_ms=100 "
        "--limit size_mb=2.5 --budget 7 --no-combinations --restart --no-store --seed 3 "
        "--only int8-static int4-weights --skip int4-weights --batch 1,8 --sequence 64"
    )
    assert main(["optimize", "mlp", *words.split()]) == 0
    assert asked["workload"].name == "mlp"
    del asked["workload"], asked["progress"], asked["on_note"]
    assert asked == {
        "goal": "size",
        "max_accuracy_drop": 0.02,
        "max_output_error": 0.5,
        "limits": {"latency_ms": 100.0, "size_mb": 2.5},
        "budget_s": 7.0,
        "only": ["int8-static", "int4-weights"],
        "skip": ["int4-weights"],
        "combinations": False,
        "batch": (1, 8),
        "sequence": (64,),
        "store": None,
        "resume": False,
        "seed": 3,
        "target": "mlp",
    }


def test_by_default_everything_is_tried_and_kept(optimized):
    asked = optimized(optimization())
    assert main(["optimize", "mlp"]) == 0
    assert isinstance(asked["store"], RecordStore)
    assert (asked["resume"], asked["combinations"], asked["only"]) == (True, True, [])
    assert asked["budget_s"] == 120


def test_goals_and_limits_are_those_of_the_loop():
    assert plan.GOALS == command.GOALS
    assert tuple(limits.LIMITS) == command.LIMITS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no target"),
        (["--only", "int8-static", "mlp"], "no target"),
        (["mlp", "--limit", "speed=3"], "no limit is called 'speed'; there are latency_ms"),
        (["mlp", "--limit", "latency_ms"], "write NAME=NUMBER, such as latency_ms=100"),
        (["mlp", "--limit", "latency_ms=soon"], "'latency_ms=soon'"),
        (["mlp", "--limit", "latency_ms=0"], "must be a positive number"),
        (["mlp", "--budget", "0"], "budget_s=0.0; it must be a positive number"),
        (["mlp", "--budget", "nan"], "budget_s=nan"),
        (["mlp", "--max-accuracy-drop", "much"], "'much'"),
        (["mlp", "--max-accuracy-drop", "-1"], "max_accuracy_drop=-1.0"),
        (["mlp", "--only", "int8-dynamik"], "did you mean 'int8-dynamic'?"),
        (["mlp", "--skip", "int8-dynamik"], "did you mean 'int8-dynamic'?"),
        (["mlp", "--goal", "beauty"], "invalid choice: 'beauty'"),
        (["mlp", "--store", "x.sqlite", "--no-store"], "--no-store"),
        (["mlp", "--open"], "--open shows the report that --html FILE writes"),
        (["mlp", "--html", "no/such/folder/x.html"], "there is no folder"),
        (["mlp", "--markdown", "no/such/folder/x.md"], "there is no folder"),
        (["mlp", "--snippet", "no/such/folder/x.py"], "there is no folder"),
        (["mlp", "--save", "no/such/folder/x"], "there is no folder"),
        (["mlp", "--save", __file__], "a file that ends in"),
        (["mlp", "--list", "--html", "x.html"], "--list cannot"),
        (["nonsense"], "'nonsense'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_tried(optimized, capsys, words, message):
    asked = optimized(optimization())
    assert main(["optimize", *words]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert asked == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("option", ["--html", "--save", "--snippet", "--markdown"])
def test_a_folder_that_takes_no_files_is_refused(optimized, capsys, tmp_path, option):
    asked = optimized(optimization())
    tmp_path.chmod(0o500)
    assert main(["optimize", "mlp", option, str(tmp_path / "x.html")]) == ExitCode.USAGE
    assert "cannot be written" in capsys.readouterr().err
    assert asked == {}


@pytest.mark.parametrize("option", ["--html", "--save", "--snippet", "--markdown"])
def test_a_path_without_room_is_refused(optimized, capsys, tmp_path, monkeypatch, option):
    asked = optimized(optimization())

    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(written_files, "TemporaryFile", full)
    assert main(["optimize", "mlp", option, str(tmp_path / "x")]) == ExitCode.USAGE
    assert "No space left on device" in capsys.readouterr().err
    assert asked == {}


# ---------------------------------------------------------------- the answer

KEPT = Settings(limits={"latency_ms": 100.0})
BROKEN = Settings(limits={"latency_ms": 0.01})
LATE = Attempt(("captured",), NOT_TRIED, "the budget of 20 s was spent before", code=OUT_OF_TIME)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (optimization(), ExitCode.FINE),
        (optimization(timed("threads", ratio=1.3), *UNUSABLE), ExitCode.FINE),
        (optimization(*UNUSABLE), ExitCode.FINE),
        (optimization(undecided("threads"), timed("compiled", ratio=1.0)), ExitCode.INCONCLUSIVE),
        (optimization(undecided("threads"), timed("compiled")), ExitCode.FINE),
        (optimization(settings=KEPT), ExitCode.FINE),
        (optimization(timed("threads", ratio=1.3), settings=KEPT), ExitCode.FINE),
        (optimization(settings=BROKEN), ExitCode.FAILED),
        (optimization(*UNUSABLE, settings=KEPT), ExitCode.INCONCLUSIVE),
        (optimization(inconclusive("int8-static")), ExitCode.INCONCLUSIVE),
        (optimization(inconclusive("int8-static"), timed("compiled")), ExitCode.FINE),
        (optimization(inconclusive("int8-static", time=1.5)), ExitCode.FINE),
        (optimization(UNUSABLE[2]), ExitCode.INVALID),
        (optimization(UNUSABLE[2], settings=KEPT), ExitCode.INVALID),
        (optimization(UNUSABLE[3]), ExitCode.FINE),
        (optimization(timed("threads", ratio=1.3), LATE), ExitCode.INCONCLUSIVE),
        (optimization(timed("threads"), LATE), ExitCode.FINE),
        (optimization(was_interrupted=True), ExitCode.INTERRUPTED),
        (optimization(settings=BROKEN, was_interrupted=True), ExitCode.INTERRUPTED),
    ],
    ids=[
        "something helps",
        "nothing helps",
        "nothing could be timed",
        "nobody knows",
        "one helps, of one nobody knows",
        "limit kept",
        "nothing helps, limit kept",
        "limit broken",
        "limit not measured",
        "accuracy inconclusive",
        "one helps, of one accuracy is inconclusive",
        "slower, and accuracy inconclusive",
        "everything failed",
        "everything failed, with a limit",
        "skipped",
        "nothing helps so far, time is up",
        "one helps, time is up",
        "interrupted",
        "interrupted with a limit broken",
    ],
)
def test_the_exit_code_is_the_answer(optimized, found, code):
    optimized(found)
    assert main(["optimize", "mlp", "--no-store", "--quiet"]) == code


def test_what_helped_only_once_is_not_shown(optimized, capsys):
    again = timed("int8-dynamic", ratio=1.2)
    optimized(optimization(timed("int8-dynamic"), confirmations=(again,)))
    assert main(["optimize", "mlp", "--no-store"]) == ExitCode.INCONCLUSIVE
    assert "is not confirmed" in " ".join(capsys.readouterr().out.split())


def test_what_is_recommended_stands_below_the_verdict(optimized, capsys):
    optimized(optimization())
    assert main(["optimize", "mlp", "--no-store"]) == 0
    assert "int8-dynamic" in capsys.readouterr().out.splitlines()[1]


def test_json_has_everything_and_nothing_else_is_on_stdout(optimized, capsys):
    found = optimization()
    optimized(found)
    assert main(["optimize", "mlp", "--no-store", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result = json.loads(captured.out)
    assert (result["target"], result["exit_code"], result["record"]) == ("mlp", 0, None)
    assert result["optimization"]["recommended"] == "int8-dynamic"
    assert len(result["optimization"]["attempts"]) == len(found.attempts)


# ---------------------------------------------------------------- meanwhile


def test_every_finished_attempt_is_a_line(optimized, capsys):
    tried = (UNUSABLE[2], timed("int8-dynamic"))
    optimized(optimization(*tried), tried)
    assert main(["optimize", "mlp", "--no-store"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "threads: failed: RuntimeError: no threads"
    assert lines[1].startswith("int8-dynamic: 2.00x faster (")


def test_quiet_says_nothing(optimized, capsys):
    tried = (timed("int8-dynamic"),)
    optimized(optimization(*tried), tried)
    assert main(["optimize", "mlp", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------- files


def test_html_markdown_and_the_model_are_written(optimized, capsys, tmp_path, monkeypatch):
    optimized(optimization())
    monkeypatch.setattr(
        saving,
        "save_optimized",
        lambda found, path, *, workload: saving.SavedModel(path, 1234, "safetensors", ("a note",)),
    )
    files = {name: tmp_path / f"x.{name}" for name in ("html", "markdown", "save")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert main(["optimize", "mlp", "--no-store", *words]) == 0
    assert "int8-dynamic" in files["html"].read_text("utf-8")
    assert "int8-dynamic" in files["markdown"].read_text("utf-8")
    said = capsys.readouterr().err
    assert f"wrote {files['html']}\n" in said
    assert f"wrote {files['save']}: 1.21 KiB, safetensors; " in said
    assert said.endswith("\na note\n")


def test_a_snippet_names_target_and_model(optimized, tmp_path, monkeypatch):
    from tinytorch.tuning import saving as snippet

    optimized(optimization())
    monkeypatch.setattr(saving, "save_optimized", lambda *_, **__: saving.SavedModel("x", 1, "f"))
    monkeypatch.setattr(
        snippet, "snippet", lambda found, *, target, saved: f"# {target} in {saved}\n"
    )
    file = tmp_path / "again.py"
    words = ["--snippet", str(file), "--save", str(tmp_path / "best")]
    assert main(["optimize", "mlp", "--no-store", *words]) == 0
    assert file.read_text("utf-8") == f"# mlp in {tmp_path / 'best'}\n"


def test_where_nothing_is_recommended_there_is_no_model(optimized, capsys, tmp_path):
    optimized(optimization(*UNUSABLE))
    assert main(["optimize", "mlp", "--no-store", "--save", str(tmp_path / "best")]) == 0
    assert f"nothing is recommended, so {tmp_path / 'best'} was not written" in (
        capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []


def test_several_files_were_not_written(optimized, capsys, tmp_path):
    optimized(optimization(*UNUSABLE))
    save, snippet = tmp_path / "best", tmp_path / "again.py"
    words = ["--save", str(save), "--snippet", str(snippet)]
    assert main(["optimize", "mlp", "--no-store", *words]) == 0
    assert f"so {save} and {snippet} were not written\n" in capsys.readouterr().err


def test_a_full_disk_takes_no_result_away(optimized, capsys, tmp_path, monkeypatch):
    optimized(optimization())

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(written_files, "write_atomically", full)
    words = ["--html", str(tmp_path / "x.html"), "--markdown", str(tmp_path / "x.md")]
    assert main(["optimize", "mlp", "--no-store", *words]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert "int8-dynamic" in captured.out.splitlines()[1]
    for name in ("x.html", "x.md"):
        assert f"{tmp_path / name} cannot be written: No space left on device" in captured.err


def test_what_cannot_be_written_does_not_stop_the_rest(optimized, tmp_path, monkeypatch):
    optimized(optimization())

    def broken(found, path, *, workload):
        raise saving.CheckpointError("the disk is full")

    monkeypatch.setattr(saving, "save_optimized", broken)
    words = ["--save", str(tmp_path / "best"), "--html", str(tmp_path / "x.html")]
    assert main(["optimize", "mlp", "--no-store", *words]) == ExitCode.INVALID
    assert (tmp_path / "x.html").exists()


# ---------------------------------------------------------------- records


def test_the_record_is_named(optimized, capsys, tmp_path, monkeypatch):
    found = optimization(name="mlp")
    optimized(found)

    def keep(workload, *, store, **_):
        add_record(store, optimization_record(found, origin_of(workload, Settings())))
        return found

    monkeypatch.setattr(optimize, "optimize", keep)
    file = tmp_path / "records.sqlite"
    assert main(["optimize", "mlp", "--store", str(file), "--json"]) == 0
    captured = capsys.readouterr()
    hash = json.loads(captured.out)["record"]
    assert f"{hash[:12]} in {file}" in captured.err
    with open_store(file) as store:
        assert store.get(hash).details["recommended"] == "int8-dynamic"


def test_a_result_that_was_not_kept_has_no_record(optimized, capsys, tmp_path):
    optimized(optimization(notes=("not kept as a record: the disk is full",)))
    assert main(["optimize", "mlp", "--store", str(tmp_path / "r.sqlite")]) == 0
    captured = capsys.readouterr()
    assert "kept as" not in captured.err
    assert "not kept as a record: the disk is full" in one_line(captured.out)


def test_a_store_that_was_named_and_cannot_be_used_is_an_error(optimized, capsys, tmp_path):
    asked = optimized(optimization())
    (tmp_path / "text.sqlite").write_text("no database at all", "utf-8")
    words = ["--store", str(tmp_path / "text.sqlite")]
    assert main(["optimize", "mlp", *words]) == ExitCode.INVALID
    assert asked == {}


def test_without_a_usable_store_it_goes_on(optimized, capsys, tmp_path, monkeypatch):
    asked = optimized(optimization())
    (tmp_path / "text.sqlite").write_text("no database at all", "utf-8")
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "text.sqlite"))
    assert main(["optimize", "mlp"]) == 0
    assert asked["store"] is None
    assert "nothing is stored: " in capsys.readouterr().err


# ---------------------------------------------------------------- the catalog


def test_the_catalog_is_listed(capsys):
    assert main(["optimize", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{each.name} " in shown for each in catalog.CATALOG)


def test_what_fits_a_target_is_listed(capsys):
    words = ["--goal", "size", "--skip", "low-rank", "--json"]
    assert main(["optimize", "mlp", "--list", *words]) == 0
    listed = [each["name"] for each in json.loads(capsys.readouterr().out)["entries"]]
    entries = catalog.entries_for(load_workload("mlp"), "size", skip=["low-rank"])
    assert listed == [each.name for each in entries]
    assert "compiled" not in listed


def test_what_was_named_and_does_not_fit_a_target_is_said(capsys):
    words = ["--only", "int8-dynamic", "channels-last", "--list", "--json"]
    assert main(["optimize", "mlp", *words]) == 0
    seen = capsys.readouterr()
    assert [each["name"] for each in json.loads(seen.out)["entries"]] == ["int8-dynamic"]
    assert "channels-last needs a model of pytorch, this is one of core\n" in seen.err


def test_some_of_the_catalog_are_listed(capsys):
    assert main(["optimize", "--list", "--json", "--only", "threads", "compiled"]) == 0
    listed = json.loads(capsys.readouterr().out)["entries"]
    assert [each["name"] for each in listed] == ["threads", "compiled"]
    assert listed[0]["devices"] == ["cpu"]


def test_markdown_can_take_the_place_of_the_text(optimized, capsys):
    optimized(optimization())
    assert main(["optimize", "mlp", "--no-store", "--markdown", "-"]) == 0
    assert capsys.readouterr().out.startswith("#")


# ---------------------------------------------------------------- for real


@pytest.fixture
def _without_ceilings(monkeypatch):
    """Do without measuring the machine, which takes longer than all of the rest."""
    monkeypatch.setattr(optimize, "profile_workload", partial(profile_workload, ceilings=False))


@pytest.mark.usefixtures("_without_ceilings")
def test_a_second_run_repeats_nothing(capsys, tmp_path, factory):
    words = [factory("fine"), *LINEAR_QUICKLY, "--store", str(tmp_path / "r.sqlite"), "--json"]
    results = []
    for _ in range(2):
        assert main(["optimize", *words]) in (ExitCode.FINE, ExitCode.INCONCLUSIVE)
        results.append(json.loads(capsys.readouterr().out)["optimization"]["attempts"])
    (first,), (second,) = results
    was_decided = first["outcome"] in {"better", "no gain", "worse", "inaccurate"}
    is_same = second["comparison"] == first["comparison"]
    assert is_same == (was_decided and first["comparison"] is not None)
    with open_store(tmp_path / "r.sqlite") as store:
        assert len(store.find(kind="optimization")) == 2
        assert len(store.find(kind="attempt")) == (1 if was_decided else 2)


@pytest.mark.usefixtures("_without_ceilings")
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("alone", ExitCode.USAGE, "it must return a Workload, or a model and its inputs"),
        ("without_inputs", ExitCode.USAGE, "has no example inputs; give the model something"),
        ("failing", ExitCode.INVALID, "ZeroDivisionError: division by zero"),
        ("dice", ExitCode.INVALID, "is not deterministic"),
    ],
)
def test_a_target_that_cannot_be_optimized_is_one_line(capsys, factory, name, code, message):
    assert main(["optimize", factory(name), *LINEAR_QUICKLY, "--no-store"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("tinytorch: error: ")
    assert message in line


@pytest.mark.usefixtures("_without_ceilings")
def test_an_evaluate_that_fails_in_every_attempt_is_no_result(capsys, factory):
    words = [factory("picky"), *LINEAR_QUICKLY, "--no-store", "--json"]
    assert main(["optimize", *words]) == ExitCode.INVALID
    captured = json.loads(capsys.readouterr().out)
    assert captured["exit_code"] == ExitCode.INVALID
    assert [each["outcome"] for each in captured["optimization"]["attempts"]] == ["failed"]


@pytest.mark.usefixtures("_without_ceilings")
def test_too_few_examples_are_said_before_anything_is_tried(capsys, factory):
    words = [each for each in LINEAR_QUICKLY if each != "--quiet"]
    main(["optimize", factory("picky"), *words, "--no-store"])
    first = capsys.readouterr().err.splitlines()[0]
    assert "168 examples" in first
    assert "299" in first


@pytest.mark.usefixtures("_without_ceilings")
def test_an_interrupt_shows_and_keeps_what_is_finished(capsys, tmp_path, monkeypatch, factory):
    tried = []

    def attempt(self, entries, **_):
        if tried:
            raise KeyboardInterrupt
        tried.append(timed(*(each.name for each in entries)))
        return tried[0], None

    monkeypatch.setattr("tinytorch.tuning.trying.Trials.attempt", attempt)
    file = tmp_path / "r.sqlite"
    words = ["--budget", "1", "--store", str(file)]
    assert main(["optimize", factory("fine"), *words]) == ExitCode.INTERRUPTED
    captured = capsys.readouterr()
    assert "Interrupted" in captured.out
    assert tried[0].name in captured.out
    with open_store(file) as store:
        (record,) = store.find(kind="attempt")
        (whole,) = store.find(kind="optimization")
    assert replace(Attempt.from_dict(record.details), notes=()) == tried[0]
    assert whole.details["was_interrupted"] is True
